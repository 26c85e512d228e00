//! The operators on `CubeCL` devices (wgpu, CUDA): right, and not yet fast. They compute what [`reference`](crate::ops::reference)
//! says with the backend's own tensor operations, and take its gradients by automatic differentiation.

mod mass;
mod readout;
mod rotate;
mod rows;
mod scores;
mod select;
mod shared;
mod tile;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{Int, Tensor};
use burn_cubecl::CubeBackend;

use super::{IndexKlBackend, reference};

type Float = FloatTensor<CubeBackend>;
type Integers = IntTensor<CubeBackend>;

fn float<const D: usize>(primitive: Float) -> Tensor<D> {
    Tensor::from_primitive::<CubeBackend>(primitive)
}

fn integers<const D: usize>(primitive: Integers) -> Tensor<D, Int> {
    Tensor::from_primitive::<CubeBackend>(primitive)
}

fn raw<const D: usize>(tensor: Tensor<D>) -> Float {
    tensor.try_into_primitive::<CubeBackend>().expect("made of tensors of this backend")
}

/// A leaf of a graph of its own, for the gradients of one operator.
fn leaf<const D: usize>(primitive: Float) -> Tensor<D> {
    Tensor::from_inner(float(primitive)).require_grad()
}

/// The gradient of a leaf; zero where the result does not depend on it.
fn gradient<const D: usize>(leaf: &Tensor<D>, grads: &burn::tensor::Gradients) -> Float {
    raw(leaf.grad(grads).unwrap_or_else(|| leaf.clone().inner().zeros_like()))
}

impl IndexKlBackend for CubeBackend {
    fn index_kl(q: Float, keys: Float, weights: Float, teacher: Float, range: Integers) -> Float {
        raw(reference::index_kl(float(q), float(keys), float(weights), float(teacher), integers(range)))
    }

    fn index_kl_backward(
        q: Float,
        keys: Float,
        weights: Float,
        teacher: Float,
        range: Integers,
        grad: Float,
    ) -> (Float, Float, Float) {
        let (q, keys, weights) = (leaf::<4>(q), leaf::<3>(keys), leaf::<3>(weights));
        let loss = reference::index_kl(
            q.clone(),
            keys.clone(),
            weights.clone(),
            Tensor::from_inner(float(teacher)),
            Tensor::from_inner(integers(range)),
        );
        let grads = (loss * Tensor::from_inner(float::<2>(grad))).sum().backward();
        (gradient(&q, &grads), gradient(&keys, &grads), gradient(&weights, &grads))
    }
}
