//! The indexer's teacher on the CPU.

use burn::backend::Flex;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::products::{Listed, inner_products};
use super::readout::scale_into;
use super::simd::{Real, dispatch, exp_all};
use super::{FlexTensor, Indices, Rows, tensor, with_real};
use crate::ops::MassBackend;

/// Queries that one task handles.
const BLOCK: usize = 16;

struct Task<'a, T> {
    q: &'a Rows,
    main: &'a Rows,
    lse: &'a Rows,
    range: &'a Indices,
    scale: T,
    /// Number of the first query, counted over the whole batch.
    first: usize,
    masses: &'a mut [T],
}

impl<T: Real> WithSimd for Task<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let [batch, seq, heads, dim] = self.q.dims();
        let [_, entries, _] = self.main.dims();
        let width = self.range.values().len() / (batch * seq);
        let (mut list, mut places, mut logits) = (Vec::new(), Vec::new(), Vec::new());
        let mut scaled = vec![T::zero(); heads * dim];
        for (i, masses) in self.masses.chunks_exact_mut(width).enumerate() {
            let at = self.first + i;
            list.clear();
            places.clear();
            for (place, &index) in self.range.part(at, width).iter().enumerate() {
                if let Ok(index) = u32::try_from(index) {
                    list.push(index);
                    places.push(place);
                }
            }
            if list.is_empty() {
                continue;
            }
            let entries = Listed { values: self.main.part(at / seq, entries * dim), list: &list, dim };
            logits.resize(heads * list.len(), T::zero());
            // Scaled before the product, as in the read-out: then logits and its log-sum-exp are rounded alike, and no weight
            // exceeds 1 however large they are.
            scale_into(simd, &mut scaled, self.q.part(at, heads * dim), self.scale);
            inner_products(simd, &scaled, entries, &mut logits, list.len());
            for (logits, &lse) in logits.chunks_exact_mut(list.len()).zip(self.lse.part(at, heads)) {
                exp_all(simd, logits, T::one(), lse);
                for (&place, &p) in places.iter().zip(&*logits) {
                    masses[place] += p;
                }
            }
        }
    }
}

fn mass<T: Real>(q: &Rows, main: &Rows, lse: &Rows, range: &Indices, scale: f64) -> FlexTensor {
    let [batch, seq, ..] = q.dims::<4>();
    let width = range.values().len() / (batch * seq);
    let mut masses = vec![T::zero(); batch * seq * width];
    masses.par_chunks_mut(BLOCK * width).enumerate().for_each(|(block, masses)| {
        dispatch(Task { q, main, lse, range, scale: T::of(scale), first: block * BLOCK, masses });
    });
    tensor(masses, [batch, seq, width])
}

impl MassBackend for Flex {
    fn attention_mass(q: FlexTensor, main: FlexTensor, lse: FlexTensor, range: FlexTensor, scale: f64) -> FlexTensor {
        let (q, main, lse, range) = (Rows::new(q), Rows::new(main), Rows::new(lse), Indices::new(range));
        with_real!(q, mass(&q, &main, &lse, &range, scale))
    }
}
