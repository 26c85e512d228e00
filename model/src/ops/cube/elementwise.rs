//! Normalisation, activation, loss and update on `CubeCL` devices, composed of the backend's own operations: they move each
//! number a few times, and are a small part of a step there.

use burn::tensor::{Int, Tensor};
use burn_cubecl::CubeBackend;

use super::{Float, Integers, float, gradient, integers, leaf, raw};
use crate::ops::{AdamwBackend, AdamwStep, CrossEntropyBackend, NormBackend, SwigluBackend, reference};

/// All axes but the last become one: these operators work row by row.
fn rows(primitive: Float) -> (Tensor<2>, burn::tensor::Shape) {
    use burn::backend::TensorMetadata;
    let shape = primitive.shape();
    let last = shape[shape.num_dims() - 1];
    let count = shape.num_elements() / last.max(1);
    let flat = <CubeBackend as burn::backend::ops::FloatTensorOps<CubeBackend>>::float_reshape(
        primitive,
        [count, last].into(),
    );
    (float(flat), shape)
}

fn shaped(tensor: Tensor<2>, shape: burn::tensor::Shape) -> Float {
    <CubeBackend as burn::backend::ops::FloatTensorOps<CubeBackend>>::float_reshape(raw(tensor), shape)
}

impl NormBackend for CubeBackend {
    fn rms_norm(x: Float, gamma: Float, eps: f64) -> Float {
        let (x, shape) = rows(x);
        shaped(reference::rms_norm(x, float(gamma), eps), shape)
    }

    fn rms_norm_backward(x: Float, gamma: Float, grad: Float, eps: f64) -> (Float, Float) {
        let ((x, shape), (grad, _)) = (rows(x), rows(grad));
        let (x, gamma) = (Tensor::from_inner(x).require_grad(), leaf::<1>(gamma));
        let grads = (reference::rms_norm(x.clone(), gamma.clone(), eps) * Tensor::from_inner(grad)).sum().backward();
        (shaped(float(gradient(&x, &grads)), shape), gradient(&gamma, &grads))
    }
}

impl SwigluBackend for CubeBackend {
    fn swiglu(gate: Float, up: Float) -> Float {
        let ((gate, shape), (up, _)) = (rows(gate), rows(up));
        shaped(reference::swiglu(gate, up), shape)
    }

    fn swiglu_backward(gate: Float, up: Float, grad: Float) -> (Float, Float) {
        let ((gate, shape), (up, _), (grad, _)) = (rows(gate), rows(up), rows(grad));
        let (gate, up) = (Tensor::from_inner(gate).require_grad(), Tensor::from_inner(up).require_grad());
        let grads = (reference::swiglu(gate.clone(), up.clone()) * Tensor::from_inner(grad)).sum().backward();
        (shaped(float(gradient(&gate, &grads)), shape.clone()), shaped(float(gradient(&up, &grads)), shape))
    }
}

impl CrossEntropyBackend for CubeBackend {
    fn cross_entropy(logits: Float, targets: Integers) -> Float {
        raw(reference::cross_entropy(float(logits), integers(targets)))
    }

    fn cross_entropy_backward(logits: Float, targets: Integers, grad: Float) -> Float {
        let logits = leaf::<2>(logits);
        let targets: Tensor<1, Int> = Tensor::from_inner(integers(targets));
        let losses = reference::cross_entropy(logits.clone(), targets);
        let grads = (losses * Tensor::from_inner(float::<1>(grad))).sum().backward();
        gradient(&logits, &grads)
    }
}

impl AdamwBackend for CubeBackend {
    fn adamw(parameter: Float, gradient: Float, first: Float, second: Float, step: AdamwStep) -> (Float, Float, Float) {
        let (parameter, shape) = rows(parameter);
        let [gradient, first, second] = [gradient, first, second].map(|tensor| rows(tensor).0);
        let (parameter, first, second) = reference::adamw(parameter, gradient, first, second, step);
        (shaped(parameter, shape.clone()), shaped(first, shape.clone()), shaped(second, shape))
    }
}
