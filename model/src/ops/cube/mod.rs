//! The operators on `CubeCL` devices (wgpu, CUDA): right, and not yet fast. They compute what [`reference`](crate::ops::reference)
//! says with the backend's own tensor operations, and take its gradients by automatic differentiation.

mod readout;
mod rotate;
mod rows;
mod shared;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{Int, Tensor};
use burn_cubecl::CubeBackend;

use super::{IndexKlBackend, MassBackend, PoolUse, SelectBackend, SelectSpec, reference};

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

fn raw_integers<const D: usize>(tensor: Tensor<D, Int>) -> Integers {
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

impl SelectBackend for CubeBackend {
    fn index_select(q: Float, keys: Float, weights: Float, pool: Integers, spec: SelectSpec) -> (Integers, Integers) {
        let pool: Tensor<3, Int> = integers(pool);
        let read = matches!(spec.pool, PoolUse::Read { .. }).then(|| pool.clone());
        let selection = reference::index_select(float(q), float(keys), float(weights), read, spec)
            .expect("index scores can be read back from the device");
        (raw_integers(selection.topk), raw_integers(selection.pool.unwrap_or(pool)))
    }
}

impl MassBackend for CubeBackend {
    fn attention_mass(q: Float, main: Float, lse: Float, range: Integers, scale: f64) -> Float {
        raw(reference::attention_mass(float(q), float(main), float(lse), integers(range), scale))
    }
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
