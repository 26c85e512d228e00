//! Fake quantization on the device, one thread per channel, in whole numbers alone: a device may divide inexactly, round
//! products in either direction and take subnormal numbers for 0, but every result must be that of the host to the last bit.

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::cast;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use cubecl::prelude::*;

use super::Float as FloatTensor;
use super::shared::{THREADS, address, float_type, grid, single, workgroup};
use crate::ops::QuantizeBackend;
use crate::quant::Format;

/// Parts of an f32, as bits.
const SIGN: u32 = 1 << 31;
const LEADING: u32 = 1 << 23;
const FRACTION: u32 = LEADING - 1;
const INFINITY: u32 = 0xff << 23;
const NAN: u32 = 0x7fc0_0000;

/// The magnitudes of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grid {
    /// Binary digits behind the leading one.
    mantissa: u32,
    /// The exponent below which steps get no smaller.
    lowest: i32,
    /// The largest magnitude, by its bits.
    largest: u32,
}

const E2M1: Grid = Grid { mantissa: 1, lowest: 0, largest: 6.0_f32.to_bits() };
const E4M3: Grid = Grid { mantissa: 3, lowest: -6, largest: 448.0_f32.to_bits() };

/// The numbers' grid, that of the scale where it is no power of two, and the least that the format takes for the largest
/// magnitude of a group (by its bits).
const fn parts(format: Format) -> (Grid, Option<Grid>, u32) {
    match format {
        Format::Fp4E4m3 => (E2M1, Some(E4M3), (6.0_f32 / 512.0).to_bits()),
        Format::Fp4E8m0 => (E2M1, None, (6.0 * f32::MIN_POSITIVE).to_bits()),
        Format::Fp8E8m0 => (E4M3, None, 1e-4_f32.to_bits()),
    }
}

/// The quotient `x / divisor` of positive numbers, rounded to `grid`, ties to even. All numbers are given by their bits;
/// `divisor` has a leading one.
///
/// On the host the quotient is rounded to f32 first. That changes nothing: a point half-way between two numbers of the grid,
/// times the divisor, has so few digits that the quotient of any other f32 stays on its side of that point.
#[cube]
fn nearest(x: u32, divisor: u32, #[comptime] grid: Grid) -> u32 {
    let mut x_exponent = i32::cast_from(x >> 23);
    let mut numerator = x & FRACTION;
    if x_exponent == 0 {
        x_exponent = 1i32.runtime();
    } else {
        numerator |= LEADING;
    }
    let mut denominator = (divisor & FRACTION) | LEADING;
    let difference = x_exponent - i32::cast_from(divisor >> 23);
    let mut exponent = difference;
    if numerator < denominator {
        exponent -= 1;
    }
    // The quotient as a fraction of the grid's step; where the denominator's shift is cut off, it is below a quarter anyway.
    let step = max(exponent, grid.lowest) - comptime!(grid.mantissa as i32);
    let shift = u32::cast_from(min(step - difference + comptime!(grid.mantissa as i32 + 1), 7));
    numerator <<= comptime!(grid.mantissa + 1);
    denominator <<= shift;
    let mut steps = numerator / denominator;
    let rest = 2 * (numerator - steps * denominator);
    if rest > denominator || (rest == denominator && steps % 2 == 1) {
        steps += 1;
    }
    let mut result = 0u32;
    if steps > 0 {
        // A small number is exact in f32; adding to its exponent is, too.
        let bits = i32::cast_from(u32::reinterpret(f32::cast_from(steps))) + step * comptime!(LEADING as i32);
        result = min(u32::cast_from(bits), grid.largest);
    }
    result
}

/// The product of a code's magnitude (above 0) and a scale, by their bits: both have at most three binary digits behind
/// leading ones. It is subnormal only for the smallest code and scale of [`Format::Fp4E8m0`], one half and 2^-126.
#[cube]
fn product(code: u32, scale: u32) -> u32 {
    // Between 64 and 256, times 2^(exponent - 133) where exponents are those of bits.
    let digits = (((code & FRACTION) | LEADING) >> 20) * (((scale & FRACTION) | LEADING) >> 20);
    let exponent = i32::cast_from(code >> 23) + i32::cast_from(scale >> 23) - 127;
    let mut result = digits << 16;
    if exponent > 0 || digits >= 128 {
        let bits =
            i32::cast_from(u32::reinterpret(f32::cast_from(digits))) + (exponent - 133) * comptime!(LEADING as i32);
        result = u32::cast_from(bits);
    }
    result
}

/// The smallest power of two that is at least `x / largest`, by bits. The host multiplies by the reciprocal, rounded; for the
/// two largest magnitudes that there are, this is the same.
#[cube]
fn power(x: u32, #[comptime] largest: u32) -> u32 {
    // The exponents' difference, and one more where the digits of `x` are beyond those of `largest`.
    let carried = x + comptime!(FRACTION - (largest & FRACTION));
    ((carried >> 23) - comptime!((largest >> 23) - 127)) << 23
}

/// What is read back of the number with bits `own` from a group whose largest magnitude has bits `largest`.
#[cube]
fn read_back(own: u32, largest: u32, #[comptime] format: Format) -> u32 {
    let (grid, scale_grid, floor) = comptime!(parts(format));
    let bounded = max(largest, floor);
    let scale = match comptime!(scale_grid) {
        Some(scale_grid) => nearest(bounded, grid.largest.runtime(), scale_grid),
        None => power(bounded, grid.largest),
    };
    let code = nearest(own & comptime!(SIGN - 1), scale, grid);
    let mut result = own & SIGN;
    if code > 0 {
        result |= product(code, scale);
    }
    if largest >= INFINITY {
        result = NAN.runtime();
    }
    result
}

/// `x` and `y` are the bits of f32 numbers, in whole groups; a workgroup holds some groups.
#[cube(launch, address_type = "dynamic")]
fn quantize_kernel(x: &[u32], y: &mut [u32], #[comptime] format: Format) {
    let at = ABSOLUTE_POS;
    let unit = UNIT_POS as usize;
    let group = comptime!(format.group());
    let mut own = 0u32;
    if at < y.len() {
        own = x[at];
    }
    let mut magnitudes = Shared::<[u32]>::new_slice(THREADS);
    magnitudes[unit] = own & comptime!(SIGN - 1);
    sync_cube();
    let first = unit - unit % group;
    let mut largest = 0u32;
    for member in first..first + group {
        largest = max(largest, magnitudes[member]);
    }
    if at < y.len() {
        y[at] = read_back(own, largest, format);
    }
}

impl QuantizeBackend for CubeBackend {
    fn fake_quantize(x: FloatTensor, format: Format) -> FloatTensor {
        let count = x.shape().num_elements();
        if count == 0 {
            return x;
        }
        // Refuses what the other kernels refuse.
        let _ = float_type(&x);
        let dtype = x.dtype;
        let x = single(x);
        let y = empty_device_contiguous_dtype(x.client.clone(), x.device.clone(), x.shape(), DType::F32);
        quantize_kernel::launch(
            &x.client.clone(),
            grid(&x, count.div_ceil(THREADS)),
            workgroup(),
            address(&[&x]),
            x.clone().into_buffer_arg(),
            y.clone().into_buffer_arg(),
            format,
        );
        cast(y, dtype)
    }
}
