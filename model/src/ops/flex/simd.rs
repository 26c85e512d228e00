//! Vector registers for the CPU operators: numbers in f32 and f64, whatever the processor's register width.
//!
//! Built on `pulp`, which picks the instruction set at run time. Everything that is called inside a [`WithSimd`] must be
//! `#[inline(always)]` and must not pass vectors through closures, or the compiler cannot keep them in registers.

use std::env::VarError;
use std::sync::LazyLock;

use burn::tensor::Element;
use pulp::{Simd, WithSimd};

/// The environment variable that restricts the CPU operators to narrower registers than the processor has (`avx2`, or `none`),
/// to see that a result does not hang on them. Sums are then taken in another order: the last bits differ.
pub const REGISTERS: &str = "CSA2_REGISTERS";

/// Floating-point numbers that the CPU operators compute in, one and a register at a time.
pub(in super::super) trait Real:
    Element + bytemuck::Pod + num_traits::Float + std::iter::Sum + std::ops::AddAssign
{
    /// A register of numbers.
    type Vector<S: Simd>: Copy;
    /// A score with its position, to be compared as one number: the larger is the better.
    type Rank: Copy + Ord + Send;

    /// Converts a setting such as the softmax scale.
    fn of(x: f64) -> Self;
    /// The rank of a score that is a number: a higher score is better, of equal ones (-0 equals 0) the lower position.
    fn rank(self, position: u32) -> Self::Rank;
    /// A rank above that of every score, infinity included.
    fn rank_above_all(position: u32) -> Self::Rank;
    /// The score and the position of a rank.
    fn ranked(rank: Self::Rank) -> (Self, u32);
    /// Numbers in a register.
    fn lanes<S: Simd>() -> usize;
    /// The whole registers of a slice, and what is left over.
    fn split<S: Simd>(values: &[Self]) -> (&[Self::Vector<S>], &[Self]);
    /// The whole registers of a slice, and what is left over.
    fn split_mut<S: Simd>(values: &mut [Self]) -> (&mut [Self::Vector<S>], &mut [Self]);
    /// Fewer numbers than a register holds, the rest 0.
    fn load_part<S: Simd>(simd: S, values: &[Self]) -> Self::Vector<S>;
    /// As many numbers as `values` has room for.
    fn store_part<S: Simd>(simd: S, values: &mut [Self], vector: Self::Vector<S>);
    /// `x` in every lane.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    /// `a + b`.
    fn plus<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a * b`.
    fn times<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a * b + c`, rounded once where the processor can.
    fn fused<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;
    /// `a / b`.
    fn over<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// The larger of each pair; unspecified where one is not a number.
    fn larger<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `max(x, 0)`, but a NaN stays one.
    fn rectify<S: Simd>(simd: S, x: Self::Vector<S>) -> Self::Vector<S>;
    /// The sum of all lanes, in a fixed order.
    fn total<S: Simd>(simd: S, x: Self::Vector<S>) -> Self;
    /// The largest lane.
    fn largest<S: Simd>(simd: S, x: Self::Vector<S>) -> Self;
    /// `e^x` of each lane; what would be below the smallest normal number is 0.
    fn exponential<S: Simd>(simd: S, x: Self::Vector<S>) -> Self::Vector<S>;
}

impl Real for f32 {
    type Vector<S: Simd> = S::f32s;
    type Rank = u64;

    fn of(x: f64) -> Self {
        x as f32
    }
    #[inline(always)]
    fn rank(self, position: u32) -> u64 {
        // Adding 0 makes -0 equal to 0. The order of floats is that of their bits, with negative ones reversed.
        let bits = (self + 0.0).to_bits();
        let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        u64::from(ordered) << 32 | u64::from(!position)
    }
    fn rank_above_all(position: u32) -> u64 {
        u64::from(u32::MAX) << 32 | u64::from(!position)
    }
    #[inline(always)]
    fn ranked(rank: u64) -> (f32, u32) {
        let ordered = (rank >> 32) as u32;
        let bits = if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered };
        (f32::from_bits(bits), !(rank as u32))
    }
    #[inline(always)]
    fn lanes<S: Simd>() -> usize {
        S::F32_LANES
    }
    #[inline(always)]
    fn split<S: Simd>(values: &[f32]) -> (&[S::f32s], &[f32]) {
        S::as_simd_f32s(values)
    }
    #[inline(always)]
    fn split_mut<S: Simd>(values: &mut [f32]) -> (&mut [S::f32s], &mut [f32]) {
        S::as_mut_simd_f32s(values)
    }
    #[inline(always)]
    fn load_part<S: Simd>(simd: S, values: &[f32]) -> S::f32s {
        simd.partial_load_f32s(values)
    }
    #[inline(always)]
    fn store_part<S: Simd>(simd: S, values: &mut [f32], vector: S::f32s) {
        simd.partial_store_f32s(values, vector);
    }
    #[inline(always)]
    fn splat<S: Simd>(simd: S, x: f32) -> S::f32s {
        simd.splat_f32s(x)
    }
    #[inline(always)]
    fn plus<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.add_f32s(a, b)
    }
    #[inline(always)]
    fn times<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.mul_f32s(a, b)
    }
    #[inline(always)]
    fn fused<S: Simd>(simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
        simd.mul_add_e_f32s(a, b, c)
    }
    #[inline(always)]
    fn over<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.div_f32s(a, b)
    }
    #[inline(always)]
    fn larger<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.max_f32s(a, b)
    }
    #[inline(always)]
    fn rectify<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
        let zero = simd.splat_f32s(0.0);
        simd.select_f32s(simd.less_than_f32s(x, zero), zero, x)
    }
    #[inline(always)]
    fn total<S: Simd>(simd: S, x: S::f32s) -> f32 {
        simd.reduce_sum_f32s(x)
    }
    #[inline(always)]
    fn largest<S: Simd>(simd: S, x: S::f32s) -> f32 {
        simd.reduce_max_f32s(x)
    }

    /// With `n` the integer nearest to `x / ln 2` and `r = x - n ln 2`, `e^x = 2^n e^r`; `|r| < 0.35`, so that the Taylor
    /// polynomial of degree 7 is off by less than 6e-9 of the value.
    #[inline(always)]
    fn exponential<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
        // Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits.
        let shift = simd.splat_f32s(12_582_912.0);
        let shifted = simd.mul_add_e_f32s(x, simd.splat_f32s(std::f32::consts::LOG2_E), shift);
        let n = simd.sub_f32s(shifted, shift);
        // ln 2 in two parts, the first short enough for exact products.
        let r = simd.mul_add_e_f32s(n, simd.splat_f32s(-0.693_359_4), x);
        let r = simd.mul_add_e_f32s(n, simd.splat_f32s(2.121_944_4e-4), r);
        let mut p = simd.splat_f32s(1.0 / 5040.0);
        for factorial in [720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
            p = simd.mul_add_e_f32s(p, r, simd.splat_f32s(1.0 / factorial));
        }
        // 2^n: n + 127 moved into the exponent.
        let bits = simd.add_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(127));
        let power = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(bits, simd.splat_u32s(23)));
        let y = simd.mul_f32s(p, power);
        let y = simd.select_f32s(simd.less_than_f32s(x, simd.splat_f32s(-87.3)), simd.splat_f32s(0.0), y);
        let top = simd.splat_f32s(88.3);
        simd.select_f32s(simd.greater_than_f32s(x, top), simd.splat_f32s(f32::INFINITY), y)
    }
}

impl Real for f64 {
    type Vector<S: Simd> = S::f64s;
    type Rank = u128;

    fn of(x: f64) -> Self {
        x
    }
    #[inline(always)]
    fn rank(self, position: u32) -> u128 {
        let bits = (self + 0.0).to_bits();
        let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
        u128::from(ordered) << 32 | u128::from(!position)
    }
    fn rank_above_all(position: u32) -> u128 {
        u128::from(u64::MAX) << 32 | u128::from(!position)
    }
    #[inline(always)]
    fn ranked(rank: u128) -> (f64, u32) {
        let ordered = (rank >> 32) as u64;
        let bits = if ordered >> 63 == 1 { ordered & !(1 << 63) } else { !ordered };
        (f64::from_bits(bits), !(rank as u32))
    }
    #[inline(always)]
    fn lanes<S: Simd>() -> usize {
        S::F64_LANES
    }
    #[inline(always)]
    fn split<S: Simd>(values: &[f64]) -> (&[S::f64s], &[f64]) {
        S::as_simd_f64s(values)
    }
    #[inline(always)]
    fn split_mut<S: Simd>(values: &mut [f64]) -> (&mut [S::f64s], &mut [f64]) {
        S::as_mut_simd_f64s(values)
    }
    #[inline(always)]
    fn load_part<S: Simd>(simd: S, values: &[f64]) -> S::f64s {
        simd.partial_load_f64s(values)
    }
    #[inline(always)]
    fn store_part<S: Simd>(simd: S, values: &mut [f64], vector: S::f64s) {
        simd.partial_store_f64s(values, vector);
    }
    #[inline(always)]
    fn splat<S: Simd>(simd: S, x: f64) -> S::f64s {
        simd.splat_f64s(x)
    }
    #[inline(always)]
    fn plus<S: Simd>(simd: S, a: S::f64s, b: S::f64s) -> S::f64s {
        simd.add_f64s(a, b)
    }
    #[inline(always)]
    fn times<S: Simd>(simd: S, a: S::f64s, b: S::f64s) -> S::f64s {
        simd.mul_f64s(a, b)
    }
    #[inline(always)]
    fn fused<S: Simd>(simd: S, a: S::f64s, b: S::f64s, c: S::f64s) -> S::f64s {
        simd.mul_add_e_f64s(a, b, c)
    }
    #[inline(always)]
    fn over<S: Simd>(simd: S, a: S::f64s, b: S::f64s) -> S::f64s {
        simd.div_f64s(a, b)
    }
    #[inline(always)]
    fn larger<S: Simd>(simd: S, a: S::f64s, b: S::f64s) -> S::f64s {
        simd.max_f64s(a, b)
    }
    #[inline(always)]
    fn rectify<S: Simd>(simd: S, x: S::f64s) -> S::f64s {
        let zero = simd.splat_f64s(0.0);
        simd.select_f64s(simd.less_than_f64s(x, zero), zero, x)
    }
    #[inline(always)]
    fn total<S: Simd>(simd: S, x: S::f64s) -> f64 {
        simd.reduce_sum_f64s(x)
    }
    #[inline(always)]
    fn largest<S: Simd>(simd: S, x: S::f64s) -> f64 {
        simd.reduce_max_f64s(x)
    }

    /// One lane after the other: f64 is there for tests, which want every digit.
    #[inline(always)]
    fn exponential<S: Simd>(_: S, x: S::f64s) -> S::f64s {
        let mut lanes = [x];
        for lane in bytemuck::cast_slice_mut::<S::f64s, f64>(&mut lanes) {
            *lane = lane.exp();
        }
        lanes[0]
    }
}

/// Which registers may be used: the environment variable [`REGISTERS`] can ask for narrower ones than there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registers {
    Widest,
    Avx2,
    None,
}

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// Whether the widest registers may be used.
    pub(super) fn widest() -> bool {
        *ALLOWED == Self::Widest
    }

    /// Whether any may be used.
    pub(super) fn any() -> bool {
        *ALLOWED != Self::None
    }
}

/// Read once. What is neither of the known words is answered by whoever starts a run (see [`registers_asked_for`]).
static ALLOWED: LazyLock<Registers> = LazyLock::new(|| registers_asked_for().unwrap_or(Registers::Widest));

fn registers_asked_for() -> Result<Registers, String> {
    match std::env::var(REGISTERS) {
        Err(VarError::NotPresent) => Ok(Registers::Widest),
        Ok(word) if word == "widest" => Ok(Registers::Widest),
        Ok(word) if word == "avx2" => Ok(Registers::Avx2),
        Ok(word) if word == "none" => Ok(Registers::None),
        Ok(word) => Err(format!("the environment variable {REGISTERS} is {word:?}; it can be widest, avx2 or none")),
        Err(error) => Err(format!("the environment variable {REGISTERS}: {error}; it can be widest, avx2 or none")),
    }
}

/// Whether the environment variable [`REGISTERS`] makes sense.
///
/// # Errors
/// A sentence that says what is wrong and what would be right.
pub fn check_registers() -> Result<(), String> {
    registers_asked_for().map(|_| ())
}

/// Runs `work` with the widest registers that this processor has and that are allowed.
#[inline]
pub(in super::super) fn dispatch<W: WithSimd>(work: W) -> W::Output {
    let allowed = *ALLOWED;
    #[cfg(target_arch = "x86_64")]
    {
        if allowed == Registers::Widest
            && let Some(simd) = pulp::x86::V4::try_new()
        {
            return Simd::vectorize(simd, work);
        }
        if allowed != Registers::None
            && let Some(simd) = pulp::x86::V3::try_new()
        {
            return Simd::vectorize(simd, work);
        }
    }
    if allowed == Registers::None {
        return Simd::vectorize(pulp::Scalar, work);
    }
    pulp::Arch::new().dispatch(work)
}

/// `values[i] = exp(values[i] * scale - shift)`; the sum of the results.
#[inline(always)]
pub(in super::super) fn exp_all<T: Real, S: Simd>(simd: S, values: &mut [T], scale: T, shift: T) -> T {
    let (factor, offset) = (T::splat(simd, scale), T::splat(simd, -shift));
    let (vectors, rest) = T::split_mut::<S>(values);
    let mut sums = T::splat(simd, T::zero());
    for x in vectors {
        *x = T::exponential(simd, T::fused(simd, *x, factor, offset));
        sums = T::plus(simd, sums, *x);
    }
    let mut total = T::total(simd, sums);
    if !rest.is_empty() {
        let x = T::exponential(simd, T::fused(simd, T::load_part(simd, rest), factor, offset));
        T::store_part(simd, rest, x);
        for &x in &*rest {
            total += x;
        }
    }
    total
}

/// The largest of `values`, or `least`; not specified where one is not a number.
#[inline(always)]
pub(in super::super) fn largest_of<T: Real, S: Simd>(simd: S, values: &[T], least: T) -> T {
    let (vectors, rest) = T::split::<S>(values);
    let mut best = T::splat(simd, least);
    for &x in vectors {
        best = T::larger(simd, best, x);
    }
    let mut best = T::largest(simd, best);
    for &x in rest {
        if x > best {
            best = x;
        }
    }
    best
}
