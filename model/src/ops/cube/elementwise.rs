//! Normalisation, activation, hyper-connections, loss and update on `CubeCL` devices, composed of the backend's own operations: they move each
//! number a few times, and are a small part of a step there.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::IntTensor;
use burn::tensor::{Gradients, Int, Shape, Tensor};
use burn_cubecl::CubeBackend;

use super::Float;
use crate::ops::{AdamwBackend, AdamwStep, CrossEntropyBackend, HyperBackend, NormBackend, SwigluBackend, reference};

type Integers = IntTensor<CubeBackend>;

fn float<const D: usize>(primitive: Float) -> Tensor<D> {
    Tensor::from_primitive::<CubeBackend>(primitive)
}

fn raw<const D: usize>(tensor: Tensor<D>) -> Float {
    tensor.try_into_primitive::<CubeBackend>().expect("made of tensors of this backend")
}

/// A leaf of a graph of its own, for the gradients of one operator.
fn leaf<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    Tensor::from_inner(tensor).require_grad()
}

/// The gradient of a leaf.
fn gradient<const D: usize>(leaf: &Tensor<D>, grads: &Gradients) -> Tensor<D> {
    leaf.grad(grads).unwrap_or_else(|| leaf.clone().inner().zeros_like())
}

/// A matrix with the same last axis: these operators work row by row, whatever the number of axes. And the shape before.
fn rows(primitive: Float) -> (Tensor<2>, Shape) {
    let shape = primitive.shape();
    let last = shape[shape.num_dims() - 1];
    let count = shape.num_elements() / last.max(1);
    (float(CubeBackend::float_reshape(primitive, Shape::new([count, last]))), shape)
}

fn shaped(tensor: Tensor<2>, shape: Shape) -> Float {
    CubeBackend::float_reshape(raw(tensor), shape)
}

impl NormBackend for CubeBackend {
    fn rms_norm(x: Float, gamma: Float, eps: f64) -> Float {
        let (x, shape) = rows(x);
        shaped(reference::rms_norm(x, float(gamma), eps), shape)
    }

    fn rms_norm_backward(x: Float, gamma: Float, grad: Float, eps: f64) -> (Float, Float) {
        let ((x, shape), (grad, _)) = (rows(x), rows(grad));
        let (x, gamma) = (leaf(x), leaf::<1>(float(gamma)));
        let grads = (reference::rms_norm(x.clone(), gamma.clone(), eps) * Tensor::from_inner(grad)).sum().backward();
        (shaped(gradient(&x, &grads), shape), raw(gradient(&gamma, &grads)))
    }
}

impl SwigluBackend for CubeBackend {
    fn swiglu(gate: Float, up: Float) -> Float {
        let ((gate, shape), (up, _)) = (rows(gate), rows(up));
        shaped(reference::swiglu(gate, up), shape)
    }

    fn swiglu_backward(gate: Float, up: Float, grad: Float) -> (Float, Float) {
        let ((gate, shape), (up, _), (grad, _)) = (rows(gate), rows(up), rows(grad));
        let (gate, up) = (leaf(gate), leaf(up));
        let grads = (reference::swiglu(gate.clone(), up.clone()) * Tensor::from_inner(grad)).sum().backward();
        (shaped(gradient(&gate, &grads), shape.clone()), shaped(gradient(&up, &grads), shape))
    }
}

impl CrossEntropyBackend for CubeBackend {
    fn cross_entropy(logits: Float, targets: Integers) -> Float {
        raw(reference::cross_entropy(float(logits), Tensor::from_primitive::<CubeBackend>(targets)))
    }

    fn cross_entropy_backward(logits: Float, targets: Integers, grad: Float) -> Float {
        let logits = leaf::<2>(float(logits));
        let targets: Tensor<1, Int> = Tensor::from_inner(Tensor::from_primitive::<CubeBackend>(targets));
        let losses = reference::cross_entropy(logits.clone(), targets);
        let grads = (losses * Tensor::from_inner(float::<1>(grad))).sum().backward();
        raw(gradient(&logits, &grads))
    }
}

impl HyperBackend for CubeBackend {
    fn sinkhorn(logits: Float) -> Float {
        raw(reference::sinkhorn(float(logits)))
    }

    fn sinkhorn_backward(logits: Float, grad: Float) -> Float {
        let logits = leaf::<3>(float(logits));
        let grads = (reference::sinkhorn(logits.clone()) * Tensor::from_inner(float::<3>(grad))).sum().backward();
        raw(gradient(&logits, &grads))
    }

    fn hyper_read(streams: Float, pre: Float) -> Float {
        raw(reference::hyper_read(float(streams), float(pre)))
    }

    fn hyper_read_backward(streams: Float, pre: Float, grad: Float) -> (Float, Float) {
        let (streams, pre) = (leaf::<3>(float(streams)), leaf::<2>(float(pre)));
        let read = reference::hyper_read(streams.clone(), pre.clone());
        let grads = (read * Tensor::from_inner(float::<2>(grad))).sum().backward();
        (raw(gradient(&streams, &grads)), raw(gradient(&pre, &grads)))
    }

    fn hyper_write(streams: Float, output: Float, post: Float, comb: Float) -> Float {
        raw(reference::hyper_write(float(streams), float(output), float(post), float(comb)))
    }

    fn hyper_write_backward(
        streams: Float,
        output: Float,
        post: Float,
        comb: Float,
        grad: Float,
    ) -> (Float, Float, Float, Float) {
        let (streams, output) = (leaf::<3>(float(streams)), leaf::<2>(float(output)));
        let (post, comb) = (leaf::<2>(float(post)), leaf::<3>(float(comb)));
        let written = reference::hyper_write(streams.clone(), output.clone(), post.clone(), comb.clone());
        let grads = (written * Tensor::from_inner(float::<3>(grad))).sum().backward();
        let (dstreams, doutput) = (raw(gradient(&streams, &grads)), raw(gradient(&output, &grads)));
        (dstreams, doutput, raw(gradient(&post, &grads)), raw(gradient(&comb, &grads)))
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
