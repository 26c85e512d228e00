//! Residual streams read and written on the CPU.

use burn::backend::Flex;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::simd::{Real, dispatch};
use super::sinkhorn::balanced;
use super::{FlexTensor, Rows, like, tensor, with_real};
use crate::ops::HyperBackend;

/// Tokens that one task handles.
const BLOCK: usize = 64;

/// `into += a x`.
#[inline(always)]
fn add_scaled<T: Real, S: Simd>(simd: S, into: &mut [T], a: T, x: &[T]) {
    let ((xs, x_rest), (ys, y_rest)) = (T::split::<S>(x), T::split_mut::<S>(into));
    let factor = T::splat(simd, a);
    for (y, &x) in ys.iter_mut().zip(xs) {
        *y = T::fused(simd, factor, x, *y);
    }
    for (y, &x) in y_rest.iter_mut().zip(x_rest) {
        *y += a * x;
    }
}

/// The inner product of two vectors.
#[inline(always)]
fn inner<T: Real, S: Simd>(simd: S, a: &[T], b: &[T]) -> T {
    let ((a_whole, a_rest), (b_whole, b_rest)) = (T::split::<S>(a), T::split::<S>(b));
    let mut sum = T::splat(simd, T::zero());
    for (&a, &b) in a_whole.iter().zip(b_whole) {
        sum = T::fused(simd, a, b, sum);
    }
    let mut total = T::total(simd, sum);
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        total += a * b;
    }
    total
}

/// Tokens of one task: `n` streams of `dim` channels each.
#[derive(Clone, Copy)]
struct Sizes {
    n: usize,
    dim: usize,
}

struct Read<'a, T> {
    sizes: Sizes,
    streams: &'a [T],
    pre: &'a [T],
    out: &'a mut [T],
}

impl<T: Real> WithSimd for Read<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Sizes { n, dim } = self.sizes;
        for ((streams, pre), out) in
            self.streams.chunks_exact(n * dim).zip(self.pre.chunks_exact(n)).zip(self.out.chunks_exact_mut(dim))
        {
            for (stream, &weight) in streams.chunks_exact(dim).zip(pre) {
                add_scaled(simd, out, weight, stream);
            }
        }
    }
}

struct ReadBackward<'a, T> {
    sizes: Sizes,
    streams: &'a [T],
    pre: &'a [T],
    grad: &'a [T],
    dstreams: &'a mut [T],
    dpre: &'a mut [T],
}

impl<T: Real> WithSimd for ReadBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Sizes { n, dim } = self.sizes;
        let inputs = self.streams.chunks_exact(n * dim).zip(self.pre.chunks_exact(n)).zip(self.grad.chunks_exact(dim));
        let outputs = self.dstreams.chunks_exact_mut(n * dim).zip(self.dpre.chunks_exact_mut(n));
        for (((streams, pre), grad), (dstreams, dpre)) in inputs.zip(outputs) {
            for i in 0..n {
                add_scaled(simd, &mut dstreams[i * dim..][..dim], pre[i], grad);
                dpre[i] = inner(simd, grad, &streams[i * dim..][..dim]);
            }
        }
    }
}

struct Write<'a, T> {
    sizes: Sizes,
    streams: &'a [T],
    output: &'a [T],
    post: &'a [T],
    comb: &'a [T],
    out: &'a mut [T],
}

impl<T: Real> WithSimd for Write<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Sizes { n, dim } = self.sizes;
        let weights = self.post.chunks_exact(n).zip(self.comb.chunks_exact(n * n));
        let inputs = self.streams.chunks_exact(n * dim).zip(self.output.chunks_exact(dim)).zip(weights);
        for (((streams, output), (post, comb)), out) in inputs.zip(self.out.chunks_exact_mut(n * dim)) {
            for j in 0..n {
                let out = &mut out[j * dim..][..dim];
                add_scaled(simd, out, post[j], output);
                for i in 0..n {
                    add_scaled(simd, out, comb[i * n + j], &streams[i * dim..][..dim]);
                }
            }
        }
    }
}

struct WriteBackward<'a, T> {
    sizes: Sizes,
    streams: &'a [T],
    output: &'a [T],
    post: &'a [T],
    comb: &'a [T],
    grad: &'a [T],
    dstreams: &'a mut [T],
    doutput: &'a mut [T],
    dpost: &'a mut [T],
    dcomb: &'a mut [T],
}

impl<T: Real> WithSimd for WriteBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Sizes { n, dim } = self.sizes;
        let tokens = self.post.len() / n;
        for token in 0..tokens {
            let wide = token * n * dim..(token + 1) * n * dim;
            let (streams, grad) = (&self.streams[wide.clone()], &self.grad[wide.clone()]);
            let dstreams = &mut self.dstreams[wide];
            let output = &self.output[token * dim..][..dim];
            let doutput = &mut self.doutput[token * dim..][..dim];
            let (post, comb) = (&self.post[token * n..][..n], &self.comb[token * n * n..][..n * n]);
            for j in 0..n {
                let grad = &grad[j * dim..][..dim];
                add_scaled(simd, doutput, post[j], grad);
                self.dpost[token * n + j] = inner(simd, grad, output);
                for i in 0..n {
                    add_scaled(simd, &mut dstreams[i * dim..][..dim], comb[i * n + j], grad);
                    self.dcomb[(token * n + i) * n + j] = inner(simd, grad, &streams[i * dim..][..dim]);
                }
            }
        }
    }
}

fn sizes(streams: &Rows) -> Sizes {
    let [_, n, dim]: [usize; 3] = streams.dims();
    Sizes { n, dim }
}

fn read<T: Real>(streams: &Rows, pre: &Rows) -> FlexTensor {
    let sizes @ Sizes { n, dim } = sizes(streams);
    let [tokens, _]: [usize; 2] = pre.dims();
    let mut out = vec![T::zero(); tokens * dim];
    out.par_chunks_mut(BLOCK * dim)
        .zip(streams.values::<T>().par_chunks(BLOCK * n * dim).zip(pre.values::<T>().par_chunks(BLOCK * n)))
        .for_each(|(out, (streams, pre))| dispatch(Read { sizes, streams, pre, out }));
    tensor(out, [tokens, dim])
}

fn read_backward<T: Real>(streams: &Rows, pre: &Rows, grad: &Rows) -> (FlexTensor, FlexTensor) {
    let sizes @ Sizes { n, dim } = sizes(streams);
    let (values, weights, grads) = (streams.values::<T>(), pre.values::<T>(), grad.values::<T>());
    let (mut dstreams, mut dpre) = (vec![T::zero(); values.len()], vec![T::zero(); weights.len()]);
    dstreams
        .par_chunks_mut(BLOCK * n * dim)
        .zip(dpre.par_chunks_mut(BLOCK * n))
        .zip(values.par_chunks(BLOCK * n * dim).zip(weights.par_chunks(BLOCK * n)).zip(grads.par_chunks(BLOCK * dim)))
        .for_each(|((dstreams, dpre), ((streams, pre), grad))| {
            dispatch(ReadBackward { sizes, streams, pre, grad, dstreams, dpre });
        });
    (like(dstreams, streams), like(dpre, pre))
}

fn write<T: Real>(streams: &Rows, output: &Rows, post: &Rows, comb: &Rows) -> FlexTensor {
    let sizes @ Sizes { n, dim } = sizes(streams);
    let values = streams.values::<T>();
    let mut out = vec![T::zero(); values.len()];
    let weights = post.values::<T>().par_chunks(BLOCK * n).zip(comb.values::<T>().par_chunks(BLOCK * n * n));
    out.par_chunks_mut(BLOCK * n * dim)
        .zip(values.par_chunks(BLOCK * n * dim).zip(output.values::<T>().par_chunks(BLOCK * dim)).zip(weights))
        .for_each(|(out, ((streams, output), (post, comb)))| {
            dispatch(Write { sizes, streams, output, post, comb, out });
        });
    like(out, streams)
}

fn write_backward<T: Real>(
    streams: &Rows,
    output: &Rows,
    post: &Rows,
    comb: &Rows,
    grad: &Rows,
) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
    let sizes @ Sizes { n, dim } = sizes(streams);
    let (wide, narrow) = (BLOCK * n * dim, BLOCK * dim);
    let zeros = |rows: &Rows| vec![T::zero(); rows.values::<T>().len()];
    let (mut dstreams, mut doutput, mut dpost, mut dcomb) = (zeros(streams), zeros(output), zeros(post), zeros(comb));
    let inputs = streams.values::<T>().par_chunks(wide).zip(output.values::<T>().par_chunks(narrow));
    let weights = post.values::<T>().par_chunks(BLOCK * n).zip(comb.values::<T>().par_chunks(BLOCK * n * n));
    dstreams
        .par_chunks_mut(wide)
        .zip(doutput.par_chunks_mut(narrow))
        .zip(dpost.par_chunks_mut(BLOCK * n).zip(dcomb.par_chunks_mut(BLOCK * n * n)))
        .zip(inputs.zip(weights).zip(grad.values::<T>().par_chunks(wide)))
        .for_each(|(((dstreams, doutput), (dpost, dcomb)), (((streams, output), (post, comb)), grad))| {
            dispatch(WriteBackward { sizes, streams, output, post, comb, grad, dstreams, doutput, dpost, dcomb });
        });
    (like(dstreams, streams), like(doutput, output), like(dpost, post), like(dcomb, comb))
}

impl HyperBackend for Flex {
    fn sinkhorn(logits: FlexTensor) -> FlexTensor {
        let logits = Rows::new(logits);
        with_real!(logits, balanced(&logits, None))
    }

    fn sinkhorn_backward(logits: FlexTensor, grad: FlexTensor) -> FlexTensor {
        let (logits, grad) = (Rows::new(logits), Rows::new(grad));
        with_real!(logits, balanced(&logits, Some(&grad)))
    }

    fn hyper_read(streams: FlexTensor, pre: FlexTensor) -> FlexTensor {
        let (streams, pre) = (Rows::new(streams), Rows::new(pre));
        with_real!(streams, read(&streams, &pre))
    }

    fn hyper_read_backward(streams: FlexTensor, pre: FlexTensor, grad: FlexTensor) -> (FlexTensor, FlexTensor) {
        let (streams, pre, grad) = (Rows::new(streams), Rows::new(pre), Rows::new(grad));
        with_real!(streams, read_backward(&streams, &pre, &grad))
    }

    fn hyper_write(streams: FlexTensor, output: FlexTensor, post: FlexTensor, comb: FlexTensor) -> FlexTensor {
        let (streams, output, post, comb) = (Rows::new(streams), Rows::new(output), Rows::new(post), Rows::new(comb));
        with_real!(streams, write(&streams, &output, &post, &comb))
    }

    fn hyper_write_backward(
        streams: FlexTensor,
        output: FlexTensor,
        post: FlexTensor,
        comb: FlexTensor,
        grad: FlexTensor,
    ) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
        let (streams, output, post, comb) = (Rows::new(streams), Rows::new(output), Rows::new(post), Rows::new(comb));
        let grad = Rows::new(grad);
        with_real!(streams, write_backward(&streams, &output, &post, &comb, &grad))
    }
}
