//! A score for every query and candidate entry: the indexer's scores and the attention mass.

use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::packed::{Layout, Rows, read};
use super::shared::{THREADS, address, dims, float_type, grid, workgroup};

/// Candidates of a workgroup. With [`THREADS`] threads, two share a candidate and halve its heads.
const CANDIDATES: usize = 64;

/// Channels that a workgroup has in shared memory at one time.
const CHANNELS: usize = 32;

/// Rows of [`CHANNELS`] numbers lie one number further apart, in different memory banks.
const PITCH: usize = CHANNELS + 1;

/// In place of a row number: no candidate.
const ABSENT: usize = 0xFFFF_FFFF;

/// The key of an absent candidate, below every score's.
pub(super) const ABSENT_KEY: u32 = 0;

/// The key of a score that is not a number, above every other score's.
pub(super) const NAN_KEY: u32 = 0xFFFF_FFFF;

/// Which entries a query's candidates are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// Candidate `i` is entry `i`; those that the query does not see are absent.
    Visible,
    /// Candidate `i` is in the pool's block `i / size`.
    Pool,
    /// Candidate `i` is the `i`-th number of a list.
    List,
}

/// What is computed of a query `q[h]` and a candidate `c`, and how it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// `sum_h w[h] relu(q[h] . c)`, as an unsigned integer of the same order: see [`key`].
    Key,
    /// The same sum, as the bits of an f32; 0 for an absent candidate.
    Score,
    /// `sum_h exp(scale (q[h] . c) - w[h])`, as the bits of an f32; 0 for an absent candidate.
    Mass,
}

/// Where candidates come from and who sees them.
#[derive(Clone, Copy)]
pub(super) struct Candidates<'a> {
    pub source: Source,
    /// Pool or list `[B, S, R]`, or any i32 tensor when candidates are the visible entries.
    pub list: &'a CubeTensor,
    /// Candidates of a query.
    pub width: usize,
    /// Entries in a block of the pool.
    pub size: usize,
    /// The query in row `t` sees entries below `min((start + t + 1) / ratio, entries)`.
    pub start: usize,
    pub ratio: usize,
    pub entries: usize,
}

/// How many entries the query in row `t` sees.
#[cube]
pub(super) fn visible(t: usize, start: usize, ratio: usize, entries: usize) -> usize {
    min((start + t + 1) / ratio, entries)
}

/// The row number of a query's candidate, or [`ABSENT`]. `row` is where the query's list starts. Pools are ascending: a
/// block that is listed twice counts once.
#[cube]
pub(super) fn candidate(
    list: &[i32],
    row: usize,
    place: usize,
    sees: usize,
    size: usize,
    #[comptime] source: Source,
) -> usize {
    let mut entry = ABSENT.runtime();
    if comptime!(source == Source::Visible) {
        if place < sees {
            entry = place;
        }
    } else if comptime!(source == Source::Pool) {
        let at = row + place / size;
        let block = list[at];
        let mut first = true.runtime();
        if place >= size {
            first = list[at - 1] != block;
        }
        // The comparison of blocks keeps the product from overflowing.
        if first && block >= 0 && usize::cast_from(block) <= sees / size {
            let inside = usize::cast_from(block) * size + place % size;
            if inside < sees {
                entry = inside;
            }
        }
    } else {
        let number = list[row + place];
        if number >= 0 && usize::cast_from(number) < sees {
            entry = usize::cast_from(number);
        }
    }
    entry
}

/// An unsigned integer that orders as the score does: -0 and 0 are equal, infinities are the ends, every NaN is
/// [`NAN_KEY`].
#[cube]
fn key(score: f32) -> u32 {
    let bits = u32::reinterpret(score);
    let magnitude = bits & 0x7FFF_FFFFu32;
    let mut key = bits | 0x8000_0000u32;
    if magnitude == 0u32 {
        key = 0x8000_0000u32.runtime();
    } else if magnitude > 0x7F80_0000u32 {
        key = NAN_KEY.runtime();
    } else if bits != magnitude {
        key = !bits;
    }
    key
}

/// One workgroup per [`CANDIDATES`] candidates of `together` queries, which have these candidates in common when there
/// is more than one. Channels pass through shared memory [`CHANNELS`] at a time; a thread multiplies one candidate with
/// `share` heads of every query at once.
///
/// `q` `[B, S, H, d]`, `rows` `[B, N, d]` or words of the vectors of one sequence, `weights` `[B, S, H]`, `list` `[B, S, R]`, `scores`
/// `[B, queries, width]` for the queries in rows `first_query ..`.
#[cube(launch, address_type = "dynamic")]
fn score_kernel<F: Float, R: Numeric>(
    q: &[F],
    rows: &[R],
    weights: &[f32],
    list: &[i32],
    scores: &mut [u32],
    work: usize,
    first_query: usize,
    queries: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    row_count: usize,
    listed: usize,
    width: usize,
    size: usize,
    start: usize,
    ratio: usize,
    entries: usize,
    scale: f32,
    #[comptime] source: Source,
    #[comptime] kind: Kind,
    #[comptime] share: usize,
    #[comptime] together: usize,
    #[comptime] layout: Layout,
    #[define(F, R)] _dtypes: [ElemType; 2],
) {
    if CUBE_POS >= work {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let tiles = width.div_ceil(CANDIDATES);
    let groups = queries.div_ceil(together);
    let first = CUBE_POS % tiles * CANDIDATES;
    let group = CUBE_POS / tiles % groups;
    let batch = CUBE_POS / tiles / groups;
    // The group's queries: rows `t ..` of the sequence, up to `group_end`, of which the last one sees most.
    let t = first_query + group * together;
    let group_end = min(t + together, first_query + queries);
    let query = batch * seq + t;
    let mut sees = entries;
    if comptime!(source != Source::List) {
        sees = visible(group_end - 1, start, ratio, entries);
    }
    // No one looks at the tiles beyond what a query sees.
    if comptime!(source == Source::Visible) && first >= sees {
        terminate!();
    }

    let rows_of_q = comptime!(2 * share * together);
    let mut numbers = Shared::<[u32]>::new_slice(CANDIDATES);
    let mut row_tile = Shared::<[f32]>::new_slice(comptime!(CANDIDATES * PITCH));
    let mut q_tile = Shared::<[f32]>::new_slice(comptime!(2 * share * together * CHANNELS));
    let mut halves = Shared::<[f32]>::new_slice(comptime!(CANDIDATES * together));

    if unit < CANDIDATES {
        let mut number = ABSENT.runtime();
        if first + unit < width {
            number = candidate(list, query * listed, first + unit, sees, size, source);
        }
        numbers[unit] = u32::cast_from(number);
    }
    sync_cube();

    let own = unit % CANDIDATES;
    let half = unit / CANDIDATES;
    let mut sums = Array::<f32>::new(together);
    #[unroll]
    for i in 0..together {
        sums[i] = 0.0f32;
    }
    let mut products = Array::<f32>::new(comptime!(share * together));
    let mut first_head = 0usize;
    while first_head < heads {
        #[unroll]
        for i in 0..comptime!(share * together) {
            products[i] = 0.0f32;
        }
        let mut first_channel = 0usize;
        while first_channel < dim {
            let channel = first_channel + unit % CHANNELS;
            for i in 0..comptime!(CANDIDATES * CHANNELS / THREADS) {
                let at = i * comptime!(THREADS / CHANNELS) + unit / CHANNELS;
                let number = usize::cast_from(numbers[at]);
                let mut value = 0.0f32;
                if number != ABSENT && channel < dim {
                    value = read::<R>(rows, batch * row_count + number, dim, channel, layout);
                }
                row_tile[at * PITCH + unit % CHANNELS] = value;
            }
            // Row `(half * share + i) * together + g` is head `half * share + i` of the group's query `g`.
            let mut at = unit / CHANNELS;
            while at < rows_of_q {
                let head = first_head + at / together;
                let member = at % together;
                let mut value = 0.0f32;
                if head < heads && t + member < group_end && channel < dim {
                    value = f32::cast_from(q[((query + member) * heads + head) * dim + channel]);
                }
                q_tile[at * CHANNELS + unit % CHANNELS] = value;
                at += THREADS / CHANNELS;
            }
            sync_cube();
            let own_heads = half * comptime!(share * together * CHANNELS);
            for channel in 0..CHANNELS {
                let value = row_tile[own * PITCH + channel];
                #[unroll]
                for i in 0..comptime!(share * together) {
                    products[i] += q_tile[own_heads + i * CHANNELS + channel] * value;
                }
            }
            sync_cube();
            first_channel += CHANNELS;
        }
        #[unroll]
        for i in 0..share {
            let head = first_head + half * share + i;
            if head < heads {
                #[unroll]
                for member in 0..together {
                    // Beyond the group's end there is nothing to read; the products are 0.
                    let mut weight = 0.0f32;
                    if t + member < group_end {
                        weight = weights[(query + member) * heads + head];
                    }
                    let product = products[i * together + member];
                    if comptime!(kind == Kind::Mass) {
                        sums[member] += (scale * product - weight).exp();
                    } else if product < 0.0f32 {
                        // Not max(product, 0), which may turn a NaN into 0.
                        sums[member] += weight * 0.0f32;
                    } else {
                        sums[member] += weight * product;
                    }
                }
            }
        }
        first_head += 2 * share;
    }

    if half == 1 {
        #[unroll]
        for member in 0..together {
            halves[member * CANDIDATES + own] = sums[member];
        }
    }
    sync_cube();
    if half == 0 && first + own < width {
        #[unroll]
        for member in 0..together {
            if t + member < group_end {
                let score = sums[member] + halves[member * CANDIDATES + own];
                let mut stored = u32::reinterpret(score);
                if comptime!(kind == Kind::Key) {
                    stored = key(score);
                }
                let mut present = usize::cast_from(numbers[own]) != ABSENT;
                if comptime!(source == Source::Visible) {
                    present = first + own < visible(t + member, start, ratio, entries);
                }
                if !present {
                    stored = 0u32.runtime();
                }
                let row = batch * queries + t + member - first_query;
                scores[row * width + first + own] = stored;
            }
        }
    }
}

/// Scores the queries in the rows `queries` of every sequence into `scores` `[B, queries, candidates.width]`, 32 bits
/// each.
///
/// `q` `[B, S, H, d]`, `weights` `[B, S, H]` in f32, all contiguous; `rows` are packed for one sequence alone.
pub(super) fn score(
    q: &CubeTensor,
    rows: Rows<'_>,
    weights: &CubeTensor,
    candidates: Candidates,
    scale: f64,
    kind: Kind,
    queries: std::ops::Range<usize>,
    scores: &CubeTensor,
) {
    let [batch, seq, heads, dim] = dims(q);
    let [_, _, listed] = dims(candidates.list);
    // Only the visible entries are the same for several queries.
    let together = if candidates.source == Source::Visible && queries.len() > 1 { 4 } else { 1 };
    let work = batch * queries.len().div_ceil(together) * candidates.width.div_ceil(CANDIDATES);
    score_kernel::launch(
        &q.client,
        grid(q, work),
        workgroup(),
        address(&[q, rows.tensor, candidates.list, scores]),
        q.clone().into_buffer_arg(),
        rows.tensor.clone().into_buffer_arg(),
        weights.clone().into_buffer_arg(),
        candidates.list.clone().into_buffer_arg(),
        scores.clone().into_buffer_arg(),
        work,
        queries.start,
        queries.len(),
        seq,
        heads,
        dim,
        rows.count,
        listed,
        candidates.width,
        candidates.size,
        candidates.start,
        candidates.ratio,
        candidates.entries,
        scale as f32,
        candidates.source,
        kind,
        match heads {
            1..=2 => 1,
            3..=4 => 2,
            _ => 4,
        },
        together,
        rows.layout,
        [float_type(q), rows.element()],
    );
}
