//! Rotary position: the last channels of a vector are complex pairs, turned by an angle that depends on the position.

use burn::backend::autodiff::{
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// Backends that can rotate.
#[backend_extension(Autodiff, Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"))]
pub trait RotateBackend: Backend {
    /// `x` `[B, S, H, d]`, `cos` and `sin` `[S, d_r / 2]`; the last `d_r` channels of `x` are adjacent (real,
    /// imaginary) pairs. `inverse` turns by minus the angle. Result: the shape of `x`.
    fn rotate(x: FloatTensor<Self>, cos: FloatTensor<Self>, sin: FloatTensor<Self>, inverse: bool)
    -> FloatTensor<Self>;
}

/// Rotates the last `d_r` channels of `x` `[B, S, H, d]` by the angles of `cos`, `sin` `[S, d_r / 2]` (one row a
/// position), or by minus these angles when `inverse` (report 2.2: the output is turned back by the query's position).
pub fn rotate(x: Tensor<4>, cos: Tensor<2>, sin: Tensor<2>, inverse: bool) -> Tensor<4> {
    Tensor::from_dispatch(Dispatch::rotate(x.into_dispatch(), cos.into_dispatch(), sin.into_dispatch(), inverse))
}

#[derive(Clone, Debug)]
struct RotateState<B: Backend> {
    cos: FloatTensor<B>,
    sin: FloatTensor<B>,
    inverse: bool,
}

#[derive(Debug)]
struct RotateBackward;

impl<B: RotateBackend> Backward<B, 1> for RotateBackward {
    type State = RotateState<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(node) = parent {
            // A rotation is orthogonal: its transpose turns the other way.
            let RotateState { cos, sin, inverse } = ops.state;
            grads.register::<B>(node.id, B::rotate(grad, cos, sin, !inverse));
        }
    }
}

impl<B: RotateBackend, C: CheckpointStrategy> RotateBackend for Autodiff<B, C> {
    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        inverse: bool,
    ) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        let output = B::rotate(x, cos.clone(), sin.clone(), inverse);
        match RotateBackward.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(RotateState { cos, sin, inverse }, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}
