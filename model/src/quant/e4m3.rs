//! E4M3: eight bits, one of sign, four of exponent with bias 7, three of mantissa; no infinity, one NaN a sign.

/// The largest magnitude.
pub(super) const LARGEST: f32 = 448.0;

/// The smallest magnitude above 0, 2^-9.
pub(super) const SMALLEST: f32 = 1.0 / 512.0;

/// The smallest magnitude with a leading one, 2^-6.
const NORMAL: f32 = 1.0 / 64.0;

/// `2^exponent`, for exponents of ordinary numbers.
fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// The code nearest to `x`, ties to the even mantissa; magnitudes beyond the largest become the largest, NaN stays NaN.
pub(super) fn encode(x: f32) -> u8 {
    let sign = u8::from(x.is_sign_negative()) << 7;
    if x.is_nan() {
        return sign | 0x7f;
    }
    let size = x.abs().min(LARGEST);
    if size < NORMAL {
        // Up to 8, which is the code of the smallest number with a leading one.
        return sign | (size / SMALLEST).round_ties_even() as u8;
    }
    let exponent = (size.to_bits() >> 23) as i32 - 127;
    // Eighths of the leading power of two: 8 to 16, where 16 carries into the exponent.
    let eighths = (size / power(exponent - 3)).round_ties_even() as i32;
    sign | ((exponent + 7) * 8 + eighths - 8) as u8
}

/// The number that `code` stands for.
pub(super) fn decode(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * SMALLEST,
        _ => (8.0 + mantissa) * power(exponent - 10),
    };
    if code & 0x80 == 0 { size } else { -size }
}
