//! Small models and random tokens.
#![allow(dead_code, reason = "each test file uses a part")]

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use csa2_model::attention::Context;
use csa2_model::config::{
    FfnConfig, ModelConfig, PoolConfig, QuantFormat, QuantizationConfig, Residual, ScoreFunction, YarnConfig,
};
use csa2_model::init::initialize;
use csa2_model::mix::LayerPlan;
use csa2_model::model::Model;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

/// Token ids of the small models.
pub const VOCABULARY: usize = 13;

/// The number formats of the released model.
pub const RELEASED: QuantizationConfig =
    QuantizationConfig { main_kv: QuantFormat::Fp4, index: QuantFormat::Fp4, window: QuantFormat::Fp8 };

/// The same the other way round.
pub const REVERSED: QuantizationConfig =
    QuantizationConfig { main_kv: QuantFormat::Fp8, index: QuantFormat::Fp8, window: QuantFormat::Fp4 };

/// A small model of any mix: the window, K, the pool and groups are crossed within a few tokens.
pub fn config(mix: &str) -> ModelConfig {
    let layers: LayerPlan = mix.parse().unwrap();
    ModelConfig {
        pool: layers.has_pool().then_some(PoolConfig { blocks: 2, block_size: 3 }),
        layers,
        vocab_size: Some(VOCABULARY),
        d_model: 16,
        heads: 4,
        head_dim: 32,
        rope_dim: 8,
        query_rank: Some(12),
        output_groups: 2,
        output_rank: Some(6),
        window: 5,
        topk: 3,
        index_heads: 2,
        index_dim: 32,
        yarn: Some(YarnConfig { factor: 4.0, original_length: 16, beta_fast: 32.0, beta_slow: 1.0 }),
        ffn: FfnConfig::Dense { width: 14 },
        ..ModelConfig::small().unwrap()
    }
}

/// The same with what else the released model has: hyper-connections and experts.
pub fn released(config: ModelConfig) -> ModelConfig {
    let ffn = FfnConfig::Moe {
        experts: 3,
        active: 2,
        shared: 1,
        width: 6,
        route_scale: 1.5,
        swiglu_limit: Some(1.5),
        score: ScoreFunction::default(),
    };
    ModelConfig { residual: Residual::Hyper { streams: 3 }, ffn, ..config }
}

/// Adds noise to the parameters that start as constants.
struct Shake(StdRng);

impl ModuleMapper for Shake {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if D > 1 {
            return param;
        }
        let random = &mut self.0;
        param.map(|tensor| {
            let noise: Vec<f32> =
                StandardNormal.sample_iter(random).take(tensor.dims().iter().product()).map(|x: f32| 0.3 * x).collect();
            let noise = Tensor::from_data(TensorData::new(noise, tensor.dims()), (&tensor.device(), DType::F32));
            tensor + noise
        })
    }
}

/// A model with weights that depend on `seed` alone.
pub fn model(config: &ModelConfig, seed: u64, device: &Device) -> Model {
    let stream = |path: &str| {
        let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        StdRng::seed_from_u64(hash)
    };
    initialize(Model::new(config, None, device).unwrap(), 0.0, stream).map(&mut Shake(StdRng::seed_from_u64(seed)))
}

struct ToF64;

impl ModuleMapper for ToF64 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let device = value.device();
            Tensor::from_data(value.into_data().convert::<f64>(), (&device, DType::F64))
        })
    }
}

/// How far the logits of one pass in f32 are from those of one pass in f64.
pub fn precision(model: &Model, config: &ModelConfig, tokens: &[i32], device: &Device) -> f32 {
    let seq = tokens.len();
    let input: Tensor<2, Int> = Tensor::from_data(TensorData::new(tokens.to_vec(), [1, seq]), device);
    let run = |model: &Model, dtype| -> Vec<f32> {
        let logits = model.forward(input.clone(), &Context::new(config, seq, dtype, device)).logits;
        logits.into_data().convert::<f32>().try_to_vec().unwrap()
    };
    difference(&run(model, DType::F32), &run(&model.clone().map(&mut ToF64), DType::F64))
}

/// Token ids.
pub fn tokens(random: &mut StdRng, count: usize) -> Vec<i32> {
    (0..count).map(|_| random.random_range(0..VOCABULARY as i32)).collect()
}

/// What one pass over a whole sequence gives: logits `[S, V]`, and what every layer has selected `[S, K]`.
pub struct Whole {
    pub logits: Vec<f32>,
    pub selections: Vec<Vec<i32>>,
}

pub fn whole(model: &Model, config: &ModelConfig, tokens: &[i32], device: &Device) -> Whole {
    let seq = tokens.len();
    let cx = Context::new(config, seq, DType::F32, device).with_trace(true);
    let input: Tensor<2, Int> = Tensor::from_data(TensorData::new(tokens.to_vec(), [1, seq]), device);
    let out = model.forward(input, &cx);
    let selections = out.traces.into_iter().map(|trace| ints(trace.attn.topk)).collect();
    Whole { logits: floats(out.logits), selections }
}

pub fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

pub fn ints<const D: usize>(tensor: Tensor<D, Int>) -> Vec<i32> {
    tensor.into_data().convert::<i32>().try_to_vec().unwrap()
}

/// The largest difference, absolute below 1 and relative above.
pub fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found
        .iter()
        .zip(expected)
        .map(|(a, b)| if a.is_finite() { (a - b).abs() / b.abs().max(1.0) } else { f32::INFINITY })
        .fold(0.0, f32::max)
}
