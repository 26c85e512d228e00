//! The indexer's teacher on the CPU.

use burn::backend::Flex;
use rayon::prelude::*;

use super::{FlexTensor, Real, Rows, dot, indices, tensor, with_real};
use crate::ops::MassBackend;

fn mass<T: Real>(q: &Rows, main: &Rows, lse: &Rows, range: &[i32], scale: f64) -> FlexTensor {
    let [batch, seq, heads, dim] = q.dims();
    let [_, entries, _] = main.dims();
    let width = range.len() / (batch * seq);
    let (q, main, lse, scale) = (q.values::<T>(), main.values::<T>(), lse.values::<T>(), T::of(scale));
    let mut masses = vec![T::zero(); range.len()];
    masses.par_chunks_mut(seq * width).enumerate().for_each(|(b, masses)| {
        for (place, mass) in masses.iter_mut().enumerate() {
            let Ok(j) = usize::try_from(range[b * seq * width + place]) else { continue };
            let c = &main[(b * entries + j) * dim..(b * entries + j + 1) * dim];
            let query = (b * seq + place / width) * heads;
            for at in query..query + heads {
                *mass += (scale * dot(&q[at * dim..(at + 1) * dim], c) - lse[at]).exp();
            }
        }
    });
    tensor(masses, [batch, seq, width])
}

impl MassBackend for Flex {
    fn attention_mass(q: FlexTensor, main: FlexTensor, lse: FlexTensor, range: FlexTensor, scale: f64) -> FlexTensor {
        let (q, main, lse, range) = (Rows::new(q), Rows::new(main), Rows::new(lse), indices(range));
        with_real!(q.0, mass(&q, &main, &lse, &range, scale))
    }
}
