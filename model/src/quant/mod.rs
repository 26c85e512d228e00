//! Quantized numbers: 4-bit E2M1, 8-bit E4M3 and their scales, as codes, packed bytes and dequantized values.
//!
//! | what is stored | format | scale | group |
//! |---|---|---|---|
//! | main KV | E2M1 | E4M3 | 16 |
//! | index queries and keys | E2M1 | power of two (E8M0) | 32 |
//! | window KV | E4M3 | power of two (E8M0) | 32 |
//!
//! A group is so many consecutive channels of one vector. Values are divided by the group's scale, clamped to the largest
//! magnitude of the format and rounded to the nearest code, ties to the even one (report 2.4 and the released reference code).

use std::sync::LazyLock;

mod e2m1;
mod e4m3;
mod e8m0;
mod packed;

pub use packed::{Packed, QuantError, pack, unpack};

/// How a group of numbers is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// E2M1 codes with an E4M3 scale, groups of 16: the main KV.
    Fp4E4m3,
    /// E2M1 codes with a power of two as scale, groups of 32: index queries and keys.
    Fp4E8m0,
    /// E4M3 codes with a power of two as scale, groups of 32: the window KV.
    Fp8E8m0,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Fp4E4m3, Self::Fp4E8m0, Self::Fp8E8m0];

    /// Numbers that share a scale.
    pub const fn group(self) -> usize {
        match self {
            Self::Fp4E4m3 => 16,
            Self::Fp4E8m0 | Self::Fp8E8m0 => 32,
        }
    }

    /// Bits of a code.
    pub const fn bits(self) -> usize {
        match self {
            Self::Fp4E4m3 | Self::Fp4E8m0 => 4,
            Self::Fp8E8m0 => 8,
        }
    }

    /// The scale of a group whose largest magnitude is `largest`, and its stored byte.
    ///
    /// `largest` must be finite; a group of zeros has the smallest scale of its format.
    pub fn scale(self, largest: f32) -> (f32, u8) {
        match self {
            Self::Fp4E4m3 => {
                let byte = e4m3::encode(largest.max(6.0 * e4m3::SMALLEST) / e2m1::LARGEST);
                (e4m3::decode(byte), byte)
            }
            Self::Fp4E8m0 => e8m0::scale(largest.max(6.0 * f32::MIN_POSITIVE), e2m1::LARGEST),
            Self::Fp8E8m0 => e8m0::scale(largest.max(1e-4), e4m3::LARGEST),
        }
    }

    /// The scale that a stored byte stands for.
    pub fn stored_scale(self, byte: u8) -> f32 {
        match self {
            Self::Fp4E4m3 => e4m3::decode(byte),
            Self::Fp4E8m0 | Self::Fp8E8m0 => e8m0::decode(byte),
        }
    }

    /// The byte of a scale that is not a number: what a group is stored with that holds a number that is not finite.
    pub const fn nan_scale(self) -> u8 {
        match self {
            Self::Fp4E4m3 => 0x7f,
            Self::Fp4E8m0 | Self::Fp8E8m0 => 0xff,
        }
    }

    /// What every code stands for, before its scale; of the 4-bit formats the first 16 places are codes.
    pub(crate) fn values(self) -> &'static [f32; 256] {
        static VALUES: [LazyLock<[f32; 256]>; 2] = [
            LazyLock::new(|| std::array::from_fn(|code| e2m1::decode(code as u8))),
            LazyLock::new(|| std::array::from_fn(|code| e4m3::decode(code as u8))),
        ];
        &VALUES[usize::from(self == Self::Fp8E8m0)]
    }

    /// The code nearest to `x`, which has been divided by its scale. The sign of a zero is kept.
    pub fn encode(self, x: f32) -> u8 {
        match self {
            Self::Fp4E4m3 | Self::Fp4E8m0 => e2m1::encode(x),
            Self::Fp8E8m0 => e4m3::encode(x),
        }
    }

    /// The number that a code stands for, before its scale.
    pub fn decode(self, code: u8) -> f32 {
        match self {
            Self::Fp4E4m3 | Self::Fp4E8m0 => e2m1::decode(code),
            Self::Fp8E8m0 => e4m3::decode(code),
        }
    }
}

/// The largest magnitude of a group.
fn largest(group: &[f32]) -> f32 {
    group.iter().fold(0.0, |most, x| x.abs().max(most))
}

/// The codes of one group, one a byte, and its scale's byte. A group that holds a number that is not finite is stored as NaN,
/// so that the fault surfaces where it is read, as it does in training.
pub(crate) fn encode_group(group: &[f32], format: Format, codes: &mut [u8]) -> u8 {
    if group.iter().any(|x| !x.is_finite()) {
        codes.fill(0);
        return format.nan_scale();
    }
    let (scale, byte) = format.scale(largest(group));
    for (code, &x) in codes.iter_mut().zip(group) {
        *code = format.encode(x / scale);
    }
    byte
}

/// Replaces every number by what would be read back if it were stored.
///
/// A group that holds a number that is not finite becomes NaN as a whole, so that the fault surfaces.
///
/// # Panics
/// When `values` are not whole groups.
pub fn fake_quantize(values: &mut [f32], format: Format) {
    assert!(values.len().is_multiple_of(format.group()), "{} numbers are not whole groups", values.len());
    for group in values.chunks_exact_mut(format.group()) {
        if group.iter().any(|x| !x.is_finite()) {
            group.fill(f32::NAN);
            continue;
        }
        let (scale, _) = format.scale(largest(group));
        for x in group {
            *x = format.decode(format.encode(*x / scale)) * scale;
        }
    }
}
