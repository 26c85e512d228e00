//! Attention whose values are not rotated while its keys are (an ablation, [`Values::Unrotated`]), by the operators that know one vector
//! for both.
//!
//! A stored vector `v = [nope, R_j rope, rope]` of `d + d_r` channels holds key and value; a query `[nope, R_t rope, 0]` has the logits
//! of the key, and the mean of `v` has that of the value in its first `d - d_r` and last `d_r` channels.

use burn::tensor::Tensor;

use crate::config::{ModelConfig, Values};

/// Rotary channels `d_r` that stored vectors repeat; none where key and value are one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unrotated(Option<usize>);

impl Unrotated {
    pub(super) fn of(config: &ModelConfig) -> Self {
        Self((config.values == Values::Unrotated).then_some(config.rope_dim))
    }

    /// What is stored of a latent `[B, P, d]` and its rotation: that, or key and value `[B, P, d + d_r]`.
    pub(super) fn stored(self, latent: &Tensor<3>, rotated: Tensor<3>) -> Tensor<3> {
        let Some(rotary) = self.0 else { return rotated };
        let width = latent.dims()[2];
        Tensor::cat(vec![rotated, latent.clone().narrow(2, width - rotary, rotary)], 2)
    }

    /// What is asked with a rotated query `[B, S, H, d]`.
    pub(super) fn asked(self, q: Tensor<4>) -> Tensor<4> {
        let Some(rotary) = self.0 else { return q };
        let [batch, seq, heads, _] = q.dims();
        let silent = Tensor::zeros([batch, seq, heads, rotary], (&q.device(), q.dtype()));
        Tensor::cat(vec![q, silent], 3)
    }

    /// The mean of the values `[B, S, H, d]` in a read-out; none where the read-out is to be turned back.
    pub(super) fn mean(self, readout: &Tensor<4>) -> Option<Tensor<4>> {
        let rotary = self.0?;
        let width = readout.dims()[3];
        let plain = readout.clone().narrow(3, width - rotary, rotary);
        // Where every channel turns, there are no others.
        let rest = width - 2 * rotary;
        Some(if rest == 0 { plain } else { Tensor::cat(vec![readout.clone().narrow(3, 0, rest), plain], 3) })
    }
}
