//! What each mode owns, what it reads, and what it hands on.

use std::collections::BTreeMap;

use csa2_model::attention::Phase;
use csa2_model::checkpoint::{load, weights};
use csa2_model::config::{ModelConfig, PoolConfig};
use csa2_model::mix::Mode;

use super::common::small::{self, MIXES};
use super::common::{ints, numbers};
use super::{PHASES, model, walk};

/// Name and shape of a layer's parameters.
fn parameters(config: &ModelConfig, layer: usize) -> BTreeMap<String, Vec<usize>> {
    let prefix = format!("layers.{layer}.");
    let all = weights(&model(config)).unwrap();
    all.into_iter().filter_map(|(name, w)| Some((name.strip_prefix(&prefix)?.to_string(), w.dims))).collect()
}

/// The names that one set of parameters has and the other lacks.
fn extra(more: &BTreeMap<String, Vec<usize>>, less: &BTreeMap<String, Vec<usize>>) -> Vec<String> {
    assert!(less.iter().all(|(name, dims)| more.get(name) == Some(dims)), "{less:?} not in {more:?}");
    more.keys().filter(|name| !less.contains_key(*name)).cloned().collect()
}

#[test]
fn each_mode_has_the_parameters_of_a_window_layer_and_no_more_than_it_owns() {
    let config = small::config("swa full@2 reuse reindex stale@2 dense full");
    let swa = parameters(&config, 0);
    let added = |layer| extra(&parameters(&config, layer), &swa);
    assert_eq!(parameters(&config, 2), swa, "reuse");
    assert_eq!(parameters(&config, 5), swa, "dense");
    assert_eq!(added(3), ["attn.indexer.weights_proj.weight", "attn.indexer.wq_b.weight"], "reindex");
    let compressor = ["attn.compressor.norm.weight", "attn.compressor.wgate.weight", "attn.compressor.wkv.weight"];
    assert_eq!(added(4), compressor, "stale");
    let indexer = [
        "attn.indexer.k_norm.weight",
        "attn.indexer.weights_proj.weight",
        "attn.indexer.wk.weight",
        "attn.indexer.wq_b.weight",
    ];
    assert_eq!(added(1), [&compressor[..], &indexer].concat(), "full");
    let without_gate = ["attn.compressor.norm.weight", "attn.compressor.wkv.weight"];
    assert_eq!(added(6), [&without_gate[..], &indexer].concat(), "full at ratio 1");
}

#[test]
fn content_and_address_come_from_where_the_plan_says() {
    for mix in MIXES {
        let config = small::config(mix);
        for phase in PHASES {
            let steps = walk(&model(&config), &config, [2, 13], phase);
            for layer in config.layers.layers() {
                let trace = &steps[layer.index].trace;
                let what = format!("{mix} {phase:?} layer {}", layer.index);
                assert_eq!(trace.latent.is_some(), layer.mode.takes_ratio(), "{what}");
                let Some(content_from) = layer.content_from else {
                    assert!(trace.content.is_none(), "{what}");
                    continue;
                };
                let content = trace.content.clone().unwrap();
                let source = steps[content_from].trace.content.clone().unwrap();
                assert_eq!(numbers(content.main.clone()), numbers(source.main), "{what}");
                assert_eq!(content.entries, 13 / layer.ratio, "{what}");
                assert_eq!(content.index_keys.map(numbers), source.index_keys.map(numbers), "{what}");
                let address = &steps[layer.address_from.unwrap()].trace.topk;
                assert_eq!(ints(trace.topk.clone()), ints(address.clone()), "{what}");
            }
        }
    }
}

#[test]
fn stale_reads_its_own_content_at_the_old_address() {
    let config = small::config("full reindex stale reuse");
    let steps = walk(&model(&config), &config, [2, 13], Phase::Sparse);
    let main = |layer: usize| numbers(steps[layer].trace.content.clone().unwrap().main);
    let topk = |layer: usize| ints(steps[layer].trace.topk.clone());
    assert_ne!(main(2), main(0), "fresh content");
    assert_eq!(topk(2), topk(1), "the address below");
    assert_ne!(topk(1), topk(0), "which differs from the first");
    assert_eq!(main(3), main(0), "a stale layer lends its content to nobody");
    assert_eq!(topk(3), topk(1));
}

#[test]
fn every_mode_of_a_pool_stays_inside_it() {
    let config = ModelConfig { topk: 4, ..small::config("full@2+pool reuse reindex reuse reindex full reindex") };
    let PoolConfig { blocks, block_size } = config.pool.unwrap();
    let (seq, ratio) = (31, config.layers.layers()[0].ratio);
    let steps = walk(&model(&config), &config, [2, seq], Phase::Sparse);
    let pool = ints(steps[0].handed.pool.clone().unwrap());
    let mut outside = 0;
    for layer in [0, 2, 4] {
        for (row, listed) in ints(steps[layer].trace.topk.clone()).chunks(config.topk).enumerate() {
            let kept = &pool[row * blocks..(row + 1) * blocks];
            let visible = (row % seq + 1) / ratio;
            if visible > 0 {
                assert!(kept.contains(&(((visible - 1) / block_size) as i64)), "the newest block is kept");
            }
            let stray = listed.iter().filter(|&&j| j >= 0 && !kept.contains(&(j / block_size as i64))).count();
            outside += if layer == 0 { stray } else { 0 };
            assert!(layer == 0 || stray == 0, "layer {layer} query {row}: {listed:?} outside {kept:?}");
            let inside = (0..visible).filter(|j| kept.contains(&((j / block_size) as i64))).count();
            let expected = if layer == 0 { visible } else { inside }.min(config.topk);
            assert_eq!(listed.iter().filter(|&&j| j >= 0).count(), expected, "as many as there are");
        }
    }
    assert!(outside > 0, "the builder's own Top-K is from the whole visible range");
    assert!(steps[4].handed.pool.is_some());
    assert!(steps[5].handed.pool.is_none(), "a pool ends with its block");
}

#[test]
fn a_full_layer_starts_a_block_of_its_own() {
    let config = small::config("full@2+pool reindex full@4 reuse swa reuse");
    let steps = walk(&model(&config), &config, [1, 13], Phase::Sparse);
    let entries = |layer: usize| steps[layer].handed.content.as_ref().unwrap().entries;
    assert_eq!([0, 1, 2, 3, 4, 5].map(entries), [6, 6, 3, 3, 3, 3]);
    for (layer, step) in config.layers.layers().iter().zip(&steps) {
        assert_eq!(layer.mode == Mode::Swa, step.trace.content.is_none());
    }
}

/// Content, then address, then read-out: the query is asked last, and decides nothing of what there is to read.
#[test]
fn the_address_is_the_index_querys_and_the_main_query_changes_the_read_out_alone() {
    let config = small::config("full reindex reuse");
    let model = model(&config);
    let changed = |name: &str| {
        let mut all = weights(&model).unwrap();
        all.get_mut(name).unwrap().values.iter_mut().for_each(|w| *w *= -2.0);
        load(model.clone(), all, "changed").unwrap()
    };
    let steps = |model: &super::Model| walk(model, &config, [2, 13], Phase::Sparse);
    let before = steps(&model);
    for layer in 0..3 {
        let after = steps(&changed(&format!("layers.{layer}.attn.wq_b.weight")));
        let (old, new) = (&before[layer].trace, &after[layer].trace);
        let main = |step: &super::Trace| numbers(step.content.clone().unwrap().main);
        assert_eq!(main(new), main(old), "layer {layer}");
        assert_eq!(ints(new.topk.clone()), ints(old.topk.clone()), "layer {layer}");
        assert_ne!(numbers(new.readout.clone()), numbers(old.readout.clone()), "layer {layer}");
        // A layer with an address of its own takes it from its index query.
        if layer < 2 {
            let after = steps(&changed(&format!("layers.{layer}.attn.indexer.wq_b.weight")));
            let new = &after[layer].trace;
            assert_eq!(main(new), main(old), "layer {layer}");
            assert_eq!(numbers(new.q.clone()), numbers(old.q.clone()), "layer {layer}");
            assert_ne!(ints(new.topk.clone()), ints(old.topk.clone()), "layer {layer}");
        }
    }
}
