//! The query: what every layer computes of its own, and all that a `reuse` layer brings to a shared memory.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use super::RopeTable;
use crate::block::{RmsNorm, linear};
use crate::config::ModelConfig;

/// `qr = RMSNorm(x Wq_a)`, `q = qr Wq_b`, rotated (report 2.2). Without a query rank, `qr = x` and there is one matrix.
/// Queries have no norm per head.
#[derive(Module, Debug)]
pub struct Query {
    wq_a: Option<Linear>,
    q_norm: Option<RmsNorm>,
    wq_b: Linear,
    heads: usize,
}

impl Query {
    /// A query projection with uninitialised weights.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let input = config.query_rank.unwrap_or(config.d_model);
        Self {
            wq_a: config.query_rank.map(|rank| linear(config.d_model, rank, device)),
            q_norm: config.query_rank.map(|rank| RmsNorm::new(rank, config.norm_eps, device)),
            wq_b: linear(input, config.heads * config.head_dim, device),
            heads: config.heads,
        }
    }

    /// From `x` `[B, S, d_model]`: the query's low-rank form `qr` `[B, S, rank]`, which also feeds the indexer, and the
    /// rotated query `[B, S, H, d]`.
    pub fn forward(&self, x: Tensor<3>, rope: &RopeTable) -> (Tensor<3>, Tensor<4>) {
        let qr = match (&self.wq_a, &self.q_norm) {
            (Some(wq_a), Some(q_norm)) => q_norm.forward(wq_a.forward(x)),
            _ => x,
        };
        let [batch, seq, _] = qr.dims();
        let q = self.wq_b.forward(qr.clone());
        let dim = q.dims()[2] / self.heads;
        (qr, rope.rotate(q.reshape([batch, seq, self.heads, dim])))
    }
}
