//! What surrounds attention: normalisation, the feed-forward part and the residual block.

mod ffn;
mod norm;
mod residual;

pub use ffn::SwiGlu;
pub use norm::RmsNorm;
pub use residual::{Block, BlockOutput};

use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;

/// A linear map without bias and with weights still to be set.
pub(crate) fn linear(input: usize, output: usize, device: &Device) -> Linear {
    LinearConfig::new(input, output).with_bias(false).with_initializer(burn::module::Initializer::Zeros).init(device)
}
