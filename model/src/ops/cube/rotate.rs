//! Rotation on the device, one thread per channel.

use burn_cubecl::CubeBackend;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::Float as FloatTensor;
use super::shared::{THREADS, address, dims, empty, float_type, grid, rows, single, workgroup};
use crate::ops::RotateBackend;

/// `x` and `y` `[B, S, H, d]`, `cos` and `sin` `[S, pairs]`; the last `2 * pairs` channels turn. `sign` is -1 for the
/// inverse.
#[cube(launch, address_type = "dynamic")]
fn rotate_kernel<F: Float>(
    x: &[F],
    cos: &[f32],
    sin: &[f32],
    y: &mut [F],
    seq: usize,
    heads: usize,
    dim: usize,
    pairs: usize,
    sign: f32,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < y.len() {
        let channel = at % dim;
        let first = dim - 2 * pairs;
        if channel < first {
            y[at] = x[at];
        } else {
            let t = at / (dim * heads) % seq;
            let angle = t * pairs + (channel - first) / 2;
            let c = cos[angle];
            let s = sin[angle] * sign;
            if (channel - first) % 2 == 0 {
                y[at] = F::cast_from(f32::cast_from(x[at]) * c - f32::cast_from(x[at + 1]) * s);
            } else {
                y[at] = F::cast_from(f32::cast_from(x[at - 1]) * s + f32::cast_from(x[at]) * c);
            }
        }
    }
}

impl RotateBackend for CubeBackend {
    fn rotate(x: FloatTensor, cos: FloatTensor, sin: FloatTensor, inverse: bool) -> FloatTensor {
        let (x, cos, sin) = (rows(x), single(cos), single(sin));
        let [batch, seq, heads, dim] = dims(&x);
        let [_, pairs] = dims(&cos);
        let y = empty(&x, [batch, seq, heads, dim], x.dtype);
        rotate_kernel::launch(
            &x.client.clone(),
            grid(&x, (batch * seq * heads * dim).div_ceil(THREADS)),
            workgroup(),
            address(&[&x, &cos]),
            x.clone().into_buffer_arg(),
            cos.into_buffer_arg(),
            sin.into_buffer_arg(),
            y.clone().into_buffer_arg(),
            seq,
            heads,
            dim,
            pairs,
            if inverse { -1.0 } else { 1.0 },
            float_type(&x),
        );
        y
    }
}
