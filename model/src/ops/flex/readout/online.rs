//! A softmax under way: what the read-out keeps of the entries that it has seen.

use pulp::Simd;

use super::super::products::{Factors, Listed, add_sums, inner_products};
use super::super::simd::{Real, exp_all, largest_of};
use super::{PIECE, scale_by, scale_into};

/// What one query has made of some of its entries.
pub(in super::super) struct Online<T> {
    /// The query, scaled `[H, d]`.
    scaled: Vec<T>,
    output: Vec<T>,
    max: Vec<T>,
    sum: Vec<T>,
    weights: Vec<T>,
    counting: Vec<u32>,
}

impl<T: Real> Online<T> {
    /// No entry seen but the sinks, where they are given.
    #[inline(always)]
    pub(in super::super) fn new<S: Simd>(simd: S, q: &[T], scale: T, sink: Option<&[T]>, heads: usize) -> Self {
        let mut scaled = vec![T::zero(); q.len()];
        scale_into(simd, &mut scaled, q, scale);
        Self {
            scaled,
            output: vec![T::zero(); q.len()],
            max: sink.map_or_else(|| vec![T::neg_infinity(); heads], <[T]>::to_vec),
            sum: sink
                .map_or_else(|| vec![T::zero(); heads], |sink| sink.iter().map(|&sink| sink_weight(sink)).collect()),
            weights: vec![T::zero(); heads * PIECE],
            counting: (0..heads as u32).collect(),
        }
    }

    /// Adds the entries of one piece.
    #[inline(always)]
    pub(in super::super) fn attend<S: Simd>(&mut self, simd: S, entries: Listed<'_, T>) {
        let Self { scaled, output, max, sum, weights, counting } = self;
        attend(simd, scaled, entries, weights, counting, Softmax { output, max, sum });
    }

    /// Both together; `other` has seen entries behind those that `self` has seen.
    pub(in super::super) fn joined(mut self, other: &Self) -> Self {
        let dim = self.output.len() / self.max.len();
        for h in 0..self.max.len() {
            let highest = if other.max[h] > self.max[h] { other.max[h] } else { self.max[h] };
            let [own, others] = [self.max[h], other.max[h]].map(|max| (max - highest).exp());
            let outputs = self.output[h * dim..(h + 1) * dim].iter_mut().zip(&other.output[h * dim..(h + 1) * dim]);
            for (x, &y) in outputs {
                *x = *x * own + y * others;
            }
            self.sum[h] = self.sum[h] * own + other.sum[h] * others;
            self.max[h] = highest;
        }
        self
    }

    /// Writes the output `[H, d]` and the log-sum-exp `[H]`.
    pub(in super::super) fn finish(&self, output: &mut [T], lse: &mut [T]) {
        let dim = output.len() / lse.len();
        for (h, lse) in lse.iter_mut().enumerate() {
            let factor = self.sum[h].recip();
            for (out, &x) in output[h * dim..(h + 1) * dim].iter_mut().zip(&self.output[h * dim..(h + 1) * dim]) {
                *out = x * factor;
            }
            *lse = self.max[h] + self.sum[h].ln();
        }
    }
}

/// What a sink adds to the sum where it is the largest logit so far: it is an entry with vector 0. An infinite one makes the
/// row not a number, as in the definition.
pub(super) fn sink_weight<T: Real>(sink: T) -> T {
    if sink.is_finite() {
        T::one()
    } else if sink == T::neg_infinity() {
        T::zero()
    } else {
        T::nan()
    }
}

/// Sums under way: `[H, d]`, `[H]` and `[H]`.
pub(super) struct Softmax<'a, T> {
    pub(super) output: &'a mut [T],
    pub(super) max: &'a mut [T],
    pub(super) sum: &'a mut [T],
}

/// Adds up to [`PIECE`] entries to the softmax of a scaled query `[H, d]`; `weights` `[H, PIECE]` is working memory,
/// `counting` is 0, 1, 2, ... for every head.
#[inline(always)]
pub(super) fn attend<T: Real, S: Simd>(
    simd: S,
    scaled: &[T],
    entries: Listed<'_, T>,
    weights: &mut [T],
    counting: &[u32],
    softmax: Softmax<'_, T>,
) {
    let Softmax { output, max, sum } = softmax;
    let (heads, dim, count) = (max.len(), entries.dim, entries.list.len());
    inner_products(simd, scaled, entries, weights, PIECE);
    for h in 0..heads {
        let logits = &mut weights[h * PIECE..h * PIECE + count];
        let highest = largest_of(simd, logits, max[h]);
        if highest > max[h] {
            let factor = (max[h] - highest).exp();
            scale_by(simd, &mut output[h * dim..(h + 1) * dim], factor);
            sum[h] = sum[h] * factor;
            max[h] = highest;
        }
        sum[h] += exp_all(simd, logits, T::one(), max[h]);
    }
    let factors = Factors { values: weights, output: PIECE, row: 1 };
    add_sums(simd, output, &counting[..heads], entries, factors);
}
