//! From the heads' read-outs back to the residual stream.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use crate::block::linear;
use crate::config::ModelConfig;

/// The heads are split into groups, each group's `H / groups * d` vector goes through its own matrix (block diagonal) and
/// the results through a common one (report 2.2). Without an output rank there is the common matrix alone.
#[derive(Module, Debug)]
pub struct OutputProjection {
    /// `[groups * rank, H / groups * d]`, the groups' matrices one below the other.
    wo_a: Option<Param<Tensor<2>>>,
    wo_b: Linear,
    groups: usize,
}

impl OutputProjection {
    /// An output projection with uninitialised weights.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let width = config.heads * config.head_dim;
        let groups = config.output_groups;
        let wo_a =
            config.output_rank.map(|rank| Param::from_tensor(Tensor::zeros([groups * rank, width / groups], device)));
        let inner = config.output_rank.map_or(width, |rank| groups * rank);
        Self { wo_a, wo_b: linear(inner, config.d_model, device), groups }
    }

    /// From the read-outs `[B, S, H, d]`, turned back: `[B, S, d_model]`.
    pub fn forward(&self, readout: Tensor<4>) -> Tensor<3> {
        let [batch, seq, heads, dim] = readout.dims();
        let Some(wo_a) = &self.wo_a else {
            return self.wo_b.forward(readout.reshape([batch, seq, heads * dim]));
        };
        let wo_a = wo_a.val();
        let [inner, width] = wo_a.dims();
        let grouped = readout.reshape([batch * seq, self.groups, width]).swap_dims(0, 1);
        let matrices = wo_a.reshape([self.groups, inner / self.groups, width]).swap_dims(1, 2);
        let projected = grouped.matmul(matrices).swap_dims(0, 1);
        self.wo_b.forward(projected.reshape([batch, seq, inner]))
    }
}
