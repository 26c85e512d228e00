//! One step of the optimizer `AdamW` on one parameter.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// The settings of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamwStep {
    /// Learning rate.
    pub rate: f64,
    /// What the gradient is multiplied by beforehand (clipping).
    pub factor: f64,
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Keeps the division apart from 0.
    pub epsilon: f64,
    /// Share of the parameter that is taken away per unit of learning rate.
    pub weight_decay: f64,
    /// The number of this step, from 1.
    pub step: u32,
}

impl AdamwStep {
    /// `1 - beta^step` for both moments, which start at 0.
    pub fn corrections(&self) -> [f64; 2] {
        self.betas.map(|beta| 1.0 - beta.powf(f64::from(self.step)))
    }
}

/// Backends that can update parameters.
#[backend_extension(Autodiff, Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"))]
pub trait AdamwBackend: Backend {
    /// See [`adamw`].
    fn adamw(
        parameter: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        step: AdamwStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// The updated parameter and its updated moments; all of one shape and outside any gradient graph.
///
/// With `g` the gradient times [`factor`](AdamwStep::factor): `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`, and
/// `p = p (1 - rate decay) - rate (m / c1) / (sqrt(v / c2) + epsilon)` with the corrections `c` (Loshchilov and Hutter 2019).
pub fn adamw<const D: usize>(
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    first: Tensor<D>,
    second: Tensor<D>,
    step: AdamwStep,
) -> (Tensor<D>, Tensor<D>, Tensor<D>) {
    let (parameter, first, second) = Dispatch::adamw(
        parameter.into_dispatch(),
        gradient.into_dispatch(),
        first.into_dispatch(),
        second.into_dispatch(),
        step,
    );
    (Tensor::from_dispatch(parameter), Tensor::from_dispatch(first), Tensor::from_dispatch(second))
}

impl<B: AdamwBackend, C: CheckpointStrategy> AdamwBackend for Autodiff<B, C> {
    fn adamw(
        parameter: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        step: AdamwStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (parameter, first, second) = B::adamw(
            parameter.into_primitive(),
            gradient.into_primitive(),
            first.into_primitive(),
            second.into_primitive(),
            step,
        );
        (FloatTensor::<Self>::new(parameter), FloatTensor::<Self>::new(first), FloatTensor::<Self>::new(second))
    }
}
