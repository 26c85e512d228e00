//! The read-out on the CPU: one pass over a query's entries with an online softmax, forward and backward.
//!
//! The heads of a query share its entries, so a piece of the list is read once for all of them: logits, probabilities and
//! sums of a piece stay in the nearest cache.

use burn::backend::Flex;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::products::{Factors, Listed, add_sums, inner_products};
use super::simd::{Real, dispatch, exp_all, largest_of};
use super::{FlexTensor, Indices, Rows, tensor, with_real};
use crate::ops::{NO_ENTRY, ReadoutBackend};

/// Entries that are handled at a time. With 512 channels in f32 their vectors take 256 KiB.
const PIECE: usize = 128;

/// Queries that one task of the forward pass handles.
const BLOCK: usize = 16;

/// How many tasks the backward pass is cut into. Every task sums the entries' gradients on its own and the sums are added
/// in order, so the number must not depend on the number of threads.
const TASKS: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    /// Queries.
    seq: usize,
    heads: usize,
    dim: usize,
    /// Rows of the window latents.
    rows: usize,
    /// Rows of the main latents.
    entries: usize,
    slots: usize,
    width: usize,
}

struct Inputs {
    q: Rows,
    window: Rows,
    main: Rows,
    sink: Rows,
    topk: Indices,
    width: usize,
    scale: f64,
}

impl Inputs {
    fn sizes(&self) -> Sizes {
        let [batch, seq, heads, dim] = self.q.dims();
        let [_, rows, _] = self.window.dims();
        let [_, entries, _] = self.main.dims();
        let slots = self.topk.values().len() / (batch * seq).max(1);
        Sizes { batch, seq, heads, dim, rows, entries, slots, width: self.width }
    }

    fn sequence<T: Real>(&self, b: usize) -> Sequence<'_, T> {
        let sizes = self.sizes();
        Sequence {
            window: self.window.part(b, sizes.rows * sizes.dim),
            main: self.main.part(b, sizes.entries * sizes.dim),
            sink: self.sink.values(),
            sizes,
            scale: T::of(self.scale),
        }
    }
}

/// What all queries of one batch row share.
#[derive(Clone, Copy)]
struct Sequence<'a, T> {
    window: &'a [T],
    main: &'a [T],
    sink: &'a [T],
    sizes: Sizes,
    scale: T,
}

/// Working memory of one task.
struct Scratch<T> {
    /// Rows of the window and of the main latents that the query attends.
    lists: [Vec<u32>; 2],
    /// Query vectors and, backwards, gradient vectors.
    vectors: Vec<T>,
    /// Logits, then probabilities of a piece: `[heads, PIECE]`, backwards twice that.
    weights: Vec<T>,
    max: Vec<T>,
    sum: Vec<T>,
    /// 0, 1, 2, ...
    counting: Vec<u32>,
}

impl<T: Real> Scratch<T> {
    fn new(sizes: Sizes) -> Self {
        let vectors = 2 * sizes.heads;
        Self {
            lists: [Vec::new(), Vec::new()],
            vectors: vec![T::zero(); vectors * sizes.dim],
            weights: vec![T::zero(); vectors * PIECE],
            max: vec![T::zero(); sizes.heads],
            sum: vec![T::zero(); sizes.heads],
            counting: (0..vectors as u32).collect(),
        }
    }
}

impl<'a, T: Real> Sequence<'a, T> {
    /// Lists the entries of the query in row `t`; false if its row is marked as not a number or names an entry that is not there.
    fn list(&self, t: usize, slots: &[i32], lists: &mut [Vec<u32>; 2]) -> bool {
        let sizes = self.sizes;
        let position = sizes.rows - sizes.seq + t;
        let [window, main] = lists;
        window.clear();
        window.extend((position + 1).saturating_sub(sizes.width) as u32..=position as u32);
        main.clear();
        for &index in slots {
            match usize::try_from(index) {
                Ok(j) if j < sizes.entries => main.push(j as u32),
                Err(_) if index == NO_ENTRY => {}
                _ => return false,
            }
        }
        true
    }

    /// The vectors that list number `which` names rows of.
    fn values(&self, which: usize) -> &'a [T] {
        [self.window, self.main][which]
    }

    #[inline(always)]
    fn forward<S: Simd>(
        &self,
        simd: S,
        t: usize,
        q: &[T],
        slots: &[i32],
        output: &mut [T],
        lse: &mut [T],
        scratch: &mut Scratch<T>,
    ) {
        let Sizes { heads, dim, .. } = self.sizes;
        if !self.list(t, slots, &mut scratch.lists) {
            output.fill(T::nan());
            lse.fill(T::nan());
            return;
        }
        let Scratch { lists, vectors, weights, max, sum, counting } = scratch;
        let scaled = &mut vectors[..heads * dim];
        scale_into(simd, scaled, q, self.scale);
        // The sink is an entry with vector 0. An infinite one makes the row not a number, as in the definition.
        max.copy_from_slice(self.sink);
        for (sum, &sink) in sum.iter_mut().zip(self.sink) {
            *sum = if sink.is_finite() {
                T::one()
            } else if sink == T::neg_infinity() {
                T::zero()
            } else {
                T::nan()
            };
        }
        output.fill(T::zero());
        for (which, list) in lists.iter().enumerate() {
            for piece in list.chunks(PIECE) {
                let entries = Listed { values: self.values(which), list: piece, dim };
                inner_products(simd, scaled, entries, weights, PIECE);
                for h in 0..heads {
                    let logits = &mut weights[h * PIECE..h * PIECE + piece.len()];
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
        }
        for h in 0..heads {
            scale_by(simd, &mut output[h * dim..(h + 1) * dim], sum[h].recip());
            lse[h] = max[h] + sum[h].ln();
        }
    }

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

/// `out = factor * x`.
#[inline(always)]
pub(super) fn scale_into<T: Real, S: Simd>(simd: S, out: &mut [T], x: &[T], factor: T) {
    out.copy_from_slice(x);
    scale_by(simd, out, factor);
}

/// `x *= factor`.
#[inline(always)]
fn scale_by<T: Real, S: Simd>(simd: S, x: &mut [T], factor: T) {
    let wide = T::splat(simd, factor);
    let (vectors, rest) = T::split_mut::<S>(x);
    for x in vectors {
        *x = T::times(simd, *x, wide);
    }
    for x in rest {
        *x = *x * factor;
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

/// Some queries of the forward pass.
struct ForwardTask<'a, T> {
    inputs: &'a Inputs,
    /// Number of the first query, counted over the whole batch.
    first: usize,
    output: &'a mut [T],
    lse: &'a mut [T],
}

impl<T: Real> WithSimd for ForwardTask<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let sizes = self.inputs.sizes();
        let (long, heads, slots) = (sizes.heads * sizes.dim, sizes.heads, sizes.slots);
        let mut scratch = Scratch::new(sizes);
        for i in 0..self.lse.len() / heads {
            let at = self.first + i;
            self.inputs.sequence::<T>(at / sizes.seq).forward(
                simd,
                at % sizes.seq,
                self.inputs.q.part(at, long),
                self.inputs.topk.part(at, slots),
                &mut self.output[i * long..(i + 1) * long],
                &mut self.lse[i * heads..(i + 1) * heads],
                &mut scratch,
            );
        }
    }
}

fn forward<T: Real>(inputs: &Inputs) -> (FlexTensor, FlexTensor) {
    let Sizes { batch, seq, heads, dim, .. } = inputs.sizes();
    let mut output = vec![T::zero(); batch * seq * heads * dim];
    let mut lse = vec![T::zero(); batch * seq * heads];
    output
        .par_chunks_mut(BLOCK * heads * dim)
        .zip(lse.par_chunks_mut(BLOCK * heads))
        .enumerate()
        .for_each(|(block, (output, lse))| dispatch(ForwardTask { inputs, first: block * BLOCK, output, lse }));
    (tensor(output, [batch, seq, heads, dim]), tensor(lse, [batch, seq, heads]))
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

fn backward<T: Real>(
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
pub(super) fn joined<T: Real>(
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

impl ReadoutBackend for Flex {
    fn readout(
        q: FlexTensor,
        window: FlexTensor,
        main: FlexTensor,
        sink: FlexTensor,
        topk: FlexTensor,
        width: usize,
        scale: f64,
    ) -> (FlexTensor, FlexTensor) {
        let inputs = inputs(q, window, main, sink, topk, width, scale);
        with_real!(inputs.q, forward(&inputs))
    }

    fn readout_backward(
        q: FlexTensor,
        window: FlexTensor,
        main: FlexTensor,
        sink: FlexTensor,
        topk: FlexTensor,
        output: FlexTensor,
        lse: FlexTensor,
        grad: FlexTensor,
        width: usize,
        scale: f64,
    ) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
        let inputs = inputs(q, window, main, sink, topk, width, scale);
        let (output, lse, grad) = (Rows::new(output), Rows::new(lse), Rows::new(grad));
        with_real!(inputs.q, backward(&inputs, &output, &lse, &grad))
    }
}

fn inputs(
    q: FlexTensor,
    window: FlexTensor,
    main: FlexTensor,
    sink: FlexTensor,
    topk: FlexTensor,
    width: usize,
    scale: f64,
) -> Inputs {
    Inputs {
        q: Rows::new(q),
        window: Rows::new(window),
        main: Rows::new(main),
        sink: Rows::new(sink),
        topk: Indices::new(topk),
        width,
        scale,
    }
}
