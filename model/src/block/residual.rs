//! The plain block: each part reads the normalised residual stream and adds its output to it.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::{RmsNorm, SwiGlu};
use crate::attention::{Attention, AttentionOutput, Context, Shared, Trace};
use crate::config::ModelConfig;
use crate::mix::PlannedLayer;

/// `x + attn(norm(x))`, then `x + ffn(norm(x))`.
#[derive(Module, Debug)]
pub struct Block {
    attn_norm: RmsNorm,
    attn: Attention,
    ffn_norm: RmsNorm,
    ffn: SwiGlu,
}

/// What a block returns.
#[derive(Clone, Debug)]
pub struct BlockOutput {
    /// The residual stream `[B, S, d_model]`.
    pub output: Tensor<3>,
    /// See [`AttentionOutput::index_loss`].
    pub index_loss: Option<Tensor<1>>,
    /// See [`AttentionOutput::trace`].
    pub trace: Option<Trace>,
}

impl Block {
    /// The block of layer `layer` with a feed-forward part of inner width `width`, weights uninitialised.
    pub fn new(config: &ModelConfig, layer: &PlannedLayer, width: usize, device: &Device) -> Self {
        Self {
            attn_norm: RmsNorm::new(config.d_model, config.norm_eps, device),
            attn: Attention::new(config, layer, device),
            ffn_norm: RmsNorm::new(config.d_model, config.norm_eps, device),
            ffn: SwiGlu::new(config.d_model, width, device),
        }
    }

    /// The block's attention layer.
    pub fn attention(&self) -> &Attention {
        &self.attn
    }

    /// From the residual stream `x` `[B, S, d_model]` to the next.
    pub fn forward(&self, x: Tensor<3>, shared: &mut Shared, cx: &Context) -> BlockOutput {
        let AttentionOutput { output, index_loss, trace } =
            self.attn.forward(self.attn_norm.forward(x.clone()), shared, cx);
        let x = x + output;
        let output = x.clone() + self.ffn.forward(self.ffn_norm.forward(x));
        BlockOutput { output, index_loss, trace }
    }
}
