//! The read-out on the CPU: one pass over a query's entries with an online softmax, forward and backward.
//!
//! The heads of a query share its entries, so a piece of the list is read once for all of them: logits, probabilities and
//! sums of a piece stay in the nearest cache.

mod backward;
mod forward;
mod online;

use burn::backend::Flex;
use pulp::Simd;

use super::simd::Real;
use super::{FlexTensor, Indices, Rows, with_real};
use crate::ops::{NO_ENTRY, ReadoutBackend};
use backward::backward;
pub(super) use backward::joined;
use forward::forward;
pub(super) use online::Online;

/// Entries that are handled at a time. With 512 channels in f32 their vectors take 256 KiB.
pub(super) const PIECE: usize = 128;

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
