//! The gradients for the query and the sink.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::shared::{GROUPS, LANES, THREADS, add_up, load_row};
use super::super::tile::{Tile, multiply, product};
use super::{PLAIN, Ring, load_entries};

/// One workgroup per query: `mean[h] = g[h] . o[h]`, which every logit's gradient `p_j (g . c_j - g . o)` needs.
#[cube(launch, address_type = "dynamic")]
pub(super) fn mean_kernel<F: Float>(
    output: &[F],
    grad: &[F],
    mean: &mut [f32],
    queries: usize,
    heads: usize,
    dim: usize,
    #[define(F)] _dtype: ElemType,
) {
    let query = CUBE_POS;
    if query >= queries {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let mut partial = Shared::<[f32]>::new_slice(THREADS);
    let mut first = 0usize;
    while first < heads {
        let head = first + unit / LANES;
        let mut sum = 0.0f32;
        if head < heads {
            let from = (query * heads + head) * dim;
            let mut channel = unit % LANES;
            while channel < dim {
                sum += f32::cast_from(output[from + channel]) * f32::cast_from(grad[from + channel]);
                channel += LANES;
            }
        }
        partial[unit] = sum;
        sync_cube();
        if unit < GROUPS && first + unit < heads {
            let mut sum = 0.0f32;
            for lane in 0..LANES {
                sum += partial[unit * LANES + lane];
            }
            mean[query * heads + first + unit] = sum;
        }
        sync_cube();
        first += GROUPS;
    }
}

/// One workgroup per head: the sink's gradient, `- exp(sink - lse) (g . o)` added up over all queries that are numbers.
#[cube(launch, address_type = "dynamic")]
pub(super) fn sink_kernel(
    sink: &[f32],
    lse: &[f32],
    mean: &[f32],
    counts: &[i32],
    gradient: &mut [f32],
    queries: usize,
    heads: usize,
) {
    let head = CUBE_POS;
    if head >= heads {
        terminate!();
    }
    let mut scratch = Shared::<[f32]>::new_slice(THREADS);
    let own = sink[head];
    let mut sum = 0.0f32;
    let mut query = UNIT_POS as usize;
    while query < queries {
        if counts[query] >= 0 {
            let at = query * heads + head;
            sum -= (own - lse[at]).exp() * mean[at];
        }
        query += THREADS;
    }
    let sum = add_up::<f32>(&mut scratch, sum);
    if UNIT_POS == 0 {
        gradient[head] = sum;
    }
}

/// The gradient for the query; workgroups and shapes as in [`forward_kernel`].
#[cube(launch, address_type = "dynamic")]
pub(super) fn query_kernel<F: Float>(
    q: &[F],
    grad: &[F],
    window: &[F],
    main: &[F],
    listed: &[i32],
    counts: &[i32],
    lse: &[f32],
    mean: &[f32],
    gradient: &mut [F],
    work: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    positions: usize,
    rows: usize,
    topk: usize,
    width: usize,
    scale: f32,
    nan: f32,
    #[comptime] size: Tile,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS >= work {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let tiles = heads.div_ceil(size.heads);
    let first_head = CUBE_POS % tiles * size.heads;
    let query = CUBE_POS / tiles;
    let batch = query / seq;
    let position = positions - seq + query % seq;
    let padded = comptime!(size.channels * THREADS);
    let pairs = comptime!(size.heads * size.entries);

    let mut q_tile = Shared::<[f32]>::new_slice(comptime!(size.heads * size.channels * THREADS));
    let mut g_tile = Shared::<[f32]>::new_slice(comptime!(size.heads * size.channels * THREADS));
    let mut entries = Shared::<[f32]>::new_slice(comptime!(size.entries * size.channels * THREADS));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(2 * size.heads * THREADS));
    let mut slopes = Shared::<[f32]>::new_slice(pairs);

    let count = counts[query];
    let mut sums = Array::<f32>::new(comptime!(size.heads * size.channels));
    #[unroll]
    for i in 0..comptime!(size.heads * size.channels) {
        sums[i] = 0.0f32;
    }
    #[unroll]
    for h in 0..size.heads {
        let from = (query * heads + first_head + h) * dim;
        load_row::<F>(&mut q_tile, h * padded, q, from, dim, first_head + h < heads, size.channels);
        load_row::<F>(&mut g_tile, h * padded, grad, from, dim, first_head + h < heads, size.channels);
    }
    let head = first_head + unit / size.entries;
    let mut own_lse = 0.0f32;
    let mut own_mean = 0.0f32;
    if unit < pairs && head < heads {
        own_lse = lse[query * heads + head];
        own_mean = mean[query * heads + head];
    }

    let mut from_window = 0usize;
    if position + 1 > width {
        from_window = position + 1 - width;
    }
    let near = position + 1 - from_window;
    let mut total = 0usize;
    if count >= 0 {
        total = near + usize::cast_from(count);
    }
    let mut first = 0usize;
    while first < total {
        load_entries::<F>(
            &mut entries,
            window,
            window,
            main,
            listed,
            from_window,
            batch * positions,
            batch * rows,
            query * topk,
            first,
            near,
            total,
            dim,
            Ring { start: 0usize, width: 1usize },
            size,
            PLAIN,
        );
        sync_cube();
        multiply(&mut partial, 0usize, &q_tile, &entries, dim, size);
        multiply(&mut partial, comptime!(size.heads * THREADS), &g_tile, &entries, dim, size);
        sync_cube();
        if unit < pairs {
            let logit = scale * product(&partial, 0usize, unit, size);
            let along = product(&partial, comptime!(size.heads * THREADS), unit, size);
            let mut slope = 0.0f32;
            if first + unit % size.entries < total && head < heads {
                slope = scale * (logit - own_lse).exp() * (along - own_mean);
            }
            slopes[unit] = slope;
        }
        sync_cube();
        for e in 0..size.entries {
            #[unroll]
            for c in 0..size.channels {
                let value = entries[e * padded + c * THREADS + unit];
                #[unroll]
                for h in 0..size.heads {
                    sums[h * size.channels + c] += slopes[h * size.entries + e] * value;
                }
            }
        }
        sync_cube();
        first += size.entries;
    }
    #[unroll]
    for h in 0..size.heads {
        if first_head + h < heads {
            #[unroll]
            for c in 0..size.channels {
                let channel = c * THREADS + unit;
                if channel < dim {
                    let mut value = sums[h * size.channels + c];
                    if count < 0 {
                        value = nan;
                    }
                    gradient[(query * heads + first_head + h) * dim + channel] = F::cast_from(value);
                }
            }
        }
    }
}
