//! The indexer's loss and its gradients on the CPU, one query at a time.

use burn::backend::Flex;
use rayon::prelude::*;

use super::{FlexTensor, Real, Rows, add_scaled, dot, indices, relu, tensor, with_real};
use crate::ops::IndexKlBackend;

struct Inputs {
    q: Rows,
    keys: Rows,
    weights: Rows,
    teacher: Rows,
    range: Vec<i32>,
}

impl Inputs {
    /// Batch, tokens, heads, dimension, key rows, range width.
    fn sizes(&self) -> [usize; 6] {
        let [batch, seq, heads, dim] = self.q.dims();
        let [_, entries, _] = self.keys.dims();
        let [_, _, width] = self.teacher.dims();
        [batch, seq, heads, dim, entries, width]
    }

    fn query<T: Real>(&self, b: usize, t: usize) -> Query<'_, T> {
        let [_, seq, heads, dim, entries, width] = self.sizes();
        let row = b * seq + t;
        Query {
            q: &self.q.values()[row * heads * dim..(row + 1) * heads * dim],
            keys: &self.keys.values()[b * entries * dim..(b + 1) * entries * dim],
            weights: &self.weights.values()[row * heads..(row + 1) * heads],
            teacher: &self.teacher.values()[row * width..(row + 1) * width],
            range: &self.range[row * width..(row + 1) * width],
            dim,
        }
    }
}

/// One query's inputs.
struct Query<'a, T> {
    q: &'a [T],
    keys: &'a [T],
    weights: &'a [T],
    teacher: &'a [T],
    range: &'a [i32],
    dim: usize,
}

/// An entry of the range with the student's log-probability and the teacher's probability.
struct Pair<T> {
    entry: usize,
    student: T,
    teacher: T,
}

impl<T: Real> Query<'_, T> {
    fn product(&self, h: usize, entry: usize) -> T {
        let d = self.dim;
        dot(&self.q[h * d..(h + 1) * d], &self.keys[entry * d..(entry + 1) * d])
    }

    /// Both distributions over the range; empty when there is nothing to teach.
    fn pairs(&self) -> Vec<Pair<T>> {
        let listed = self.range.iter().zip(self.teacher);
        let mut pairs: Vec<Pair<T>> = listed
            .filter_map(|(&index, &teacher)| {
                let entry = usize::try_from(index).ok()?;
                let student = (0..self.weights.len()).map(|h| self.weights[h] * relu(self.product(h, entry))).sum();
                Some(Pair { entry, student, teacher })
            })
            .collect();
        let mass: T = pairs.iter().map(|p| p.teacher).sum();
        if mass <= T::zero() {
            return Vec::new();
        }
        let max = pairs.iter().map(|p| p.student).fold(T::neg_infinity(), T::max);
        let log_sum = max + pairs.iter().map(|p| (p.student - max).exp()).sum::<T>().ln();
        for pair in &mut pairs {
            pair.student = pair.student - log_sum;
            pair.teacher = pair.teacher / mass;
        }
        pairs
    }

    fn loss(&self) -> T {
        self.pairs()
            .iter()
            .filter(|p| p.teacher > T::zero() || p.teacher.is_nan())
            .map(|p| p.teacher * (p.teacher.ln() - p.student))
            .sum()
    }

    fn backward(&self, grad: T, dq: &mut [T], dkeys: &mut [T], dweights: &mut [T]) {
        let d = self.dim;
        for pair in self.pairs() {
            let dscore = grad * (pair.student.exp() - pair.teacher);
            let key = pair.entry * d..(pair.entry + 1) * d;
            for (h, dweight) in dweights.iter_mut().enumerate() {
                let product = self.product(h, pair.entry);
                *dweight += dscore * relu(product);
                if product > T::zero() {
                    let head = h * d..(h + 1) * d;
                    let dproduct = dscore * self.weights[h];
                    add_scaled(&mut dq[head.clone()], dproduct, &self.keys[key.clone()]);
                    add_scaled(&mut dkeys[key.clone()], dproduct, &self.q[head]);
                }
            }
        }
    }
}

fn forward<T: Real>(inputs: &Inputs) -> FlexTensor {
    let [batch, seq, ..] = inputs.sizes();
    let mut losses = vec![T::zero(); batch * seq];
    losses.par_chunks_mut(seq).enumerate().for_each(|(b, losses)| {
        for (t, loss) in losses.iter_mut().enumerate() {
            *loss = inputs.query::<T>(b, t).loss();
        }
    });
    tensor(losses, [batch, seq])
}

fn backward<T: Real>(inputs: &Inputs, grad: &Rows) -> (FlexTensor, FlexTensor, FlexTensor) {
    let [batch, seq, heads, dim, entries, _] = inputs.sizes();
    let grad = grad.values::<T>();
    let mut dq = vec![T::zero(); batch * seq * heads * dim];
    let mut dkeys = vec![T::zero(); batch * entries * dim];
    let mut dweights = vec![T::zero(); batch * seq * heads];
    dq.par_chunks_mut(seq * heads * dim)
        .zip(dkeys.par_chunks_mut(entries * dim))
        .zip(dweights.par_chunks_mut(seq * heads))
        .enumerate()
        .for_each(|(b, ((dq, dkeys), dweights))| {
            let rows = dq.chunks_mut(heads * dim).zip(dweights.chunks_mut(heads));
            for (t, (dq, dweights)) in rows.enumerate() {
                inputs.query::<T>(b, t).backward(grad[b * seq + t], dq, dkeys, dweights);
            }
        });
    (tensor(dq, [batch, seq, heads, dim]), tensor(dkeys, [batch, entries, dim]), tensor(dweights, [batch, seq, heads]))
}

fn inputs(q: FlexTensor, keys: FlexTensor, weights: FlexTensor, teacher: FlexTensor, range: FlexTensor) -> Inputs {
    Inputs {
        q: Rows::new(q),
        keys: Rows::new(keys),
        weights: Rows::new(weights),
        teacher: Rows::new(teacher),
        range: indices(range),
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
        with_real!(inputs.q.0, forward(&inputs))
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
        with_real!(inputs.q.0, backward(&inputs, &grad))
    }
}
