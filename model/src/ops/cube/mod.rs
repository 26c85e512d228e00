//! The operators as `CubeCL` kernels: one source for every device that `CubeCL` compiles for (wgpu, CUDA).
//!
//! They keep to what all of these have: workgroups of 128 threads, shared memory of at most 32 KiB, at most 15 buffers,
//! no subgroup operations, no atomics. Inputs are f32, f16 or bf16 (where the device has them); every sum is taken in
//! f32 and in a fixed order, so that a second run gives the same bits.
//!
//! Kernels are launched with bounds checks, which needs no `unsafe`. Barriers stand in loops and branches that depend on
//! values in memory, equal for all threads of a workgroup; native wgpu takes that, a browser's stricter check of WGSL would
//! not.

#![allow(
    clippy::used_underscore_binding,
    clippy::manual_is_multiple_of,
    clippy::manual_midpoint,
    reason = "device code is a subset of Rust without these methods; what the macro writes uses `define` arguments"
)]

mod elementwise;
mod kl;
mod mass;
mod packed;
mod quantize;
mod readout;
mod rotate;
mod rows;
mod scores;
mod select;
mod shared;
mod stored;
mod tile;

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

type Float = FloatTensor<CubeBackend>;
