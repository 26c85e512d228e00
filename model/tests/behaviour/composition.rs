//! A layer is the composition of the reference operators that the specification says, in every mode.

use burn::tensor::{DType, Device, Int, Tensor};
use csa2_model::attention::{Context, Phase, Trace};
use csa2_model::checkpoint::weights;
use csa2_model::config::ModelConfig;
use csa2_model::mix::{Mode, PlannedLayer};
use csa2_model::ops::{PoolUse, SelectSpec, reference};

use super::common::small::{self, MIXES};
use super::common::{assert_close, ints, numbers};
use super::{PHASES, Step, model, walk};

/// What layer `layer` selects by the reference, from its indexer's queries and the content's keys.
fn selected(
    config: &ModelConfig,
    layer: &PlannedLayer,
    step: &Step,
    below: Option<&Step>,
    seq: usize,
) -> Tensor<3, Int> {
    let asked = step.trace.index_query.clone().unwrap();
    let content = step.trace.content.clone().unwrap();
    let pool = config.pool.unwrap_or(csa2_model::config::PoolConfig { blocks: 1, block_size: 1 });
    let pool_use = match layer {
        PlannedLayer { builds_pool: true, .. } => PoolUse::Build { blocks: pool.blocks, size: pool.block_size },
        PlannedLayer { pool_from: Some(_), .. } => PoolUse::Read { size: pool.block_size },
        _ => PoolUse::None,
    };
    let read = layer.pool_from.map(|_| below.unwrap().handed.pool.clone().unwrap());
    let spec =
        SelectSpec { ratio: layer.ratio, start: 0, entries: seq / layer.ratio, topk: config.topk, pool: pool_use };
    let found = reference::index_select(asked.q, content.index_keys.unwrap(), asked.weights, read, spec).unwrap();
    if layer.builds_pool {
        assert_eq!(ints(step.handed.pool.clone().unwrap()), ints(found.pool.unwrap()));
    }
    found.topk
}

fn check_address(config: &ModelConfig, layer: &PlannedLayer, steps: &[Step], seq: usize, phase: Phase) {
    let step = &steps[layer.index];
    let topk = ints(step.trace.topk.clone());
    let own = layer.mode.has_indexer();
    if own && phase == Phase::Sparse {
        let below = layer.index.checked_sub(1).map(|below| &steps[below]);
        assert_eq!(topk, ints(selected(config, layer, step, below, seq)), "{} layer {}", config.layers, layer.index);
    } else if own {
        let width = topk.len() / (2 * seq);
        for (row, listed) in topk.chunks(width).enumerate() {
            let visible = (row % seq + 1) / layer.ratio;
            let expected: Vec<i64> = (0..width).map(|j| if j < visible { j as i64 } else { -1 }).collect();
            assert_eq!(listed, expected, "{} layer {}", config.layers, layer.index);
        }
    } else if layer.ratio == 0 {
        assert!(topk.iter().all(|&i| i == -1));
    }
}

fn check_readout(config: &ModelConfig, layer: &PlannedLayer, trace: &Trace, sink: &[f32], seq: usize) {
    let main = trace
        .content
        .as_ref()
        .map_or_else(|| Tensor::zeros_like(&trace.window.clone().narrow(1, 0, 1)), |c| c.main.clone());
    let width = if layer.mode == Mode::Dense { seq } else { config.window };
    let scale = (config.head_dim as f64).powf(-0.5);
    let sink = Tensor::<1>::from_data(sink, &Device::flex());
    let (read, lse) =
        reference::readout(trace.q.clone(), trace.window.clone(), main, sink, trace.topk.clone(), width, scale);
    let what = format!("{} layer {}, {seq} tokens", config.layers, layer.index);
    assert_close(&what, &numbers(trace.readout.clone()), &numbers(read), 1e-5);
    assert_close(&what, &numbers(trace.lse.clone()), &numbers(lse), 1e-5);
    let cx = Context::new(config, seq, DType::F32, &Device::flex());
    let rope = cx.tokens(layer.ratio);
    let back = reference::rotate(trace.readout.clone(), rope.cos(), rope.sin(), true);
    assert_close(&what, &numbers(trace.readout_back.clone()), &numbers(back), 1e-5);
}

/// The mean over the queries that see an entry, 0 where none does.
fn check_index_loss(config: &ModelConfig, layer: &PlannedLayer, step: &Step, seq: usize) {
    let Some(found) = &step.index_loss else {
        assert!(!layer.mode.has_indexer());
        return;
    };
    let Trace { q, content, index_query, topk, lse, .. } = step.trace.clone();
    let (content, asked) = (content.unwrap(), index_query.unwrap());
    let scale = (config.head_dim as f64).powf(-0.5);
    let teacher = reference::attention_mass(q, content.main, lse, topk.clone(), scale);
    let losses = numbers(reference::index_kl(asked.q, content.index_keys.unwrap(), asked.weights, teacher, topk));
    let asking: Vec<f64> =
        losses.iter().enumerate().filter(|(row, _)| row % seq + 1 >= layer.ratio).map(|(_, &loss)| loss).collect();
    let mean = asking.iter().sum::<f64>() / asking.len().max(1) as f64;
    assert!(losses.iter().sum::<f64>() == 0.0 || !asking.is_empty());
    assert_close(&format!("{} layer {}", config.layers, layer.index), &numbers(found.clone()), &[mean], 1e-5);
}

#[test]
fn every_layer_is_what_the_reference_says() {
    let quantized = small::FORMATS.into_iter().flat_map(|formats| MIXES.map(|mix| small::quantized(mix, formats)));
    for config in MIXES.map(small::config).into_iter().chain(quantized) {
        let model = model(&config);
        let sinks = weights(&model).unwrap();
        for phase in PHASES {
            for seq in [1, 2, 3, 9, 14] {
                let steps = walk(&model, &config, [2, seq], phase);
                for (layer, step) in config.layers.layers().iter().zip(&steps) {
                    check_address(&config, layer, &steps, seq, phase);
                    let sink = &sinks[&format!("layers.{}.attn.attn_sink", layer.index)].values;
                    check_readout(&config, layer, &step.trace, sink, seq);
                    check_index_loss(&config, layer, step, seq);
                }
            }
        }
    }
}

#[test]
fn short_texts_give_finite_numbers() {
    for mix in MIXES {
        // Shorter than the window, the ratio and K.
        let config = ModelConfig { window: 8, topk: 4, ..small::config(mix) };
        let model = model(&config);
        for phase in PHASES {
            for seq in 1..6 {
                let settings = |cx: Context| cx.with_phase(phase).with_index_loss(true);
                let out = small::forward(&model, &config, &super::tokens([2, seq]), [2, seq], settings);
                assert!(numbers(out.logits).iter().all(|value| value.is_finite()), "{mix} {phase:?} {seq}");
                for (layer, loss) in out.index_losses {
                    let loss = numbers(loss)[0];
                    assert!(loss.is_finite() && loss >= -1e-6, "{mix} {phase:?} {seq}: layer {layer}: {loss}");
                }
            }
        }
    }
}
