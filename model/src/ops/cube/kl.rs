//! The indexer's loss on the device.
//!
//! Only scores of listed entries are kept, `[B, S, R]`. The gradients for queries and weights have one workgroup per
//! query and tile of heads, those for the keys one per entry, as in the read-out: every sum is taken in a fixed order.

use burn::backend::tensor::IntTensor;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::cast;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::Float as FloatTensor;
use super::packed::Rows;
use super::rows::{Strange, lower_bound, sorted};
use super::scores::{Candidates, Kind, Source, score};
use super::shared::{
    GROUPS, LANES, THREADS, add_up, address, dims, empty, float_type, grid, indices, largest, load_row, rows, single,
    workgroup,
};
use super::tile::{Tile, multiply, product};
use crate::ops::IndexKlBackend;

/// One workgroup per query. Forwards it writes the loss, backwards the slope of the loss in every listed score,
/// `grad (student - teacher)`.
///
/// `scores`, `teacher`, `range`, `slopes` `[B, S, R]`, `grad`, `loss` `[B, S]`; `entries` rows of keys.
#[cube(launch, address_type = "dynamic")]
fn distribution_kernel(
    scores: &[f32],
    teacher: &[f32],
    range: &[i32],
    grad: &[f32],
    result: &mut [f32],
    queries: usize,
    width: usize,
    entries: usize,
    #[comptime] backward: bool,
) {
    let query = CUBE_POS;
    if query >= queries {
        terminate!();
    }
    let mut scratch = Shared::<[f32]>::new_slice(THREADS);
    let unit = UNIT_POS as usize;
    let start = query * width;

    let mut own_mass = 0.0f32;
    let mut own_top = f32::new(f32::MIN);
    let mut place = unit;
    while place < width {
        if is_listed(range[start + place], entries) {
            own_mass += teacher[start + place];
            own_top = max(own_top, scores[start + place]);
        }
        place += THREADS;
    }
    let mass = add_up::<f32>(&mut scratch, own_mass);
    let top = largest(&mut scratch, own_top);
    let mut own_sum = 0.0f32;
    let mut place = unit;
    while place < width {
        if is_listed(range[start + place], entries) {
            own_sum += (scores[start + place] - top).exp();
        }
        place += THREADS;
    }
    let sum = add_up::<f32>(&mut scratch, own_sum);
    let log_sum = top + sum.ln();

    // Without a teacher there is nothing to learn.
    let silent = mass <= 0.0f32;
    let mut own_loss = 0.0f32;
    let mut place = unit;
    while place < width {
        let mut slope = 0.0f32;
        if !silent && is_listed(range[start + place], entries) {
            let taught = teacher[start + place] / mass;
            let student = scores[start + place] - log_sum;
            if comptime!(backward) {
                slope = grad[query] * (student.exp() - taught);
            } else {
                // A teacher that is not a number stays one.
                let mut part = taught * (taught.ln() - student);
                if taught <= 0.0f32 {
                    part = 0.0f32;
                }
                own_loss += part;
            }
        }
        if comptime!(backward) {
            result[start + place] = slope;
        }
        place += THREADS;
    }
    if comptime!(!backward) {
        let loss = add_up::<f32>(&mut scratch, own_loss);
        if unit == 0 {
            result[query] = loss;
        }
    }
}

#[cube]
fn is_listed(number: i32, entries: usize) -> bool {
    number >= 0 && usize::cast_from(number) < entries
}

/// Gradients for index query and head weights: one workgroup per query and tile of heads, as in the read-out's.
///
/// `q`, `dq` `[B, S, H, d]`, `keys` `[B, N, d]`, `weights`, `dweights` `[B, S, H]`, `slopes` `[B, S, R]`; `listed`,
/// `places` `[B, S, R]` and `counts` `[B, S]` from [`sorted`].
#[cube(launch, address_type = "dynamic")]
fn query_kernel<F: Float>(
    q: &[F],
    keys: &[F],
    weights: &[f32],
    slopes: &[f32],
    listed: &[i32],
    places: &[i32],
    counts: &[i32],
    dq: &mut [F],
    dweights: &mut [f32],
    work: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    entries: usize,
    width: usize,
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
    let start = query * width;
    let first_row = query / seq * entries;
    let padded = comptime!(size.channels * THREADS);
    let pairs = comptime!(size.heads * size.entries);

    let mut q_tile = Shared::<[f32]>::new_slice(comptime!(size.heads * size.channels * THREADS));
    let mut key_tile = Shared::<[f32]>::new_slice(comptime!(size.entries * size.channels * THREADS));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(size.heads * THREADS));
    let mut steps = Shared::<[f32]>::new_slice(pairs);

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
    // Thread `h * entries + e` is responsible for that pair.
    let head = first_head + unit / size.entries;
    let mut weight = 0.0f32;
    if unit < pairs && head < heads {
        weight = weights[query * heads + head];
    }
    let mut dweight = 0.0f32;

    let total = usize::cast_from(counts[query]);
    let mut first = 0usize;
    while first < total {
        #[unroll]
        for e in 0..size.entries {
            let mut row = first_row;
            if first + e < total {
                row += usize::cast_from(listed[start + first + e]);
            }
            load_row::<F>(&mut key_tile, e * padded, keys, row * dim, dim, first + e < total, size.channels);
        }
        sync_cube();
        multiply(&mut partial, 0usize, &q_tile, &key_tile, dim, size);
        sync_cube();
        if unit < pairs {
            let product = product(&partial, 0usize, unit, size);
            let place = first + unit % size.entries;
            let mut step = 0.0f32;
            if place < total {
                let slope = slopes[start + usize::cast_from(places[start + place])];
                // Not max(product, 0), which may turn a NaN into 0.
                let mut positive = product;
                if product < 0.0f32 {
                    positive = 0.0f32;
                }
                dweight += slope * positive;
                if product > 0.0f32 {
                    step = slope * weight;
                }
            }
            steps[unit] = step;
        }
        sync_cube();
        for e in 0..size.entries {
            #[unroll]
            for c in 0..size.channels {
                let value = key_tile[e * padded + c * THREADS + unit];
                #[unroll]
                for h in 0..size.heads {
                    sums[h * size.channels + c] += steps[h * size.entries + e] * value;
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
                    dq[(query * heads + first_head + h) * dim + channel] = F::cast_from(sums[h * size.channels + c]);
                }
            }
        }
    }
    if unit < pairs {
        steps[unit] = dweight;
    }
    sync_cube();
    if unit < size.heads && first_head + unit < heads {
        let mut sum = 0.0f32;
        for e in 0..size.entries {
            sum += steps[unit * size.entries + e];
        }
        dweights[query * heads + first_head + unit] = sum;
    }
}

/// The gradient for the keys, one workgroup per row of `keys` `[B, N, d]`; how it looks for its queries and takes them
/// is told at the read-out's gradient for the latents.
#[cube(launch, address_type = "dynamic")]
fn key_kernel<F: Float>(
    q: &[F],
    keys: &[F],
    weights: &[f32],
    slopes: &[f32],
    listed: &[i32],
    places: &[i32],
    counts: &[i32],
    dkeys: &mut [F],
    work: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    entries: usize,
    width: usize,
    #[comptime] channels: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = CUBE_POS;
    if row >= work {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let batch = row / entries;
    let entry = i32::cast_from(row % entries);
    let mut own = Shared::<[f32]>::new_slice(comptime!(channels * THREADS));
    let mut partial = Shared::<[f32]>::new_slice(THREADS);
    let mut steps = Shared::<[f32]>::new_slice(GROUPS);
    let mut found = Shared::<[f32]>::new_slice(THREADS);
    let mut grouped = Shared::<[u32]>::new_slice(GROUPS);
    let mut sums = Array::<f32>::new(channels);
    #[unroll]
    for c in 0..channels {
        sums[c] = 0.0f32;
    }
    load_row::<F>(&mut own, 0usize, keys, row * dim, dim, true, channels);

    let mut start = 0usize;
    while start < seq {
        let mut slope = 0.0f32;
        if start + unit < seq {
            let query = batch * seq + start + unit;
            let from = query * width;
            let count = usize::cast_from(counts[query]);
            let mut place = lower_bound(listed, from, count, entry);
            let end = lower_bound(listed, from, count, entry + 1);
            while place < end {
                slope += slopes[from + usize::cast_from(places[from + place])];
                place += 1;
            }
        }
        found[unit] = slope;
        sync_cube();
        if unit < GROUPS {
            let mut any = 0u32;
            for lane in 0..LANES {
                if found[unit * LANES + lane] != 0.0f32 {
                    any += 1;
                }
            }
            grouped[unit] = any;
        }
        sync_cube();
        for group in 0..GROUPS {
            if grouped[group] > 0 {
                for lane in 0..LANES {
                    let slope = found[group * LANES + lane];
                    if slope != 0.0f32 {
                        let query = batch * seq + start + group * LANES + lane;
                        add_query::<F>(
                            &mut sums,
                            &own,
                            &mut partial,
                            &mut steps,
                            q,
                            weights,
                            query,
                            heads,
                            dim,
                            slope,
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
            dkeys[row * dim + channel] = F::cast_from(sums[c]);
        }
    }
}

/// Adds what one query gives the key in `own`: `slope w q` of every head whose product is positive.
#[cube]
fn add_query<F: Float>(
    sums: &mut Array<f32>,
    own: &Shared<[f32]>,
    partial: &mut Shared<[f32]>,
    steps: &mut Shared<[f32]>,
    q: &[F],
    weights: &[f32],
    query: usize,
    heads: usize,
    dim: usize,
    slope: f32,
    #[comptime] channels: usize,
) {
    let unit = UNIT_POS as usize;
    let mut first = 0usize;
    while first < heads {
        let head = first + unit / LANES;
        let mut product = 0.0f32;
        if head < heads {
            let from = (query * heads + head) * dim;
            let mut channel = unit % LANES;
            while channel < dim {
                product += f32::cast_from(q[from + channel]) * own[channel];
                channel += LANES;
            }
        }
        partial[unit] = product;
        sync_cube();
        if unit < GROUPS {
            let mut step = 0.0f32;
            if first + unit < heads {
                let mut product = 0.0f32;
                for lane in 0..LANES {
                    product += partial[unit * LANES + lane];
                }
                if product > 0.0f32 {
                    step = slope * weights[query * heads + first + unit];
                }
            }
            steps[unit] = step;
        }
        sync_cube();
        let together = min(heads - first, GROUPS);
        for group in 0..together {
            let from = (query * heads + first + group) * dim;
            let step = steps[group];
            #[unroll]
            for c in 0..channels {
                let channel = c * THREADS + unit;
                if channel < dim {
                    sums[c] += step * f32::cast_from(q[from + channel]);
                }
            }
        }
        first += GROUPS;
    }
}

/// The inputs, laid out for the kernels.
struct Inputs {
    q: CubeTensor,
    keys: CubeTensor,
    weights: CubeTensor,
    teacher: CubeTensor,
    range: CubeTensor,
}

impl Inputs {
    fn new(
        q: FloatTensor,
        keys: FloatTensor,
        weights: FloatTensor,
        teacher: FloatTensor,
        range: IntTensor<CubeBackend>,
    ) -> Self {
        Self { q: rows(q), keys: rows(keys), weights: single(weights), teacher: single(teacher), range: indices(range) }
    }

    /// Loss `[B, S]`, or with its gradient `grad` the slopes `[B, S, R]`.
    fn distribution(&self, grad: Option<&CubeTensor>) -> CubeTensor {
        let [batch, seq, width] = dims(&self.range);
        let [_, entries, _] = dims(&self.keys);
        let candidates =
            Candidates { source: Source::List, list: &self.range, width, size: 1, start: 0, ratio: 1, entries };
        let scores = empty(&self.q, [batch, seq, width], DType::F32);
        score(&self.q, Rows::plain(&self.keys), &self.weights, candidates, 1.0, Kind::Score, 0..seq, &scores);
        let result = match grad {
            Some(_) => empty(&self.q, [batch, seq, width], DType::F32),
            None => empty(&self.q, [batch, seq], DType::F32),
        };
        distribution_kernel::launch(
            &self.q.client,
            grid(&self.q, batch * seq),
            workgroup(),
            address(&[&scores]),
            scores.into_buffer_arg(),
            self.teacher.clone().into_buffer_arg(),
            self.range.clone().into_buffer_arg(),
            // Read backwards only.
            grad.unwrap_or(&self.teacher).clone().into_buffer_arg(),
            result.clone().into_buffer_arg(),
            batch * seq,
            width,
            entries,
            grad.is_some(),
        );
        result
    }
}

impl IndexKlBackend for CubeBackend {
    fn index_kl(
        q: FloatTensor,
        keys: FloatTensor,
        weights: FloatTensor,
        teacher: FloatTensor,
        range: IntTensor<Self>,
    ) -> FloatTensor {
        let dtype = q.dtype;
        cast(Inputs::new(q, keys, weights, teacher, range).distribution(None), dtype)
    }

    fn index_kl_backward(
        q: FloatTensor,
        keys: FloatTensor,
        weights: FloatTensor,
        teacher: FloatTensor,
        range: IntTensor<Self>,
        grad: FloatTensor,
    ) -> (FloatTensor, FloatTensor, FloatTensor) {
        let weights_type = weights.dtype;
        let inputs = Inputs::new(q, keys, weights, teacher, range);
        let slopes = inputs.distribution(Some(&single(grad)));
        let Inputs { q, keys, weights, range, .. } = inputs;
        let [batch, seq, heads, dim] = dims(&q);
        let [_, entries, _] = dims(&keys);
        let [_, _, width] = dims(&range);
        let list = sorted(range, entries, Strange::Absent, true);
        let client = q.client.clone();

        let dq = empty(&q, [batch, seq, heads, dim], q.dtype);
        let dweights = empty(&q, [batch, seq, heads], DType::F32);
        let size = Tile::new(heads, dim, false);
        let work = batch * seq * heads.div_ceil(size.heads);
        query_kernel::launch(
            &client,
            grid(&q, work),
            workgroup(),
            address(&[&q, &keys, &slopes]),
            q.clone().into_buffer_arg(),
            keys.clone().into_buffer_arg(),
            weights.clone().into_buffer_arg(),
            slopes.clone().into_buffer_arg(),
            list.entries.clone().into_buffer_arg(),
            list.places.clone().into_buffer_arg(),
            list.counts.clone().into_buffer_arg(),
            dq.clone().into_buffer_arg(),
            dweights.clone().into_buffer_arg(),
            work,
            seq,
            heads,
            dim,
            entries,
            width,
            size,
            float_type(&q),
        );

        let dkeys = empty(&q, [batch, entries, dim], keys.dtype);
        key_kernel::launch(
            &client,
            grid(&q, batch * entries),
            workgroup(),
            address(&[&q, &keys, &slopes]),
            q.clone().into_buffer_arg(),
            keys.into_buffer_arg(),
            weights.into_buffer_arg(),
            slopes.into_buffer_arg(),
            list.entries.into_buffer_arg(),
            list.places.into_buffer_arg(),
            list.counts.into_buffer_arg(),
            dkeys.clone().into_buffer_arg(),
            batch * entries,
            seq,
            heads,
            dim,
            entries,
            width,
            dim.div_ceil(THREADS),
            float_type(&q),
        );
        (dq, dkeys, cast(dweights, weights_type))
    }
}
