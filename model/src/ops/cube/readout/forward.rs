//! The forward pass.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::shared::{THREADS, load_row};
use super::super::tile::{Tile, multiply, product};
use super::{Layouts, Ring, load_entries};

/// One workgroup per query and tile of heads. The softmax is taken online: entries come in chunks; a new maximum
/// rescales what was added up so far. It starts from the sink, which is an entry with vector 0.
///
/// `q`, `output` `[B, S, H, d]`, `window` and `near` `[B, P, d]`, `main` `[B, N, d]` or words of the latents of one sequence, `sink`
/// `[H]`, `listed` `[B, S, K]` and `counts` `[B, S]` from [`sorted`], `lse` `[B, S, H]`. The first query stands at `first_position`,
/// and no query reads the window before `since`.
#[cube(launch, address_type = "dynamic")]
pub(super) fn forward_kernel<F: Float, R: Numeric>(
    q: &[F],
    window: &[R],
    near: &[R],
    main: &[R],
    sink: &[f32],
    listed: &[i32],
    counts: &[i32],
    output: &mut [F],
    lse: &mut [f32],
    work: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    first_position: usize,
    since: usize,
    start: usize,
    ring: usize,
    positions: usize,
    rows: usize,
    topk: usize,
    width: usize,
    scale: f32,
    nan: f32,
    #[comptime] size: Tile,
    #[comptime] layouts: Layouts,
    #[define(F, R)] _dtypes: [ElemType; 2],
) {
    if CUBE_POS >= work {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let tiles = heads.div_ceil(size.heads);
    let first_head = CUBE_POS % tiles * size.heads;
    let query = CUBE_POS / tiles;
    let batch = query / seq;
    let position = first_position + query % seq;
    let padded = comptime!(size.channels * THREADS);
    let pairs = comptime!(size.heads * size.entries);

    let mut q_tile = Shared::<[f32]>::new_slice(comptime!(size.heads * size.channels * THREADS));
    let mut entries = Shared::<[f32]>::new_slice(comptime!(size.entries * size.channels * THREADS));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(size.heads * THREADS));
    let mut logits = Shared::<[f32]>::new_slice(pairs);
    let mut weights = Shared::<[f32]>::new_slice(pairs);
    let mut factors = Shared::<[f32]>::new_slice(size.heads);

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
    }

    // Thread `h * entries + e` keeps the books of head `h`, the same for every `e`.
    let head = unit / size.entries;
    let mut top = 0.0f32;
    let mut sum = 1.0f32;
    if unit < pairs && first_head + head < heads {
        top = sink[first_head + head];
    }

    let mut from_position = since;
    if position + 1 > since + width {
        from_position = position + 1 - width;
    }
    let reach = position + 1 - from_position;
    let mut total = 0usize;
    if count >= 0 {
        total = reach + usize::cast_from(count);
    }
    let mut first = 0usize;
    while first < total {
        load_entries::<R>(
            &mut entries,
            window,
            near,
            main,
            listed,
            from_position,
            batch * positions,
            batch * rows,
            query * topk,
            first,
            reach,
            total,
            dim,
            Ring { start, width: ring },
            size,
            layouts,
        );
        sync_cube();
        multiply(&mut partial, 0usize, &q_tile, &entries, dim, size);
        sync_cube();
        if unit < pairs {
            logits[unit] = scale * product(&partial, 0usize, unit, size);
        }
        sync_cube();
        if unit < pairs {
            let old = top;
            for e in 0..size.entries {
                if first + e < total {
                    top = max(top, logits[head * size.entries + e]);
                }
            }
            let mut weight = 0.0f32;
            if first + unit % size.entries < total {
                weight = (logits[unit] - top).exp();
            }
            weights[unit] = weight;
            if unit % size.entries == 0 {
                factors[head] = (old - top).exp();
            }
        }
        sync_cube();
        if unit < pairs {
            sum *= factors[head];
            for e in 0..size.entries {
                sum += weights[head * size.entries + e];
            }
        }
        #[unroll]
        for h in 0..size.heads {
            let factor = factors[h];
            #[unroll]
            for c in 0..size.channels {
                sums[h * size.channels + c] *= factor;
            }
        }
        for e in 0..size.entries {
            #[unroll]
            for c in 0..size.channels {
                let value = entries[e * padded + c * THREADS + unit];
                #[unroll]
                for h in 0..size.heads {
                    sums[h * size.channels + c] += weights[h * size.entries + e] * value;
                }
            }
        }
        sync_cube();
        first += size.entries;
    }

    if unit < pairs && unit % size.entries == 0 && first_head + head < heads {
        factors[head] = sum;
        let mut value = top + sum.ln();
        if count < 0 {
            value = nan;
        }
        lse[query * heads + first_head + head] = value;
    }
    sync_cube();
    #[unroll]
    for h in 0..size.heads {
        if first_head + h < heads {
            #[unroll]
            for c in 0..size.channels {
                let channel = c * THREADS + unit;
                if channel < dim {
                    let mut value = sums[h * size.channels + c] / factors[h];
                    if count < 0 {
                        value = nan;
                    }
                    output[(query * heads + first_head + h) * dim + channel] = F::cast_from(value);
                }
            }
        }
    }
}
