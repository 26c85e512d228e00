//! What surrounds attention: normalisation, the feed-forward part (dense or a mixture of experts) and the residual block (plain
//! or with hyper-connections).

mod ffn;
mod hyper;
mod moe;
mod norm;
mod residual;
mod stream;

pub use ffn::{FeedForward, SwiGlu};
pub use hyper::{HyperMix, Mixes, split_mixes};
pub use moe::{Gate, Moe, Routing};
pub use norm::RmsNorm;
pub use residual::{Block, BlockOutput, BlockTrace};
pub use stream::Stream;

use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;

/// A linear map without bias and with weights still to be set.
pub(crate) fn linear(input: usize, output: usize, device: &Device) -> Linear {
    LinearConfig::new(input, output).with_bias(false).with_initializer(burn::module::Initializer::Zeros).init(device)
}
