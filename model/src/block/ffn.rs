//! The feed-forward part.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use super::linear;
use crate::ops;

/// `w2(silu(w1 x) * w3 x)`.
#[derive(Module, Debug)]
pub struct SwiGlu {
    w1: Linear,
    w2: Linear,
    w3: Linear,
}

impl SwiGlu {
    /// A feed-forward part of inner width `width` with uninitialised weights.
    pub fn new(d_model: usize, width: usize, device: &Device) -> Self {
        Self {
            w1: linear(d_model, width, device),
            w2: linear(width, d_model, device),
            w3: linear(d_model, width, device),
        }
    }

    /// `x` `[B, S, d_model]` to the same shape.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.w2.forward(ops::swiglu(self.w1.forward(x.clone()), self.w3.forward(x)))
    }
}
