//! The tensors that a configuration stands for, against the modules, the counts and the released checkpoint; no large model is
//! built.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::Device;
use csa2_model::checkpoint::{TensorSpec, attention_tensors, tensors, weights};
use csa2_model::config::{FfnConfig, ModelConfig};
use csa2_model::cost::Cost;
use csa2_model::mix::Mode;
use safetensors::Dtype;

use crate::common::{Golden, small};
use crate::folder::config;

fn flash() -> ModelConfig {
    ModelConfig::deepseek_v41_flash().unwrap()
}

fn shapes(specs: Vec<TensorSpec>) -> BTreeMap<String, Vec<usize>> {
    specs.into_iter().map(|spec| (spec.name, spec.shape)).collect()
}

#[test]
fn the_list_is_what_a_built_model_has() {
    let without_ranks =
        ModelConfig { query_rank: None, output_rank: None, output_groups: 1, ..small::config("swa full") };
    let mixes = small::MIXES.map(small::config);
    let mut two_shared = config();
    let FfnConfig::Moe { shared, .. } = &mut two_shared.ffn else { panic!("experts") };
    *shared = 2;
    for config in mixes.into_iter().chain([without_ranks, ModelConfig::small().unwrap(), config(), two_shared]) {
        let model = small::model(&config, 1, &Device::flex());
        let built = weights(&model).unwrap().into_iter().map(|(name, weight)| (name, weight.dims));
        assert_eq!(shapes(tensors(&config).unwrap()), built.collect());
        for (layer, block) in model.layers().iter().enumerate() {
            let built = weights(block.attention()).unwrap().into_iter();
            let built = built.map(|(name, weight)| (format!("layers.{layer}.attn.{name}"), weight.dims)).collect();
            assert_eq!(shapes(attention_tensors(&config, layer).unwrap()), built);
        }
    }
}

#[test]
fn the_list_is_what_the_golden_models_have() {
    for case in ["c_model10_s64", "c_model5_quant", "g_grad_full2_reuse_full1_reuse", "g_grad_w_full2_full1_reindex"] {
        let golden = Golden::load(case);
        let found = golden.weights("weights.").into_iter().map(|(name, weight)| (name, weight.dims)).collect();
        assert_eq!(shapes(tensors(&golden.config()).unwrap()), found, "{case}");
    }
}

#[test]
fn the_list_adds_up_to_the_parameters_that_are_counted() {
    for config in
        [flash(), config(), ModelConfig::small().unwrap(), small::config("full@4+pool reindex stale@4 dense swa")]
    {
        let numbers = |spec: &TensorSpec| spec.shape.iter().map(|&size| size as u128).product::<u128>();
        let sum: u128 = tensors(&config).unwrap().iter().map(numbers).sum();
        assert_eq!(sum, Cost::of(&config).unwrap().parameters().total());
    }
}

/// How the released checkpoint stores the attention of one layer: name behind `layers.N.attn.`, type and shape.
fn stored(layer: usize) -> BTreeMap<String, (Dtype, Vec<usize>)> {
    let prefix = format!("layers.{layer}.attn.");
    let specs = attention_tensors(&flash(), layer).unwrap();
    let entries = specs.iter().flat_map(TensorSpec::released);
    entries.map(|(name, dtype, shape)| (name.strip_prefix(&prefix).unwrap().to_string(), (dtype, shape))).collect()
}

#[test]
fn attention_of_the_released_checkpoint_by_mode() {
    let (fp8, scale, bf16) = (Dtype::F8_E4M3, Dtype::F8_E8M0, Dtype::BF16);
    let all = [
        ("attn_sink", Dtype::F32, vec![64]),
        ("kv_norm.weight", bf16, vec![512]),
        ("q_norm.weight", bf16, vec![1280]),
        ("wkv.scale", scale, vec![16, 160]),
        ("wkv.weight", fp8, vec![512, 5120]),
        ("wo_a.scale", scale, vec![256, 128]),
        ("wo_a.weight", fp8, vec![8192, 4096]),
        ("wo_b.scale", scale, vec![160, 256]),
        ("wo_b.weight", fp8, vec![5120, 8192]),
        ("wq_a.scale", scale, vec![40, 160]),
        ("wq_a.weight", fp8, vec![1280, 5120]),
        ("wq_b.scale", scale, vec![1024, 40]),
        ("wq_b.weight", fp8, vec![32768, 1280]),
    ];
    let asking = [
        ("indexer.weights_proj.weight", bf16, vec![32, 5120]),
        ("indexer.wq_b.scale", scale, vec![128, 40]),
        ("indexer.wq_b.weight", fp8, vec![4096, 1280]),
    ];
    let content = [
        ("compressor.norm.weight", bf16, vec![512]),
        ("compressor.wkv.weight", bf16, vec![512, 5120]),
        ("indexer.k_norm.weight", bf16, vec![128]),
        ("indexer.wk.weight", bf16, vec![128, 512]),
    ];
    let gate = [("compressor.wgate.weight", bf16, vec![512, 5120])];
    let plan = flash().layers;
    for layer in plan.layers() {
        let more: Vec<&[(&str, Dtype, Vec<usize>)]> = match (layer.mode, layer.ratio) {
            (Mode::Swa | Mode::Reuse, _) => vec![],
            (Mode::Reindex, _) => vec![&asking],
            (Mode::Full, 1) => vec![&asking, &content],
            (Mode::Full, 2) => vec![&asking, &content, &gate],
            other => panic!("{other:?}"),
        };
        let expected = all.iter().chain(more.into_iter().flatten());
        let expected = expected.map(|(name, dtype, shape)| (name.to_string(), (*dtype, shape.clone()))).collect();
        assert_eq!(stored(layer.index), expected, "layer {}", layer.index);
    }
}

#[test]
fn the_released_checkpoint_as_a_whole() {
    let specs = tensors(&flash()).unwrap();
    let entries: Vec<(String, Dtype, Vec<usize>)> = specs.iter().flat_map(TensorSpec::released).collect();
    let names: BTreeSet<&str> = entries.iter().map(|(name, _, _)| name.as_str()).collect();
    assert_eq!(names.len(), entries.len());
    let count = |end: &str| names.iter().filter(|name| name.starts_with("layers.") && name.ends_with(end)).count();
    assert_eq!(count("attn.compressor.wkv.weight"), 4);
    assert_eq!(count("attn.compressor.wgate.weight"), 3);
    assert_eq!((count("attn.indexer.wk.weight"), count("attn.indexer.wq_b.weight")), (4, 8));
    assert_eq!(count(".w1.weight"), 40 * 385);
    let entry = |name: &str| {
        let (_, dtype, shape) = entries.iter().find(|(other, _, _)| other == name).unwrap_or_else(|| panic!("{name}"));
        (*dtype, shape.clone())
    };
    for (name, dtype, shape) in [
        ("embed.weight", Dtype::BF16, vec![129_280, 5120]),
        ("head.weight", Dtype::BF16, vec![129_280, 5120]),
        ("norm.weight", Dtype::BF16, vec![5120]),
        ("layers.39.attn_norm.weight", Dtype::BF16, vec![5120]),
        ("layers.0.hc_ffn_fn", Dtype::F32, vec![24, 20480]),
        ("layers.0.hc_attn_base", Dtype::F32, vec![24]),
        ("layers.0.hc_attn_scale", Dtype::F32, vec![3]),
        ("layers.7.ffn.gate.weight", Dtype::BF16, vec![384, 5120]),
        ("layers.7.ffn.gate.bias", Dtype::F32, vec![384]),
        ("layers.7.ffn.experts.383.w2.weight", Dtype::I8, vec![5120, 1152]),
        ("layers.7.ffn.experts.383.w2.scale", Dtype::F8_E8M0, vec![5120, 72]),
        ("layers.7.ffn.experts.0.w3.weight", Dtype::I8, vec![2304, 2560]),
        ("layers.7.ffn.shared_experts.w1.weight", Dtype::F8_E4M3, vec![2304, 5120]),
        ("layers.7.ffn.shared_experts.w1.scale", Dtype::F8_E8M0, vec![72, 160]),
    ] {
        assert_eq!(entry(name), (dtype, shape), "{name}");
    }
}

#[test]
fn a_configuration_of_too_many_tensors_is_refused_at_once() {
    let mut config = config();
    let FfnConfig::Moe { experts, .. } = &mut config.ffn else { panic!("experts") };
    *experts = 1 << 24;
    let message = tensors(&config).unwrap_err().to_string();
    assert!(
        message.starts_with("`ffn.experts = 16777216`: 7 layers with as many experts have more tensors"),
        "{message}"
    );
    let message = tensors(&ModelConfig { vocab_size: None, ..config }).unwrap_err().to_string();
    assert!(message.starts_with("`vocab_size` is missing"), "{message}");
    assert!(attention_tensors(&flash(), 40).is_err());
}
