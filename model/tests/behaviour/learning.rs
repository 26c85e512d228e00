//! Which loss teaches which parameter.

use std::collections::BTreeMap;

use burn::tensor::{DType, Device, Tensor};
use csa2_model::attention::{Context, Phase, Shared};
use csa2_model::block::Stream;
use csa2_model::checkpoint::{is_indexer, load, weights};
use csa2_model::config::ModelConfig;
use csa2_model::mix::Mode;
use csa2_model::model::ModelOutput;

use super::common::random::Source;
use super::common::small::{self, MIXES};
use super::common::{ints, numbers};
use super::{PHASES, tokens};

const SHAPE: [usize; 2] = [2, 13];

/// Gradients of every parameter of `mix` for a loss made from the outputs of one pass.
fn gradients(
    config: &ModelConfig,
    phase: Phase,
    loss: impl Fn(ModelOutput) -> Tensor<1>,
) -> BTreeMap<String, Vec<f32>> {
    let model = small::model(config, 8, &Device::flex().autodiff());
    let out = small::forward(&model, config, &tokens(SHAPE), SHAPE, |cx| cx.with_phase(phase).with_index_loss(true));
    small::gradients(&model, &loss(out).backward())
}

fn language(out: ModelOutput) -> Tensor<1> {
    small::language_loss(out.logits, &tokens(SHAPE))
}

fn index(out: ModelOutput) -> Tensor<1> {
    out.index_losses.into_iter().map(|(_, loss)| loss).reduce(|a, b| a + b).unwrap()
}

/// The parameters that a gradient reaches.
fn reached(gradients: &BTreeMap<String, Vec<f32>>) -> Vec<&str> {
    let moved = |values: &[f32]| values.iter().any(|&g| g != 0.0);
    gradients.iter().filter(|(_, values)| moved(values)).map(|(name, _)| name.as_str()).collect()
}

#[test]
fn the_language_model_teaches_everything_but_the_indexers() {
    for mix in MIXES {
        for phase in PHASES {
            let found = gradients(&small::config(mix), phase, language);
            let expected: Vec<&str> = found.keys().map(String::as_str).filter(|name| !is_indexer(name)).collect();
            assert_eq!(reached(&found), expected, "{mix} {phase:?}");
        }
    }
}

#[test]
fn a_reuse_layer_learns_its_query() {
    let config = small::config("full reuse");
    assert_eq!(config.layers.layers()[1].mode, Mode::Reuse);
    let found = gradients(&config, Phase::Sparse, language);
    assert!(found["layers.1.attn.wq_b.weight"].iter().any(|g| g.abs() > 1e-6));
    assert!(found["layers.0.attn.indexer.wq_b.weight"].iter().all(|&g| g == 0.0));
}

#[test]
fn every_reader_teaches_the_content_that_it_reads() {
    let config = small::config("full@2 reuse reindex stale@2");
    let device = Device::flex().autodiff();
    let model = small::model(&config, 8, &device);
    let cx = Context::new(&config, SHAPE[1], DType::F32, &device);
    let x = Source::new(9).normal([SHAPE[0], SHAPE[1], config.d_model], &device, DType::F32);
    // Every block gets the same constant input, so that what reaches the compressor comes through its content alone.
    let compressor = |readers: &[usize]| {
        let mut shared = Shared::default();
        let outputs: Vec<_> = model
            .layers()
            .iter()
            .map(|block| block.forward(Stream::Plain(x.clone()), &mut shared, &cx).stream.read())
            .collect();
        let loss = readers.iter().map(|&reader| outputs[reader].clone().sum()).reduce(|a, b| a + b).unwrap();
        small::gradients(&model, &loss.backward()).remove("layers.0.attn.compressor.wkv.weight").unwrap()
    };
    let each: Vec<Vec<f32>> = (0..4).map(|reader| compressor(&[reader])).collect();
    for reader in [0, 1, 2] {
        assert!(each[reader].iter().any(|g| g.abs() > 1e-3), "layer {reader}");
    }
    assert!(each[3].iter().all(|&g| g == 0.0), "a stale layer reads other content");
    for (at, all) in compressor(&[0, 1, 2, 3]).into_iter().enumerate() {
        let sum: f32 = each.iter().map(|gradient| gradient[at]).sum();
        assert!((all - sum).abs() < 1e-4 * sum.abs().max(1.0), "the readers add up: {all} against {sum}");
    }
}

#[test]
fn the_teacher_feels_the_sink() {
    let config = small::config("swa full");
    let model = super::model(&config);
    let run = |sink: f32| {
        let mut changed = weights(&model).unwrap();
        changed.get_mut("layers.1.attn.attn_sink").unwrap().values[0] = sink;
        let model = load(model.clone(), changed, "changed").unwrap();
        let settings = |cx: Context| cx.with_index_loss(true).with_trace(true);
        let mut out = small::forward(&model, &config, &tokens(SHAPE), SHAPE, settings);
        (numbers(out.index_losses.remove(0).1)[0], ints(out.traces.remove(1).attn.topk))
    };
    let ((low, same), (high, topk)) = (run(-3.0), run(3.0));
    assert_eq!(same, topk, "the selection does not depend on it");
    assert!((low - high).abs() > 1e-4, "{low} and {high}");
}

#[test]
fn index_losses_teach_the_indexers_alone() {
    for mix in MIXES.into_iter().filter(|mix| mix.contains("full")) {
        for phase in PHASES {
            let found = gradients(&small::config(mix), phase, index);
            let expected: Vec<&str> = found.keys().map(String::as_str).filter(|name| is_indexer(name)).collect();
            assert_eq!(reached(&found), expected, "{mix} {phase:?}");
        }
    }
}

#[test]
fn a_reindex_layer_teaches_the_keys_of_its_full() {
    let config = small::config("full@2 full reuse reindex reindex");
    for phase in PHASES {
        let of = |layer: usize| {
            let only = move |out: ModelOutput| out.index_losses.into_iter().find(|(l, _)| *l == layer).unwrap().1;
            let found = gradients(&config, phase, only);
            reached(&found).into_iter().map(String::from).collect::<Vec<_>>()
        };
        let keys = |layer: usize| {
            [format!("layers.{layer}.attn.indexer.k_norm.weight"), format!("layers.{layer}.attn.indexer.wk.weight")]
        };
        let query =
            |layer: usize| ["weights_proj", "wq_b"].map(|part| format!("layers.{layer}.attn.indexer.{part}.weight"));
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        assert_eq!(of(3), sorted([keys(1), query(3)].concat()), "{phase:?}");
        assert_eq!(of(4), sorted([keys(1), query(4)].concat()), "{phase:?}");
        assert_eq!(of(1), sorted([keys(1), query(1)].concat()), "{phase:?}");
        assert_eq!(of(0), sorted([keys(0), query(0)].concat()), "{phase:?}");
    }
}

#[test]
fn index_losses_leave_the_language_models_gradient_as_it_is() {
    for mix in MIXES.into_iter().filter(|mix| mix.contains("full")) {
        let config = small::config(mix);
        let alone = gradients(&config, Phase::Sparse, language);
        let both = gradients(&config, Phase::Sparse, |out| {
            let language = language(out.clone());
            language + index(out)
        });
        for (name, alone) in alone.into_iter().filter(|(name, _)| !is_indexer(name)) {
            assert_eq!(small::bits(&both[&name]), small::bits(&alone), "{mix}: {name}");
        }
    }
}

#[test]
fn asking_for_index_losses_changes_no_logit() {
    for mix in MIXES {
        let config = small::config(mix);
        let model = super::model(&config);
        let run = |asked: bool| small::forward(&model, &config, &tokens(SHAPE), SHAPE, |cx| cx.with_index_loss(asked));
        let (with, without) = (run(true), run(false));
        assert_eq!(numbers(with.logits), numbers(without.logits), "{mix}");
        assert!(without.index_losses.is_empty());
        let expected = config.layers.layers().iter().filter(|layer| layer.mode.has_indexer()).map(|layer| layer.index);
        assert_eq!(with.index_losses.iter().map(|(layer, _)| *layer).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}
