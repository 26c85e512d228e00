//! The residual stream between the parts of blocks, in either form.

use burn::tensor::Tensor;

use super::HyperMix;
use crate::config::Residual;
use crate::ops;

/// What one part of a block hands to the next.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one at a time, moved a few times a layer")]
pub enum Stream {
    /// One stream `[B, S, d_model]`.
    Plain(Tensor<3>),
    /// Several streams, and what the next part reads of each: the part before decided it.
    Hyper {
        /// `[B S, n, d_model]`.
        streams: Tensor<3>,
        /// `[B S, n]`.
        pre: Tensor<2>,
        /// B and S.
        shape: [usize; 2],
    },
}

impl Stream {
    /// The embedded tokens `[B, S, d_model]`: in all streams, of which the first part reads the first alone.
    pub fn start(x: Tensor<3>, residual: Residual) -> Self {
        let Residual::Hyper { streams } = residual else { return Self::Plain(x) };
        let [batch, seq, channels] = x.dims();
        let rows = batch * seq;
        let one = |count| Tensor::<2>::zeros([rows, count], (&x.device(), x.dtype()));
        let first = one(1).add_scalar(1.0);
        let pre = if streams > 1 { Tensor::cat(vec![first, one(streams - 1)], 1) } else { first };
        let streams = x.reshape([rows, 1, channels]).repeat_dim(1, streams);
        Self::Hyper { streams, pre, shape: [batch, seq] }
    }

    /// What the next part reads `[B, S, d_model]`, before its norm; behind the last layer, what the head reads.
    pub fn read(&self) -> Tensor<3> {
        match self {
            Self::Plain(x) => x.clone(),
            Self::Hyper { streams, pre, shape: [batch, seq] } => {
                let channels = streams.dims()[2];
                ops::hyper_read(streams.clone(), pre.clone()).reshape([*batch, *seq, channels])
            }
        }
    }

    /// The stream after a part that has made `output` `[B, S, d_model]` of what it read. `mix` belongs to that part where
    /// there are several streams.
    ///
    /// # Panics
    /// When there are several streams and no `mix`.
    #[must_use]
    pub fn write(self, output: Tensor<3>, mix: Option<&HyperMix>) -> Self {
        match self {
            Self::Plain(x) => Self::Plain(x + output),
            Self::Hyper { streams, shape, .. } => {
                let mixes = mix.expect("every part between several streams mixes them").mixes(streams.clone());
                let [rows, _, channels] = streams.dims();
                let output = output.reshape([rows, channels]);
                let streams = ops::hyper_write(streams, output, mixes.post, mixes.comb);
                Self::Hyper { streams, pre: mixes.pre, shape }
            }
        }
    }
}
