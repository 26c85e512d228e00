//! The compressor: groups of m consecutive tokens become one latent each.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor, activation};

use crate::block::{RmsNorm, linear};
use crate::config::ModelConfig;

/// `latent_j = RMSNorm(sum_i softmax_i(x_i Wc_gate) * (x_i Wc_kv))` over the m tokens of group `j`, the softmax per channel
/// (report 2.2). Groups do not overlap and have no positional term. At ratio 1 there is no gate.
#[derive(Module, Debug)]
pub struct Compressor {
    wkv: Linear,
    wgate: Option<Linear>,
    norm: RmsNorm,
    ratio: usize,
}

impl Compressor {
    /// A compressor of ratio `ratio` with uninitialised weights.
    pub fn new(config: &ModelConfig, ratio: usize, device: &Device) -> Self {
        Self {
            wkv: linear(config.d_model, config.head_dim, device),
            wgate: (ratio > 1).then(|| linear(config.d_model, config.head_dim, device)),
            norm: RmsNorm::new(config.head_dim, config.norm_eps, device),
            ratio,
        }
    }

    /// How many entries `seq` tokens give: a trailing incomplete group yields none and waits.
    pub fn entries(&self, seq: usize) -> usize {
        seq / self.ratio
    }

    /// From `x` `[B, S, d_model]`: the latents before rotation, `[B, max(N, 1), d]` with `N = floor(S / m)`. Where no group
    /// is complete, the one row is zero padding that no query sees.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, _] = x.dims();
        let entries = self.entries(seq);
        let dim = self.norm.size();
        if entries == 0 {
            return Tensor::zeros([batch, 1, dim], (&x.device(), x.dtype()));
        }
        let Some(wgate) = &self.wgate else { return self.norm.forward(self.wkv.forward(x)) };
        let x = if entries * self.ratio < seq { x.narrow(1, 0, entries * self.ratio) } else { x };
        let groups = [batch, entries, self.ratio, dim];
        let kv = self.wkv.forward(x.clone()).reshape(groups);
        let gate = activation::softmax(wgate.forward(x).reshape(groups), 2);
        self.norm.forward((gate * kv).sum_dim(2).reshape([batch, entries, dim]))
    }
}
