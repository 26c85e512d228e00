//! Numbers as they are stored: codes and scales in bytes.

use thiserror::Error;

use super::{Format, largest};

/// Why numbers cannot be stored or read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum QuantError {
    /// The numbers are not whole groups.
    #[error("{count} numbers are not whole groups of {group}")]
    Groups {
        /// Numbers given.
        count: usize,
        /// Numbers in a group.
        group: usize,
    },
    /// A number that no code stands for.
    #[error("number {at} is {value}: only finite numbers can be stored")]
    NotFinite {
        /// Its place.
        at: usize,
        /// NaN or an infinity.
        value: String,
    },
    /// Codes and scales that do not belong together.
    #[error("{codes} bytes of codes need {expected} scales, not {scales}")]
    Sizes {
        /// Bytes of codes.
        codes: usize,
        /// Scales that they need.
        expected: usize,
        /// Scales given.
        scales: usize,
    },
}

/// Packed numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// How they are stored.
    pub format: Format,
    /// Codes; of two 4-bit codes in a byte the one with the even place is the low half.
    pub codes: Vec<u8>,
    /// One byte a group.
    pub scales: Vec<u8>,
}

/// Packs whole groups.
///
/// # Errors
/// When the numbers are not whole groups, or when one is not finite.
pub fn pack(values: &[f32], format: Format) -> Result<Packed, QuantError> {
    if !values.len().is_multiple_of(format.group()) {
        return Err(QuantError::Groups { count: values.len(), group: format.group() });
    }
    if let Some(at) = values.iter().position(|x| !x.is_finite()) {
        return Err(QuantError::NotFinite { at, value: values[at].to_string() });
    }
    let mut packed = Packed { format, codes: Vec::new(), scales: Vec::new() };
    for group in values.chunks_exact(format.group()) {
        let (scale, byte) = format.scale(largest(group));
        packed.scales.push(byte);
        let code = |x: f32| format.encode(x / scale);
        if format.bits() == 4 {
            packed.codes.extend(group.chunks_exact(2).map(|pair| code(pair[0]) | code(pair[1]) << 4));
        } else {
            packed.codes.extend(group.iter().map(|&x| code(x)));
        }
    }
    Ok(packed)
}

/// The numbers that are read back.
///
/// # Errors
/// When codes and scales do not belong together.
pub fn unpack(packed: &Packed) -> Result<Vec<f32>, QuantError> {
    let Packed { format, codes, scales } = packed;
    let bytes = format.group() * format.bits() / 8;
    let expected = codes.len() / bytes;
    if !codes.len().is_multiple_of(bytes) || scales.len() != expected {
        return Err(QuantError::Sizes { codes: codes.len(), expected, scales: scales.len() });
    }
    let mut values = Vec::with_capacity(expected * format.group());
    for (codes, &byte) in codes.chunks_exact(bytes).zip(scales) {
        let scale = format.stored_scale(byte);
        let number = |code: u8| format.decode(code) * scale;
        if format.bits() == 4 {
            values.extend(codes.iter().flat_map(|&pair| [number(pair & 15), number(pair >> 4)]));
        } else {
            values.extend(codes.iter().map(|&code| number(code)));
        }
    }
    Ok(values)
}
