//! The gated activation of the feed-forward part.

use burn::backend::autodiff::{
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// Backends that can gate.
#[backend_extension(Autodiff, Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"))]
pub trait SwigluBackend: Backend {
    /// See [`swiglu`].
    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Gradients for `gate` and `up`, given that of the result.
    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// The gated activation `silu(gate) * up` with `silu(z) = z / (1 + e^-z)`; all of one shape.
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::swiglu(gate.into_dispatch(), up.into_dispatch()))
}

#[derive(Clone, Debug)]
struct SwigluState<B: Backend> {
    gate: FloatTensor<B>,
    up: FloatTensor<B>,
}

#[derive(Debug)]
struct SwigluBackward;

impl<B: SwigluBackend> Backward<B, 2> for SwigluBackward {
    type State = SwigluState<B>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let (dgate, dup) = B::swiglu_backward(ops.state.gate, ops.state.up, grad);
        for (parent, gradient) in ops.parents.into_iter().zip([dgate, dup]) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: SwigluBackend, C: CheckpointStrategy> SwigluBackend for Autodiff<B, C> {
    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let (gate, gate_node) = gate.into_parts();
        let (up, up_node) = up.into_parts();
        let output = B::swiglu(gate.clone(), up.clone());
        match SwigluBackward.prepare::<C>([gate_node, up_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(SwigluState { gate, up }, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        // First-order gradients only: the results are constants of the outer graph.
        let (dgate, dup) = B::swiglu_backward(gate.into_primitive(), up.into_primitive(), grad.into_primitive());
        (FloatTensor::<Self>::new(dgate), FloatTensor::<Self>::new(dup))
    }
}
