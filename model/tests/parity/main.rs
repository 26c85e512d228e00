//! The CPU operators against the reference, forwards and backwards, over sizes and inputs that goldens do not hold.
#![cfg(feature = "flex")]

#[path = "../common/mod.rs"]
mod common;
mod kl;
mod readout;
mod rotate;
mod select;

use burn::tensor::{DType, Gradients, Int, Tensor, TensorData};

/// Both number formats, with the agreement that can be asked of them.
const FORMATS: [(DType, f64); 2] = [(DType::F64, 1e-12), (DType::F32, 1e-5)];

/// The gradient of `tensor`, zeros where none arrived.
fn gradient<const D: usize>(tensor: &Tensor<D>, grads: &Gradients) -> Vec<f64> {
    common::numbers(tensor.grad(grads).unwrap_or_else(|| tensor.clone().inner().zeros_like()))
}

/// The same numbers, laid out in memory row by row.
fn copied<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
    Tensor::from_data(tensor.to_data(), (&tensor.device(), tensor.dtype()))
}

/// Row numbers as a tensor `[1, rows, width]`.
fn rows<const R: usize, const W: usize>(values: [[i32; W]; R]) -> Tensor<3, Int> {
    Tensor::from_data(TensorData::new(values.concat(), [1, R, W]), &burn::tensor::Device::flex())
}
