//! The read-out on the device: one pass over a query's entries, forward and backward.
//!
//! Nothing of the size of all logits or all gathered entries lies in global memory. The forward pass and the gradient
//! for the query have one workgroup per query and tile of heads; it brings a few entries at a time into shared memory.
//! The gradient for the latents has one workgroup per entry, which looks for the queries that read it and adds their
//! shares in ascending order: no atomic additions, the same bits on every run.

use burn::backend::tensor::IntTensor;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::Float as FloatTensor;
use super::rows::{SortedRows, Strange, occurrences, sorted};
use super::shared::{
    GROUPS, LANES, THREADS, add_up, address, dims, empty, float_type, grid, load_row, rows, single, workgroup,
};
use super::tile::{Tile, multiply, product};
use crate::ops::ReadoutBackend;

/// Brings the entries `first ..` of a query into `tile`: `near` rows of `window` from `from_window` on, then the listed
/// rows of `main`. Beyond `total` there are zeros.
#[cube]
fn load_entries<F: Float>(
    tile: &mut Shared<[f32]>,
    window: &[F],
    main: &[F],
    listed: &[i32],
    from_window: usize,
    from_main: usize,
    from_listed: usize,
    first: usize,
    near: usize,
    total: usize,
    dim: usize,
    #[comptime] size: Tile,
) {
    #[unroll]
    for e in 0..size.entries {
        let place = first + e;
        let at = e * comptime!(size.channels * THREADS);
        if place < near {
            load_row::<F>(tile, at, window, (from_window + place) * dim, dim, true, size.channels);
        } else {
            let mut row = from_main;
            if place < total {
                row += usize::cast_from(listed[from_listed + place - near]);
            }
            load_row::<F>(tile, at, main, row * dim, dim, place < total, size.channels);
        }
    }
}

/// One workgroup per query and tile of heads. The softmax is taken online: entries come in chunks; a new maximum
/// rescales what was added up so far. It starts from the sink, which is an entry with vector 0.
///
/// `q`, `output` `[B, S, H, d]`, `window` `[B, P, d]`, `main` `[B, N, d]`, `sink` `[H]`, `listed` `[B, S, K]` and
/// `counts` `[B, S]` from [`sorted`], `lse` `[B, S, H]`.
#[cube(launch, address_type = "dynamic")]
fn forward_kernel<F: Float>(
    q: &[F],
    window: &[F],
    main: &[F],
    sink: &[f32],
    listed: &[i32],
    counts: &[i32],
    output: &mut [F],
    lse: &mut [f32],
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
            main,
            listed,
            batch * positions + from_window,
            batch * rows,
            query * topk,
            first,
            near,
            total,
            dim,
            size,
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

/// One workgroup per query: `mean[h] = g[h] . o[h]`, which every logit's gradient `p_j (g . c_j - g . o)` needs.
#[cube(launch, address_type = "dynamic")]
fn mean_kernel<F: Float>(
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
fn sink_kernel(
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
fn query_kernel<F: Float>(
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
            main,
            listed,
            batch * positions + from_window,
            batch * rows,
            query * topk,
            first,
            near,
            total,
            dim,
            size,
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
fn latent_gradient(
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

impl ReadoutBackend for CubeBackend {
    fn readout(
        q: FloatTensor,
        window: FloatTensor,
        main: FloatTensor,
        sink: FloatTensor,
        topk: IntTensor<Self>,
        width: usize,
        scale: f64,
    ) -> (FloatTensor, FloatTensor) {
        let (q, window, main, sink) = (rows(q), rows(window), rows(main), single(sink));
        let [batch, seq, heads, dim] = dims(&q);
        let [_, positions, _] = dims(&window);
        let [_, entries, _] = dims(&main);
        let list = sorted(topk, entries, Strange::NotANumber, false);
        let [_, _, topk] = dims(&list.entries);
        let output = empty(&q, [batch, seq, heads, dim], q.dtype);
        let lse = empty(&q, [batch, seq, heads], DType::F32);
        let size = Tile::new(heads, dim, false);
        let work = batch * seq * heads.div_ceil(size.heads);
        forward_kernel::launch(
            &q.client,
            grid(&q, work),
            workgroup(),
            address(&[&q, &window, &main, &list.entries]),
            q.clone().into_buffer_arg(),
            window.into_buffer_arg(),
            main.into_buffer_arg(),
            sink.into_buffer_arg(),
            list.entries.into_buffer_arg(),
            list.counts.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            lse.clone().into_buffer_arg(),
            work,
            seq,
            heads,
            dim,
            positions,
            entries,
            topk,
            width,
            scale as f32,
            f32::NAN,
            size,
            float_type(&q),
        );
        (output, lse)
    }

    fn readout_backward(
        q: FloatTensor,
        window: FloatTensor,
        main: FloatTensor,
        sink: FloatTensor,
        topk: IntTensor<Self>,
        output: FloatTensor,
        lse: FloatTensor,
        grad: FloatTensor,
        width: usize,
        scale: f64,
    ) -> (FloatTensor, FloatTensor, FloatTensor, FloatTensor) {
        let sink_type = sink.dtype;
        let (q, window, main, sink) = (rows(q), rows(window), rows(main), single(sink));
        let (output, lse, grad) = (rows(output), single(lse), rows(grad));
        let [batch, seq, heads, dim] = dims(&q);
        let [_, positions, _] = dims(&window);
        let [_, entries, _] = dims(&main);
        let list = sorted(topk, entries, Strange::NotANumber, false);
        let [_, _, topk] = dims(&list.entries);
        let client = q.client.clone();

        let mean = empty(&q, [batch, seq, heads], DType::F32);
        mean_kernel::launch(
            &client,
            grid(&q, batch * seq),
            workgroup(),
            address(&[&q]),
            output.into_buffer_arg(),
            grad.clone().into_buffer_arg(),
            mean.clone().into_buffer_arg(),
            batch * seq,
            heads,
            dim,
            float_type(&q),
        );

        let dsink = empty(&q, [heads], DType::F32);
        sink_kernel::launch(
            &client,
            grid(&q, heads),
            workgroup(),
            address(&[&lse]),
            sink.into_buffer_arg(),
            lse.clone().into_buffer_arg(),
            mean.clone().into_buffer_arg(),
            list.counts.clone().into_buffer_arg(),
            dsink.clone().into_buffer_arg(),
            batch * seq,
            heads,
        );

        let dq = empty(&q, [batch, seq, heads, dim], q.dtype);
        let size = Tile::new(heads, dim, true);
        let work = batch * seq * heads.div_ceil(size.heads);
        query_kernel::launch(
            &client,
            grid(&q, work),
            workgroup(),
            address(&[&q, &window, &main, &list.entries]),
            q.clone().into_buffer_arg(),
            grad.clone().into_buffer_arg(),
            window.clone().into_buffer_arg(),
            main.clone().into_buffer_arg(),
            list.entries.clone().into_buffer_arg(),
            list.counts.clone().into_buffer_arg(),
            lse.clone().into_buffer_arg(),
            mean.clone().into_buffer_arg(),
            dq.clone().into_buffer_arg(),
            work,
            seq,
            heads,
            dim,
            positions,
            entries,
            topk,
            width,
            scale as f32,
            f32::NAN,
            size,
            float_type(&q),
        );

        let dwindow = latent_gradient(&window, &q, &grad, &list, &lse, &mean, Some(width), scale);
        let dmain = latent_gradient(&main, &q, &grad, &list, &lse, &mean, None, scale);
        (dq, dwindow, dmain, burn_cubecl::kernel::cast(dsink, sink_type))
    }
}
