//! Rotation on the CPU.

use burn::backend::Flex;
use rayon::prelude::*;

use super::{FlexTensor, Real, Rows, tensor, with_real};
use crate::ops::RotateBackend;

fn rotated<T: Real>(x: &Rows, cos: &Rows, sin: &Rows, inverse: bool) -> FlexTensor {
    let [batch, seq, heads, dim] = x.dims();
    let [_, pairs] = cos.dims();
    let (cos, sin) = (cos.values::<T>(), sin.values::<T>());
    let mut y = x.values::<T>().to_vec();
    y.par_chunks_mut(seq * heads * dim).for_each(|row| {
        for (t, token) in row.chunks_exact_mut(heads * dim).enumerate() {
            let (cos, sin) = (&cos[t * pairs..(t + 1) * pairs], &sin[t * pairs..(t + 1) * pairs]);
            for head in token.chunks_exact_mut(dim) {
                for (pair, (&c, &s)) in head[dim - 2 * pairs..].chunks_exact_mut(2).zip(cos.iter().zip(sin)) {
                    let s = if inverse { -s } else { s };
                    (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[0] * s + pair[1] * c);
                }
            }
        }
    });
    tensor(y, [batch, seq, heads, dim])
}

impl RotateBackend for Flex {
    fn rotate(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, inverse: bool) -> FlexTensor {
        let (x, cos, sin) = (Rows::new(x), Rows::new(cos), Rows::new(sin));
        with_real!(x, rotated(&x, &cos, &sin, inverse))
    }
}
