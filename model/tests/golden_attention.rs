//! Attention layers of every role against the golden cases `b_attn_*` (every intermediate value) and `b_attn_grad_*`.
#![cfg(feature = "flex")]

mod common;

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use common::{Golden, assert_close, assert_relative, ints, numbers};
use csa2_model::attention::{Address, Attention, Content, Context, Shared};
use csa2_model::checkpoint::{load, weights};
use csa2_model::config::ModelConfig;
use csa2_model::ops::NO_ENTRY;

/// The layer that a role names, in the layout that all cases share.
fn layer_number(golden: &Golden, config: &ModelConfig) -> usize {
    if let Some(number) = golden.about["layer_id"].as_u64() {
        return number as usize;
    }
    let role = golden.about["role"].as_str().unwrap();
    let layers = config.layers.layers();
    let found = layers.iter().position(|layer| match role {
        "window" => layer.mode == csa2_model::mix::Mode::Swa,
        "full2" => layer.mode == csa2_model::mix::Mode::Full && layer.ratio == 2,
        "full1_candidate_source" => layer.builds_pool,
        other => panic!("no layer for role {other}"),
    });
    found.unwrap()
}

fn layer(golden: &Golden, device: &Device) -> (ModelConfig, usize, Attention) {
    let config = golden.config();
    let number = layer_number(golden, &config);
    let attention = Attention::new(&config, &config.layers.layers()[number], device);
    let attention = load(attention, golden.weights("weights."), "golden").unwrap();
    (config, number, attention)
}

/// What the layer receives from the layers below.
fn shared(golden: &Golden, config: &ModelConfig, number: usize, device: &Device) -> Shared {
    let mut shared = Shared::default();
    if golden.has("shared.compress_kv") {
        let main = golden.tensor::<3>("shared.compress_kv", device, DType::F32);
        let index_keys = golden.has("shared.index_k").then(|| golden.tensor("shared.index_k", device, DType::F32));
        shared.content = Some(Content { entries: main.dims()[1], main, index_keys });
    }
    if golden.has("shared.topk_idxs") {
        // Stored with the offset of the window before them.
        let offset = golden.dims("cap.input")[1] as i32;
        let topk = golden.indices::<3>("shared.topk_idxs", device);
        let none = topk.clone().lower_elem(0);
        shared.address = Some(Address { topk: topk.sub_scalar(offset).mask_fill(none, NO_ENTRY) });
    }
    if golden.has("shared.candidates") {
        let (dims, mask) = golden.numbers("shared.candidates");
        let pool = config.pool.unwrap();
        let blocks = mask.chunks(dims[2]).flat_map(|row| {
            let mut kept: Vec<i32> = (0..dims[2].div_ceil(pool.block_size))
                .filter(|block| row[block * pool.block_size..].iter().take(pool.block_size).any(|&m| m != 0.0))
                .map(|block| block as i32)
                .collect();
            kept.resize(pool.blocks, NO_ENTRY);
            kept
        });
        let data = burn::tensor::TensorData::new(blocks.collect::<Vec<i32>>(), [dims[0], dims[1], pool.blocks]);
        shared.pool = Some(Tensor::from_data(data, device));
    }
    assert_eq!(shared.pool.is_some(), config.layers.layers()[number].pool_from.is_some());
    shared
}

fn check(case: &str) {
    let golden = Golden::load(&format!("b_attn_{case}"));
    let device = Device::flex();
    let (config, number, attention) = layer(&golden, &device);
    let mut handed = shared(&golden, &config, number, &device);
    let x = golden.tensor::<3>("cap.input", &device, DType::F32);
    let seq = x.dims()[1];
    let cx = Context::new(&config, seq, DType::F32, &device).with_trace(true);
    let out = attention.forward(x, &mut handed, &cx);
    let trace = out.trace.unwrap();

    let close =
        |name: &str, values: Vec<f64>| assert_close(&format!("{case}: {name}"), &values, &golden.values(name), 1e-5);
    close("rope.cos", numbers(cx.tokens(config.layers.layers()[number].ratio).cos()));
    close("rope.sin", numbers(cx.tokens(config.layers.layers()[number].ratio).sin()));
    close("cap.qr", numbers(trace.qr));
    close("cap.q", numbers(trace.q));
    close("cap.window_kv", numbers(trace.window));
    if golden.has("cap.compressor.latent") {
        close("cap.compressor.latent", numbers(trace.latent.unwrap()));
    }
    let content = trace.content;
    if golden.has("cap.compress_kv") {
        close("cap.compress_kv", numbers(content.clone().unwrap().main));
    }
    if let Some(asked) = trace.index_query {
        let keys = content.unwrap().index_keys.unwrap();
        close("cap.indexer.q", numbers(asked.q.clone()));
        close("cap.indexer.head_weights", numbers(asked.weights.clone()));
        close("cap.indexer.k", numbers(keys.clone()));
        check_scores(&golden, &numbers(csa2_model::ops::reference::index_scores(asked.q, keys, asked.weights)), case);
    }
    close("cap.lse", numbers(trace.lse));
    // The goldens name the read-out `o_rotated` while it still stands at its position, and `o` once it is turned back.
    close("cap.o_rotated", numbers(trace.readout));
    close("cap.o", numbers(trace.readout_back));
    close("cap.output", numbers(out.output.clone()));
    assert_close("f64.output", &numbers(out.output), &golden.values("f64.output"), 1e-5);

    // The listed indices are window slots, then entries behind an offset of S; here the window is implied.
    let (dims, listed) = golden.numbers("cap.topk_idxs");
    let window = config.window.min(seq);
    if dims[2] > window {
        let expected: Vec<i64> = listed
            .chunks(dims[2])
            .flat_map(|row| row[window..].iter().map(|&i| if i < 0.0 { -1 } else { i as i64 - seq as i64 }))
            .collect();
        assert_eq!(ints(trace.topk), expected, "{case}: Top-K");
    } else {
        assert!(ints(trace.topk).iter().all(|&i| i == -1));
    }
    if golden.has("cap.indexer.candidates") {
        check_pool(&golden, &config, &ints(handed.pool.unwrap()), case);
    }
}

/// Scores are compared where they are visible; elsewhere the goldens hold -inf.
fn check_scores(golden: &Golden, scores: &[f64], case: &str) {
    let expected = golden.values("cap.indexer.score");
    let visible: Vec<usize> = (0..expected.len()).filter(|&at| expected[at].is_finite()).collect();
    assert!(!visible.is_empty());
    let pick = |values: &[f64]| visible.iter().map(|&at| values[at]).collect::<Vec<_>>();
    assert_close(&format!("{case}: scores"), &pick(scores), &pick(&expected), 1e-5);
}

/// The blocks kept, as the goldens' mask over entries.
fn check_pool(golden: &Golden, config: &ModelConfig, blocks: &[i64], case: &str) {
    let (dims, mask) = golden.numbers("cap.indexer.candidates");
    let pool = config.pool.unwrap();
    for (row, (kept, expected)) in blocks.chunks(pool.blocks).zip(mask.chunks(dims[2])).enumerate() {
        let inside = |j: usize| kept.contains(&((j / pool.block_size) as i64));
        let actual: Vec<f64> = (0..dims[2]).map(|j| f64::from(u8::from(inside(j)))).collect();
        // The goldens' mask is not cut to the visible range; entries beyond it are never selected.
        assert_eq!(actual, expected, "{case}: pool of query {row}");
    }
}

#[test]
fn every_role_forward() {
    let cases = [
        "window",
        "full2",
        "full1_candidate_source",
        "reindex",
        "reuse_after_full2",
        "reuse_after_full1",
        "reuse_after_reindex",
    ];
    cases.into_iter().for_each(check);
}

#[test]
fn gradients_of_every_parameter() {
    for case in ["window", "full2", "full1_candidate_source"] {
        let golden = Golden::load(&format!("b_attn_grad_{case}"));
        let device = Device::flex().autodiff();
        let (config, _, attention) = layer(&golden, &device);
        let x = golden.tensor::<3>("input", &device, DType::F32).require_grad();
        let cx = Context::new(&config, x.dims()[1], DType::F32, &device);
        let out = attention.forward(x.clone(), &mut Shared::default(), &cx);
        assert_close(case, &numbers(out.output.clone()), &golden.values("output"), 1e-5);
        let grads = (out.output * golden.tensor::<3>("grad_output", &device, DType::F32)).sum().backward();
        assert_relative("dinput", &numbers(x.grad(&grads).unwrap()), &golden.values("dinput"), 1e-4);

        // The gradients, put where the weights were, can be read by official name.
        let filled = attention.clone().map(&mut common::TakeGradient(&grads));
        let gradients = weights(&filled).unwrap();
        let expected = golden.weights("grad.");
        assert_eq!(gradients.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, expected) in expected {
            let to_f64 = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
            assert_relative(
                &format!("{case}: {name}"),
                &to_f64(&gradients[&name].values),
                &to_f64(&expected.values),
                1e-4,
            );
        }
    }
}
