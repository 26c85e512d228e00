//! Weights as files: names, round trips, and what happens to files that do not fit.
#![cfg(feature = "flex")]

mod common;

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::Device;
use common::random::Source;
use common::small;
use csa2_model::checkpoint::{CheckpointError, Weight, decode, encode, is_indexer, load, weights};
use csa2_model::config::ModelConfig;
use csa2_model::model::Model;
use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const MIX: &str = "swa full@2+pool reuse reindex stale@2 dense";

fn config() -> ModelConfig {
    small::config(MIX)
}

fn logits(model: &Model) -> Vec<u32> {
    let tokens = Source::new(1).tokens([2, 13], small::VOCABULARY);
    small::bits(&small::floats(small::forward(model, &config(), &tokens, [2, 13], |cx| cx).logits))
}

fn saved(seed: u64) -> BTreeMap<String, Weight> {
    weights(&small::model(&config(), seed, &Device::flex())).unwrap()
}

/// The message with which a model refuses `weights`.
fn refusal(weights: BTreeMap<String, Weight>) -> String {
    let error = load(small::model(&config(), 2, &Device::flex()), weights, "runs/a/weights.safetensors").unwrap_err();
    assert!(matches!(error, CheckpointError::Mismatch { .. }));
    error.to_string()
}

#[test]
fn a_saved_model_comes_back_bit_for_bit() {
    let model = small::model(&config(), 1, &Device::flex());
    let bytes = encode(&weights(&model).unwrap()).unwrap();
    let other = small::model(&config(), 2, &Device::flex());
    assert_ne!(logits(&model), logits(&other));
    let loaded = load(other, decode(&bytes, "memory").unwrap(), "memory").unwrap();
    assert_eq!(logits(&model), logits(&loaded));
    assert_eq!(encode(&weights(&loaded).unwrap()).unwrap(), bytes, "and is saved as the same bytes");
}

#[test]
fn a_loaded_model_learns_like_the_saved_one() {
    let device = Device::flex().autodiff();
    let config = config();
    let tokens = Source::new(1).tokens([2, 13], small::VOCABULARY);
    let step = |model: &Model| {
        let out = small::forward(model, &config, &tokens, [2, 13], |cx| cx.with_index_loss(true));
        let loss = small::language_loss(out.logits, &tokens);
        let loss = out.index_losses.into_iter().fold(loss, |sum, (_, loss)| sum + loss);
        let gradients = small::gradients(model, &loss.backward());
        gradients.into_iter().map(|(name, values)| (name, small::bits(&values))).collect::<BTreeMap<_, _>>()
    };
    let model = small::model(&config, 1, &device);
    let loaded = load(small::model(&config, 2, &device), weights(&model).unwrap(), "memory").unwrap();
    let gradients = step(&loaded);
    assert!(gradients.values().all(|gradient| gradient.iter().any(|&bits| bits != 0)), "every weight still learns");
    assert_eq!(gradients, step(&model));
}

#[test]
fn numbers_of_every_kind_survive() {
    let values = vec![0.0, -0.0, f32::MIN_POSITIVE / 8.0, f32::MAX, f32::NEG_INFINITY, f32::NAN];
    let arrays = BTreeMap::from([("a.b".to_string(), Weight { dims: vec![2, 1, 3], values: values.clone() })]);
    let back = decode(&encode(&arrays).unwrap(), "memory").unwrap();
    assert_eq!(back["a.b"].dims, [2, 1, 3]);
    assert_eq!(small::bits(&back["a.b"].values), small::bits(&values));
    assert_eq!(decode(&encode(&BTreeMap::new()).unwrap(), "memory").unwrap(), BTreeMap::new());
}

#[test]
fn official_names_and_shapes() {
    let found: Vec<String> = saved(1).iter().map(|(name, w)| format!("{name} {:?}", w.dims)).collect();
    let attention = |layer: usize| {
        [
            "attn_sink [4]",
            "kv_norm.weight [8]",
            "q_norm.weight [10]",
            "wkv.weight [8, 12]",
            "wo_a.weight [12, 16]",
            "wo_b.weight [12, 12]",
            "wq_a.weight [10, 12]",
            "wq_b.weight [32, 10]",
        ]
        .map(|part| format!("layers.{layer}.attn.{part}"))
        .into_iter()
        .chain(["attn_norm.weight [12]", "ffn_norm.weight [12]"].map(|part| format!("layers.{layer}.{part}")))
        .chain(
            ["w1.weight [14, 12]", "w2.weight [12, 14]", "w3.weight [14, 12]"]
                .map(|part| format!("layers.{layer}.ffn.{part}")),
        )
    };
    let more = [
        "embed.weight [11, 12]",
        "head.weight [11, 12]",
        "norm.weight [12]",
        "layers.1.attn.compressor.norm.weight [8]",
        "layers.1.attn.compressor.wgate.weight [8, 12]",
        "layers.1.attn.compressor.wkv.weight [8, 12]",
        "layers.1.attn.indexer.k_norm.weight [6]",
        "layers.1.attn.indexer.weights_proj.weight [2, 12]",
        "layers.1.attn.indexer.wk.weight [6, 8]",
        "layers.1.attn.indexer.wq_b.weight [12, 10]",
        "layers.3.attn.indexer.weights_proj.weight [2, 12]",
        "layers.3.attn.indexer.wq_b.weight [12, 10]",
        "layers.4.attn.compressor.norm.weight [8]",
        "layers.4.attn.compressor.wgate.weight [8, 12]",
        "layers.4.attn.compressor.wkv.weight [8, 12]",
    ];
    let mut expected: Vec<String> = (0..6).flat_map(attention).chain(more.map(String::from)).collect();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn without_ranks_there_is_one_matrix_each() {
    let mut config = small::config("swa");
    (config.query_rank, config.output_rank, config.output_groups) = (None, None, 1);
    let found = weights(&small::model(&config, 1, &Device::flex())).unwrap();
    assert_eq!(found["layers.0.attn.wq_b.weight"].dims, [32, 12]);
    assert_eq!(found["layers.0.attn.wo_b.weight"].dims, [12, 32]);
    assert!(!found.keys().any(|name| name.contains("wq_a") || name.contains("q_norm") || name.contains("wo_a")));
}

#[test]
fn indexer_weights_are_told_from_others() {
    let names: Vec<String> = saved(1).into_keys().filter(|name| is_indexer(name)).collect();
    assert_eq!(names.len(), 6, "{names:?}");
    assert!(names.iter().all(|name| name.contains(".attn.indexer.")));
}

#[test]
fn a_hint_head_has_weights_of_its_own() {
    let device = Device::flex();
    let plain = weights(&Model::new(&config(), None, &device).unwrap()).unwrap();
    let hinted = weights(&Model::new(&config(), Some(2), &device).unwrap()).unwrap();
    let more: Vec<&String> = hinted.keys().filter(|name| !plain.contains_key(*name)).collect();
    assert_eq!(more, ["hint.head.weight", "hint.norm.weight"]);
    let message = Model::new(&config(), Some(6), &device).unwrap_err().to_string();
    assert!(message.contains("layer 6") && message.contains("6 layers (0 to 5)"), "{message}");
}

#[test]
fn missing_left_over_and_misshapen_weights_are_all_named() {
    let mut weights = saved(1);
    weights.remove("layers.3.attn.indexer.wq_b.weight");
    weights.insert("layers.9.attn.wq_b.weight".into(), Weight { dims: vec![1], values: vec![1.0] });
    let turned = weights.get_mut("layers.2.attn.wkv.weight").unwrap();
    turned.dims.reverse();
    assert_eq!(
        refusal(weights),
        "runs/a/weights.safetensors does not fit this model:\
         \n  layers.2.attn.wkv.weight: has shape [12, 8], expected [8, 12]\
         \n  layers.3.attn.indexer.wq_b.weight: missing, expected [12, 10]\
         \n  layers.9.attn.wq_b.weight: unexpected, this model has no such weight"
    );
}

#[test]
fn a_long_list_of_faults_is_cut() {
    let message = refusal(BTreeMap::new());
    let count = saved(1).len();
    assert_eq!(message.lines().count(), 22, "{message}");
    assert!(message.ends_with(&format!("and {} more", count - 20)), "{message}");
}

#[test]
fn a_refused_file_sets_nothing() {
    let model = small::model(&config(), 2, &Device::flex());
    let before = logits(&model);
    let mut weights = saved(1);
    weights.remove("norm.weight");
    assert!(load(model.clone(), weights, "memory").is_err());
    assert_eq!(logits(&model), before);
}

#[test]
fn weights_of_another_mix_do_not_fit() {
    let other = weights(&small::model(&small::config("swa full@2+pool reuse reuse stale@2 dense"), 1, &Device::flex()));
    let message = refusal(other.unwrap());
    assert_eq!(message.matches("missing").count(), 2, "{message}");
    assert!(message.contains("layers.3.attn.indexer.weights_proj.weight: missing"), "{message}");
}

#[test]
fn other_number_formats_are_named() {
    let half = [0_u8; 12];
    let views = [
        ("b", TensorView::new(Dtype::BF16, vec![2, 3], &half).unwrap()),
        ("a", TensorView::new(Dtype::F32, vec![3], &half).unwrap()),
        ("c", TensorView::new(Dtype::I32, vec![3], &half).unwrap()),
    ];
    let bytes = safetensors::serialize(views, None).unwrap();
    let message = decode(&bytes, "half.safetensors").unwrap_err().to_string();
    assert_eq!(
        message,
        "half.safetensors does not fit this model:\n  b: stored as BF16, expected F32\n  c: stored as I32, expected F32"
    );
}

#[test]
fn an_array_whose_length_belies_its_shape_is_not_written() {
    let arrays = BTreeMap::from([("a".to_string(), Weight { dims: vec![2, 2], values: vec![0.0; 3] })]);
    let message = encode(&arrays).unwrap_err().to_string();
    assert_eq!(message, "weight a: 3 numbers do not fill the shape [2, 2]");
}

#[test]
fn files_cut_short_are_refused_wherever_they_are_cut() {
    let bytes = encode(&saved(1)).unwrap();
    for length in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
        let error = decode(&bytes[..length], "runs/b/weights.safetensors").unwrap_err();
        assert!(matches!(error, CheckpointError::Format { .. }), "{length}: {error}");
        assert!(error.to_string().starts_with("runs/b/weights.safetensors: not a whole safetensors file"), "{error}");
    }
}

#[test]
fn a_module_within_the_model_is_loaded_alone() {
    let model = small::model(&config(), 1, &Device::flex());
    let inside = weights(model.layers()[1].attention()).unwrap();
    let whole = saved(1);
    assert_eq!(inside.len(), 15);
    for (name, weight) in &inside {
        assert_eq!(weight, &whole[&format!("layers.1.attn.{name}")]);
    }
    let other = small::model(&config(), 2, &Device::flex());
    let loaded = load(other.layers()[1].attention().clone(), inside.clone(), "memory").unwrap();
    assert_eq!(weights(&loaded).unwrap(), inside);
    assert_eq!(loaded.num_params(), inside.values().map(|w| w.values.len()).sum::<usize>());
}

proptest! {
    #[test]
    fn any_bytes_get_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(&bytes, "noise").is_err());
    }

    #[test]
    fn a_damaged_header_gets_an_answer(place in 0_usize..400, byte in any::<u8>()) {
        let arrays = BTreeMap::from([("a".to_string(), Weight { dims: vec![2], values: vec![1.0, 2.0] })]);
        let mut bytes = encode(&arrays).unwrap();
        let place = place % bytes.len();
        bytes[place] = byte;
        let _ = decode(&bytes, "damaged");
    }
}
