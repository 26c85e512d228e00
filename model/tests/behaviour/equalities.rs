//! Models that must compute the same numbers, bit for bit.

use csa2_model::attention::Phase;
use csa2_model::checkpoint::{load, weights};
use csa2_model::config::{ModelConfig, PoolConfig};

use super::common::small::{self, MIXES};
use super::{PHASES, logit_rows, model, tokens};

/// The logits' bits over `shape`.
fn run(config: &ModelConfig, shape: [usize; 2], phase: Phase) -> Vec<Vec<u32>> {
    logit_rows(&model(config), config, &tokens(shape), shape, phase)
}

const SHAPE: [usize; 2] = [2, 13];

#[test]
fn the_dense_phase_reads_what_a_large_k_reads() {
    for mix in MIXES.into_iter().filter(|mix| mix.contains("full") && !mix.contains("pool")) {
        let config = small::config(mix);
        let large = ModelConfig { topk: 20, ..config.clone() };
        assert_eq!(run(&config, SHAPE, Phase::Dense), run(&large, SHAPE, Phase::Sparse), "{mix}");
        assert_ne!(
            run(&config, SHAPE, Phase::Dense),
            run(&config, SHAPE, Phase::Sparse),
            "{mix}: K leaves something out"
        );
    }
}

#[test]
fn a_dense_layer_is_a_window_without_limit() {
    let wide = ModelConfig { window: 13, ..small::config("swa*2") };
    assert_eq!(run(&small::config("dense*2"), SHAPE, Phase::Sparse), run(&wide, SHAPE, Phase::Sparse));
    let wider = ModelConfig { window: 100, ..wide.clone() };
    assert_eq!(run(&wider, SHAPE, Phase::Sparse), run(&wide, SHAPE, Phase::Sparse));
    let narrow = ModelConfig { window: 12, ..wide.clone() };
    assert_ne!(run(&narrow, SHAPE, Phase::Sparse), run(&wide, SHAPE, Phase::Sparse));
}

#[test]
fn another_address_over_everything_is_the_same_address() {
    let large = |mix: &str| ModelConfig { topk: 13, ..small::config(mix) };
    let (reuse, reindex) = (large("swa full reuse*2"), large("swa full reindex reuse"));
    assert_eq!(run(&reuse, SHAPE, Phase::Sparse), run(&reindex, SHAPE, Phase::Sparse));
    let small = |mix: &str| run(&small::config(mix), SHAPE, Phase::Sparse);
    assert_ne!(small("swa full reuse*2"), small("swa full reindex reuse"));
}

#[test]
fn a_pool_of_another_width_is_a_pool_configured_so() {
    let config = |blocks| ModelConfig {
        pool: Some(PoolConfig { blocks, block_size: 2 }),
        ..small::config("full@2+pool reuse reindex reuse")
    };
    let (model, shape) = (model(&config(4)), [2, 30]);
    let run = |blocks, asked| {
        let out = small::forward(&model, &config(blocks), &tokens(shape), shape, |cx| cx.with_pool_blocks(asked));
        small::bits(&small::floats(out.logits))
    };
    // The width is a setting of the model: one of four blocks is asked for others.
    let narrow = small::forward(&self::model(&config(2)), &config(2), &tokens(shape), shape, |cx| cx);
    assert_eq!(run(4, Some(2)), small::bits(&small::floats(narrow.logits)));
    assert_eq!(run(4, Some(4)), run(4, None));
    assert_ne!(run(4, Some(2)), run(4, None), "two blocks leave something out");
}

#[test]
fn a_pool_of_everything_is_no_pool() {
    let pooled = small::config("full@2+pool reuse reindex reuse");
    let open = small::config("full@2 reuse reindex reuse");
    let shape = [2, 30];
    let by = |blocks, block_size, phase| {
        run(&ModelConfig { pool: Some(PoolConfig { blocks, block_size }), ..pooled.clone() }, shape, phase)
    };
    let sparse = run(&open, shape, Phase::Sparse);
    assert_eq!(by(2, 8, Phase::Sparse), sparse, "15 of 15 entries");
    assert_eq!(by(15, 1, Phase::Sparse), sparse, "15 of 15 entries");
    assert_ne!(by(8, 1, Phase::Sparse), sparse, "8 of 15 entries");
    assert_ne!(by(2, 2, Phase::Sparse), sparse, "4 of 15 entries");
    assert_eq!(by(2, 2, Phase::Dense), run(&open, shape, Phase::Dense), "the dense phase has no pool");
}

#[test]
fn before_the_first_group_is_complete_a_full_layer_is_a_window_layer() {
    // The two differ in their rotary base and its stretching; here the window layer is given the other's.
    let full = ModelConfig { yarn: None, ..small::config("full@4 reuse reindex stale@4") };
    let windows = ModelConfig { rope_theta: full.compress_rope_theta, ..small::config("swa*4") };
    let run_both = |seq: usize, phase: Phase| {
        let ids = tokens([2, seq]);
        let source = model(&full);
        let mut shared = weights(&source).unwrap();
        shared.retain(|name, _| !name.contains("indexer.") && !name.contains("compressor."));
        let target = load(model(&windows), shared, "the full model").unwrap();
        let a = logit_rows(&source, &full, &ids, [2, seq], phase);
        (a, logit_rows(&target, &windows, &ids, [2, seq], Phase::Sparse))
    };
    for phase in PHASES {
        for seq in [1, 2, 3] {
            let (full, windows) = run_both(seq, phase);
            assert_eq!(full, windows, "{seq} tokens {phase:?}");
        }
        let (full, windows) = run_both(4, phase);
        assert_ne!(full, windows, "the fourth token completes a group");
    }
}

#[test]
fn layers_start_alike_in_every_mix() {
    let of = |mix: &str| weights(&model(&small::config(mix))).unwrap();
    let (reuse, reindex, swa) = (of("swa full reuse"), of("swa full reindex"), of("swa*3"));
    for (name, weight) in &swa {
        assert_eq!(&reuse[name], weight, "{name}");
        assert_eq!(&reindex[name], weight, "{name}");
    }
    assert_ne!(swa["layers.0.attn.wkv.weight"], swa["layers.1.attn.wkv.weight"], "but each layer its own way");
}

#[test]
fn the_smallest_texts_need_no_more_than_themselves() {
    for mix in MIXES.into_iter().filter(|mix| !mix.contains("pool")) {
        let config = small::config(mix);
        // Three tokens: neither the window of 3 nor K = 3 leaves anything out.
        let generous = ModelConfig { window: 50, topk: 50, ..config.clone() };
        for seq in [1, 2, 3] {
            assert_eq!(run(&config, [2, seq], Phase::Sparse), run(&generous, [2, seq], Phase::Sparse), "{mix} {seq}");
        }
        let unlimited = mix == "dense*2";
        let (few, all) = (run(&config, [2, 9], Phase::Sparse), run(&generous, [2, 9], Phase::Sparse));
        assert!((few == all) == unlimited, "{mix}: longer ones do");
    }
}
