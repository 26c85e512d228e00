//! Rotation on the CPU.

use burn::backend::Flex;
use rayon::prelude::*;

use super::{FlexTensor, Real, Rows, like, with_real};
use crate::ops::RotateBackend;

/// Turns the last channels of every vector of `y` `[tokens, H, d]`; the first token has number `first` of its sequence.
fn turn<T: Real>(y: &mut [T], first: usize, sizes: [usize; 4], cos: &[T], sin: &[T], inverse: bool) {
    let [_, seq, heads, dim] = sizes;
    let pairs = cos.len() / seq;
    for (i, token) in y.chunks_exact_mut(heads * dim).enumerate() {
        let t = (first + i) % seq;
        let (cos, sin) = (&cos[t * pairs..(t + 1) * pairs], &sin[t * pairs..(t + 1) * pairs]);
        for head in token.chunks_exact_mut(dim) {
            for (pair, (&c, &s)) in head[dim - 2 * pairs..].chunks_exact_mut(2).zip(cos.iter().zip(sin)) {
                let s = if inverse { -s } else { s };
                (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[0] * s + pair[1] * c);
            }
        }
    }
}

/// Tokens that one task handles.
const BLOCK: usize = 64;

fn rotated<T: Real>(x: Rows, cos: &Rows, sin: &Rows, inverse: bool) -> FlexTensor {
    let sizes: [usize; 4] = x.dims();
    let span = BLOCK * sizes[2] * sizes[3];
    let (cos, sin) = (cos.values::<T>(), sin.values::<T>());
    let rotate = |y: &mut [T]| {
        y.par_chunks_mut(span).enumerate().for_each(|(block, y)| turn(y, block * BLOCK, sizes, cos, sin, inverse));
    };
    // Usually nobody else holds the vectors: then they are turned where they lie.
    match x.into_unshared::<T>() {
        Ok(mut tensor) => {
            rotate(tensor.storage_mut());
            tensor
        }
        Err(x) => {
            let mut y = x.values::<T>().to_vec();
            rotate(&mut y);
            like(y, &x)
        }
    }
}

impl RotateBackend for Flex {
    fn rotate(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, inverse: bool) -> FlexTensor {
        let (x, cos, sin) = (Rows::new(x), Rows::new(cos), Rows::new(sin));
        with_real!(x, rotated(x, &cos, &sin, inverse))
    }
}
