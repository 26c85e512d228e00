//! The indexer's loss and its gradients on the CPU.

use burn::backend::Flex;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::products::{Factors, Listed, add_sums, inner_products};
use super::readout::joined;
use super::simd::{Real, dispatch, exp_all, largest_of};
use super::{FlexTensor, Indices, Rows, tensor, with_real};
use crate::ops::IndexKlBackend;

/// Queries that one task of the forward pass handles.
const BLOCK: usize = 16;

/// How many tasks the backward pass is cut into, whatever the number of threads: each sums the keys' gradients on its own.
const TASKS: usize = 16;

struct Inputs {
    q: Rows,
    keys: Rows,
    weights: Rows,
    teacher: Rows,
    range: Indices,
}

#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    entries: usize,
    /// Places of a range.
    width: usize,
}

impl Inputs {
    fn sizes(&self) -> Sizes {
        let [batch, seq, heads, dim] = self.q.dims();
        let [_, entries, _] = self.keys.dims();
        let [_, _, width] = self.teacher.dims();
        Sizes { batch, seq, heads, dim, entries, width }
    }
}

/// One query's distributions over the entries of its range.
struct Scratch<T> {
    /// Listed entries.
    list: Vec<u32>,
    /// The teacher's probabilities.
    teacher: Vec<T>,
    /// Scores, then the student's log-probabilities.
    student: Vec<T>,
    /// Products of every head and listed entry.
    products: Vec<T>,
    counting: Vec<u32>,
}

impl<T: Real> Scratch<T> {
    fn new(heads: usize) -> Self {
        Self {
            list: Vec::new(),
            teacher: Vec::new(),
            student: Vec::new(),
            products: Vec::new(),
            counting: (0..heads as u32).collect(),
        }
    }

    /// Fills both distributions; false when there is nothing to teach. `at` counts queries over the whole batch.
    #[inline(always)]
    fn fill<S: Simd>(&mut self, simd: S, inputs: &Inputs, at: usize) -> bool {
        let Sizes { seq, heads, dim, entries, width, .. } = inputs.sizes();
        let (range, teacher) = (inputs.range.part(at, width), inputs.teacher.part::<T>(at, width));
        self.list.clear();
        self.teacher.clear();
        let mut mass = T::zero();
        for (&index, &teacher) in range.iter().zip(teacher) {
            if let Ok(index) = u32::try_from(index) {
                self.list.push(index);
                self.teacher.push(teacher);
                mass += teacher;
            }
        }
        if mass <= T::zero() {
            return false;
        }
        let count = self.list.len();
        let keys = Listed { values: inputs.keys.part(at / seq, entries * dim), list: &self.list, dim };
        self.products.clear();
        self.products.resize(heads * count, T::zero());
        inner_products(simd, inputs.q.part(at, heads * dim), keys, &mut self.products, count);
        self.student.clear();
        self.student.resize(count, T::zero());
        for (products, &weight) in self.products.chunks_exact(count).zip(inputs.weights.part(at, heads)) {
            add_rectified(simd, &mut self.student, products, weight);
        }
        let max = largest_of(simd, &self.student, T::neg_infinity());
        // The list is no longer than its range: teacher places behind it may hold the exponentials for a moment.
        self.teacher.extend_from_slice(&self.student);
        let sum = exp_all(simd, &mut self.teacher[count..], T::one(), max);
        self.teacher.truncate(count);
        let log_sum = sum.ln();
        for (student, teacher) in self.student.iter_mut().zip(&mut self.teacher) {
            // In this order: `max + log_sum` would be rounded at the size of the scores.
            *student = (*student - max) - log_sum;
            *teacher = *teacher / mass;
        }
        true
    }

    fn loss(&self) -> T {
        let both = self.teacher.iter().zip(&self.student);
        // A silent entry adds nothing; one that is not a number must show.
        both.filter(|(t, _)| **t > T::zero() || t.is_nan()).map(|(&t, &s)| t * (t.ln() - s)).sum()
    }
}

/// `scores += weight * max(products, 0)`.
#[inline(always)]
pub(super) fn add_rectified<T: Real, S: Simd>(simd: S, scores: &mut [T], products: &[T], weight: T) {
    let wide = T::splat(simd, weight);
    let (scores, scores_rest) = T::split_mut::<S>(scores);
    let (products, products_rest) = T::split::<S>(products);
    for (score, &product) in scores.iter_mut().zip(products) {
        *score = T::fused(simd, T::rectify(simd, product), wide, *score);
    }
    if !scores_rest.is_empty() {
        let product = T::rectify(simd, T::load_part(simd, products_rest));
        let score = T::fused(simd, product, wide, T::load_part(simd, scores_rest));
        T::store_part(simd, scores_rest, score);
    }
}

struct ForwardTask<'a, T> {
    inputs: &'a Inputs,
    first: usize,
    losses: &'a mut [T],
}

impl<T: Real> WithSimd for ForwardTask<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut scratch = Scratch::<T>::new(self.inputs.sizes().heads);
        for (i, loss) in self.losses.iter_mut().enumerate() {
            if scratch.fill(simd, self.inputs, self.first + i) {
                *loss = scratch.loss();
            }
        }
    }
}

/// Some consecutive queries of one batch row.
struct BackwardTask<'a, T> {
    inputs: &'a Inputs,
    grad: &'a Rows,
    /// Number of the first query, counted over the whole batch.
    first: usize,
    dq: &'a mut [T],
    dkeys: &'a mut [T],
    dweights: &'a mut [T],
}

impl<T: Real> WithSimd for BackwardTask<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Sizes { seq, heads, dim, entries, .. } = self.inputs.sizes();
        let mut scratch = Scratch::<T>::new(heads);
        let rows = self.dq.chunks_exact_mut(heads * dim).zip(self.dweights.chunks_exact_mut(heads));
        for (i, (dq, dweights)) in rows.enumerate() {
            let at = self.first + i;
            if !scratch.fill(simd, self.inputs, at) {
                continue;
            }
            let Scratch { list, teacher, student, products, counting } = &mut scratch;
            let count = list.len();
            // Gradients of the scores: what the student gives too much.
            exp_all(simd, student, T::one(), T::zero());
            let grad = self.grad.part::<T>(at, 1)[0];
            for (student, &teacher) in student.iter_mut().zip(&*teacher) {
                *student = grad * (*student - teacher);
            }
            let weights = self.inputs.weights.part::<T>(at, heads);
            for ((products, dweight), &weight) in products.chunks_exact_mut(count).zip(dweights).zip(weights) {
                for (product, &dscore) in products.iter_mut().zip(&*student) {
                    let open = *product > T::zero();
                    // A NaN is not below 0 and passes.
                    *dweight += dscore * if *product < T::zero() { T::zero() } else { *product };
                    *product = if open { dscore * weight } else { T::zero() };
                }
            }
            let keys = Listed { values: self.inputs.keys.part(at / seq, entries * dim), list, dim };
            let factors = Factors { values: &products[..], output: count, row: 1 };
            add_sums(simd, dq, counting, keys, factors);
            let queries = Listed { values: self.inputs.q.part(at, heads * dim), list: counting, dim };
            add_sums(simd, self.dkeys, list, queries, Factors { values: products, output: 1, row: count });
        }
    }
}

fn forward<T: Real>(inputs: &Inputs) -> FlexTensor {
    let Sizes { batch, seq, .. } = inputs.sizes();
    let mut losses = vec![T::zero(); batch * seq];
    losses
        .par_chunks_mut(BLOCK)
        .enumerate()
        .for_each(|(block, losses)| dispatch(ForwardTask { inputs, first: block * BLOCK, losses }));
    tensor(losses, [batch, seq])
}

fn backward<T: Real>(inputs: &Inputs, grad: &Rows) -> (FlexTensor, FlexTensor, FlexTensor) {
    let Sizes { batch, seq, heads, dim, entries, .. } = inputs.sizes();
    // Every part has gradients of all keys: together at most twice the size of the queries.
    let affordable = 2 * seq * heads / entries.max(1);
    let parts = TASKS.div_ceil(batch.max(1)).min(seq / 64).min(affordable).max(1);
    let length = seq.div_ceil(parts);
    let parts = seq.div_ceil(length);
    let mut dq = vec![T::zero(); batch * seq * heads * dim];
    let mut dkeys = vec![T::zero(); batch * parts * entries * dim];
    let mut dweights = vec![T::zero(); batch * seq * heads];
    let dqs: Vec<&mut [T]> =
        dq.chunks_mut(seq * heads * dim).flat_map(|row| row.chunks_mut(length * heads * dim)).collect();
    let dweight_parts: Vec<&mut [T]> =
        dweights.chunks_mut(seq * heads).flat_map(|row| row.chunks_mut(length * heads)).collect();
    dqs.into_par_iter().zip(dweight_parts).zip(dkeys.par_chunks_mut(entries * dim)).enumerate().for_each(
        |(task, ((dq, dweights), dkeys))| {
            let first = task / parts * seq + task % parts * length;
            dispatch(BackwardTask { inputs, grad, first, dq, dkeys, dweights });
        },
    );
    if parts > 1 {
        dkeys = joined(&dkeys, batch, parts, |_| 0, entries * dim, entries * dim);
    }
    (tensor(dq, [batch, seq, heads, dim]), tensor(dkeys, [batch, entries, dim]), tensor(dweights, [batch, seq, heads]))
}

fn inputs(q: FlexTensor, keys: FlexTensor, weights: FlexTensor, teacher: FlexTensor, range: FlexTensor) -> Inputs {
    Inputs {
        q: Rows::new(q),
        keys: Rows::new(keys),
        weights: Rows::new(weights),
        teacher: Rows::new(teacher),
        range: Indices::new(range),
    }
}

impl IndexKlBackend for Flex {
    fn index_kl(
        q: FlexTensor,
        keys: FlexTensor,
        weights: FlexTensor,
        teacher: FlexTensor,
        range: FlexTensor,
    ) -> FlexTensor {
        let inputs = inputs(q, keys, weights, teacher, range);
        with_real!(inputs.q, forward(&inputs))
    }

    fn index_kl_backward(
        q: FlexTensor,
        keys: FlexTensor,
        weights: FlexTensor,
        teacher: FlexTensor,
        range: FlexTensor,
        grad: FlexTensor,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let inputs = inputs(q, keys, weights, teacher, range);
        let grad = Rows::new(grad);
        with_real!(inputs.q, backward(&inputs, &grad))
    }
}
