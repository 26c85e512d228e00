//! Fake quantization: every number replaced by what would be read back if it were stored.

use burn::backend::autodiff::{
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops},
};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

use crate::quant::Format;

/// Backends that can imitate quantized storage.
#[backend_extension(Autodiff, Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"))]
pub trait QuantizeBackend: Backend {
    /// See [`fake_quantize`]; the last axis is whole groups.
    fn fake_quantize(x: FloatTensor<Self>, format: Format) -> FloatTensor<Self>;
}

/// [`quant::fake_quantize`](crate::quant::fake_quantize) of every vector along the last axis of `x`, in groups of
/// [`Format::group`] channels, with a straight-through gradient: what comes from above passes unchanged.
///
/// The rule is one of f32 numbers, the same to the last bit on every backend. Numbers of another type are rounded to f32
/// first, so a number beyond the range of f32 is not finite; results, which are numbers of f32, go back to the type of `x`
/// (f64 holds them exactly).
///
/// # Panics
/// When the last axis is not whole groups; a validated [`ModelConfig`](crate::config::ModelConfig) has no such vectors.
pub fn fake_quantize<const D: usize>(x: Tensor<D>, format: Format) -> Tensor<D> {
    let (last, group) = (x.dims()[D - 1], format.group());
    assert!(last.is_multiple_of(group), "fake_quantize: vectors of {last} channels are not whole groups of {group}");
    Tensor::from_dispatch(Dispatch::fake_quantize(x.into_dispatch(), format))
}

#[derive(Debug)]
struct QuantizeBackward;

impl<B: QuantizeBackend> Backward<B, 1> for QuantizeBackward {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(node) = parent {
            grads.register::<B>(node.id, grad);
        }
    }
}

impl<B: QuantizeBackend, C: CheckpointStrategy> QuantizeBackend for Autodiff<B, C> {
    fn fake_quantize(x: FloatTensor<Self>, format: Format) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        QuantizeBackward.prepare::<C>([node]).compute_bound().stateless(B::fake_quantize(x, format))
    }
}
