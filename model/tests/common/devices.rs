//! Devices that may not be there.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Device, Tensor};

/// The device that `open` opens, if it computes.
///
/// Without one the `cases` that need it cannot run: a line says so (past the test harness, which keeps what tests
/// print to itself), and where `CSA2_REQUIRE` lists `backend` the test fails.
pub fn present(backend: &str, cases: usize, open: impl Fn() -> Device) -> Option<Device> {
    let device = catch_unwind(AssertUnwindSafe(|| {
        let device = open();
        let two = Tensor::<1>::ones([2], &device).sum().into_data().iter::<f32>().next();
        assert_eq!(two, Some(2.0));
        device
    }));
    if device.is_err() {
        let one = if cases == 1 { "case" } else { "cases" };
        let _ = writeln!(std::io::stderr(), "{backend}: no adapter: {cases} {one} not run");
        let required = std::env::var("CSA2_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == backend));
        assert!(!required, "CSA2_REQUIRE names {backend}, but there is no adapter");
    }
    device.ok()
}

/// The wgpu device.
#[cfg(feature = "wgpu")]
pub fn wgpu(cases: usize) -> Option<Device> {
    present("wgpu", cases, || Device::wgpu(burn::tensor::DeviceKind::DefaultDevice))
}

/// The first CUDA device.
#[cfg(feature = "cuda")]
pub fn cuda(cases: usize) -> Option<Device> {
    present("cuda", cases, || Device::cuda(0))
}
