//! Which number formats stored vectors are rounded to.

use serde::{Deserialize, Serialize};

use crate::quant::Format;

/// The number format of each kind of stored vector: values are rounded to it after the rotation wherever they are used, in
/// every forward pass, and gradients pass the rounding unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuantizationConfig {
    /// Main KV: the compressed latents.
    #[serde(default)]
    pub main_kv: QuantFormat,
    /// Indexer queries and keys.
    #[serde(default)]
    pub index: QuantFormat,
    /// Window KV, that of `dense` layers included.
    #[serde(default)]
    pub window: QuantFormat,
}

/// A number format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuantFormat {
    /// Unquantized: 32-bit floats.
    #[default]
    None,
    /// E4M3 with one power-of-two scale per 32 numbers.
    Fp8,
    /// E2M1 with one E4M3 scale per 16 numbers (latents), or one power-of-two scale per 32 (indexer).
    Fp4,
}

impl QuantFormat {
    /// The format as a configuration writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fp8 => "fp8",
            Self::Fp4 => "fp4",
        }
    }
}

impl QuantizationConfig {
    /// Whether any kind of vector is quantized.
    pub fn any(self) -> bool {
        self != Self::default()
    }

    /// How a main KV or window latent is stored; none where it is not quantized.
    pub const fn latent_format(format: QuantFormat) -> Option<Format> {
        match format {
            QuantFormat::None => None,
            QuantFormat::Fp8 => Some(Format::Fp8E8m0),
            QuantFormat::Fp4 => Some(Format::Fp4E4m3),
        }
    }

    /// How an indexer vector is stored; none where it is not quantized.
    pub const fn index_format(format: QuantFormat) -> Option<Format> {
        match format {
            QuantFormat::None => None,
            QuantFormat::Fp8 => Some(Format::Fp8E8m0),
            QuantFormat::Fp4 => Some(Format::Fp4E8m0),
        }
    }

    /// Numbers of a main KV or window latent that share a scale; 1 where the format has none.
    pub const fn latent_group(format: QuantFormat) -> usize {
        group(Self::latent_format(format))
    }

    /// Numbers of an indexer vector that share a scale; 1 where the format has none.
    pub const fn index_group(format: QuantFormat) -> usize {
        group(Self::index_format(format))
    }
}

const fn group(format: Option<Format>) -> usize {
    match format {
        Some(format) => format.group(),
        None => 1,
    }
}
