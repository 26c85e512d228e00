//! What whole networks of every mode must and must not do.
#![cfg(feature = "flex")]

mod beginnings;
mod causality;
#[path = "../common/mod.rs"]
mod common;
mod composition;
mod determinism;
mod equalities;
mod learning;
mod modes;
mod quantization;
mod straight_through;
mod teachers;
mod values;

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use common::random::Source;
use common::small;
use csa2_model::attention::{Context, Phase, Shared, Trace};
use csa2_model::block::Stream;
use csa2_model::config::ModelConfig;
use csa2_model::model::Model;

const PHASES: [Phase; 2] = [Phase::Sparse, Phase::Dense];

/// A small model of `mix` on the CPU, without gradients.
fn model(config: &ModelConfig) -> Model {
    small::model(config, 1, &Device::flex())
}

/// Token ids for `shape`.
fn tokens(shape: [usize; 2]) -> Vec<i32> {
    Source::new(2).tokens(shape, small::VOCABULARY)
}

/// The bits of the logits of one pass, row by row `[B * S]`.
fn logit_rows(model: &Model, config: &ModelConfig, tokens: &[i32], shape: [usize; 2], phase: Phase) -> Vec<Vec<u32>> {
    let out = small::forward(model, config, tokens, shape, |cx| cx.with_phase(phase));
    small::bits(&small::floats(out.logits)).chunks(small::VOCABULARY).map(<[u32]>::to_vec).collect()
}

/// One layer's intermediate values, and what is handed on after it.
struct Step {
    trace: Trace,
    index_loss: Option<Tensor<1>>,
    handed: Shared,
}

/// Runs the blocks one by one over a random residual stream of `shape`, index losses and all.
fn walk(model: &Model, config: &ModelConfig, shape: [usize; 2], phase: Phase) -> Vec<Step> {
    let device = model.devices().remove(0);
    let cx = Context::new(config, shape[1], DType::F32, &device);
    let cx = cx.with_phase(phase).with_trace(true).with_index_loss(true);
    let x = Source::new(3).normal([shape[0], shape[1], config.d_model], &device, DType::F32);
    let mut stream = Stream::start(x, config.residual);
    let mut handed = Shared::default();
    let step = |block: &csa2_model::block::Block| {
        let out = block.forward(stream.clone(), &mut handed, &cx);
        stream = out.stream;
        Step { trace: out.trace.unwrap().attn, index_loss: out.index_loss, handed: handed.clone() }
    };
    model.layers().iter().map(step).collect()
}
