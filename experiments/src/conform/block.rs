//! One block's intermediate values beside those that a case holds.

use burn::tensor::Tensor;
use csa2_model::block::{BlockTrace, Routing, Stream};
use csa2_model::config::ModelConfig;
use csa2_model::mix::PlannedLayer;

use super::case::Array;
use super::check::{Check, numbers};
use super::error::CaseError;
use super::layer::{self, Made};
use super::tolerance::Tolerance;

/// What the case holds of a block.
pub struct Held<'a> {
    /// How the names of its tensors begin.
    pub prefix: &'a str,
    /// How far numbers may be off.
    pub tolerance: Tolerance,
    /// Whether every intermediate value must be there, or only each part's output and the choices.
    pub whole: bool,
    /// As [`layer::Held::margins`].
    pub margins: Option<&'a str>,
}

/// Compares everything that the case holds of the block. It may hold the first sequences of the batch alone.
///
/// # Errors
/// When the case lacks a value or has it in another shape, or the device fails.
pub fn compare(
    check: &mut Check,
    config: &ModelConfig,
    layer: &PlannedLayer,
    trace: BlockTrace,
    held: &Held,
) -> Result<(), CaseError> {
    let name = |part: &str| format!("{}{part}", held.prefix);
    let BlockTrace { attn, attn_input, attn_output, middle, ffn_input, ffn_output, routing, output } = trace;
    let [batch, seq] = layer::held_rows(check.case, &name("ffn.output"), ffn_output.dims())?;
    let prefix = name("attn.");
    let attention =
        layer::Held { prefix: &prefix, tolerance: held.tolerance, whole: held.whole, margins: held.margins };
    layer::compare(check, Made { config, layer, trace: attn, output: attn_output }, &attention)?;
    let mut values = Values { check, held, batch, seq };
    values.compare("attn.input", attn_input)?;
    values.compare("ffn.input", ffn_input)?;
    values.compare("ffn.output", ffn_output)?;
    values.streams("streams_mid", "hc_attn_pre", middle)?;
    values.streams("streams_out", "hc_ffn_pre", output)?;
    match routing {
        Some(routing) => choices(check, &routing, batch * seq, held),
        None => Ok(()),
    }
}

struct Values<'a, 'b, 'c> {
    check: &'a mut Check<'c>,
    held: &'a Held<'b>,
    batch: usize,
    seq: usize,
}

impl Values<'_, '_, '_> {
    /// Compares the first sequences with the tensor named by `part`.
    fn compare<const D: usize>(&mut self, part: &str, found: Tensor<D>) -> Result<(), CaseError> {
        let name = format!("{}{part}", self.held.prefix);
        let needed = self.held.whole || part == "ffn.output";
        if !needed && !self.check.case.has(&name) {
            return Ok(());
        }
        self.check.tensor(&name, found.narrow(0, 0, self.batch), self.held.tolerance)
    }

    /// Compares all streams, and what the next part reads of them.
    fn streams(&mut self, streams_name: &str, pre_name: &str, stream: Stream) -> Result<(), CaseError> {
        let (streams, pre) = apart(stream);
        let [rows, n, channels] = streams.dims();
        let batch = rows / self.seq;
        self.compare(streams_name, streams.reshape([batch, self.seq, n, channels]))?;
        match pre {
            Some(pre) => self.compare(pre_name, pre.reshape([batch, self.seq, n])),
            None => Ok(()),
        }
    }
}

/// The streams `[B S, n, d_model]`, and what the next part reads of each `[B S, n]` where there are several.
pub fn apart(stream: Stream) -> (Tensor<3>, Option<Tensor<2>>) {
    match stream {
        Stream::Hyper { streams, pre, .. } => (streams, Some(pre)),
        Stream::Plain(x) => {
            let [batch, seq, channels] = x.dims();
            (x.reshape([batch * seq, 1, channels]), None)
        }
    }
}

/// The experts of the first `rows` tokens, which the case lists in no particular order, and their weights.
fn choices(check: &mut Check, routing: &Routing, rows: usize, held: &Held) -> Result<(), CaseError> {
    let case = check.case;
    let name = |part: &str| format!("{}ffn.{part}", held.prefix);
    let [_, active] = routing.weights.dims();
    let experts = case.ints(&name("gate_indices"), &[rows, active], 0..routing.load.len() as i64)?;
    let weights = case.floats(&name("gate_weights"), &[rows, active])?;
    let chosen: Vec<i64> = routing.experts.iter().take(rows * active).map(|&expert| expert as i64).collect();
    let given = numbers(routing.weights.clone().narrow(0, 0, rows))?;
    let (found, found_weights) = ascending(chosen, given, active);
    let (values, weight_values) = ascending(experts.values, weights.values, active);
    check.equal(&name("gate_indices"), &found, &Array { values, ..experts });
    let expected = Array { values: weight_values, ..weights };
    check.close(&name("gate_weights"), &found_weights, &expected, held.tolerance);
    Ok(())
}

/// Every token's experts in ascending order, with their weights.
pub fn ascending(experts: Vec<i64>, weights: Vec<f64>, active: usize) -> (Vec<i64>, Vec<f64>) {
    let mut pairs: Vec<(i64, f64)> = experts.into_iter().zip(weights).collect();
    pairs.chunks_mut(active.max(1)).for_each(|token| token.sort_by_key(|(expert, _)| *expert));
    pairs.into_iter().unzip()
}
