//! Every operator against the reference, forwards and backwards, on every backend that is compiled in and present.
//!
//! `cases.rs` holds one table of cases for each operator; `driver.rs` runs it. Expected values come from the reference on
//! the CPU, in f64. A graphics card runs the rows marked `everywhere`, in f32; without one the suite says how many cases
//! were not run, and fails where `CSA2_REQUIRE` lists the backend (`wgpu`, `cuda`, or both with a comma).
//!
//! A new operator: a type with its sizes that implements [`driver::Operator`], a table, one line in [`suite`].
#![cfg(feature = "flex")]

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod driver;
mod elementwise;
mod hyper;
mod kl;
mod mass;
mod quantize;
mod readout;
mod rotate;
mod select;
mod selections;
mod update;

use burn::tensor::{Int, Tensor, TensorData};

/// The tests of every backend, for every operator.
macro_rules! suite {
    ($($name:ident: $operator:ty),* $(,)?) => {
        mod on_flex {
            $(#[test] fn $name() { super::driver::on_flex::<$operator>() })*
        }

        /// The number of threads changes no bit.
        mod on_threads {
            $(#[test] fn $name() { super::driver::on_threads::<$operator>() })*
        }

        #[cfg(feature = "wgpu")]
        mod on_wgpu {
            use std::sync::OnceLock;

            use burn::tensor::Device;

            fn device() -> Option<&'static Device> {
                static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
                let cases = 0 $(+ super::driver::count::<$operator>())*;
                DEVICE.get_or_init(|| super::common::devices::wgpu(cases)).as_ref()
            }

            $(#[test] fn $name() { super::driver::on_gpu::<$operator>(device()) })*
        }

        #[cfg(feature = "cuda")]
        mod on_cuda {
            use std::sync::OnceLock;

            use burn::tensor::Device;

            fn device() -> Option<&'static Device> {
                static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
                let cases = 0 $(+ super::driver::count::<$operator>())*;
                DEVICE.get_or_init(|| super::common::devices::cuda(cases)).as_ref()
            }

            $(#[test] fn $name() { super::driver::on_gpu::<$operator>(device()) })*
        }
    };
}

suite! {
    readout: crate::readout::Readout,
    attention_mass: crate::mass::Mass,
    index_select: crate::select::Select,
    index_kl: crate::kl::Kl,
    rotate: crate::rotate::Rotate,
    fake_quantize: crate::quantize::Quantize,
    rms_norm: crate::elementwise::RmsNorm,
    swiglu: crate::elementwise::Swiglu,
    sinkhorn: crate::hyper::Sinkhorn,
    hyper_read: crate::hyper::Read,
    hyper_write: crate::hyper::Write,
    cross_entropy: crate::update::CrossEntropy,
    adamw: crate::update::Adamw,
}

/// The same numbers, laid out in memory row by row.
fn copied<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
    Tensor::from_data(tensor.to_data(), (&tensor.device(), tensor.dtype()))
}

/// Row numbers as a tensor `[1, rows, width]`.
fn rows<const R: usize, const W: usize>(values: [[i32; W]; R]) -> Tensor<3, Int> {
    Tensor::from_data(TensorData::new(values.concat(), [1, R, W]), &burn::tensor::Device::flex())
}
