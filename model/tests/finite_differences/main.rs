//! Gradients against central differences in f64: of the operators, of the read-out as a map of the query, and of whole
//! networks of every mode.
#![cfg(feature = "flex")]

#[path = "../common/mod.rs"]
mod common;
mod jacobian;
mod network;
mod operators;

use burn::tensor::{DType, Device, Tensor, TensorData};

const STEP: f64 = 1e-6;

fn device() -> Device {
    Device::flex().autodiff()
}

fn tensor<const D: usize>(values: &[f64], dims: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), dims), (&device(), DType::F64))
}

/// The central difference of `f` for every number of `at`.
fn differences(at: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let moved = |place: usize, by: f64| {
        let mut moved = at.to_vec();
        moved[place] += by;
        f(&moved)
    };
    (0..at.len()).map(|place| (moved(place, STEP) - moved(place, -STEP)) / (2.0 * STEP)).collect()
}
