//! Balanced matrices on the CPU: many small ones side by side.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::simd::{Real, dispatch};
use super::{FlexTensor, Rows, like};
use crate::ops::{HYPER_EPS, SINKHORN_ROUNDS};

/// Matrices that are balanced side by side, one in each lane: what the compiler turns into whole registers.
const LANES: usize = 16;

/// Matrices that one task handles.
const BLOCK: usize = 64;

/// One number of [`LANES`] matrices.
type Lane<T> = [T; LANES];

/// The matrices `[n, n]` before, between and after the divisions, with the reciprocals of what each divided by.
struct Balance<T> {
    n: usize,
    /// `[divisions + 1, n, n]`.
    values: Vec<Lane<T>>,
    /// `[divisions, n]`.
    reciprocals: Vec<Lane<T>>,
    /// The softmax over rows `[n, n]`.
    softmax: Vec<Lane<T>>,
}

/// Columns first, then rows and columns in turn.
const DIVISIONS: usize = 2 * SINKHORN_ROUNDS - 1;

fn by_columns(division: usize) -> bool {
    division.is_multiple_of(2)
}

/// Where the number `k` of the line `line` stands: a line is a column or a row.
#[inline(always)]
fn place(n: usize, columns: bool, line: usize, k: usize) -> usize {
    if columns { k * n + line } else { line * n + k }
}

impl<T: Real> Balance<T> {
    fn new(n: usize) -> Self {
        let zero = [T::zero(); LANES];
        Self {
            n,
            values: vec![zero; (DIVISIONS + 1) * n * n],
            reciprocals: vec![zero; DIVISIONS * n],
            softmax: vec![zero; n * n],
        }
    }

    /// From the logits of up to [`LANES`] matrices.
    #[inline(always)]
    fn forward(&mut self, logits: &[T]) {
        let (n, size) = (self.n, self.n * self.n);
        let eps = T::of(HYPER_EPS);
        for (lane, matrix) in logits.chunks_exact(size).enumerate() {
            for (i, row) in matrix.chunks_exact(n).enumerate() {
                let most = row.iter().fold(T::neg_infinity(), |most, &x| if x > most { x } else { most });
                let mut sum = T::zero();
                for (j, &x) in row.iter().enumerate() {
                    // Not the maximum of an empty or broken row: a NaN must stay one.
                    let power = (x - most).exp();
                    self.softmax[i * n + j][lane] = power;
                    sum += power;
                }
                for j in 0..n {
                    let at = &mut self.softmax[i * n + j][lane];
                    *at = *at / sum;
                }
            }
        }
        for at in 0..size {
            for lane in 0..LANES {
                self.values[at][lane] = self.softmax[at][lane] + eps;
            }
        }
        for division in 0..DIVISIONS {
            let columns = by_columns(division);
            let (before, after) = self.values.split_at_mut((division + 1) * size);
            let before = &before[division * size..];
            for line in 0..n {
                let mut sum = [eps; LANES];
                for k in 0..n {
                    let x = &before[place(n, columns, line, k)];
                    for lane in 0..LANES {
                        sum[lane] += x[lane];
                    }
                }
                let reciprocal = &mut self.reciprocals[division * n + line];
                for lane in 0..LANES {
                    reciprocal[lane] = T::one() / sum[lane];
                }
                for k in 0..n {
                    let at = place(n, columns, line, k);
                    for lane in 0..LANES {
                        after[at][lane] = before[at][lane] * reciprocal[lane];
                    }
                }
            }
        }
    }

    /// From the gradients of the results, `[n, n]`, to those of the logits: `y = x / (sum(x) + eps)` along a line has
    /// `dx = (dy - sum(dy y)) / (sum(x) + eps)`.
    #[inline(always)]
    fn backward(&self, grads: &mut [Lane<T>]) {
        let (n, size) = (self.n, self.n * self.n);
        for division in (0..DIVISIONS).rev() {
            let columns = by_columns(division);
            let after = &self.values[(division + 1) * size..][..size];
            for line in 0..n {
                let mut inner = [T::zero(); LANES];
                for k in 0..n {
                    let at = place(n, columns, line, k);
                    for lane in 0..LANES {
                        inner[lane] += grads[at][lane] * after[at][lane];
                    }
                }
                let reciprocal = &self.reciprocals[division * n + line];
                for k in 0..n {
                    let at = place(n, columns, line, k);
                    for lane in 0..LANES {
                        grads[at][lane] = (grads[at][lane] - inner[lane]) * reciprocal[lane];
                    }
                }
            }
        }
        for i in 0..n {
            let mut inner = [T::zero(); LANES];
            for j in 0..n {
                for lane in 0..LANES {
                    inner[lane] += grads[i * n + j][lane] * self.softmax[i * n + j][lane];
                }
            }
            for j in 0..n {
                for lane in 0..LANES {
                    grads[i * n + j][lane] = self.softmax[i * n + j][lane] * (grads[i * n + j][lane] - inner[lane]);
                }
            }
        }
    }
}

/// Matrices of one task, one behind the other.
struct Sinkhorn<'a, T> {
    n: usize,
    logits: &'a [T],
    /// None: forwards.
    grads: Option<&'a [T]>,
    out: &'a mut [T],
}

impl<T: Real> WithSimd for Sinkhorn<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let size = self.n * self.n;
        let mut balance = Balance::new(self.n);
        let mut lanes = vec![[T::zero(); LANES]; size];
        let span = LANES * size;
        for (group, (logits, out)) in self.logits.chunks(span).zip(self.out.chunks_mut(span)).enumerate() {
            balance.forward(logits);
            match self.grads {
                None => lanes.copy_from_slice(&balance.values[DIVISIONS * size..]),
                Some(grads) => {
                    for (lane, matrix) in grads[group * span..].chunks_exact(size).take(LANES).enumerate() {
                        for (at, &grad) in matrix.iter().enumerate() {
                            lanes[at][lane] = grad;
                        }
                    }
                    balance.backward(&mut lanes);
                }
            }
            for (lane, matrix) in out.chunks_exact_mut(size).enumerate() {
                for (at, x) in matrix.iter_mut().enumerate() {
                    *x = lanes[at][lane];
                }
            }
        }
    }
}

/// See [`sinkhorn`](crate::ops::sinkhorn); with `grads`, its gradient instead.
pub(super) fn balanced<T: Real>(logits: &Rows, grads: Option<&Rows>) -> FlexTensor {
    let [_, n, _]: [usize; 3] = logits.dims();
    let (values, grads) = (logits.values::<T>(), grads.map(Rows::values::<T>));
    let mut out = vec![T::zero(); values.len()];
    let span = (BLOCK * n * n).max(1);
    out.par_chunks_mut(span).zip(values.par_chunks(span)).enumerate().for_each(|(block, (out, logits))| {
        let grads = grads.map(|grads| &grads[block * span..][..logits.len()]);
        dispatch(Sinkhorn { n, logits, grads, out });
    });
    like(out, logits)
}
