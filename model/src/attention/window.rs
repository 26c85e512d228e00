//! The window's latents: the only entries that every layer computes freshly.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use super::RopeTable;
use crate::block::{RmsNorm, linear};
use crate::config::ModelConfig;

/// One latent per token for all heads: `RMSNorm(x Wkv)`, rotated (report 2.2).
#[derive(Module, Debug)]
pub struct WindowKv {
    wkv: Linear,
    kv_norm: RmsNorm,
}

impl WindowKv {
    /// A window projection with uninitialised weights.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        Self {
            wkv: linear(config.d_model, config.head_dim, device),
            kv_norm: RmsNorm::new(config.head_dim, config.norm_eps, device),
        }
    }

    /// From `x` `[B, S, d_model]`: the rotated latents `[B, S, d]`. The quantizer of the window's storage format belongs
    /// here, after the rotation.
    pub fn forward(&self, x: Tensor<3>, rope: &RopeTable) -> Tensor<3> {
        rope.rotate_vectors(self.kv_norm.forward(self.wkv.forward(x)))
    }
}
