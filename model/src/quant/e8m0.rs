//! E8M0: a power of two in one byte, `2^(byte - 127)`; 255 is NaN.

/// The smallest power of two that is at least `largest / top`, and its byte. The quotient is taken as a product with the
/// reciprocal in f32, as the released reference code does.
pub(super) fn scale(largest: f32, top: f32) -> (f32, u8) {
    let bits = (largest * top.recip()).to_bits();
    let byte = (bits >> 23) as u8 + u8::from(bits << 9 != 0);
    (decode(byte), byte)
}

/// The power of two that `byte` stands for.
pub(super) fn decode(byte: u8) -> f32 {
    match byte {
        // 2^-127 has no leading one in f32.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}
