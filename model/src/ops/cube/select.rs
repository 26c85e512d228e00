//! Index scores, Top-K and the candidate pool on the device.
//!
//! Scores become unsigned integers of the same order, for a limited number of queries at a time. Choosing is exact and
//! deterministic: a bitwise search for the K-th largest key by counting, then one pass that takes everything above it
//! and the lowest positions among its equals.

use burn::backend::tensor::IntTensor;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::Float;
use super::packed::Rows;
use super::rows::{Strange, sorted};
use super::scores::{ABSENT_KEY, Candidates, Kind, NAN_KEY, Source, candidate, score, visible};
use super::shared::{THREADS, add_up, address, dims, empty, grid, rows, single, workgroup};
use crate::ops::{NAN_ROW, NO_ENTRY, PoolUse, SelectBackend, SelectSpec};

/// Bytes that the scores of one pass may take.
const SCRATCH: usize = 64 << 20;

/// The key of the block with the newest visible entry: above every score, also +inf.
const NEWEST_KEY: u32 = NAN_KEY - 1;

/// One thread per query and block of `size` entries: the block's largest key.
///
/// `keys` `[B, queries, width]`, `blocks` `[B, queries, ceil(width / size)]`, for the rows `first_query ..` of the
/// sequences.
#[cube(launch, address_type = "dynamic")]
fn block_kernel(
    keys: &[u32],
    blocks: &mut [u32],
    first_query: usize,
    queries: usize,
    width: usize,
    size: usize,
    start: usize,
    ratio: usize,
    entries: usize,
) {
    if ABSOLUTE_POS < blocks.len() {
        let count = width.div_ceil(size);
        let row = ABSOLUTE_POS / count;
        let first = ABSOLUTE_POS % count * size;
        let sees = visible(first_query + row % queries, start, ratio, entries);
        let mut largest = ABSENT_KEY.runtime();
        let end = min(first + size, sees);
        let mut entry = first;
        while entry < end {
            largest = max(largest, keys[row * width + entry]);
            entry += 1;
        }
        if first < sees && first + size >= sees && largest != NAN_KEY {
            largest = NEWEST_KEY.runtime();
        }
        blocks[ABSOLUTE_POS] = largest;
    }
}

/// One workgroup per query: lists the `count` candidates with the largest keys in ascending order, of equal keys the
/// lowest positions, then [`NO_ENTRY`]. A row with a [`NAN_KEY`] is filled with `marker`.
///
/// `keys` `[B, queries, width]` for the rows `first_query ..` of `chosen` `[B, S, count]`. `per` is how
/// many entries a candidate stands for when candidates are the visible ones (the pool's blocks).
#[cube(launch, address_type = "dynamic")]
fn choose_kernel(
    keys: &[u32],
    pool: &[i32],
    chosen: &mut [i32],
    work: usize,
    first_query: usize,
    queries: usize,
    seq: usize,
    width: usize,
    count: usize,
    listed: usize,
    per: usize,
    size: usize,
    start: usize,
    ratio: usize,
    entries: usize,
    marker: i32,
    #[comptime] source: Source,
) {
    if CUBE_POS >= work {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let t = first_query + CUBE_POS % queries;
    let query = CUBE_POS / queries * seq + t;
    let row = CUBE_POS * width;
    let sees = visible(t, start, ratio, entries);
    let mut limit = width;
    if comptime!(source == Source::Visible) {
        limit = sees.div_ceil(per);
    }
    let mut scratch = Shared::<[u32]>::new_slice(THREADS);
    let mut above = Shared::<[u32]>::new_slice(THREADS);
    let mut equal = Shared::<[u32]>::new_slice(THREADS);

    let mut nan = 0u32;
    let mut place = unit;
    while place < limit {
        if keys[row + place] == NAN_KEY {
            nan += 1;
        }
        place += THREADS;
    }
    let nan = add_up::<u32>(&mut scratch, nan);

    // The largest threshold that at least `count` keys reach, bit by bit; 0 when fewer than `count` are present.
    let mut threshold = 0u32;
    let mut bit = 0x8000_0000u32.runtime();
    while bit > 0u32 {
        let tried = threshold | bit;
        let mut reached = 0u32;
        let mut place = unit;
        while place < limit {
            if keys[row + place] >= tried {
                reached += 1;
            }
            place += THREADS;
        }
        if usize::cast_from(add_up::<u32>(&mut scratch, reached)) >= count {
            threshold = tried;
        }
        bit >>= 1u32;
    }

    // Every thread looks after a stretch of positions, so that counts of the stretches before it are its place in the
    // list.
    let stretch = limit.div_ceil(THREADS);
    let from = min(unit * stretch, limit);
    let to = min(from + stretch, limit);
    let mut own_above = 0u32;
    let mut own_equal = 0u32;
    for place in from..to {
        let key = keys[row + place];
        if key > threshold {
            own_above += 1;
        } else if key == threshold {
            own_equal += 1;
        }
    }
    above[unit] = own_above;
    equal[unit] = own_equal;
    sync_cube();
    let mut all_above = 0usize;
    let mut before_above = 0usize;
    let mut before_equal = 0usize;
    for other in 0..THREADS {
        let stretch_above = usize::cast_from(above[other]);
        all_above += stretch_above;
        if other < unit {
            before_above += stretch_above;
            before_equal += usize::cast_from(equal[other]);
        }
    }
    // How many of the threshold's equals there is room for; a threshold of 0 is that of absent candidates.
    let mut room = 0usize;
    if threshold > ABSENT_KEY {
        room = count - all_above;
    }
    let into = query * count;
    if nan == 0 {
        for place in from..to {
            let key = keys[row + place];
            if key > threshold || (key == threshold && before_equal < room) {
                let mut entry = place;
                if comptime!(source == Source::Pool) {
                    entry = candidate(pool, query * listed, place, sees, size, source);
                }
                chosen[into + before_above + min(before_equal, room)] = i32::cast_from(entry);
            }
            if key > threshold {
                before_above += 1;
            } else if key == threshold {
                before_equal += 1;
            }
        }
    }

    let mut filler = i32::new(-1);
    let mut filled = all_above + room;
    if nan > 0 {
        filler = marker;
        filled = 0usize.runtime();
    }
    let mut place = filled + unit;
    while place < count {
        chosen[into + place] = filler;
        place += THREADS;
    }
}

/// Chooses among the keys of `queries`; `per` as in [`choose_kernel`].
fn choose(
    keys: &CubeTensor,
    candidates: Candidates,
    width: usize,
    per: usize,
    marker: i32,
    queries: std::ops::Range<usize>,
    chosen: &CubeTensor,
) {
    let [batch, seq, count] = dims(chosen);
    let [_, _, listed] = dims(candidates.list);
    choose_kernel::launch(
        &keys.client,
        grid(keys, batch * queries.len()),
        workgroup(),
        address(&[keys, candidates.list, chosen]),
        keys.clone().into_buffer_arg(),
        candidates.list.clone().into_buffer_arg(),
        chosen.clone().into_buffer_arg(),
        batch * queries.len(),
        queries.start,
        queries.len(),
        seq,
        width,
        count,
        listed,
        per,
        candidates.size,
        candidates.start,
        candidates.ratio,
        candidates.entries,
        marker,
        candidates.source,
    );
}

/// Chooses among keys: Top-K `[B, S, K]` and the pool `[B, S, blocks]`, `[1, 1, 1]` unless one is built. `weights` are in f32.
pub(super) fn select(
    q: &Float,
    keys: Rows<'_>,
    weights: &Float,
    pool: IntTensor<CubeBackend>,
    spec: SelectSpec,
) -> (IntTensor<CubeBackend>, IntTensor<CubeBackend>) {
    let [batch, seq, _, _] = dims(q);
    let entries = spec.entries.min(keys.count);
    let (source, pool, size) = match spec.pool {
        PoolUse::Read { size } => (Source::Pool, sorted(pool, keys.count, Strange::Absent, false).entries, size),
        PoolUse::Build { size, .. } => (Source::Visible, pool, size),
        PoolUse::None => (Source::Visible, pool, 1),
    };
    let [_, _, listed] = dims(&pool);
    let topk = empty(q, [batch, seq, spec.topk], DType::I32);
    let (blocks, built) = match spec.pool {
        PoolUse::Build { blocks, .. } => (blocks, empty(q, [batch, seq, blocks], DType::I32)),
        PoolUse::Read { .. } | PoolUse::None => (0, empty(q, [1, 1, 1], DType::I32)),
    };
    // Candidates of the queries in front of row `end`: the pool, or what the last of them sees; one, and absent,
    // when it sees none.
    let width = |end: usize| match source {
        Source::Pool => listed * size,
        Source::Visible | Source::List => ((spec.start + end) / spec.ratio).min(entries).max(1),
    };
    let together = (SCRATCH / (4 * width(seq) * batch)).clamp(1, seq);
    for first in (0..seq).step_by(together) {
        let queries = first..seq.min(first + together);
        let width = width(queries.end);
        let candidates = Candidates { source, list: &pool, width, size, start: spec.start, ratio: spec.ratio, entries };
        let scratch = empty(q, [batch, queries.len(), width], DType::U32);
        score(q, keys, weights, candidates, 1.0, Kind::Key, queries.clone(), &scratch);
        if spec.topk > 0 {
            choose(&scratch, candidates, width, 1, NAN_ROW, queries.clone(), &topk);
        }
        if blocks > 0 {
            let count = width.div_ceil(size);
            let block_keys = empty(q, [batch, queries.len(), count], DType::U32);
            block_kernel::launch(
                &q.client,
                grid(q, (batch * queries.len() * count).div_ceil(THREADS)),
                workgroup(),
                address(&[&scratch]),
                scratch.into_buffer_arg(),
                block_keys.clone().into_buffer_arg(),
                first,
                queries.len(),
                width,
                size,
                spec.start,
                spec.ratio,
                entries,
            );
            choose(&block_keys, candidates, count, size, NO_ENTRY, queries, &built);
        }
    }
    (topk, built)
}

impl SelectBackend for CubeBackend {
    fn index_select(
        q: Float,
        keys: Float,
        weights: Float,
        pool: IntTensor<Self>,
        spec: SelectSpec,
    ) -> (IntTensor<Self>, IntTensor<Self>) {
        let (q, keys, weights) = (rows(q), rows(keys), single(weights));
        select(&q, Rows::plain(&keys), &weights, pool, spec)
    }
}
