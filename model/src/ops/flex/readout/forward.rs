//! The forward pass: an online softmax over pieces of the list.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::super::products::Listed;
use super::super::simd::{Real, dispatch};
use super::super::{FlexTensor, tensor};
use super::online::{Softmax, attend, sink_weight};
use super::{Inputs, PIECE, Scratch, Sequence, Sizes, scale_by, scale_into};

/// Queries that one task handles.
const BLOCK: usize = 16;

impl<T: Real> Sequence<'_, T> {
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
        max.copy_from_slice(self.sink);
        for (sum, &sink) in sum.iter_mut().zip(self.sink) {
            *sum = sink_weight(sink);
        }
        output.fill(T::zero());
        for (which, list) in lists.iter().enumerate() {
            for piece in list.chunks(PIECE) {
                let entries = Listed { values: self.values(which), list: piece, dim };
                attend(simd, scaled, entries, weights, counting, Softmax { output, max, sum });
            }
        }
        for h in 0..heads {
            scale_by(simd, &mut output[h * dim..(h + 1) * dim], sum[h].recip());
            lse[h] = max[h] + sum[h].ln();
        }
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

pub(super) fn forward<T: Real>(inputs: &Inputs) -> (FlexTensor, FlexTensor) {
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
