//! The operators in native code for Burn's CPU backend, in f32 and f64.
//!
//! Work is shared out with rayon and every sum is taken in a fixed order, so results do not depend on the number of
//! threads. Vector registers are in `simd`, the inner loops in `products`, the choice of the best in `best`.
#![allow(
    clippy::inline_always,
    reason = "vector registers survive only what is inlined into the function that has their instruction set"
)]
#![allow(
    clippy::needless_range_loop,
    clippy::manual_memcpy,
    reason = "counted loops over small arrays unroll into registers; iterators and slice copies go through memory"
)]

mod adamw;
mod best;
mod cross_entropy;
mod hyper;
mod kl;
mod mass;
mod norm;
mod products;
mod quantize;
mod readout;
mod rotate;
mod select;
mod simd;
mod sinkhorn;
pub(super) mod stored;
mod swiglu;

use burn::backend::Flex;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, Element, TensorData};

pub use simd::{REGISTERS, check_registers};

pub(super) use simd::Real;

/// The CPU backend's tensor, whatever its kind.
pub(super) type FlexTensor = FloatTensor<Flex>;
const _: fn(IntTensor<Flex>) -> FlexTensor = |t| t;

/// Calls a function that is generic over [`Real`] with the type that the rows hold.
macro_rules! with_real {
    ($rows:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        match $rows.dtype() {
            burn::tensor::DType::F32 => $function::<f32>($($argument),*),
            burn::tensor::DType::F64 => $function::<f64>($($argument),*),
            other => panic!("the CPU operators compute in f32 or f64, not in {other:?}"),
        }
    };
}
pub(super) use with_real;

/// A tensor laid out row by row, ready to be read as a slice.
pub(super) struct Rows(FlexTensor);

impl Rows {
    pub(super) fn new(tensor: FlexTensor) -> Self {
        Self(if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() })
    }

    pub(super) fn dtype(&self) -> DType {
        self.0.dtype()
    }

    pub(super) fn dims<const D: usize>(&self) -> [usize; D] {
        let mut dims = [0; D];
        for (axis, size) in dims.iter_mut().enumerate() {
            *size = self.0.layout().shape()[axis];
        }
        dims
    }

    pub(super) fn values<T: Element + bytemuck::Pod>(&self) -> &[T] {
        let start = self.0.layout().start_offset();
        &self.0.storage::<T>()[start..start + self.0.layout().num_elements()]
    }

    /// The tensor itself, to be overwritten, if its memory holds nothing else and nobody else reads it.
    pub(super) fn into_unshared<T: Element + bytemuck::Pod>(mut self) -> Result<FlexTensor, Self> {
        let count = self.0.layout().num_elements();
        let whole = self.0.layout().start_offset() == 0 && self.0.storage::<T>().len() == count;
        if whole && self.0.try_storage_mut::<T>().is_some() { Ok(self.0) } else { Err(self) }
    }

    /// Part number `at` of parts of `length` numbers.
    pub(super) fn part<T: Element + bytemuck::Pod>(&self, at: usize, length: usize) -> &[T] {
        &self.values()[at * length..(at + 1) * length]
    }
}

/// Row numbers as 32-bit integers, whatever integer type the tensor came in.
pub(super) enum Indices {
    /// As they lie in the tensor.
    Given(Rows),
    /// Converted.
    Made(Vec<i32>),
}

impl Indices {
    pub(super) fn new(tensor: FlexTensor) -> Self {
        let rows = Rows::new(tensor);
        match rows.dtype() {
            DType::I32 => Self::Given(rows),
            DType::I64 => Self::Made(rows.values::<i64>().iter().map(|&i| i as i32).collect()),
            other => panic!("row numbers are 32- or 64-bit integers, not {other:?}"),
        }
    }

    pub(super) fn values(&self) -> &[i32] {
        match self {
            Self::Given(rows) => rows.values(),
            Self::Made(values) => values,
        }
    }

    /// Part number `at` of parts of `length` numbers.
    pub(super) fn part(&self, at: usize, length: usize) -> &[i32] {
        &self.values()[at * length..(at + 1) * length]
    }
}

/// A tensor that owns `values`.
pub(super) fn tensor<T: Element, const D: usize>(values: Vec<T>, dims: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, dims))
}

/// A tensor of the shape of `model` that owns `values`.
pub(super) fn like<T: Element>(values: Vec<T>, model: &Rows) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, model.0.layout().shape().clone()))
}
