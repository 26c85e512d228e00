//! The gradient for the latents.

use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::rows::{SortedRows, occurrences};
use super::super::shared::{GROUPS, LANES, THREADS, address, dims, empty, float_type, grid, load_row, workgroup};

/// The gradient for the latents, one workgroup per row of `latents` `[B, rows, d]` (the window's when `near`, else the
/// main ones).
///
/// The threads test [`THREADS`] queries at a time for whether they read this entry, and how often. Then the workgroup
/// takes the hits one after another, in ascending order, 8 heads at a time: 16 threads per head recompute logit and
/// slope, and every thread adds to its own channels.
#[cube(launch, address_type = "dynamic")]
fn latent_kernel<F: Float>(
    latents: &[F],
    q: &[F],
    grad: &[F],
    listed: &[i32],
    counts: &[i32],
    lse: &[f32],
    mean: &[f32],
    gradient: &mut [F],
    work: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    rows: usize,
    topk: usize,
    width: usize,
    scale: f32,
    #[comptime] near: bool,
    #[comptime] channels: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = CUBE_POS;
    if row >= work {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let batch = row / rows;
    let entry = row % rows;
    let mut own = Shared::<[f32]>::new_slice(comptime!(channels * THREADS));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(2 * THREADS));
    let mut shares = Shared::<[f32]>::new_slice(comptime!(2 * GROUPS));
    let mut hits = Shared::<[u32]>::new_slice(THREADS);
    let mut grouped = Shared::<[u32]>::new_slice(GROUPS);
    let mut sums = Array::<f32>::new(channels);
    #[unroll]
    for c in 0..channels {
        sums[c] = 0.0f32;
    }
    load_row::<F>(&mut own, 0usize, latents, row * dim, dim, true, channels);

    // The queries that can read this entry.
    let mut start = 0usize;
    let mut end = seq;
    if comptime!(near) {
        let before = rows - seq;
        if entry > before {
            start = entry - before;
        }
        end = 0usize;
        if entry + width > before {
            end = min(entry + width - before, seq);
        }
    }

    while start < end {
        let query = batch * seq + start + unit;
        let mut often = 0u32;
        if start + unit < end {
            let count = counts[query];
            if comptime!(near) {
                if count >= 0 {
                    often = 1u32;
                }
            } else if count > 0 {
                often =
                    u32::cast_from(occurrences(listed, query * topk, usize::cast_from(count), i32::cast_from(entry)));
            }
        }
        hits[unit] = often;
        sync_cube();
        if unit < GROUPS {
            let mut any = 0u32;
            for lane in 0..LANES {
                any += hits[unit * LANES + lane];
            }
            grouped[unit] = any;
        }
        sync_cube();
        for group in 0..GROUPS {
            if grouped[group] > 0 {
                for lane in 0..LANES {
                    let times = hits[group * LANES + lane];
                    if times > 0 {
                        let query = batch * seq + start + group * LANES + lane;
                        add_query::<F>(
                            &mut sums,
                            &own,
                            &mut partial,
                            &mut shares,
                            q,
                            grad,
                            lse,
                            mean,
                            query,
                            heads,
                            dim,
                            f32::cast_from(times),
                            scale,
                            channels,
                        );
                    }
                }
            }
        }
        sync_cube();
        start += THREADS;
    }
    #[unroll]
    for c in 0..channels {
        let channel = c * THREADS + unit;
        if channel < dim {
            gradient[row * dim + channel] = F::cast_from(sums[c]);
        }
    }
}

/// Adds what one query gives the entry in `own`: `p g + slope q` over all heads, `times` over.
#[cube]
fn add_query<F: Float>(
    sums: &mut Array<f32>,
    own: &Shared<[f32]>,
    partial: &mut Shared<[f32]>,
    shares: &mut Shared<[f32]>,
    q: &[F],
    grad: &[F],
    lse: &[f32],
    mean: &[f32],
    query: usize,
    heads: usize,
    dim: usize,
    times: f32,
    scale: f32,
    #[comptime] channels: usize,
) {
    let unit = UNIT_POS as usize;
    let mut first = 0usize;
    while first < heads {
        let head = first + unit / LANES;
        let mut logit = 0.0f32;
        let mut along = 0.0f32;
        if head < heads {
            let from = (query * heads + head) * dim;
            let mut channel = unit % LANES;
            while channel < dim {
                let c = own[channel];
                logit += f32::cast_from(q[from + channel]) * c;
                along += f32::cast_from(grad[from + channel]) * c;
                channel += LANES;
            }
        }
        partial[unit] = logit;
        partial[THREADS + unit] = along;
        sync_cube();
        if unit < GROUPS {
            let mut weight = 0.0f32;
            let mut slope = 0.0f32;
            if first + unit < heads {
                let mut logit = 0.0f32;
                let mut along = 0.0f32;
                for lane in 0..LANES {
                    logit += partial[unit * LANES + lane];
                    along += partial[THREADS + unit * LANES + lane];
                }
                let at = query * heads + first + unit;
                weight = times * (scale * logit - lse[at]).exp();
                slope = scale * weight * (along - mean[at]);
            }
            shares[unit] = weight;
            shares[GROUPS + unit] = slope;
        }
        sync_cube();
        let together = min(heads - first, GROUPS);
        for group in 0..together {
            let from = (query * heads + first + group) * dim;
            let weight = shares[group];
            let slope = shares[GROUPS + group];
            #[unroll]
            for c in 0..channels {
                let channel = c * THREADS + unit;
                if channel < dim {
                    sums[c] +=
                        weight * f32::cast_from(grad[from + channel]) + slope * f32::cast_from(q[from + channel]);
                }
            }
        }
        first += GROUPS;
    }
}

/// The gradient for one set of latents.
pub(super) fn latent_gradient(
    latents: &CubeTensor,
    q: &CubeTensor,
    grad: &CubeTensor,
    list: &SortedRows,
    lse: &CubeTensor,
    mean: &CubeTensor,
    near: Option<usize>,
    scale: f64,
) -> CubeTensor {
    let [batch, seq, heads, dim] = dims(q);
    let [_, entries, _] = dims(latents);
    let [_, _, topk] = dims(&list.entries);
    let gradient = empty(latents, [batch, entries, dim], latents.dtype);
    latent_kernel::launch(
        &q.client,
        grid(q, batch * entries),
        workgroup(),
        address(&[q, latents, &list.entries]),
        latents.clone().into_buffer_arg(),
        q.clone().into_buffer_arg(),
        grad.clone().into_buffer_arg(),
        list.entries.clone().into_buffer_arg(),
        list.counts.clone().into_buffer_arg(),
        lse.clone().into_buffer_arg(),
        mean.clone().into_buffer_arg(),
        gradient.clone().into_buffer_arg(),
        batch * entries,
        seq,
        heads,
        dim,
        entries,
        topk,
        near.unwrap_or(0),
        scale as f32,
        near.is_some(),
        dim.div_ceil(THREADS),
        float_type(q),
    );
    gradient
}
