//! The language model's loss.

use burn::backend::autodiff::{
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};

/// Backends that can compute the cross-entropy.
#[backend_extension(Autodiff, Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"))]
pub trait CrossEntropyBackend: Backend {
    /// See [`cross_entropy`].
    fn cross_entropy(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self>;

    /// Gradient for `logits`, given that of the losses `[R]`.
    fn cross_entropy_backward(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// `log sum_v exp(logits[r, v]) - logits[r, targets[r]]` for every row, in nats: `[R]` from `logits` `[R, V]` and `targets` `[R]`.
///
/// A target outside the vocabulary makes its loss NaN.
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    Tensor::from_dispatch(Dispatch::cross_entropy(logits.into_dispatch(), targets.into_dispatch()))
}

#[derive(Clone, Debug)]
struct CrossEntropyState<B: Backend> {
    logits: FloatTensor<B>,
    targets: IntTensor<B>,
}

#[derive(Debug)]
struct CrossEntropyBackward;

impl<B: CrossEntropyBackend> Backward<B, 1> for CrossEntropyBackward {
    type State = CrossEntropyState<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(node) = parent {
            let gradient = B::cross_entropy_backward(ops.state.logits, ops.state.targets, grad);
            grads.register::<B>(node.id, gradient);
        }
    }
}

impl<B: CrossEntropyBackend, C: CheckpointStrategy> CrossEntropyBackend for Autodiff<B, C> {
    fn cross_entropy(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self> {
        let (logits, node) = logits.into_parts();
        let losses = B::cross_entropy(logits.clone(), targets.clone());
        match CrossEntropyBackward.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(CrossEntropyState { logits, targets }, losses),
            OpsKind::UnTracked(prep) => prep.finish(losses),
        }
    }

    fn cross_entropy_backward(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        // First-order gradients only: the result is a constant of the outer graph.
        FloatTensor::<Self>::new(B::cross_entropy_backward(logits.into_primitive(), targets, grad.into_primitive()))
    }
}
