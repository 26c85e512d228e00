//! Small models of any mix, and what tests ask of them.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData, activation};
use csa2_model::attention::Context;
use csa2_model::checkpoint::weights;
use csa2_model::config::{
    FfnConfig, ModelConfig, PoolConfig, QuantFormat, QuantizationConfig, Residual, ScoreFunction, Values, YarnConfig,
};
use csa2_model::init::initialize;
use csa2_model::model::{Model, ModelOutput};
use rand::rngs::StdRng;
use rand_distr::{Distribution, StandardNormal};

use super::TakeGradient;
use super::random::named;

/// Token ids of the small models.
pub const VOCABULARY: usize = 11;

/// Mixes that together hold every mode, every pair of source and reader, ratios 1, 2 and 4, and pools.
pub const MIXES: [&str; 6] = [
    "swa*2",
    "dense*2",
    "full reuse*2",
    "swa full@2 reindex reuse stale@2 reuse",
    "full@2 full+pool reuse reindex reuse",
    "full@4+pool reindex stale@4 dense swa",
];

/// A model with every optional part: query rank, output groups, stretched positions, a pool where the mix has one.
pub fn config(mix: &str) -> ModelConfig {
    let layers: csa2_model::mix::LayerPlan = mix.parse().unwrap();
    ModelConfig {
        pool: layers.has_pool().then_some(PoolConfig { blocks: 2, block_size: 2 }),
        layers,
        vocab_size: Some(VOCABULARY),
        d_model: 12,
        heads: 4,
        head_dim: 8,
        rope_dim: 4,
        query_rank: Some(10),
        output_groups: 2,
        output_rank: Some(6),
        window: 3,
        topk: 3,
        index_heads: 2,
        index_dim: 6,
        yarn: Some(YarnConfig { factor: 4.0, original_length: 16, beta_fast: 32.0, beta_slow: 1.0 }),
        ffn: FfnConfig::Dense { width: 14 },
        ..ModelConfig::small().unwrap()
    }
}

/// The same with what else the released model has: hyper-connections, and experts whose bound is reached.
pub fn released(config: &ModelConfig) -> ModelConfig {
    let ffn = FfnConfig::Moe {
        experts: 3,
        active: 2,
        shared: 1,
        width: 6,
        route_scale: 1.5,
        swiglu_limit: Some(1.5),
        score: ScoreFunction::default(),
    };
    ModelConfig { residual: Residual::Hyper { streams: 3 }, ffn, ..config.clone() }
}

/// The same with values that are not rotated.
pub fn unrotated(config: &ModelConfig) -> ModelConfig {
    ModelConfig { values: Values::Unrotated, ..config.clone() }
}

/// Formats for each part alone, for all parts as the released model has them, and the other way round.
pub const FORMATS: [QuantizationConfig; 5] = {
    const NONE: QuantizationConfig =
        QuantizationConfig { main_kv: QuantFormat::None, index: QuantFormat::None, window: QuantFormat::None };
    [
        QuantizationConfig { main_kv: QuantFormat::Fp4, ..NONE },
        QuantizationConfig { index: QuantFormat::Fp4, ..NONE },
        QuantizationConfig { window: QuantFormat::Fp8, ..NONE },
        QuantizationConfig { main_kv: QuantFormat::Fp4, index: QuantFormat::Fp4, window: QuantFormat::Fp8 },
        QuantizationConfig { main_kv: QuantFormat::Fp8, index: QuantFormat::Fp8, window: QuantFormat::Fp4 },
    ]
};

/// As [`config`], with vectors as wide as quantization needs them.
pub fn quantized(mix: &str, quantization: QuantizationConfig) -> ModelConfig {
    ModelConfig { head_dim: 32, index_dim: 32, quantization, ..config(mix) }
}

/// A model whose weights depend on a weight's path and `seed` alone, with gains and sinks away from 1 and 0.
pub fn model(config: &ModelConfig, seed: u64, device: &Device) -> Model {
    start(Model::new(config, None, device).unwrap(), seed)
}

/// Sets the weights of a model as [`model`] does.
pub fn start(model: Model, seed: u64) -> Model {
    let stream = |path: &str| named(path, seed);
    initialize(model, 0.0, stream).map(&mut Shake { path: Vec::new(), stream })
}

/// Adds noise to the parameters that start as constants.
struct Shake<F> {
    path: Vec<String>,
    stream: F,
}

impl<F: Fn(&str) -> StdRng> ModuleMapper for Shake<F> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if D > 1 {
            return param;
        }
        let random = (self.stream)(&format!("shake {}", self.path.join(".")));
        param.map(|tensor| {
            let (dims, tracked) = (tensor.dims(), tensor.is_require_grad());
            let device = tensor.device();
            let options = (&device, tensor.dtype());
            let noise = StandardNormal.sample_iter(random).take(dims.iter().product()).map(|x: f64| 0.3 * x);
            let noise = Tensor::from_data(TensorData::new(noise.collect::<Vec<f64>>(), dims), options);
            (Tensor::from_data(tensor.into_data(), options) + noise).set_require_grad(tracked)
        })
    }
}

struct InFormat(DType, Device);

impl ModuleMapper for InFormat {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| Tensor::from_data(value.into_data(), (&self.1, self.0)).require_grad())
    }
}

/// The same weights in another format, on another device.
pub fn in_format<M: Module>(module: M, dtype: DType, device: &Device) -> M {
    module.map(&mut InFormat(dtype, device.clone()))
}

/// Token ids as a tensor `[B, S]`.
pub fn ids(tokens: &[i32], [batch, seq]: [usize; 2], device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(tokens.to_vec(), [batch, seq]), device)
}

/// The forward pass of `model` over `tokens` of `shape`, in f32.
pub fn forward(
    model: &Model,
    config: &ModelConfig,
    tokens: &[i32],
    shape: [usize; 2],
    settings: impl FnOnce(Context) -> Context,
) -> ModelOutput {
    let device = model.devices().remove(0);
    let cx = settings(Context::new(config, shape[1], DType::F32, &device));
    model.forward(ids(tokens, shape, &device), &cx)
}

/// Cross-entropy against the tokens themselves, `[1]`.
pub fn language_loss(logits: Tensor<3>, tokens: &[i32]) -> Tensor<1> {
    let [batch, seq, _] = logits.dims();
    let targets = ids(tokens, [batch, seq], &logits.device()).unsqueeze_dim::<3>(2);
    activation::log_softmax(logits, 2).gather(2, targets).mean().neg()
}

/// Gradients of every parameter, by official name; zeros where there is none.
pub fn gradients(model: &Model, grads: &Gradients) -> BTreeMap<String, Vec<f32>> {
    let filled = model.clone().map(&mut TakeGradient(grads));
    weights(&filled).unwrap().into_iter().map(|(name, weight)| (name, weight.values)).collect()
}

/// The numbers' bits: equality of these tells 0 from -0 and holds for NaN.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A tensor's numbers in f32.
pub fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_to_vec().unwrap()
}
