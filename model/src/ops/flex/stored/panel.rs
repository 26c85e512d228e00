//! Scores of packed index keys: products of 4-bit codes in whole numbers, straight from the panels in which keys lie (see
//! [`PANEL`]).
//!
//! Twice an E2M1 number is a whole number of at most 12, so that the sum of a group's products is one as well, exact in any
//! order. Keys are shifted by 12, because the processor multiplies unsigned bytes by signed ones; the shift is taken off again
//! once a group. A register holds 8 or 16 keys, with 4 channels of each.

use pulp::cast;

#[cfg(target_arch = "x86_64")]
use super::super::simd::Registers;
use crate::quant::{Format, encode_group};
use crate::store::PANEL;

/// Keys' format.
const FORMAT: Format = Format::Fp4E8m0;

/// Numbers that share a scale, and bytes of a panel's codes for them.
const GROUP: usize = FORMAT.group();
const GROUP_CODES: usize = GROUP * PANEL / 2;

/// Up to so many heads' sums need no memory of their own.
const FEW_HEADS: usize = 16;

/// What is added to twice a key's number.
const SHIFT: i32 = 12;

/// Twice the magnitude of a code.
const DOUBLED: [i8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];

/// What a code of a key stands for: twice its number, shifted.
const SHIFTED: [u8; 16] = {
    let mut values = [0; 16];
    let mut code = 0;
    while code < 16 {
        let size = DOUBLED[code % 8] as i32;
        values[code] = (SHIFT + if code < 8 { size } else { -size }) as u8;
        code += 1;
    }
    values
};

/// The same for every 16 bytes of a register.
#[cfg(target_arch = "x86_64")]
const TABLE: [[u8; 32]; 2] = {
    let mut table = [0; 32];
    let mut at = 0;
    while at < 32 {
        table[at] = SHIFTED[at % 16];
        at += 1;
    }
    [table; 2]
};

/// One group of one head of a query.
#[derive(Clone, Copy)]
struct QueryGroup {
    /// Twice the numbers, 4 channels each, in the order in which a panel's bytes hold them: low halves, then high halves of 8.
    codes: [i32; GROUP / 4],
    /// What the keys' shift adds to the sum of products.
    shift: i32,
    /// The scale; a quarter of it, because both numbers are doubled.
    scale: f32,
}

/// A query `[H, d]` whose numbers are those of the keys' format.
pub(super) struct PanelQuery {
    /// `[groups, H]`.
    groups: Vec<QueryGroup>,
    weights: Vec<f32>,
}

impl PanelQuery {
    /// From `q` `[H, d]`, rounded to the keys' format, and head weights `[H]`.
    pub(super) fn new(q: &[f32], weights: &[f32]) -> Self {
        let heads = weights.len();
        let dim = q.len() / heads;
        let mut groups = Vec::with_capacity(q.len() / GROUP);
        for group in 0..dim / GROUP {
            for h in 0..heads {
                let start = h * dim + group * GROUP;
                let mut codes = [0; GROUP];
                let scale = FORMAT.stored_scale(encode_group(&q[start..start + GROUP], FORMAT, &mut codes));
                let doubled = codes.map(|code| {
                    let size = DOUBLED[usize::from(code & 7)];
                    if code < 8 { size } else { -size }
                });
                let sum: i32 = doubled.iter().map(|&x| i32::from(x)).sum();
                let bytes = doubled.as_chunks::<4>().0;
                let codes = std::array::from_fn(|four| i32::from_le_bytes(bytes[four].map(i8::cast_unsigned)));
                groups.push(QueryGroup { codes, shift: SHIFT * sum, scale: scale / 4.0 });
            }
        }
        Self { groups, weights: weights.to_vec() }
    }

    /// `scores[j] = sum_h weights[h] max(q[h] . keys[j], 0)` for whole panels of keys, part of a long row of panels.
    pub(super) fn score(&self, codes: &[u8], scales: &[u8], scores: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        {
            if Registers::widest()
                && let Some(simd) = pulp::x86::V4::try_new()
            {
                return simd.vectorize(|| self.panels(Wide(simd), codes, scales, scores));
            }
            if Registers::any()
                && let Some(simd) = pulp::x86::V3::try_new()
            {
                return simd.vectorize(|| self.panels(Narrow(simd), codes, scales, scores));
            }
        }
        self.panels(Plain, codes, scales, scores);
    }

    #[inline(always)]
    fn panels<L: Lanes>(&self, lanes: L, codes: &[u8], scales: &[u8], scores: &mut [f32]) {
        let heads = self.weights.len();
        let groups = self.groups.len() / heads;
        let (mut few, mut many) = ([lanes.splat(0.0); FEW_HEADS], Vec::new());
        let products = if heads <= FEW_HEADS {
            &mut few[..heads]
        } else {
            many.resize(heads, lanes.splat(0.0));
            &mut many[..]
        };
        let panels = codes.chunks_exact(groups * GROUP_CODES).zip(scales.chunks_exact(groups * PANEL));
        for ((codes, scales), scores) in panels.zip(scores.chunks_exact_mut(PANEL)) {
            for (part, scores) in scores.chunks_exact_mut(L::KEYS).enumerate() {
                for (group, queries) in self.groups.chunks_exact(heads).enumerate() {
                    let codes = &codes[group * GROUP_CODES..(group + 1) * GROUP_CODES];
                    fetch_ahead(codes);
                    let mut keys = [lanes.bytes([0; 4]); GROUP / 4];
                    for block in 0..GROUP / 8 {
                        let start = block * 4 * PANEL + part * 4 * L::KEYS;
                        let [low, high] = lanes.unpacked(&codes[start..start + 4 * L::KEYS]);
                        (keys[2 * block], keys[2 * block + 1]) = (low, high);
                    }
                    let start = group * PANEL + part * L::KEYS;
                    let scale = lanes.scales(&scales[start..start + L::KEYS]);
                    for (query, product) in queries.iter().zip(&mut *products) {
                        let mut sum = lanes.zero();
                        for four in 0..GROUP / 4 {
                            sum = lanes.dot(keys[four], query.codes[four], sum);
                        }
                        let sum = lanes.floats(sum, query.shift);
                        let scale = lanes.times(scale, lanes.splat(query.scale));
                        *product = if group == 0 { lanes.times(sum, scale) } else { lanes.fused(sum, scale, *product) };
                    }
                }
                let mut total = lanes.splat(0.0);
                for (&product, &weight) in products.iter().zip(&self.weights) {
                    total = lanes.fused(lanes.rectify(product), lanes.splat(weight), total);
                }
                lanes.store(total, scores);
            }
        }
    }
}

/// Bytes between what is being scored and what is fetched for later.
const AHEAD: usize = 4096;

/// Has the processor fetch codes that will be scored soon, as something that is read once: so that keys drive less of the
/// network's weights, which the next layers need, out of its caches.
#[inline(always)]
fn fetch_ahead(codes: &[u8]) {
    for line in (0..codes.len()).step_by(LINE) {
        #[cfg(target_arch = "x86_64")]
        fetch::<{ std::arch::x86_64::_MM_HINT_NTA }>(codes.as_ptr().wrapping_add(AHEAD + line));
    }
}

/// Bytes that a processor fetches together.
const LINE: usize = 64;

/// Has the processor fetch memory that lies scattered, all of it at a time.
pub(super) fn fetch_all(memory: &[u8]) {
    for line in memory.chunks(LINE) {
        #[cfg(target_arch = "x86_64")]
        fetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr());
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fetch<const HINT: i32>(address: *const u8) {
    // SAFETY: a prefetch neither reads nor writes; any address will do, past the end of an array too.
    unsafe { std::arch::x86_64::_mm_prefetch::<HINT>(address.cast()) };
}

/// Registers that hold the same channels of several keys.
trait Lanes: Copy {
    /// Four bytes of every key.
    type Bytes: Copy;
    /// Sums of products.
    type Sums: Copy;
    /// A number of every key.
    type Floats: Copy;
    /// Keys in a register.
    const KEYS: usize;

    /// The same four bytes for every key.
    fn bytes(self, x: [u8; 4]) -> Self::Bytes;
    /// What the low and the high halves of four bytes a key stand for, shifted.
    fn unpacked(self, codes: &[u8]) -> [Self::Bytes; 2];
    fn zero(self) -> Self::Sums;
    /// `sum + keys . q` over four channels, those of `q` in the bytes of one number; at most 8 such steps fit a sum.
    fn dot(self, keys: Self::Bytes, q: i32, sum: Self::Sums) -> Self::Sums;
    /// A sum without the shift.
    fn floats(self, sum: Self::Sums, shift: i32) -> Self::Floats;
    /// The scales that stored bytes stand for.
    fn scales(self, bytes: &[u8]) -> Self::Floats;
    fn splat(self, x: f32) -> Self::Floats;
    fn times(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`.
    fn fused(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `max(x, 0)`, but a NaN stays one.
    fn rectify(self, x: Self::Floats) -> Self::Floats;
    fn store(self, x: Self::Floats, out: &mut [f32]);
}

/// Any processor.
#[derive(Clone, Copy)]
struct Plain;

impl Lanes for Plain {
    type Bytes = [u8; 4];
    type Sums = i32;
    type Floats = f32;
    const KEYS: usize = 1;

    fn bytes(self, x: [u8; 4]) -> [u8; 4] {
        x
    }
    fn unpacked(self, codes: &[u8]) -> [[u8; 4]; 2] {
        let value = |code: u8| SHIFTED[usize::from(code)];
        [std::array::from_fn(|i| value(codes[i] & 15)), std::array::from_fn(|i| value(codes[i] >> 4))]
    }
    fn zero(self) -> i32 {
        0
    }
    fn dot(self, keys: [u8; 4], q: i32, sum: i32) -> i32 {
        let products = keys.iter().zip(q.to_le_bytes()).map(|(&key, q)| i32::from(key) * i32::from(q.cast_signed()));
        products.sum::<i32>() + sum
    }
    fn floats(self, sum: i32, shift: i32) -> f32 {
        (sum - shift) as f32
    }
    fn scales(self, bytes: &[u8]) -> f32 {
        FORMAT.stored_scale(bytes[0])
    }
    fn splat(self, x: f32) -> f32 {
        x
    }
    fn times(self, a: f32, b: f32) -> f32 {
        a * b
    }
    fn fused(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    fn rectify(self, x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { x }
    }
    fn store(self, x: f32, out: &mut [f32]) {
        out[0] = x;
    }
}

/// Bits of the scale 2^-127, which has no leading one, and of a scale that is not a number.
#[cfg(target_arch = "x86_64")]
const SMALLEST_SCALE: u32 = 1 << 22;
#[cfg(target_arch = "x86_64")]
const NAN: u32 = 0x7fc0_0000;

/// Registers of 32 bytes.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Narrow(pulp::x86::V3);

#[cfg(target_arch = "x86_64")]
impl Lanes for Narrow {
    type Bytes = pulp::u8x32;
    type Sums = pulp::i16x16;
    type Floats = pulp::f32x8;
    const KEYS: usize = 8;

    #[inline(always)]
    fn bytes(self, x: [u8; 4]) -> pulp::u8x32 {
        cast(self.0.splat_i32x8(i32::from_le_bytes(x)))
    }
    #[inline(always)]
    fn unpacked(self, codes: &[u8]) -> [pulp::u8x32; 2] {
        let simd = self.0;
        let codes: pulp::u8x32 = *bytemuck::from_bytes(codes);
        let (table, mask): (pulp::u8x32, _) = (cast(TABLE[0]), simd.splat_u8x32(15));
        let high: pulp::u8x32 = cast(simd.shr_const_u16x16::<4>(cast(codes)));
        let look_up = |codes: pulp::u8x32| cast(simd.avx2._mm256_shuffle_epi8(cast(table), cast(codes)));
        [look_up(simd.and_u8x32(codes, mask)), look_up(simd.and_u8x32(high, mask))]
    }
    #[inline(always)]
    fn zero(self) -> pulp::i16x16 {
        self.0.splat_i16x16(0)
    }
    #[inline(always)]
    fn dot(self, keys: pulp::u8x32, q: i32, sum: pulp::i16x16) -> pulp::i16x16 {
        let q: pulp::i8x32 = cast(self.0.splat_i32x8(q));
        // No sum of two products of at most 24 * 12 leaves 16 bits, nor do eight of these.
        let products: pulp::i16x16 = cast(self.0.avx2._mm256_maddubs_epi16(cast(keys), cast(q)));
        self.0.wrapping_add_i16x16(sum, products)
    }
    #[inline(always)]
    fn floats(self, sum: pulp::i16x16, shift: i32) -> pulp::f32x8 {
        let simd = self.0;
        let sum = simd.multiply_wrapping_add_adjacent_i16x16(sum, simd.splat_i16x16(1));
        simd.convert_i32x8_to_f32x8(simd.wrapping_sub_i32x8(sum, simd.splat_i32x8(shift)))
    }
    #[inline(always)]
    fn scales(self, bytes: &[u8]) -> pulp::f32x8 {
        let simd = self.0;
        let mut wide = [0; 16];
        wide[..8].copy_from_slice(bytes);
        let bytes: pulp::u32x8 = cast(simd.convert_u8x16_to_i32x8(cast(wide)));
        let bits = simd.shl_const_u32x8::<23>(bytes);
        let first = simd.cmp_eq_u32x8(bytes, simd.splat_u32x8(0));
        let last = simd.cmp_eq_u32x8(bytes, simd.splat_u32x8(255));
        let bits = simd.select_u32x8(first, simd.splat_u32x8(SMALLEST_SCALE), bits);
        cast(simd.select_u32x8(last, simd.splat_u32x8(NAN), bits))
    }
    #[inline(always)]
    fn splat(self, x: f32) -> pulp::f32x8 {
        self.0.splat_f32x8(x)
    }
    #[inline(always)]
    fn times(self, a: pulp::f32x8, b: pulp::f32x8) -> pulp::f32x8 {
        self.0.mul_f32x8(a, b)
    }
    #[inline(always)]
    fn fused(self, a: pulp::f32x8, b: pulp::f32x8, c: pulp::f32x8) -> pulp::f32x8 {
        self.0.mul_add_f32x8(a, b, c)
    }
    #[inline(always)]
    fn rectify(self, x: pulp::f32x8) -> pulp::f32x8 {
        let zero = self.0.splat_f32x8(0.0);
        self.0.select_f32x8(self.0.cmp_lt_f32x8(x, zero), zero, x)
    }
    #[inline(always)]
    fn store(self, x: pulp::f32x8, out: &mut [f32]) {
        out.copy_from_slice(&cast::<_, [f32; 8]>(x));
    }
}

/// Registers of 64 bytes.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Wide(pulp::x86::V4);

#[cfg(target_arch = "x86_64")]
impl Lanes for Wide {
    type Bytes = pulp::u8x64;
    type Sums = pulp::i16x32;
    type Floats = pulp::f32x16;
    const KEYS: usize = 16;

    #[inline(always)]
    fn bytes(self, x: [u8; 4]) -> pulp::u8x64 {
        cast(self.0.splat_i32x16(i32::from_le_bytes(x)))
    }
    #[inline(always)]
    fn unpacked(self, codes: &[u8]) -> [pulp::u8x64; 2] {
        let simd = self.0;
        let codes: pulp::u8x64 = *bytemuck::from_bytes(codes);
        let (table, mask): (pulp::u8x64, _) = (cast(TABLE), simd.splat_u8x64(15));
        let high: pulp::u8x64 = cast(simd.shr_const_u16x32::<4>(cast(codes)));
        let look_up = |codes: pulp::u8x64| cast(simd.avx512bw._mm512_shuffle_epi8(cast(table), cast(codes)));
        [look_up(simd.and_u8x64(codes, mask)), look_up(simd.and_u8x64(high, mask))]
    }
    #[inline(always)]
    fn zero(self) -> pulp::i16x32 {
        self.0.splat_i16x32(0)
    }
    #[inline(always)]
    fn dot(self, keys: pulp::u8x64, q: i32, sum: pulp::i16x32) -> pulp::i16x32 {
        let q: pulp::i8x64 = cast(self.0.splat_i32x16(q));
        let products: pulp::i16x32 = cast(self.0.avx512bw._mm512_maddubs_epi16(cast(keys), cast(q)));
        self.0.wrapping_add_i16x32(sum, products)
    }
    #[inline(always)]
    fn floats(self, sum: pulp::i16x32, shift: i32) -> pulp::f32x16 {
        let simd = self.0;
        let sum = simd.multiply_wrapping_add_adjacent_i16x32(sum, simd.splat_i16x32(1));
        simd.convert_i32x16_to_f32x16(simd.wrapping_sub_i32x16(sum, simd.splat_i32x16(shift)))
    }
    #[inline(always)]
    fn scales(self, bytes: &[u8]) -> pulp::f32x16 {
        let simd = self.0;
        let bytes = simd.convert_u8x16_to_u32x16(*bytemuck::from_bytes(bytes));
        let bits = simd.shl_const_u32x16::<23>(bytes);
        let first = simd.cmp_eq_u32x16(bytes, simd.splat_u32x16(0));
        let last = simd.cmp_eq_u32x16(bytes, simd.splat_u32x16(255));
        let bits = simd.select_u32x16(first, simd.splat_u32x16(SMALLEST_SCALE), bits);
        cast(simd.select_u32x16(last, simd.splat_u32x16(NAN), bits))
    }
    #[inline(always)]
    fn splat(self, x: f32) -> pulp::f32x16 {
        self.0.splat_f32x16(x)
    }
    #[inline(always)]
    fn times(self, a: pulp::f32x16, b: pulp::f32x16) -> pulp::f32x16 {
        self.0.mul_f32x16(a, b)
    }
    #[inline(always)]
    fn fused(self, a: pulp::f32x16, b: pulp::f32x16, c: pulp::f32x16) -> pulp::f32x16 {
        self.0.mul_add_f32x16(a, b, c)
    }
    #[inline(always)]
    fn rectify(self, x: pulp::f32x16) -> pulp::f32x16 {
        let zero = self.0.splat_f32x16(0.0);
        self.0.select_f32x16(self.0.cmp_lt_f32x16(x, zero), zero, x)
    }
    #[inline(always)]
    fn store(self, x: pulp::f32x16, out: &mut [f32]) {
        out.copy_from_slice(&cast::<_, [f32; 16]>(x));
    }
}
