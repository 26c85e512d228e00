//! What the kernels have in common: laid-out inputs, fresh outputs, launch sizes and a few device functions.

use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

/// Threads of a workgroup. Every kernel is written for this number: a workgroup is 8 groups of [`LANES`] threads, or
/// 128 threads side by side.
pub(super) const THREADS: usize = 128;

/// Threads that share one inner product.
pub(super) const LANES: usize = 16;

/// Inner products that a workgroup computes side by side.
pub(super) const GROUPS: usize = THREADS / LANES;

/// The tensor's elements one after another, as the kernels index them.
pub(super) fn rows(tensor: CubeTensor) -> CubeTensor {
    into_contiguous(tensor)
}

/// As [`rows`], in f32: for the small inputs (sink, weights, tables), which no kernel reads often.
pub(super) fn single(tensor: CubeTensor) -> CubeTensor {
    rows(cast(tensor, DType::F32))
}

/// Row numbers as contiguous i32, whatever integer type the tensor came in.
pub(super) fn indices(tensor: CubeTensor) -> CubeTensor {
    rows(cast(tensor, DType::I32))
}

/// The sizes of a tensor.
pub(super) fn dims<const D: usize>(tensor: &CubeTensor) -> [usize; D] {
    std::array::from_fn(|axis| tensor.meta.shape()[axis])
}

/// A new tensor beside `like`, its contents undefined: the kernel that gets it writes every element.
pub(super) fn empty<const D: usize>(like: &CubeTensor, dims: [usize; D], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::new(dims), dtype)
}

/// The element type of a floating-point input. All kernels add up in f32.
pub(super) fn float_type(tensor: &CubeTensor) -> ElemType {
    ElemType::Float(match tensor.dtype {
        DType::F32 => FloatKind::F32,
        DType::F16 => FloatKind::F16,
        DType::BF16 => FloatKind::BF16,
        other => panic!("the GPU operators compute in f32 from f32, f16 or bf16, not from {other:?}"),
    })
}

/// `cubes` workgroups, spread over the grid's axes where one does not hold them. There may be a few more than asked
/// for: kernels compare `CUBE_POS` with their work.
pub(super) fn grid(like: &CubeTensor, cubes: usize) -> CubeCount {
    calculate_cube_count_elemwise(&like.client, cubes * THREADS, workgroup())
}

/// A workgroup of [`THREADS`].
pub(super) fn workgroup() -> CubeDim {
    CubeDim::new_1d(THREADS as u32)
}

/// The integers that address all of `tensors`: 64 bits wide only beyond 2^32 elements.
pub(super) fn address(tensors: &[&CubeTensor]) -> AddressType {
    tensors.iter().map(|tensor| tensor.required_address_type()).max().unwrap_or_default()
}

/// The sum of every thread's `value`, given to all threads, in an order that depends on nothing. `scratch` has
/// [`THREADS`] places.
#[cube]
pub(super) fn add_up<T: Numeric>(scratch: &mut Shared<[T]>, value: T) -> T {
    let unit = UNIT_POS as usize;
    scratch[unit] = value;
    sync_cube();
    let mut active = (THREADS / 2).runtime();
    while active > 0 {
        if unit < active {
            let other = scratch[unit + active];
            scratch[unit] += other;
        }
        sync_cube();
        active /= 2;
    }
    let total = scratch[0];
    sync_cube();
    total
}

/// The largest of every thread's `value`, given to all threads. `scratch` has [`THREADS`] places.
#[cube]
pub(super) fn largest(scratch: &mut Shared<[f32]>, value: f32) -> f32 {
    let unit = UNIT_POS as usize;
    scratch[unit] = value;
    sync_cube();
    let mut active = (THREADS / 2).runtime();
    while active > 0 {
        if unit < active {
            scratch[unit] = max(scratch[unit], scratch[unit + active]);
        }
        sync_cube();
        active /= 2;
    }
    let largest = scratch[0];
    sync_cube();
    largest
}

/// Copies one row of `dim` channels into `tile` at `at`, followed by zeros; only zeros when it is not `present`.
/// Every thread brings `channels` of them, [`THREADS`] apart.
#[cube]
pub(super) fn load_row<F: Float>(
    tile: &mut Shared<[f32]>,
    at: usize,
    source: &[F],
    from: usize,
    dim: usize,
    present: bool,
    #[comptime] channels: usize,
) {
    #[unroll]
    for c in 0..channels {
        let channel = c * THREADS + UNIT_POS as usize;
        let mut value = 0.0f32;
        if present && channel < dim {
            value = f32::cast_from(source[from + channel]);
        }
        tile[at + channel] = value;
    }
}
