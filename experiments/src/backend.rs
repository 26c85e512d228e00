//! The backends that a run can be sent to. Only this file knows their names; layers and operators are generic.

use burn::tensor::Device;
use clap::ValueEnum;
use csa2_model::ops::GPU_CHANNELS;
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

impl BackendError {
    /// What is missing, without the backend's name.
    pub fn missing(&self) -> String {
        format!("{}; {}", self.wrong, self.right)
    }
}

const WGPU_IS: &str = "a GPU through wgpu (Vulkan, Metal or DirectX 12); tested on software Vulkan, not tuned yet";
const CUDA_IS: &str = "an NVIDIA GPU; the same kernels as wgpu, type-checked, not run on a device yet";

/// What wgpu needs of a machine.
const WGPU_NEEDS: &str = "a driver for Vulkan, Metal or DirectX 12 must be installed (on Debian without a GPU: apt-get install \
                          mesa-vulkan-drivers libvulkan1)";
/// What CUDA needs of a machine.
const CUDA_NEEDS: &str =
    "an NVIDIA GPU with its driver (libcuda) and NVRTC (libnvrtc, part of the CUDA toolkit) must be there";

/// A backend that this binary was built without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub note: &'static str,
    /// How to build with it.
    pub build: &'static str,
    /// What the machine must have.
    pub needs: &'static str,
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
            Self::Wgpu => WGPU_IS,
            #[cfg(feature = "cuda")]
            Self::Cuda => CUDA_IS,
        }
    }

    /// Backends that this binary was built without.
    pub fn missing() -> Vec<Missing> {
        let mut missing = Vec::new();
        if cfg!(not(feature = "wgpu")) {
            missing.push(Missing {
                name: "wgpu",
                note: WGPU_IS,
                build: "build with --features wgpu",
                needs: WGPU_NEEDS,
            });
        }
        if cfg!(not(feature = "cuda")) {
            missing.push(Missing {
                name: "cuda",
                note: CUDA_IS,
                build: "build with --features cuda",
                needs: CUDA_NEEDS,
            });
        }
        missing
    }

    /// Refuses vectors that this backend's operators cannot hold; `what` names them, as in `model.head_dim = 2048`.
    ///
    /// # Errors
    /// When `channels` are too many.
    pub fn holds(self, what: &str, channels: usize) -> Result<(), BackendError> {
        if self == Self::Flex || channels <= GPU_CHANNELS {
            return Ok(());
        }
        let wrong = format!("{what}: vectors have at most {GPU_CHANNELS} channels there");
        Err(BackendError { backend: self.name(), wrong, right: "use shorter ones, or the backend flex" })
    }

    /// The device to compute on.
    ///
    /// # Errors
    /// When the machine has no such device; the message says what is missing.
    pub fn device(self) -> Result<Device, BackendError> {
        match self {
            Self::Flex => {
                let refuse = |wrong| BackendError { backend: self.name(), wrong, right: "unset it for the widest" };
                csa2_model::ops::check_registers().map_err(refuse).map(|()| Device::flex())
            }
            #[cfg(feature = "wgpu")]
            Self::Wgpu => self.probe(|| Device::wgpu(burn::tensor::DeviceKind::DefaultDevice), WGPU_NEEDS),
            #[cfg(feature = "cuda")]
            Self::Cuda => self.probe(|| Device::cuda(0), CUDA_NEEDS),
        }
    }

    /// What it would compute on: the processor's kind, or the adapter's name.
    ///
    /// # Errors
    /// As [`device`](Self::device).
    pub fn hardware(self) -> Result<String, BackendError> {
        match self {
            Self::Flex => Ok(processor()),
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            _ => {
                let identity = self.device()?.identity();
                Ok(identity.map_or_else(|| "an adapter without a name".into(), |identity| identity.name))
            }
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

/// Architecture, widest vector unit that the operators know of, and cores.
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    let vectors = if std::arch::is_x86_feature_detected!("avx512f") {
        " with AVX-512"
    } else if std::arch::is_x86_feature_detected!("avx2") {
        " with AVX2"
    } else {
        " without AVX2"
    };
    #[cfg(not(target_arch = "x86_64"))]
    let vectors = "";
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}{vectors}, {cores} {}", std::env::consts::ARCH, if cores == 1 { "core" } else { "cores" })
}
