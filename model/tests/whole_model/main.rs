//! Whole networks of every mode against loops over plain numbers, in f64.
#![cfg(feature = "flex")]

#[path = "../common/mod.rs"]
mod common;
mod plain;

use burn::module::Module;
use burn::tensor::{DType, Device};
use common::random::Source;
use common::small::{self, MIXES};
use common::{ToF64, assert_close, numbers};
use csa2_model::attention::{Context, Phase};
use csa2_model::checkpoint::weights;
use csa2_model::config::ModelConfig;
use csa2_model::model::Model;
use plain::Plain;

fn check_model(model: &Model, config: &ModelConfig, hint: Option<usize>, shape: [usize; 2], phase: Phase) {
    let device = Device::flex();
    let what = format!("{} {phase:?} {shape:?}", config.layers);
    let tokens = Source::new(shape[1] as u64).tokens(shape, config.vocab_size.unwrap());
    let cx = Context::new(config, shape[1], DType::F64, &device).with_phase(phase).with_index_loss(true);
    let out = model.clone().map(&mut ToF64).forward(small::ids(&tokens, shape, &device), &cx);

    let weights = weights(model).unwrap();
    let plain = Plain { config, weights: &weights, phase };
    let rows: Vec<_> = tokens.chunks(shape[1]).map(|tokens| plain.forward(tokens, hint)).collect();
    let logits: Vec<f64> = rows.iter().flat_map(|row| row.logits.concat()).collect();
    assert_close(&what, &numbers(out.logits), &logits, 1e-10);
    assert_eq!(out.hint.is_some(), hint.is_some());
    if let Some(found) = out.hint {
        let expected: Vec<f64> = rows.iter().flat_map(|row| row.hint.concat()).collect();
        assert_close(&format!("{what}: hint"), &numbers(found), &expected, 1e-10);
    }
    assert_eq!(out.index_losses.len(), rows[0].losses.len());
    for (place, (layer, found)) in out.index_losses.into_iter().enumerate() {
        assert_eq!(layer, rows[0].losses[place].0);
        let asking: Vec<f64> = rows.iter().flat_map(|row| row.losses[place].1.clone()).collect();
        let mean = asking.iter().sum::<f64>() / asking.len().max(1) as f64;
        assert_close(&format!("{what}: loss of layer {layer}"), &numbers(found), &[mean], 1e-10);
    }
}

fn check(config: &ModelConfig, shapes: &[[usize; 2]]) {
    let model = small::model(config, 1, &Device::flex());
    for phase in [Phase::Sparse, Phase::Dense] {
        for &shape in shapes {
            check_model(&model, config, None, shape, phase);
        }
    }
}

#[test]
fn every_mix_and_length() {
    for mix in MIXES {
        check(&small::config(mix), &[[2, 1], [1, 2], [2, 3], [2, 9], [1, 14], [2, 40]]);
    }
}

#[test]
fn without_optional_parts() {
    for mix in MIXES {
        let plain =
            ModelConfig { query_rank: None, output_rank: None, output_groups: 1, yarn: None, ..small::config(mix) };
        check(&plain, &[[2, 3], [2, 21]]);
    }
}

#[test]
fn other_sizes() {
    let sizes = ModelConfig {
        heads: 6,
        head_dim: 10,
        rope_dim: 6,
        output_groups: 3,
        output_rank: Some(5),
        window: 1,
        topk: 5,
        index_heads: 3,
        index_dim: 9,
        norm_eps: 1e-2,
        sink_init: 1.0,
        ..small::config("full full@3 stale@3 reindex reuse")
    };
    check(&sizes, &[[2, 5], [1, 26]]);
    let whole = ModelConfig { rope_dim: 6, head_dim: 6, index_dim: 6, output_rank: None, output_groups: 1, ..sizes };
    check(&whole, &[[2, 11]]);
}

#[test]
fn quantized() {
    for mix in MIXES {
        for formats in small::FORMATS {
            check(&small::quantized(mix, formats), &[[2, 1], [2, 3], [1, 21]]);
        }
    }
}

#[test]
fn a_block_size_that_does_not_divide() {
    let mut config = small::config("full+pool reindex reuse full@2+pool reindex");
    for (blocks, block_size) in [(1, 3), (2, 5), (4, 1), (3, 7)] {
        config.pool = Some(csa2_model::config::PoolConfig { blocks, block_size });
        check(&config, &[[2, 4], [1, 33]]);
    }
}

#[test]
fn the_hint_head_reads_behind_its_layer() {
    let config = small::config("swa full@2 reuse");
    for hint in 0..3 {
        let model = small::start(Model::new(&config, Some(hint), &Device::flex()).unwrap(), 3);
        check_model(&model, &config, Some(hint), [2, 7], Phase::Sparse);
    }
}

#[test]
fn watchers_see_the_stream_after_every_layer() {
    let config = small::config("swa full@2 reuse");
    let device = Device::flex();
    let model = small::model(&config, 1, &device);
    let cx = Context::new(&config, 5, DType::F32, &device);
    let tokens = small::ids(&[1, 2, 3, 4, 5], [1, 5], &device);
    let mut seen = Vec::new();
    let out = model.forward_watched(tokens.clone(), &cx, |layer, x| seen.push((layer, numbers(x.read()))));
    assert_eq!(seen.iter().map(|(layer, _)| *layer).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(numbers(out.logits), numbers(model.forward(tokens.clone(), &cx).logits));
    // A model cut behind a layer ends with what the watcher saw there: through the norm and head that both share.
    let shorter = small::config("swa full@2");
    let cut = small::model(&shorter, 1, &device);
    let mut last = Vec::new();
    cut.forward_watched(tokens, &cx, |_, x| last = numbers(x.read()));
    assert_eq!(seen[1].1, last);
}
