//! Root-mean-square normalisation with a learned gain.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::ops;

/// `weight * x / sqrt(mean(x^2) + eps)` over the last axis.
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// Gain `[n]`.
    weight: Param<Tensor<1>>,
    eps: f64,
}

impl RmsNorm {
    /// Normalises vectors of `size` channels; the gain starts at 1.
    pub fn new(size: usize, eps: f64, device: &Device) -> Self {
        Self { weight: Param::from_tensor(Tensor::ones([size], device)), eps }
    }

    /// Channels of a vector.
    pub fn size(&self) -> usize {
        self.weight.shape().num_elements()
    }

    /// `x` `[..., n]` to the same shape.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        ops::rms_norm(x, self.weight.val(), self.eps)
    }
}
