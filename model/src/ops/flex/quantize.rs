//! Fake quantization on the CPU.

use burn::backend::Flex;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::simd::{Real, dispatch};
use super::{FlexTensor, Rows, like, with_real};
use crate::ops::QuantizeBackend;
use crate::quant::Format;

/// Numbers that one task handles: whole groups of any format.
const BLOCK: usize = 8192;

/// The bits of a magnitude, and those of its exponent.
const MAGNITUDE: u32 = 0x7fff_ffff;
const EXPONENT: u32 = 0x7f80_0000;

/// The magnitudes of a code.
#[derive(Clone, Copy)]
struct Grid {
    /// Binary digits behind the leading one.
    mantissa: u32,
    /// The smallest number with a leading one; below it, steps are as wide as above it.
    normal: f32,
    largest: f32,
}

const E2M1: Grid = Grid { mantissa: 1, normal: 1.0, largest: 6.0 };
const E4M3: Grid = Grid { mantissa: 3, normal: 1.0 / 64.0, largest: 448.0 };

/// The least that [`Format::Fp4E4m3`] takes for the largest magnitude of a group: the smallest E4M3 number times 6.
const FLOOR: f32 = 6.0 / 512.0;

impl Grid {
    /// The magnitude nearest to `x` (not negative), ties to the even code.
    #[inline(always)]
    fn nearest(self, x: f32) -> f32 {
        let x = x.min(self.largest);
        // A power of two so far above `x` that the last digit of a sum with it is the last one that the grid keeps: the
        // processor's own rounding, ties to even, is then the grid's.
        let binade = (x.to_bits() & EXPONENT).max(self.normal.to_bits());
        let shift = f32::from_bits(binade + ((f32::MANTISSA_DIGITS - 1 - self.mantissa) << 23));
        (x + shift) - shift
    }
}

/// Replaces a group of numbers; loops of a fixed length, which the compiler turns into vector instructions.
#[inline(always)]
fn group<const N: usize>(x: &mut [f32; N], grid: Grid, scale: impl Fn(f32) -> f32) {
    // Magnitudes are ordered as their bits are, and what is not finite lies above all numbers.
    let largest = x.iter().fold(0, |most, x| (x.to_bits() & MAGNITUDE).max(most));
    if largest >= EXPONENT {
        x.fill(f32::NAN);
        return;
    }
    let scale = scale(f32::from_bits(largest));
    for x in x {
        *x = (grid.nearest(x.abs() / scale) * scale).copysign(*x);
    }
}

/// Replaces groups of `N` numbers each. What is not in f32 goes through it.
#[inline(always)]
fn groups<T: Real, const N: usize>(values: &mut [T], grid: Grid, scale: impl Fn(f32) -> f32) {
    for values in values.as_chunks_mut::<N>().0 {
        let mut x = [0.0; N];
        for (x, value) in x.iter_mut().zip(&*values) {
            *x = value.elem();
        }
        group(&mut x, grid, &scale);
        for (value, x) in values.iter_mut().zip(x) {
            *value = T::from_elem(x);
        }
    }
}

struct Block<'a, T> {
    values: &'a mut [T],
    format: Format,
}

impl<T: Real> WithSimd for Block<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let power = |largest| self.format.scale(largest).0;
        match self.format {
            Format::Fp4E4m3 => groups::<T, 16>(self.values, E2M1, |largest| {
                // As `Format::scale`, without its detour over a code.
                E4M3.nearest(largest.max(FLOOR) / E2M1.largest)
            }),
            Format::Fp4E8m0 => groups::<T, 32>(self.values, E2M1, power),
            Format::Fp8E8m0 => groups::<T, 32>(self.values, E4M3, power),
        }
    }
}

fn quantized<T: Real>(x: Rows, format: Format) -> FlexTensor {
    let quantize = |y: &mut [T]| {
        y.par_chunks_mut(BLOCK).for_each(|values| dispatch(Block { values, format }));
    };
    match x.into_unshared::<T>() {
        Ok(mut tensor) => {
            quantize(tensor.storage_mut());
            tensor
        }
        Err(x) => {
            let mut y = x.values::<T>().to_vec();
            quantize(&mut y);
            like(y, &x)
        }
    }
}

impl QuantizeBackend for Flex {
    fn fake_quantize(x: FlexTensor, format: Format) -> FlexTensor {
        let x = Rows::new(x);
        with_real!(x, quantized(x, format))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The quick roundings against those of codes, for every exponent and many mantissas, midpoints among them.
    #[test]
    fn roundings_are_those_of_the_codes() {
        let mut midpoints = 0;
        for bits in (0..EXPONENT).step_by(4099).chain((0..EXPONENT).step_by(1 << 18)) {
            let x = f32::from_bits(bits);
            for (grid, format) in [(E2M1, Format::Fp4E8m0), (E4M3, Format::Fp8E8m0)] {
                let (found, expected) = (grid.nearest(x), format.decode(format.encode(x)));
                assert_eq!(found.to_bits(), expected.to_bits(), "{x}");
                let middle = f32::midpoint(expected, format.decode(format.encode(x) + 1));
                midpoints += usize::from(x.to_bits() == middle.to_bits());
            }
            let scale = E4M3.nearest(x.max(FLOOR) / E2M1.largest);
            assert_eq!(scale.to_bits(), Format::Fp4E4m3.scale(x).0.to_bits(), "{x}");
        }
        assert!(midpoints > 50, "{midpoints}");
    }
}
