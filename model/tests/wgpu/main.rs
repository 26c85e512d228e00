//! The operators on wgpu against the reference on the CPU, and a whole model on wgpu against the same model on the CPU:
//! logits, indexer losses and gradients.
//!
//! Without an adapter nothing can run: the test says so, and fails where `CSA2_REQUIRE` names wgpu.
#![cfg(all(feature = "wgpu", feature = "flex"))]

#[path = "../common/mod.rs"]
mod common;
mod half;
mod kl;
mod mass;
mod quantize;
mod readout;
mod rotate;
mod select;
mod stored;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData};
use common::devices;
use csa2_model::attention::Context;
use csa2_model::config::ModelConfig;
use csa2_model::init::initialize;
use csa2_model::model::Model;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The wgpu device, or none with a word about it.
pub fn device() -> Option<Device> {
    devices::wgpu(1)
}

#[derive(Default)]
struct Collect<'a> {
    grads: Option<&'a Gradients>,
    values: Vec<f32>,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.and_then(|grads| param.val().grad(grads)) else { return };
        self.values.extend(grad.into_data().iter::<f32>());
    }
}

/// Logits, indexer losses, then every gradient.
fn run(device: &Device) -> [Vec<f32>; 3] {
    let config: ModelConfig = toml::from_str(
        "layers = 'swa full@2+pool reuse reindex stale@2 dense'\nvocab_size = 11\nd_model = 16\nheads = 2\nhead_dim = 8\n\
         rope_dim = 4\nwindow = 3\ntopk = 2\nindex_heads = 2\nindex_dim = 4\npool = { blocks = 2, block_size = 2 }\n\
         ffn = { kind = 'dense', width = 16 }",
    )
    .unwrap();
    let device = device.clone().autodiff();
    let model = Model::new(&config, None, &device).unwrap();
    let model = initialize(model, 0.0, |path| {
        ChaCha8Rng::seed_from_u64(path.bytes().fold(7, |seed, byte| seed * 31 % 1_000_003 + u64::from(byte)))
    });
    let ids: Vec<i32> = (0..26).map(|i| i * 7 % 11).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(ids, [2, 13]), &device);
    let cx = Context::new(&config, 13, DType::F32, &device).with_index_loss(true);
    let out = model.forward(tokens, &cx);
    let mut loss = out.logits.clone().square().mean();
    let mut index = Vec::new();
    for (_, kl) in out.index_losses {
        index.push(kl.clone().into_scalar::<f32>());
        loss = loss + kl;
    }
    let grads = loss.backward();
    let mut collect = Collect { grads: Some(&grads), values: Vec::new() };
    model.visit(&mut collect);
    [out.logits.into_data().iter::<f32>().collect(), index, collect.values]
}

#[test]
fn a_model_computes_on_wgpu_what_it_computes_on_the_cpu() {
    let Some(wgpu) = device() else { return };
    let (there, here) = (run(&wgpu), run(&Device::flex()));
    for (what, (there, here)) in ["logits", "indexer losses", "gradients"].iter().zip(there.iter().zip(&here)) {
        assert_eq!(there.len(), here.len(), "{what}");
        assert!(!here.is_empty(), "{what}");
        let largest = here.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        for (at, (a, b)) in there.iter().zip(here).enumerate() {
            assert!((a - b).abs() <= 1e-4 * largest.max(1e-3), "{what}[{at}]: {a} on wgpu, {b} on the CPU");
        }
    }
}

/// The same numbers on another device.
pub fn copied<const D: usize>(tensor: &Tensor<D>, device: &Device) -> Tensor<D> {
    Tensor::from_data(tensor.to_data(), (device, tensor.dtype()))
}

/// The gradient of `tensor`, zeros where none arrived.
pub fn gradient<const D: usize>(tensor: &Tensor<D>, grads: &Gradients) -> Vec<f64> {
    common::numbers(tensor.grad(grads).unwrap_or_else(|| tensor.clone().inner().zeros_like()))
}
