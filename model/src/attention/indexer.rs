//! The indexer: which entries a layer reads. It learns from its own loss alone.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use super::{Context, RopeTable};
use crate::block::{RmsNorm, linear};
use crate::config::{ModelConfig, QuantizationConfig};
use crate::quant::Format;

/// Index query and head weights, and in a `full` layer the index keys (report 2.3).
#[derive(Module, Debug)]
pub struct Indexer {
    wq_b: Linear,
    weights_proj: Linear,
    wk: Option<Linear>,
    k_norm: Option<RmsNorm>,
    heads: usize,
    #[module(skip)]
    format: Option<Format>,
}

/// What an indexer asks with.
#[derive(Clone, Debug)]
pub struct IndexQuery {
    /// Index queries as they are scored, rotated and quantized `[B, S, H_I, d_I]`.
    pub q: Tensor<4>,
    /// Head weights `[B, S, H_I]`.
    pub weights: Tensor<3>,
}

impl Indexer {
    /// An indexer with uninitialised weights; `keys` for a `full` layer, which has keys of its own.
    pub fn new(config: &ModelConfig, keys: bool, device: &Device) -> Self {
        let input = config.query_rank.unwrap_or(config.d_model);
        Self {
            wq_b: linear(input, config.index_heads * config.index_dim, device),
            weights_proj: linear(config.d_model, config.index_heads, device),
            wk: keys.then(|| linear(config.head_dim, config.index_dim, device)),
            k_norm: keys.then(|| RmsNorm::new(config.index_dim, config.norm_eps, device)),
            heads: config.index_heads,
            format: QuantizationConfig::index_format(config.quantization.index),
        }
    }

    /// `q_I = qr Wq_I`, rotated at the token's position and quantized; `a = x Wa d_I^-0.5 H_I^-0.5`. The inputs `x`
    /// `[B, S, d_model]` and `qr` `[B, S, rank]` are detached: the indexer's loss does not shape the trunk.
    pub fn query(&self, x: Tensor<3>, qr: Tensor<3>, rope: &RopeTable, cx: &Context) -> IndexQuery {
        let [batch, seq, _] = x.dims();
        let q = self.wq_b.forward(qr.detach());
        let dim = q.dims()[2] / self.heads;
        let scale = ((dim * self.heads) as f64).powf(-0.5);
        IndexQuery {
            q: cx.stored(rope.rotate(q.reshape([batch, seq, self.heads, dim])), self.format),
            weights: self.weights_proj.forward(x.detach()).mul_scalar(scale),
        }
    }

    /// `k_I = RMSNorm(latent Wk_I)` from the detached latent `[B, N, d]` before its rotation, rotated at the entry's position
    /// and quantized: `[B, N, d_I]`. None in a `reindex` layer, which searches the keys of its `full`.
    pub fn keys(&self, latent: Tensor<3>, rope: &RopeTable, cx: &Context) -> Option<Tensor<3>> {
        let (wk, k_norm) = (self.wk.as_ref()?, self.k_norm.as_ref()?);
        Some(cx.stored(rope.rotate_vectors(k_norm.forward(wk.forward(latent.detach()))), self.format))
    }
}
