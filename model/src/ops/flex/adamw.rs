//! The optimizer's update on the CPU, in one pass.

use burn::backend::Flex;
use rayon::prelude::*;

use super::{FlexTensor, Real, Rows, like, with_real};
use crate::ops::{AdamwBackend, AdamwStep};

/// Numbers that one task handles.
const BLOCK: usize = 16_384;

fn update<T: Real>(
    parameter: &Rows,
    gradient: &Rows,
    first: &Rows,
    second: &Rows,
    step: AdamwStep,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let [b1, b2] = step.betas.map(T::of);
    let [rest1, rest2] = step.betas.map(|beta| T::of(1.0 - beta));
    let [c1, c2] = step.corrections();
    // rate (m / c1) / (sqrt(v / c2) + eps) = (rate / c1) m / (sqrt(v) / sqrt(c2) + eps)
    let (rate, root) = (T::of(step.rate / c1), T::of(c2.sqrt().recip()));
    let (keep, epsilon) = (T::of(1.0 - step.rate * step.weight_decay), T::of(step.epsilon));
    let factor = T::of(step.factor);
    let mut p = parameter.values::<T>().to_vec();
    let mut m = first.values::<T>().to_vec();
    let mut v = second.values::<T>().to_vec();
    p.par_chunks_mut(BLOCK)
        .zip(m.par_chunks_mut(BLOCK).zip(v.par_chunks_mut(BLOCK)))
        .zip(gradient.values::<T>().par_chunks(BLOCK))
        .for_each(|((p, (m, v)), g)| {
            for ((p, (m, v)), &g) in p.iter_mut().zip(m.iter_mut().zip(v)).zip(g) {
                let g = g * factor;
                *m = b1 * *m + rest1 * g;
                *v = b2 * *v + rest2 * g * g;
                *p = keep * *p - rate * *m / (v.sqrt() * root + epsilon);
            }
        });
    (like(p, parameter), like(m, parameter), like(v, parameter))
}

impl AdamwBackend for Flex {
    fn adamw(
        parameter: FlexTensor,
        gradient: FlexTensor,
        first: FlexTensor,
        second: FlexTensor,
        step: AdamwStep,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let [parameter, gradient, first, second] = [parameter, gradient, first, second].map(Rows::new);
        with_real!(parameter, update(&parameter, &gradient, &first, &second, step))
    }
}
