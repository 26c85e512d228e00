//! The language model's loss on the CPU.

use burn::backend::Flex;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::simd::{Real, dispatch, exp_all, largest_of};
use super::{FlexTensor, Indices, Rows, like, tensor, with_real};
use crate::ops::CrossEntropyBackend;

/// Rows that one task handles.
const BLOCK: usize = 16;

struct Forward<'a, T> {
    logits: &'a [T],
    targets: &'a [i32],
    losses: &'a mut [T],
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let vocabulary = self.logits.len() / self.losses.len();
        let mut powers = Vec::with_capacity(vocabulary);
        for ((logits, &target), loss) in self.logits.chunks_exact(vocabulary).zip(self.targets).zip(self.losses) {
            let max = largest_of(simd, logits, T::neg_infinity());
            powers.clear();
            powers.extend_from_slice(logits);
            let sum = exp_all(simd, &mut powers, T::one(), max);
            let hit = usize::try_from(target).ok().and_then(|target| logits.get(target));
            *loss = hit.map_or(T::nan(), |&hit| sum.ln() + (max - hit));
        }
    }
}

struct BackwardRows<'a, T> {
    targets: &'a [i32],
    grad: &'a [T],
    /// Holds the logits and is overwritten with their gradients.
    dlogits: &'a mut [T],
}

impl<T: Real> WithSimd for BackwardRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let vocabulary = self.dlogits.len() / self.grad.len();
        let rows = self.dlogits.chunks_exact_mut(vocabulary).zip(self.targets).zip(self.grad);
        for ((dlogits, &target), &grad) in rows {
            let max = largest_of(simd, dlogits, T::neg_infinity());
            let sum = exp_all(simd, dlogits, T::one(), max);
            let hit = usize::try_from(target).ok().filter(|&target| target < vocabulary);
            let factor = if hit.is_some() { grad / sum } else { T::nan() };
            for x in &mut *dlogits {
                *x = *x * factor;
            }
            if let Some(hit) = hit {
                dlogits[hit] = dlogits[hit] - grad;
            }
        }
    }
}

fn forward<T: Real>(logits: &Rows, targets: &Indices) -> FlexTensor {
    let [count, vocabulary] = logits.dims();
    let mut losses = vec![T::zero(); count];
    losses
        .par_chunks_mut(BLOCK)
        .zip(logits.values::<T>().par_chunks(BLOCK * vocabulary).zip(targets.values().par_chunks(BLOCK)))
        .for_each(|(losses, (logits, targets))| dispatch(Forward { logits, targets, losses }));
    tensor(losses, [count])
}

fn backward<T: Real>(logits: &Rows, targets: &Indices, grad: &Rows) -> FlexTensor {
    let [_, vocabulary] = logits.dims();
    let mut dlogits = logits.values::<T>().to_vec();
    dlogits
        .par_chunks_mut(BLOCK * vocabulary)
        .zip(targets.values().par_chunks(BLOCK).zip(grad.values::<T>().par_chunks(BLOCK)))
        .for_each(|(dlogits, (targets, grad))| dispatch(BackwardRows { targets, grad, dlogits }));
    like(dlogits, logits)
}

impl CrossEntropyBackend for Flex {
    fn cross_entropy(logits: FlexTensor, targets: FlexTensor) -> FlexTensor {
        let (logits, targets) = (Rows::new(logits), Indices::new(targets));
        with_real!(logits, forward(&logits, &targets))
    }

    fn cross_entropy_backward(logits: FlexTensor, targets: FlexTensor, grad: FlexTensor) -> FlexTensor {
        let (logits, targets, grad) = (Rows::new(logits), Indices::new(targets), Rows::new(grad));
        with_real!(logits, backward(&logits, &targets, &grad))
    }
}
