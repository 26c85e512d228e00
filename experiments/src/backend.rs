//! The backends that a run can be sent to. Only this file knows their names; layers and operators are generic.

use burn::tensor::Device;
use clap::ValueEnum;

/// A backend that is compiled in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The processor, in native Rust.
    #[default]
    Flex,
}

impl Backend {
    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flex => "flex",
        }
    }

    /// One line for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Flex => "the processor (native Rust, always there)",
        }
    }

    /// The device to compute on.
    ///
    /// # Errors
    /// When the machine has no such device; the message says what is missing.
    pub fn device(self) -> Result<Device, std::io::Error> {
        match self {
            Self::Flex => Ok(Device::flex()),
        }
    }
}
