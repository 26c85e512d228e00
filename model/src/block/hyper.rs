//! Hyper-connections: a token has several residual streams; each part of a block reads a mixture of them and writes its output
//! back, with weights that the token itself decides.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation};

use crate::config::ModelConfig;
use crate::ops::{self, HYPER_EPS};

/// Where the weights come from that a part of the block (attention, or the feed-forward part) writes with, and those that the
/// next part reads with: one pass over the streams gives both.
#[derive(Module, Debug)]
pub struct HyperMix {
    /// From all streams, one behind the other, to the raw weights: `[n (n + 2), n d_model]`.
    function: Param<Tensor<2>>,
    /// Added to the scaled raw weights `[n (n + 2)]`.
    base: Param<Tensor<1>>,
    /// One factor each on the raw weights of reading, writing and mixing `[3]`.
    scale: Param<Tensor<1>>,
    eps: f64,
}

/// The weights of one part of a block.
#[derive(Clone, Debug)]
pub struct Mixes {
    /// What the next part reads of every stream `[R, n]`, above 0.
    pub pre: Tensor<2>,
    /// How much of the output every stream takes `[R, n]`, 0 to 2.
    pub post: Tensor<2>,
    /// What stream `j` takes over of stream `i`: `[R, n, n]` (row `i`, column `j`), nearly doubly stochastic.
    pub comb: Tensor<3>,
}

impl HyperMix {
    /// Mixing weights for `streams` streams, uninitialised.
    pub fn new(config: &ModelConfig, streams: usize, device: &Device) -> Self {
        let raw = streams * (streams + 2);
        Self {
            function: Param::from_tensor(Tensor::zeros([raw, streams * config.d_model], device)),
            base: Param::from_tensor(Tensor::zeros([raw], device)),
            scale: Param::from_tensor(Tensor::zeros([3], device)),
            eps: config.norm_eps,
        }
    }

    /// The weights that the streams `[R, n, d_model]` ask for: a linear map of all of them together, normalised.
    pub fn mixes(&self, streams: Tensor<3>) -> Mixes {
        let [rows, n, channels] = streams.dims();
        let device = streams.device();
        let flat = streams.reshape([rows, n * channels]);
        // This norm has no gain.
        let ones = Tensor::ones([n * channels], (&device, flat.dtype()));
        let normalised = ops::rms_norm(flat, ones, self.eps);
        let raw = normalised.matmul(self.function.val().transpose());
        split_mixes(&raw, &self.scale.val(), &self.base.val())
    }
}

/// From raw weights `[R, n (n + 2)]` (reading, writing, mixing row by row), `scale` `[3]` and `base` `[n (n + 2)]` to the
/// weights themselves: a sigmoid for reading, twice a sigmoid for writing, [`ops::sinkhorn`] for mixing.
///
/// # Panics
/// When `base` does not hold `n (n + 2)` numbers for any `n`.
pub fn split_mixes(raw: &Tensor<2>, scale: &Tensor<1>, base: &Tensor<1>) -> Mixes {
    let [rows, width] = raw.dims();
    let n = (1..=width).find(|n| n * (n + 2) >= width).filter(|n| n * (n + 2) == width);
    let n = n.expect("there are n (n + 2) raw weights for n streams");
    let part = |start: usize, length: usize, kind: usize| {
        let scale = scale.clone().narrow(0, kind, 1).unsqueeze::<2>();
        raw.clone().narrow(1, start, length) * scale + base.clone().narrow(0, start, length).unsqueeze::<2>()
    };
    Mixes {
        pre: activation::sigmoid(part(0, n, 0)).add_scalar(HYPER_EPS),
        post: activation::sigmoid(part(n, n, 1)).mul_scalar(2.0),
        comb: ops::sinkhorn(part(2 * n, n * n, 2).reshape([rows, n, n])),
    }
}
