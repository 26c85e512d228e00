//! The backward pass: probabilities again, from the log-sum-exp, then all gradients of a piece.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::super::products::{Factors, Listed, add_sums, inner_products};
use super::super::simd::{Real, dispatch, exp_all};
use super::super::{FlexTensor, Rows, tensor};
use super::{Inputs, PIECE, Scratch, Sequence, Sizes, scale_by, scale_into};

/// How many tasks the backward pass is cut into. Every task sums the entries' gradients on its own and the sums are added
/// in order, so the number must not depend on the number of threads.
const TASKS: usize = 16;

impl<T: Real> Sequence<'_, T> {
    #[inline(always)]
    fn backward<S: Simd>(
        &self,
        simd: S,
        t: usize,
        given: Given<'_, T>,
        into: &mut Gradients<'_, T>,
        dq: &mut [T],
        scratch: &mut Scratch<T>,
    ) {
        let Sizes { heads, dim, .. } = self.sizes;
        if !self.list(t, given.slots, &mut scratch.lists) {
            dq.fill(T::nan());
            return;
        }
        let Scratch { lists, vectors, weights, max: means, counting, .. } = scratch;
        let (scaled, grads) = vectors.split_at_mut(heads * dim);
        scale_into(simd, scaled, given.q, self.scale);
        grads.copy_from_slice(given.grad);
        // Every logit's gradient is p_j (g . c_j - g . o).
        for h in 0..heads {
            let head = h * dim..(h + 1) * dim;
            means[h] = inner_product(simd, &given.grad[head.clone()], &given.output[head]);
            into.sink[h] += -(self.sink[h] - given.lse[h]).exp() * means[h];
        }
        dq.fill(T::zero());
        for (which, list) in lists.iter().enumerate() {
            for piece in list.chunks(PIECE) {
                let entries = Listed { values: self.values(which), list: piece, dim };
                // The first half holds logits, the second g . c_j; then logits' gradients and probabilities.
                inner_products(simd, vectors, entries, weights, PIECE);
                let (logits, products) = weights.split_at_mut(heads * PIECE);
                for h in 0..heads {
                    let at = h * PIECE..h * PIECE + piece.len();
                    softmax_backward(simd, &mut logits[at.clone()], &mut products[at], given.lse[h], means[h]);
                }
                let factors = Factors { values: &weights[..], output: PIECE, row: 1 };
                add_sums(simd, dq, &counting[..heads], entries, factors);
                let both = Listed { values: &vectors[..], list: counting, dim };
                let (target, first) = into.latents(which);
                // A task of the backward pass holds only the window rows that it can reach.
                let moved: Vec<u32>;
                let piece = if first == 0 {
                    piece
                } else {
                    moved = piece.iter().map(|row| row - first).collect();
                    &moved
                };
                add_sums(simd, target, piece, both, Factors { values: weights, output: 1, row: PIECE });
            }
        }
        scale_by(simd, dq, self.scale);
    }
}

/// What the backward pass is given for one query.
#[derive(Clone, Copy)]
struct Given<'a, T> {
    q: &'a [T],
    slots: &'a [i32],
    output: &'a [T],
    lse: &'a [T],
    grad: &'a [T],
}

/// Where one task adds up gradients.
struct Gradients<'a, T> {
    window: &'a mut [T],
    /// The row of the window latents that `window` starts with.
    first: usize,
    main: &'a mut [T],
    sink: &'a mut [T],
}

impl<T> Gradients<'_, T> {
    /// The gradients of list number `which`, and the row that they start with.
    fn latents(&mut self, which: usize) -> (&mut [T], u32) {
        if which == 0 { (self.window, self.first as u32) } else { (self.main, 0) }
    }
}

#[inline(always)]
fn inner_product<T: Real, S: Simd>(simd: S, a: &[T], b: &[T]) -> T {
    let mut out = [T::zero()];
    inner_products(simd, a, Listed { values: b, list: &[0], dim: b.len() }, &mut out, 1);
    out[0]
}

/// From logits and products `g . c_j` to the logits' gradients and the probabilities.
#[inline(always)]
fn softmax_backward<T: Real, S: Simd>(simd: S, logits: &mut [T], products: &mut [T], lse: T, mean: T) {
    exp_all(simd, logits, T::one(), lse);
    let less = T::splat(simd, -mean);
    let (p, p_rest) = T::split_mut::<S>(logits);
    let (g, g_rest) = T::split_mut::<S>(products);
    for (p, g) in p.iter_mut().zip(g) {
        let dlogit = T::times(simd, *p, T::plus(simd, *g, less));
        (*p, *g) = (dlogit, *p);
    }
    for (p, g) in p_rest.iter_mut().zip(g_rest) {
        (*p, *g) = (*p * (*g - mean), *p);
    }
}

/// How the backward pass is cut: every batch row into `parts` of `length` queries.
#[derive(Clone, Copy, Debug)]
struct Cut {
    parts: usize,
    length: usize,
    /// Window rows that a part can reach.
    reach: usize,
}

impl Cut {
    fn new(sizes: Sizes) -> Self {
        let Sizes { batch, seq, heads, entries, rows, width, .. } = sizes;
        // Every part has gradients of all entries: together at most twice the size of the queries.
        let affordable = 2 * seq * heads / entries.max(1);
        let parts = TASKS.div_ceil(batch.max(1)).min(seq / 64).min(affordable).max(1);
        let length = seq.div_ceil(parts);
        let reach = if parts == 1 { rows } else { (length + width).min(rows) };
        Self { parts: seq.div_ceil(length.max(1)).max(1), length, reach }
    }

    /// The first window row of part `part`.
    fn first(self, part: usize, sizes: Sizes) -> usize {
        let position = sizes.rows - sizes.seq + part * self.length;
        if self.parts == 1 { 0 } else { (position + 1).saturating_sub(sizes.width).min(sizes.rows - self.reach) }
    }
}

/// Some consecutive queries of one batch row in the backward pass.
struct BackwardTask<'a, T> {
    inputs: &'a Inputs,
    output: &'a Rows,
    lse: &'a Rows,
    grad: &'a Rows,
    b: usize,
    /// Row of the first query.
    start: usize,
    dq: &'a mut [T],
    into: Gradients<'a, T>,
}

impl<T: Real> WithSimd for BackwardTask<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let sizes = self.inputs.sizes();
        let long = sizes.heads * sizes.dim;
        let sequence = self.inputs.sequence::<T>(self.b);
        let mut scratch = Scratch::new(sizes);
        for (i, dq) in self.dq.chunks_exact_mut(long).enumerate() {
            let at = self.b * sizes.seq + self.start + i;
            let given = Given {
                q: self.inputs.q.part(at, long),
                slots: self.inputs.topk.part(at, sizes.slots),
                output: self.output.part(at, long),
                lse: self.lse.part(at, sizes.heads),
                grad: self.grad.part(at, long),
            };
            sequence.backward(simd, self.start + i, given, &mut self.into, dq, &mut scratch);
        }
    }
}

pub(super) fn backward<T: Real>(
    inputs: &Inputs,
    output: &Rows,
    lse: &Rows,
    grad: &Rows,
) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
    let sizes = inputs.sizes();
    let Sizes { batch, seq, heads, dim, rows, entries, .. } = sizes;
    let cut = Cut::new(sizes);
    let tasks = batch * cut.parts;
    let mut dq = vec![T::zero(); batch * seq * heads * dim];
    let mut dwindow = vec![T::zero(); tasks * cut.reach * dim];
    let mut dmain = vec![T::zero(); tasks * entries * dim];
    let mut dsinks = vec![T::zero(); tasks * heads];
    let dqs: Vec<&mut [T]> =
        dq.chunks_mut(seq * heads * dim).flat_map(|row| row.chunks_mut(cut.length * heads * dim)).collect();
    dqs.into_par_iter()
        .zip(dwindow.par_chunks_mut(cut.reach * dim))
        .zip(dmain.par_chunks_mut(entries * dim))
        .zip(dsinks.par_chunks_mut(heads))
        .enumerate()
        .for_each(|(task, (((dq, window), main), sink))| {
            let (b, part) = (task / cut.parts, task % cut.parts);
            let into = Gradients { window, first: cut.first(part, sizes), main, sink };
            dispatch(BackwardTask { inputs, output, lse, grad, b, start: part * cut.length, dq, into });
        });
    let mut dsink = vec![T::zero(); heads];
    for part in dsinks.chunks_exact(heads) {
        for (total, &x) in dsink.iter_mut().zip(part) {
            *total += x;
        }
    }
    if cut.parts > 1 {
        dmain = joined(&dmain, batch, cut.parts, |_| 0, entries * dim, entries * dim);
        let first = |part| cut.first(part, sizes) * dim;
        dwindow = joined(&dwindow, batch, cut.parts, first, cut.reach * dim, rows * dim);
    }
    (
        tensor(dq, [batch, seq, heads, dim]),
        tensor(dwindow, [batch, rows, dim]),
        tensor(dmain, [batch, entries, dim]),
        tensor(dsink, [heads]),
    )
}

/// Adds up the parts of every batch row, in order. Part `p` of a row is `length` numbers that belong at `first(p)` of the row's
/// `whole`.
pub(in super::super) fn joined<T: Real>(
    values: &[T],
    batch: usize,
    parts: usize,
    first: impl Fn(usize) -> usize + Sync,
    length: usize,
    whole: usize,
) -> Vec<T> {
    const SPAN: usize = 8192;
    let mut totals = vec![T::zero(); batch * whole];
    for (b, row) in totals.chunks_mut(whole).enumerate() {
        row.par_chunks_mut(SPAN).enumerate().for_each(|(span, totals)| {
            let start = span * SPAN;
            for part in 0..parts {
                let values = &values[(b * parts + part) * length..(b * parts + part + 1) * length];
                let at = first(part);
                let from = start.max(at);
                let to = (start + totals.len()).min(at + length);
                if from < to {
                    for (total, &x) in totals[from - start..to - start].iter_mut().zip(&values[from - at..to - at]) {
                        *total += x;
                    }
                }
            }
        });
    }
    totals
}
