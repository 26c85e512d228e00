//! The feed-forward part.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use super::{Moe, Routing, linear};
use crate::config::{FfnConfig, ModelConfig};
use crate::ops;

/// `w2(silu(w1 x) * w3 x)`.
#[derive(Module, Debug)]
pub struct SwiGlu {
    w1: Linear,
    w2: Linear,
    w3: Linear,
    /// Bound on both factors.
    limit: Option<f64>,
}

impl SwiGlu {
    /// A feed-forward part of inner width `width` with uninitialised weights. Where there is a `limit`, `w1 x` is at most that
    /// and `w3 x` between plus and minus that.
    pub fn new(d_model: usize, width: usize, limit: Option<f64>, device: &Device) -> Self {
        Self {
            w1: linear(d_model, width, device),
            w2: linear(width, d_model, device),
            w3: linear(d_model, width, device),
            limit,
        }
    }

    /// `x` `[..., d_model]` to the same shape.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let (gate, up) = (self.w1.forward(x.clone()), self.w3.forward(x));
        let (gate, up) = match self.limit {
            None => (gate, up),
            Some(limit) => (gate.clamp_max(limit), up.clamp(-limit, limit)),
        };
        self.w2.forward(ops::swiglu(gate, up))
    }
}

/// The feed-forward part of a block, of either kind.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "one a layer, held in place")]
pub enum FeedForward {
    /// The same for every token.
    Dense(SwiGlu),
    /// A mixture of experts.
    Moe(Moe),
}

impl FeedForward {
    /// The part that the configuration asks for, weights uninitialised.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        match config.ffn {
            FfnConfig::Dense { width } => Self::Dense(SwiGlu::new(config.d_model, width, None, device)),
            FfnConfig::Moe { .. } => Self::Moe(Moe::new(config, device)),
        }
    }

    /// `x` `[B, S, d_model]` to the same shape, and where every token went, where it had a choice.
    pub fn forward(&self, x: Tensor<3>) -> (Tensor<3>, Option<Routing>) {
        match self {
            Self::Dense(dense) => (dense.forward(x), None),
            Self::Moe(moe) => {
                let (output, routing) = moe.forward(x);
                (output, Some(routing))
            }
        }
    }
}
