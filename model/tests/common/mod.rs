//! Reading golden tensors and comparing with them.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod devices;
pub mod random;
pub mod small;
pub mod stored;

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::module::{ModuleMapper, Param};
use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData};
use csa2_model::checkpoint::Weight;
use csa2_model::config::ModelConfig;
use safetensors::{Dtype, SafeTensors};

/// One golden case: tensors and what its JSON says.
pub struct Golden {
    bytes: Vec<u8>,
    pub about: serde_json::Value,
}

impl Golden {
    pub fn load(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
        let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).expect(name);
        let about = std::fs::read(folder.join(format!("{name}.json"))).expect(name);
        Self { bytes, about: serde_json::from_slice(&about).expect(name) }
    }

    /// Sizes and numbers of a tensor of any type.
    pub fn numbers(&self, name: &str) -> (Vec<usize>, Vec<f64>) {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F64 => data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
            Dtype::F32 => data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
            Dtype::I32 => data.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
            Dtype::U8 => data.iter().map(|&b| b as f64).collect(),
            other => panic!("{name} is {other:?}"),
        };
        (view.shape().to_vec(), values)
    }

    pub fn names(&self) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        file.names().into_iter().map(String::from).collect()
    }

    pub fn has(&self, name: &str) -> bool {
        self.names().iter().any(|n| n == name)
    }

    pub fn values(&self, name: &str) -> Vec<f64> {
        self.numbers(name).1
    }

    pub fn dims(&self, name: &str) -> Vec<usize> {
        self.numbers(name).0
    }

    pub fn tensor<const D: usize>(&self, name: &str, device: &Device, dtype: DType) -> Tensor<D> {
        let (dims, values) = self.numbers(name);
        Tensor::from_data(TensorData::new(values, dims), (device, dtype))
    }

    pub fn indices<const D: usize>(&self, name: &str, device: &Device) -> Tensor<D, Int> {
        let (dims, values) = self.numbers(name);
        let values: Vec<i32> = values.into_iter().map(|v| v as i32).collect();
        Tensor::from_data(TensorData::new(values, dims), device)
    }

    /// The tensors below `prefix`, as weights by the rest of their name.
    pub fn weights(&self, prefix: &str) -> BTreeMap<String, Weight> {
        let names = self.names();
        let inside = names.iter().filter_map(|name| Some((name, name.strip_prefix(prefix)?)));
        inside
            .map(|(name, short)| {
                let (dims, values) = self.numbers(name);
                (short.to_string(), Weight { dims, values: values.into_iter().map(|v| v as f32).collect() })
            })
            .collect()
    }

    /// The model that the case belongs to, without the parts that a lone attention layer does not need.
    pub fn config(&self) -> ModelConfig {
        ModelConfig::from_hf(&self.about["hf_text_config"]).unwrap()
    }
}

pub fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().try_to_vec().unwrap()
}

pub fn ints<const D: usize>(tensor: Tensor<D, Int>) -> Vec<i64> {
    tensor.into_data().convert::<i64>().try_to_vec().unwrap()
}

/// Fails unless every number is within `tolerance` of the expected one, absolutely below 1 and relatively above.
#[track_caller]
pub fn assert_close(what: &str, actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}: count");
    for (at, (a, e)) in actual.iter().zip(expected).enumerate() {
        let difference = (a - e).abs();
        assert!(
            difference <= tolerance * e.abs().max(1.0),
            "{what}[{at}]: {a} against {e}, off by {difference:e} (tolerance {tolerance:e})"
        );
    }
}

/// Fails unless the difference is within `tolerance` of the largest expected number (for gradients).
#[track_caller]
pub fn assert_relative(what: &str, actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}: count");
    let largest = expected.iter().fold(0.0_f64, |m, e| m.max(e.abs()));
    for (at, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!(
            (a - e).abs() <= tolerance * largest,
            "{what}[{at}]: {a} against {e}, largest {largest:e} (tolerance {tolerance:e})"
        );
    }
}

/// Replaces every parameter by its gradient, zero where it has none.
pub struct TakeGradient<'a>(pub &'a Gradients);

impl ModuleMapper for TakeGradient<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let gradient = value.grad(self.0).unwrap_or_else(|| value.clone().inner().zeros_like());
            Tensor::from_inner(gradient)
        })
    }
}

/// Puts every parameter into f64.
pub struct ToF64;

impl ModuleMapper for ToF64 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let (device, tracked) = (value.device(), value.is_require_grad());
            let value = Tensor::from_data(value.into_data().convert::<f64>(), (&device, DType::F64));
            value.set_require_grad(tracked)
        })
    }
}
