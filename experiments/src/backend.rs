//! The backends that a run can be sent to. Only this file knows their names; layers and operators are generic.

use burn::tensor::Device;
use clap::ValueEnum;
use thiserror::Error;

/// A backend that is compiled in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The processor, in native Rust.
    #[default]
    Flex,
    /// A GPU through wgpu (Vulkan, Metal or `DirectX`).
    #[cfg(feature = "wgpu")]
    Wgpu,
    /// An NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda,
}

/// A backend that is compiled in but cannot be used on this machine.
#[derive(Debug, Error)]
#[error("backend {backend}: {wrong}; {right}")]
pub struct BackendError {
    backend: &'static str,
    wrong: String,
    right: &'static str,
}

impl Backend {
    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            #[cfg(feature = "wgpu")]
            Self::Wgpu => "wgpu",
            #[cfg(feature = "cuda")]
            Self::Cuda => "cuda",
        }
    }

    /// One line for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Flex => "the processor (native Rust, always there)",
            #[cfg(feature = "wgpu")]
            Self::Wgpu => "a GPU through wgpu (Vulkan, Metal or DirectX); the operators are right, and not yet fast",
            #[cfg(feature = "cuda")]
            Self::Cuda => "an NVIDIA GPU; the operators are right, and not yet fast",
        }
    }

    /// Backends that this binary was built without, and how to build it with them.
    pub fn missing() -> Vec<(&'static str, &'static str)> {
        let mut missing = Vec::new();
        if cfg!(not(feature = "wgpu")) {
            missing.push(("wgpu", "not compiled in; build with --features wgpu"));
        }
        if cfg!(not(feature = "cuda")) {
            missing.push(("cuda", "not compiled in; build with --features cuda"));
        }
        missing
    }

    /// The device to compute on.
    ///
    /// # Errors
    /// When the machine has no such device; the message says what is missing.
    pub fn device(self) -> Result<Device, BackendError> {
        match self {
            Self::Flex => Ok(Device::flex()),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => self.probe(
                || Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
                "a driver for Vulkan, Metal or DirectX must be installed",
            ),
            #[cfg(feature = "cuda")]
            Self::Cuda => self.probe(|| Device::cuda(0), "an NVIDIA GPU with its driver (libcuda) must be there"),
        }
    }

    /// Makes a device and computes on it once: without a driver the first tensor panics, and that is no message for a user.
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    fn probe(self, make: fn() -> Device, right: &'static str) -> Result<Device, BackendError> {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let made = std::panic::catch_unwind(|| {
            let device = make();
            burn::tensor::Tensor::<1>::ones([1], &device).try_into_data().map(|_| device).map_err(|e| e.to_string())
        });
        std::panic::set_hook(hook);
        let refuse = |wrong: String| BackendError { backend: self.name(), wrong, right };
        made.unwrap_or_else(|_| Err("there is no device that it can use".into())).map_err(refuse)
    }
}
