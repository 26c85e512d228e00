//! The operators in native code for Burn's CPU backend, in f32 and f64.
//!
//! Work is shared out over the batch with rayon and every sum is taken in a fixed order, so results do not depend on
//! the number of threads.

mod kl;
mod mass;
mod readout;
mod rotate;
mod select;

use burn::backend::Flex;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, Element, TensorData};

/// The CPU backend's tensor, whatever its kind.
pub(super) type FlexTensor = FloatTensor<Flex>;
const _: fn(IntTensor<Flex>) -> FlexTensor = |t| t;

/// Floating-point numbers that the CPU operators compute in.
pub(super) trait Real:
    Element + bytemuck::Pod + num_traits::Float + std::iter::Sum + std::ops::AddAssign
{
    /// Converts a setting such as the softmax scale.
    fn of(x: f64) -> Self;
}

impl Real for f32 {
    fn of(x: f64) -> Self {
        x as f32
    }
}

impl Real for f64 {
    fn of(x: f64) -> Self {
        x
    }
}

/// Calls a function that is generic over [`Real`] with the type that the tensor holds.
macro_rules! with_real {
    ($tensor:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        match $tensor.dtype() {
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
}

/// Row numbers as 32-bit integers, whatever integer type the tensor came in.
pub(super) fn indices(tensor: FlexTensor) -> Vec<i32> {
    let rows = Rows::new(tensor);
    match rows.0.dtype() {
        DType::I32 => rows.values::<i32>().to_vec(),
        DType::I64 => rows.values::<i64>().iter().map(|&i| i as i32).collect(),
        other => panic!("row numbers are 32- or 64-bit integers, not {other:?}"),
    }
}

/// A tensor that owns `values`.
pub(super) fn tensor<T: Element, const D: usize>(values: Vec<T>, dims: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, dims))
}

/// Inner product. Eight running sums let the compiler use vector registers; their order is fixed.
#[inline]
pub(super) fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    const LANES: usize = 8;
    let mut sums = [T::zero(); LANES];
    let (a_blocks, b_blocks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_rest, b_rest) = (a_blocks.remainder(), b_blocks.remainder());
    for (x, y) in a_blocks.zip(b_blocks) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let mut total = sums.iter().copied().sum::<T>();
    for (&x, &y) in a_rest.iter().zip(b_rest) {
        total += x * y;
    }
    total
}

/// `y += factor * x`.
#[inline]
pub(super) fn add_scaled<T: Real>(y: &mut [T], factor: T, x: &[T]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y += factor * x;
    }
}

/// `max(z, 0)`, but a NaN stays one (`Float::max` would hide it).
#[inline]
pub(super) fn relu<T: Real>(z: T) -> T {
    if z < T::zero() { T::zero() } else { z }
}
