//! `b_block_*`: a whole block with hyper-connections, attention, gate and experts.

use burn::tensor::{DType, Device, Tensor};
use csa2_model::attention::Context;
use csa2_model::block::{Block, BlockTrace, Stream};
use csa2_model::checkpoint::load;
use csa2_model::config::{FfnConfig, ModelConfig};

use super::attention::{layer, shared};
use crate::conform::Place;
use crate::conform::block::{Held, apart, compare};
use crate::conform::case::{Array, Case};
use crate::conform::check::{Check, numbers};
use crate::conform::error::CaseError;
use crate::conform::layer::around;
use crate::conform::sizes::{check_layer, check_rows};
use crate::conform::tolerance::LAYER;

/// Compares one case.
///
/// # Errors
/// When the case is not what the family holds, or the device fails.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    let case = check.case;
    let config = case.config()?;
    if !place.holds_model(check, &config) {
        return Ok(());
    }
    let device = &place.device;
    let layer = layer(case, &config)?;
    let weights = case.weights("weights.")?;
    check_layer(&config, &layer, &weights)?;
    let block = load(Block::new(&config, &layer, device), weights, case.name())?;
    let [batch, seq, n, _] = case.dims("cap.streams_in")?;
    check_rows(&config, batch, seq)?;
    let (stream, streams) = start(case, &config, [batch, seq, n], device)?;
    let mut shared = shared(case, &config, &layer, [batch, seq], device)?;
    let cx = Context::new(&config, seq, DType::F32, device).with_trace(true);
    let trace = block.forward(stream, &mut shared, &cx).trace.expect("the context asks for traces");

    let (middle, _) = apart(trace.middle.clone());
    let (output, _) = apart(trace.output.clone());
    let dims = [batch, seq, n, config.d_model];
    check.tensor("f64.streams_out", output.reshape(dims), LAYER)?;
    gate_margins(check, &config, &trace)?;
    compare(check, &config, &layer, trace, &Held { prefix: "cap.", tolerance: LAYER, whole: true, margins: None })?;
    // Both parts decide from the streams that they found how theirs are written and mixed.
    for (mix, found, name) in
        block.mixes().into_iter().flatten().zip([streams, middle]).zip(["attn", "ffn"]).map(|((m, s), n)| (m, s, n))
    {
        let mixes = mix.mixes(found);
        check.tensor(&format!("cap.hc_{name}_post"), mixes.post.reshape([batch, seq, n]), LAYER)?;
        check.tensor(&format!("cap.hc_{name}_comb"), mixes.comb.reshape([batch, seq, n, n]), LAYER)?;
    }
    Ok(())
}

/// The streams that the block finds, with what attention reads of them; and the streams alone `[B S, n, d_model]`.
fn start(
    case: &Case,
    config: &ModelConfig,
    [batch, seq, n]: [usize; 3],
    device: &Device,
) -> Result<(Stream, Tensor<3>), CaseError> {
    let dims = [batch, seq, n, config.d_model];
    let streams = case.tensor("cap.streams_in", dims, device, DType::F32)?.reshape([batch * seq, n, config.d_model]);
    let pre = case.tensor("cap.pre_mix_in", [batch, seq, n], device, DType::F32)?.reshape([batch * seq, n]);
    Ok((Stream::Hyper { streams: streams.clone(), pre, shape: [batch, seq] }, streams))
}

/// How far the last expert chosen and the first one left out lie apart, by the score of the one left out: from what the
/// feed-forward part reads here, and from what the case holds of that.
fn gate_margins(check: &mut Check, config: &ModelConfig, trace: &BlockTrace) -> Result<(), CaseError> {
    let case = check.case;
    let FfnConfig::Moe { experts, active, .. } = config.ffn else { return Ok(()) };
    let [batch, seq, d_model] = trace.ffn_input.dims();
    let weight = case.floats("weights.ffn.gate.weight", &[experts, d_model])?;
    let bias = case.floats("weights.ffn.gate.bias", &[experts])?.values;
    let ranks = |x: &[f64]| -> (f64, f64) {
        let logits = weight.rows().map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>());
        around(logits.zip(&bias).map(|(logit, bias)| logit.exp().ln_1p().sqrt() + bias), active)
    };
    let margins = case.floats("cap.ffn.gate_margin", &[batch * seq])?;
    let expected = case.floats("cap.ffn.input", &[batch, seq, d_model])?;
    let values = expected.rows().zip(&margins.values).map(|(x, margin)| ranks(x).0 - margin).collect();
    let found: Vec<f64> = numbers(trace.ffn_input.clone())?.chunks(d_model).map(|x| ranks(x).1).collect();
    check.close(&margins.name, &found, &Array { values, ..margins.clone() }, LAYER);
    Ok(())
}
