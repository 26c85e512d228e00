//! Normalisation and the gated activation, composed of the backend's own operations.

use burn::tensor::{Tensor, activation};

/// Root-mean-square normalisation over the last axis: `gamma * x / sqrt(mean(x^2) + eps)`.
///
/// `x` `[..., n]`, `gamma` `[n]`; result of the shape of `x`.
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, eps: f64) -> Tensor<D> {
    let rms = x.clone().square().mean_dim(D - 1).add_scalar(eps).sqrt();
    x / rms * gamma.unsqueeze()
}

/// The gated activation `silu(gate) * up`; all of one shape.
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    activation::silu(gate) * up
}
