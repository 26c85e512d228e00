//! Products with listed rows: what the operators' inner loops are made of.
//!
//! Entries are read where they lie: a list names rows of a matrix, nothing is gathered. Both products work in small tiles
//! that stay in registers.

use pulp::Simd;

use super::simd::Real;

/// Vectors of `dim` channels, one below the other, and which of them are meant.
#[derive(Clone, Copy)]
pub(super) struct Listed<'a, T> {
    pub(super) values: &'a [T],
    pub(super) list: &'a [u32],
    pub(super) dim: usize,
}

impl<'a, T> Listed<'a, T> {
    #[inline(always)]
    fn row(&self, place: usize) -> &'a [T] {
        let start = self.list[place] as usize * self.dim;
        &self.values[start..start + self.dim]
    }
}

/// `out[i * stride + j] = a[i] . b[j]` for every vector of `a` and every listed one of `b`.
#[inline(always)]
pub(super) fn inner_products<T: Real, S: Simd>(simd: S, a: &[T], b: Listed<'_, T>, out: &mut [T], stride: usize) {
    let (count, width) = (a.len() / b.dim, b.list.len());
    let mut i = 0;
    while i < count {
        let tile = if count - i >= 4 { 4 } else { 1 };
        let rows = &a[i * b.dim..(i + tile) * b.dim];
        let mut j = 0;
        while j < width {
            let out = &mut out[i * stride + j..];
            let step = if S::REGISTER_COUNT >= 32 && width - j >= 4 {
                4
            } else if width - j >= 2 {
                2
            } else {
                1
            };
            match (tile, step) {
                (4, 4) => inner_tile::<T, S, 4, 4>(simd, rows, b, j, out, stride),
                (4, 2) => inner_tile::<T, S, 4, 2>(simd, rows, b, j, out, stride),
                (4, _) => inner_tile::<T, S, 4, 1>(simd, rows, b, j, out, stride),
                (_, 4) => inner_tile::<T, S, 1, 4>(simd, rows, b, j, out, stride),
                (_, 2) => inner_tile::<T, S, 1, 2>(simd, rows, b, j, out, stride),
                _ => inner_tile::<T, S, 1, 1>(simd, rows, b, j, out, stride),
            }
            j += step;
        }
        i += tile;
    }
}

/// `I` by `J` inner products.
#[inline(always)]
fn inner_tile<T: Real, S: Simd, const I: usize, const J: usize>(
    simd: S,
    a: &[T],
    b: Listed<'_, T>,
    first: usize,
    out: &mut [T],
    stride: usize,
) {
    let dim = b.dim;
    let whole = dim / T::lanes::<S>();
    let zero = T::splat(simd, T::zero());
    let mut a_rows: [&[T::Vector<S>]; I] = [&[]; I];
    let mut a_rest: [&[T]; I] = [&[]; I];
    for i in 0..I {
        let (vectors, rest) = T::split::<S>(&a[i * dim..(i + 1) * dim]);
        (a_rows[i], a_rest[i]) = (&vectors[..whole], rest);
    }
    let mut b_rows: [&[T::Vector<S>]; J] = [&[]; J];
    let mut b_rest: [&[T]; J] = [&[]; J];
    for j in 0..J {
        let (vectors, rest) = T::split::<S>(b.row(first + j));
        (b_rows[j], b_rest[j]) = (&vectors[..whole], rest);
    }
    let mut sums = [[zero; J]; I];
    for k in 0..whole {
        let mut y = [zero; J];
        for j in 0..J {
            y[j] = b_rows[j][k];
        }
        for i in 0..I {
            let x = a_rows[i][k];
            for j in 0..J {
                sums[i][j] = T::fused(simd, x, y[j], sums[i][j]);
            }
        }
    }
    if !a_rest[0].is_empty() {
        for i in 0..I {
            let x = T::load_part(simd, a_rest[i]);
            for j in 0..J {
                sums[i][j] = T::fused(simd, x, T::load_part(simd, b_rest[j]), sums[i][j]);
            }
        }
    }
    for i in 0..I {
        for j in 0..J {
            out[i * stride + j] = T::total(simd, sums[i][j]);
        }
    }
}

/// Factors of a sum over listed rows: that of row `k` in output `i` is `values[i * output + k * row]`.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a, T> {
    pub(super) values: &'a [T],
    pub(super) output: usize,
    pub(super) row: usize,
}

/// `out[to[i]] += sum_k factors[i, k] x[k]` over every listed row of `x`. An output listed twice is added to twice.
#[inline(always)]
pub(super) fn add_sums<T: Real, S: Simd>(
    simd: S,
    out: &mut [T],
    to: &[u32],
    x: Listed<'_, T>,
    factors: Factors<'_, T>,
) {
    if to.is_empty() || x.list.is_empty() {
        return;
    }
    // Held once here, so that the tiles may read factors unchecked.
    assert!((to.len() - 1) * factors.output + (x.list.len() - 1) * factors.row < factors.values.len());
    let lanes = T::lanes::<S>();
    let mut start = 0;
    while start + lanes <= x.dim {
        let wide = if S::REGISTER_COUNT >= 32 { 4 } else { 2 };
        let vectors = if (x.dim - start) / lanes >= wide { wide } else { 1 };
        match vectors {
            4 => sum_rows::<T, S, 4>(simd, out, to, x, factors, start),
            2 => sum_rows::<T, S, 2>(simd, out, to, x, factors, start),
            _ => sum_rows::<T, S, 1>(simd, out, to, x, factors, start),
        }
        start += vectors * lanes;
    }
    if start < x.dim {
        for i in 0..to.len() {
            let mut sum = T::splat(simd, T::zero());
            for k in 0..x.list.len() {
                let factor = T::splat(simd, factors.values[i * factors.output + k * factors.row]);
                sum = T::fused(simd, factor, T::load_part(simd, &x.row(k)[start..]), sum);
            }
            let target = &mut out[to[i] as usize * x.dim + start..(to[i] as usize + 1) * x.dim];
            let total = T::plus(simd, T::load_part(simd, target), sum);
            T::store_part(simd, target, total);
        }
    }
}

#[inline(always)]
fn sum_rows<T: Real, S: Simd, const V: usize>(
    simd: S,
    out: &mut [T],
    to: &[u32],
    x: Listed<'_, T>,
    factors: Factors<'_, T>,
    start: usize,
) {
    let mut i = 0;
    while i < to.len() {
        if to.len() - i >= 4 {
            sum_tile::<T, S, 4, V>(simd, out, to, i, x, factors, start);
            i += 4;
        } else {
            sum_tile::<T, S, 1, V>(simd, out, to, i, x, factors, start);
            i += 1;
        }
    }
}

/// `I` outputs, `V` registers of channels from `start` on.
#[inline(always)]
fn sum_tile<T: Real, S: Simd, const I: usize, const V: usize>(
    simd: S,
    out: &mut [T],
    to: &[u32],
    first: usize,
    x: Listed<'_, T>,
    factors: Factors<'_, T>,
    start: usize,
) {
    let zero = T::splat(simd, T::zero());
    let span = V * T::lanes::<S>();
    let mut sums = [[zero; V]; I];
    for k in 0..x.list.len() {
        let (row, _) = T::split::<S>(&x.row(k)[start..start + span]);
        let mut y = [zero; V];
        for v in 0..V {
            y[v] = row[v];
        }
        for i in 0..I {
            // SAFETY: `add_sums` has checked the largest index, that of the last output and the last row. Checked here, the
            // comparison would cost as much as the arithmetic.
            let factor = T::splat(simd, unsafe {
                *factors.values.get_unchecked((first + i) * factors.output + k * factors.row)
            });
            for v in 0..V {
                sums[i][v] = T::fused(simd, factor, y[v], sums[i][v]);
            }
        }
    }
    for i in 0..I {
        let at = to[first + i] as usize * x.dim + start;
        let (target, _) = T::split_mut::<S>(&mut out[at..at + span]);
        for v in 0..V {
            target[v] = T::plus(simd, target[v], sums[i][v]);
        }
    }
}
