//! Root-mean-square normalisation on the CPU.

use burn::backend::Flex;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::simd::{Real, dispatch};
use super::{FlexTensor, Rows, like, tensor, with_real};
use crate::ops::NormBackend;

/// Rows that one task handles, whatever the number of threads: each sums the gain's gradient on its own.
const BLOCK: usize = 64;

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn reciprocal<T: Real, S: Simd>(simd: S, x: &[T], eps: T) -> T {
    let (vectors, rest) = T::split::<S>(x);
    let mut squares = T::splat(simd, T::zero());
    for &x in vectors {
        squares = T::fused(simd, x, x, squares);
    }
    let mut sum = T::total(simd, squares);
    for &x in rest {
        sum += x * x;
    }
    (sum / T::of(x.len() as f64) + eps).sqrt().recip()
}

struct Forward<'a, T> {
    x: &'a [T],
    gamma: &'a [T],
    eps: T,
    y: &'a mut [T],
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = self.gamma.len();
        for (x, y) in self.x.chunks_exact(n).zip(self.y.chunks_exact_mut(n)) {
            let r = reciprocal(simd, x, self.eps);
            let wide = T::splat(simd, r);
            let ((xs, x_rest), (gammas, gamma_rest)) = (T::split::<S>(x), T::split::<S>(self.gamma));
            let (ys, y_rest) = T::split_mut::<S>(y);
            for ((y, &x), &gamma) in ys.iter_mut().zip(xs).zip(gammas) {
                *y = T::times(simd, T::times(simd, x, wide), gamma);
            }
            for ((y, &x), &gamma) in y_rest.iter_mut().zip(x_rest).zip(gamma_rest) {
                *y = x * r * gamma;
            }
        }
    }
}

struct BackwardRows<'a, T> {
    x: &'a [T],
    gamma: &'a [T],
    grad: &'a [T],
    eps: T,
    dx: &'a mut [T],
    dgamma: &'a mut [T],
}

impl<T: Real> WithSimd for BackwardRows<'_, T> {
    type Output = ();

    /// With `r = 1 / rms`, `n = x r` and `u = gamma g`: `dx = r (u - n mean(u n))` and `dgamma = g n`.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = self.gamma.len();
        let rows = self.x.chunks_exact(n).zip(self.grad.chunks_exact(n)).zip(self.dx.chunks_exact_mut(n));
        for ((x, grad), dx) in rows {
            let r = reciprocal(simd, x, self.eps);
            let ((xs, x_rest), (gammas, gamma_rest)) = (T::split::<S>(x), T::split::<S>(self.gamma));
            let (gs, g_rest) = T::split::<S>(grad);
            let mut sums = T::splat(simd, T::zero());
            for ((&x, &g), &gamma) in xs.iter().zip(gs).zip(gammas) {
                sums = T::fused(simd, T::times(simd, x, g), gamma, sums);
            }
            let mut mean = T::total(simd, sums);
            for ((&x, &g), &gamma) in x_rest.iter().zip(g_rest).zip(gamma_rest) {
                mean += x * g * gamma;
            }
            let less = -(mean * r / T::of(n as f64));
            let (wide_r, wide_less) = (T::splat(simd, r), T::splat(simd, less));
            let (dxs, dx_rest) = T::split_mut::<S>(dx);
            let (dgammas, dgamma_rest) = T::split_mut::<S>(&mut *self.dgamma);
            let vectors = xs.iter().zip(gs).zip(gammas).zip(dxs.iter_mut().zip(dgammas));
            for (((&x, &g), &gamma), (dx, dgamma)) in vectors {
                let normal = T::times(simd, x, wide_r);
                *dx = T::times(simd, wide_r, T::fused(simd, normal, wide_less, T::times(simd, g, gamma)));
                *dgamma = T::fused(simd, g, normal, *dgamma);
            }
            let rest = x_rest.iter().zip(g_rest).zip(gamma_rest).zip(dx_rest.iter_mut().zip(dgamma_rest));
            for (((&x, &g), &gamma), (dx, dgamma)) in rest {
                let normal = x * r;
                *dx = r * (normal * less + g * gamma);
                *dgamma += g * normal;
            }
        }
    }
}

fn forward<T: Real>(x: &Rows, gamma: &Rows, eps: f64) -> FlexTensor {
    let (values, gamma) = (x.values::<T>(), gamma.values::<T>());
    let span = BLOCK * gamma.len();
    let mut y = vec![T::zero(); values.len()];
    y.par_chunks_mut(span)
        .zip(values.par_chunks(span))
        .for_each(|(y, x)| dispatch(Forward { x, gamma, eps: T::of(eps), y }));
    like(y, x)
}

fn backward<T: Real>(x: &Rows, gamma: &Rows, grad: &Rows, eps: f64) -> (FlexTensor, FlexTensor) {
    let (values, gamma, grads) = (x.values::<T>(), gamma.values::<T>(), grad.values::<T>());
    let n = gamma.len();
    let span = BLOCK * n;
    let mut dx = vec![T::zero(); values.len()];
    let mut parts = vec![T::zero(); values.len().div_ceil(span) * n];
    dx.par_chunks_mut(span)
        .zip(parts.par_chunks_mut(n))
        .zip(values.par_chunks(span).zip(grads.par_chunks(span)))
        .for_each(|((dx, dgamma), (x, grad))| {
            dispatch(BackwardRows { x, gamma, grad, eps: T::of(eps), dx, dgamma });
        });
    let mut dgamma = vec![T::zero(); n];
    for part in parts.chunks_exact(n) {
        for (total, &x) in dgamma.iter_mut().zip(part) {
            *total += x;
        }
    }
    (like(dx, x), tensor(dgamma, [n]))
}

impl NormBackend for Flex {
    fn rms_norm(x: FlexTensor, gamma: FlexTensor, eps: f64) -> FlexTensor {
        let (x, gamma) = (Rows::new(x), Rows::new(gamma));
        with_real!(x, forward(&x, &gamma, eps))
    }

    fn rms_norm_backward(x: FlexTensor, gamma: FlexTensor, grad: FlexTensor, eps: f64) -> (FlexTensor, FlexTensor) {
        let (x, gamma, grad) = (Rows::new(x), Rows::new(gamma), Rows::new(grad));
        with_real!(x, backward(&x, &gamma, &grad, eps))
    }
}
