//! Folders in Hugging Face's form, and what the tests do with them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use csa2_model::attention::Context;
use csa2_model::checkpoint::{TensorSpec, tensors};
use csa2_model::config::{
    FfnConfig, ModelConfig, PoolConfig, QuantFormat, QuantizationConfig, Residual, ScoreFunction, Values, YarnConfig,
};
use csa2_model::model::Model;
use csa2_train::runs::{self, ExportError, Exported, ImportError, ImportOptions, Imported, Run};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;

/// A tensor as a file holds it: type, shape, bytes.
pub type Raw = (Dtype, Vec<usize>, Vec<u8>);

/// A model with every mode that Transformers knows, and every optional number away from its default.
pub fn config() -> ModelConfig {
    ModelConfig {
        layers: "swa full@2 reuse full+pool reindex reuse".parse().unwrap(),
        vocab_size: Some(13),
        d_model: 64,
        heads: 4,
        head_dim: 32,
        rope_dim: 4,
        query_rank: Some(33),
        output_groups: 2,
        output_rank: Some(35),
        window: 3,
        topk: 2,
        index_heads: 2,
        index_dim: 32,
        pool: Some(PoolConfig { blocks: 2, block_size: 2 }),
        rope_theta: 9_000.5,
        compress_rope_theta: 150_000.25,
        yarn: Some(YarnConfig { factor: 4.0, original_length: 16, beta_fast: 30.0, beta_slow: 1.5 }),
        norm_eps: 1e-7,
        sink_init: -0.75,
        ffn: FfnConfig::Moe {
            experts: 3,
            active: 2,
            shared: 1,
            width: 32,
            route_scale: 1.25,
            swiglu_limit: Some(3.5),
            score: ScoreFunction::Sigmoid,
        },
        residual: Residual::Hyper { streams: 2 },
        values: Values::Rotated,
        quantization: QuantizationConfig {
            main_kv: QuantFormat::Fp4,
            index: QuantFormat::Fp4,
            window: QuantFormat::Fp8,
        },
    }
}

/// Random weights in the released storage, by official name. Quantized ones are small enough to be weights.
pub fn released(config: &ModelConfig) -> BTreeMap<String, Raw> {
    let mut random = StdRng::seed_from_u64(5);
    let entries: Vec<_> = tensors(config).unwrap().iter().flat_map(TensorSpec::released).collect();
    let made = entries.into_iter().map(|(name, dtype, shape)| {
        let count: usize = shape.iter().product();
        let bytes = match dtype {
            Dtype::F32 => (0..count).flat_map(|_| random.random_range(-1.0_f32..1.0).to_le_bytes()).collect(),
            Dtype::BF16 => (0..count)
                .flat_map(|_| random.random_range(-1.0_f32..1.0).to_bits().to_le_bytes()[2..].to_vec())
                .collect(),
            Dtype::F8_E8M0 => (0..count).map(|_| random.random_range(116..120)).collect(),
            // Neither of the two that are no numbers.
            Dtype::F8_E4M3 => {
                (0..count).map(|_| random.random_range(0..0x7f) | random.random_range(0..2) << 7).collect()
            }
            _ => (0..count).map(|_| random.random()).collect(),
        };
        (name, (dtype, shape, bytes))
    });
    made.collect()
}

/// Writes a folder with one file of weights.
pub fn write(folder: &Path, config: &Value, weights: &BTreeMap<String, Raw>) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let views = weights
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

/// What the tests import without further wishes.
pub const WHOLE: ImportOptions<'static> =
    ImportOptions { skip_unsupported: false, attention_layers: None, formats: None };

pub fn import(from: &Path, out: &Path, options: ImportOptions) -> Result<Imported, ImportError> {
    runs::import(from, out, options, &AtomicBool::new(false), &mut |_, _| ())
}

pub fn export(run: &Path, out: &Path, max_shard: u64) -> Result<Exported, ExportError> {
    let run = Run::open(run)?;
    runs::export(&run, &Device::flex(), out, max_shard, &AtomicBool::new(false), &mut |_, _| ())
}

/// The model of a run.
pub fn load(run: &Path) -> (ModelConfig, Model) {
    let run = Run::open(run).unwrap();
    (run.model_config().clone(), run.load(&Device::flex()).unwrap())
}

/// The logits of `rows` sequences.
pub fn logits(config: &ModelConfig, model: &Model, tokens: &[i32], rows: usize) -> Vec<f32> {
    let (device, length) = (Device::flex(), tokens.len() / rows);
    let ids: Tensor<2, Int> = Tensor::from_data(TensorData::new(tokens.to_vec(), [rows, length]), &device);
    let cx = Context::new(config, length, DType::F32, &device);
    model.forward(ids, &cx).logits.into_data().try_to_vec().unwrap()
}

/// The numbers' bits: equality of these tells 0 from -0.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
