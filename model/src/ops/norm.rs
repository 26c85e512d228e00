//! Root-mean-square normalisation.

use burn::backend::autodiff::{
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// Backends that can normalise.
#[backend_extension(Autodiff, Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"))]
pub trait NormBackend: Backend {
    /// See [`rms_norm`].
    fn rms_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, eps: f64) -> FloatTensor<Self>;

    /// Gradients for `x` and `gamma`, given that of the result.
    fn rms_norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        eps: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Root-mean-square normalisation over the last axis: `gamma * x / sqrt(mean(x^2) + eps)`.
///
/// `x` `[..., n]`, `gamma` `[n]`; result of the shape of `x`.
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, eps: f64) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::rms_norm(x.into_dispatch(), gamma.into_dispatch(), eps))
}

#[derive(Clone, Debug)]
struct NormState<B: Backend> {
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    eps: f64,
}

#[derive(Debug)]
struct NormBackward;

impl<B: NormBackend> Backward<B, 2> for NormBackward {
    type State = NormState<B>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let (dx, dgamma) = B::rms_norm_backward(ops.state.x, ops.state.gamma, grad, ops.state.eps);
        for (parent, gradient) in ops.parents.into_iter().zip([dx, dgamma]) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: NormBackend, C: CheckpointStrategy> NormBackend for Autodiff<B, C> {
    fn rms_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, eps: f64) -> FloatTensor<Self> {
        let (x, x_node) = x.into_parts();
        let (gamma, gamma_node) = gamma.into_parts();
        let output = B::rms_norm(x.clone(), gamma.clone(), eps);
        match NormBackward.prepare::<C>([x_node, gamma_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(NormState { x, gamma, eps }, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    fn rms_norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        eps: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        // First-order gradients only: the results are constants of the outer graph.
        let (dx, dgamma) = B::rms_norm_backward(x.into_primitive(), gamma.into_primitive(), grad.into_primitive(), eps);
        (FloatTensor::<Self>::new(dx), FloatTensor::<Self>::new(dgamma))
    }
}
