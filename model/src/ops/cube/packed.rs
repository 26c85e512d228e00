//! Rows of vectors as kernels read them: plain numbers, or the packed words of a store's mirror, dequantized as they are read.

use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::{ElemType, UIntKind};
use cubecl::prelude::*;

use super::shared::{THREADS, dims, float_type};
use crate::quant::Format;
use crate::store::PANEL;

/// Parts of an f32, as bits.
const FRACTION_BITS: u32 = 23;
const INFINITY: u32 = 0xff << FRACTION_BITS;
const NAN: u32 = 0x7fc0_0000;

/// How the vectors of a buffer lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Layout {
    /// Numbers, one vector after the other.
    Plain,
    /// Words of a mirror: blocks of [`PANEL`] vectors, codes and then scales; without a format, bits of f32 numbers.
    Words(Option<Format>),
}

/// Vectors in a buffer.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub tensor: &'a CubeTensor,
    /// Of every sequence.
    pub count: usize,
    pub layout: Layout,
}

impl<'a> Rows<'a> {
    /// Those of `[B, N, d]`.
    pub(super) fn plain(tensor: &'a CubeTensor) -> Self {
        let [_, count, _] = dims(tensor);
        Self { tensor, count, layout: Layout::Plain }
    }

    /// What the buffer holds.
    pub(super) fn element(&self) -> ElemType {
        match self.layout {
            Layout::Plain => float_type(self.tensor),
            Layout::Words(_) => ElemType::UInt(UIntKind::U32),
        }
    }
}

/// Channel `channel` of vector `row`, of `dim` channels.
#[cube]
pub(super) fn read<R: Numeric>(rows: &[R], row: usize, dim: usize, channel: usize, #[comptime] layout: Layout) -> f32 {
    match comptime!(layout) {
        Layout::Plain => f32::cast_from(rows[row * dim + channel]),
        Layout::Words(None) => f32::reinterpret(u32::cast_from(rows[row * dim + channel])),
        Layout::Words(Some(format)) => {
            let groups = dim / comptime!(format.group());
            let code_words = comptime!(PANEL * format.bits() / 32);
            let block = row / PANEL * (dim * code_words + groups * comptime!(PANEL / 4));
            let lane = row % PANEL;
            let group = channel / comptime!(format.group());
            // Where in the block the word with the code lies, and the code in the word; the scale, in bytes behind all codes.
            let codes = comptime!(32 / format.bits());
            let place = lane * dim + channel;
            let mut word = place / codes;
            let mut shift = place % codes * comptime!(format.bits());
            let mut scale = lane * groups + group;
            if comptime!(format == Format::Fp4E8m0) {
                word = channel / 8 * PANEL + lane;
                shift = channel % 4 * 8 + channel / 4 % 2 * 4;
                scale = group * PANEL + lane;
            }
            let code = u32::cast_from(rows[block + word]) >> u32::cast_from(shift);
            let scales = u32::cast_from(rows[block + dim * code_words + scale / 4]);
            let scale = (scales >> u32::cast_from(scale % 4 * 8)) & 0xff;
            f32::reinterpret(product(code & comptime!((1u32 << format.bits()) - 1), scale, format))
        }
    }
}

/// Bits of the number that a code stands for, times that of a scale's byte: exactly what the host computes. In whole numbers,
/// because a device may take subnormal numbers for 0.
#[cube]
fn product(code: u32, scale: u32, #[comptime] format: Format) -> u32 {
    let sign_place = comptime!(format.bits() as u32 - 1);
    let mut sign = code >> sign_place;
    let magnitude = code & comptime!((1u32 << (format.bits() - 1)) - 1);
    // A magnitude is `digits * 2^exponent`.
    let (mantissa, bias) = comptime!(if format.bits() == 4 { (1u32, 2i32) } else { (3u32, 10i32) });
    let mut digits = digits_of(magnitude, mantissa);
    let mut exponent = i32::cast_from(max(magnitude >> mantissa, 1)) - bias;
    let mut nan = comptime!(format.bits() == 8) && magnitude == 0x7f;
    if comptime!(format == Format::Fp4E4m3) {
        let size = scale & 0x7f;
        nan = size == 0x7f;
        sign ^= scale >> 7;
        digits *= digits_of(size, 3u32);
        exponent += i32::cast_from(max(size >> 3, 1)) - 10;
    } else {
        nan = nan || scale == 0xff;
        exponent += i32::cast_from(scale) - 127;
    }
    let mut bits = 0u32;
    if digits > 0 {
        // A small whole number is exact in f32; its exponent is added to.
        let whole = u32::reinterpret(f32::cast_from(digits));
        let place = i32::cast_from(whole >> FRACTION_BITS) + exponent;
        if place >= 0xff {
            bits = INFINITY.runtime();
        } else if place > 0 {
            bits = (whole & comptime!((1u32 << FRACTION_BITS) - 1)) | (u32::cast_from(place) << FRACTION_BITS);
        } else {
            // Subnormal, in steps of 2^-149. The smallest product is 2^-136.
            bits = digits << u32::cast_from(exponent + 149);
        }
    }
    bits |= sign << 31;
    if nan {
        bits = NAN.runtime();
    }
    bits
}

/// The digits of a code's magnitude as a whole number, the leading one included where there is one.
#[cube]
fn digits_of(magnitude: u32, #[comptime] mantissa: u32) -> u32 {
    let mut digits = magnitude & comptime!((1u32 << mantissa) - 1);
    if magnitude >> mantissa > 0 {
        digits |= comptime!(1u32 << mantissa);
    }
    digits
}

/// As [`load_row`](super::shared::load_row), of the vector `row`.
#[cube]
pub(super) fn load_vector<R: Numeric>(
    tile: &mut Shared<[f32]>,
    at: usize,
    rows: &[R],
    row: usize,
    dim: usize,
    present: bool,
    #[comptime] channels: usize,
    #[comptime] layout: Layout,
) {
    #[unroll]
    for c in 0..channels {
        let channel = c * THREADS + UNIT_POS as usize;
        let mut value = 0.0f32;
        if present && channel < dim {
            value = read::<R>(rows, row, dim, channel, layout);
        }
        tile[at + channel] = value;
    }
}
