//! The gated activation on the CPU.

use burn::backend::Flex;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::simd::{Real, dispatch};
use super::{FlexTensor, Rows, like, with_real};
use crate::ops::SwigluBackend;

/// Numbers that one task handles.
const BLOCK: usize = 8192;

/// `1 / (1 + e^-z)`.
#[inline(always)]
fn sigmoid<T: Real, S: Simd>(simd: S, z: T::Vector<S>) -> T::Vector<S> {
    let one = T::splat(simd, T::one());
    let power = T::exponential(simd, T::times(simd, z, T::splat(simd, -T::one())));
    T::over(simd, one, T::plus(simd, one, power))
}

struct Forward<'a, T> {
    gate: &'a [T],
    up: &'a [T],
    y: &'a mut [T],
}

#[inline(always)]
fn gated<T: Real, S: Simd>(simd: S, z: T::Vector<S>, up: T::Vector<S>) -> T::Vector<S> {
    T::times(simd, T::times(simd, z, sigmoid::<T, S>(simd, z)), up)
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let ((gates, gate_rest), (ups, up_rest)) = (T::split::<S>(self.gate), T::split::<S>(self.up));
        let (ys, y_rest) = T::split_mut::<S>(self.y);
        for ((y, &z), &up) in ys.iter_mut().zip(gates).zip(ups) {
            *y = gated::<T, S>(simd, z, up);
        }
        if !y_rest.is_empty() {
            let y = gated::<T, S>(simd, T::load_part(simd, gate_rest), T::load_part(simd, up_rest));
            T::store_part(simd, y_rest, y);
        }
    }
}

struct BackwardBlock<'a, T> {
    gate: &'a [T],
    up: &'a [T],
    grad: &'a [T],
    dgate: &'a mut [T],
    dup: &'a mut [T],
}

/// With `s` the sigmoid of `z`: `dup = g z s` and `dz = g up s (1 + z (1 - s))`.
#[inline(always)]
fn gated_backward<T: Real, S: Simd>(
    simd: S,
    z: T::Vector<S>,
    up: T::Vector<S>,
    g: T::Vector<S>,
) -> (T::Vector<S>, T::Vector<S>) {
    let s = sigmoid::<T, S>(simd, z);
    let gs = T::times(simd, g, s);
    let dup = T::times(simd, gs, z);
    let one = T::splat(simd, T::one());
    let rest = T::fused(simd, s, T::splat(simd, -T::one()), one);
    let slope = T::fused(simd, z, rest, one);
    (T::times(simd, T::times(simd, gs, up), slope), dup)
}

impl<T: Real> WithSimd for BackwardBlock<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let ((gates, gate_rest), (ups, up_rest)) = (T::split::<S>(self.gate), T::split::<S>(self.up));
        let (grads, grad_rest) = T::split::<S>(self.grad);
        let ((dgates, dgate_rest), (dups, dup_rest)) = (T::split_mut::<S>(self.dgate), T::split_mut::<S>(self.dup));
        let vectors = gates.iter().zip(ups).zip(grads).zip(dgates.iter_mut().zip(dups));
        for (((&z, &up), &g), (dgate, dup)) in vectors {
            (*dgate, *dup) = gated_backward::<T, S>(simd, z, up, g);
        }
        if !gate_rest.is_empty() {
            let [z, up, g] = [gate_rest, up_rest, grad_rest].map(|rest| T::load_part(simd, rest));
            let (dgate, dup) = gated_backward::<T, S>(simd, z, up, g);
            T::store_part(simd, dgate_rest, dgate);
            T::store_part(simd, dup_rest, dup);
        }
    }
}

fn forward<T: Real>(gate: &Rows, up: &Rows) -> FlexTensor {
    let (gates, ups) = (gate.values::<T>(), up.values::<T>());
    let mut y = vec![T::zero(); gates.len()];
    y.par_chunks_mut(BLOCK)
        .zip(gates.par_chunks(BLOCK).zip(ups.par_chunks(BLOCK)))
        .for_each(|(y, (gate, up))| dispatch(Forward { gate, up, y }));
    like(y, gate)
}

fn backward<T: Real>(gate: &Rows, up: &Rows, grad: &Rows) -> (FlexTensor, FlexTensor) {
    let (gates, ups, grads) = (gate.values::<T>(), up.values::<T>(), grad.values::<T>());
    let mut dgate = vec![T::zero(); gates.len()];
    let mut dup = vec![T::zero(); gates.len()];
    dgate
        .par_chunks_mut(BLOCK)
        .zip(dup.par_chunks_mut(BLOCK))
        .zip(gates.par_chunks(BLOCK).zip(ups.par_chunks(BLOCK)).zip(grads.par_chunks(BLOCK)))
        .for_each(|((dgate, dup), ((gate, up), grad))| {
            dispatch(BackwardBlock { gate, up, grad, dgate, dup });
        });
    (like(dgate, gate), like(dup, gate))
}

impl SwigluBackend for Flex {
    fn swiglu(gate: FlexTensor, up: FlexTensor) -> FlexTensor {
        let (gate, up) = (Rows::new(gate), Rows::new(up));
        with_real!(gate, forward(&gate, &up))
    }

    fn swiglu_backward(gate: FlexTensor, up: FlexTensor, grad: FlexTensor) -> (FlexTensor, FlexTensor) {
        let (gate, up, grad) = (Rows::new(gate), Rows::new(up), Rows::new(grad));
        with_real!(gate, backward(&gate, &up, &grad))
    }
}
