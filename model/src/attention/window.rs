//! The window's latents: the only entries that every layer computes freshly.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use super::values::Unrotated;
use super::{Context, RopeTable};
use crate::block::{RmsNorm, linear};
use crate::config::{ModelConfig, QuantizationConfig};
use crate::quant::Format;

/// One latent per token for all heads: `RMSNorm(x Wkv)`, rotated, and then quantized as a whole where the model quantizes its
/// windows (report 2.2).
#[derive(Module, Debug)]
pub struct WindowKv {
    wkv: Linear,
    kv_norm: RmsNorm,
    #[module(skip)]
    format: Option<Format>,
    #[module(skip)]
    values: Unrotated,
}

impl WindowKv {
    /// A window projection with uninitialised weights.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        Self {
            wkv: linear(config.d_model, config.head_dim, device),
            kv_norm: RmsNorm::new(config.head_dim, config.norm_eps, device),
            format: QuantizationConfig::latent_format(config.quantization.window),
            values: Unrotated::of(config),
        }
    }

    /// From `x` `[B, S, d_model]`: the latents `[B, S, d]` as they are read; with their unrotated channels, `[B, S, d + d_r]`, where
    /// values are not rotated.
    pub fn forward(&self, x: Tensor<3>, rope: &RopeTable, cx: &Context) -> Tensor<3> {
        let latent = self.kv_norm.forward(self.wkv.forward(x));
        let rotated = cx.stored(rope.rotate_vectors(latent.clone()), self.format);
        self.values.stored(&latent, rotated)
    }
}
