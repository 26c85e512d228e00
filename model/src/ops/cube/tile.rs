//! A tile of heads against a tile of entries, both in shared memory: the inner loop of the operators that have one
//! workgroup per query.

use cubecl::prelude::*;

use super::shared::THREADS;
use crate::ops::GPU_CHANNELS;

/// How a workgroup cuts up a query. The sizes keep every kernel under 32 KiB of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tile {
    /// Heads that a workgroup computes together.
    pub heads: usize,
    /// Entries that it brings into shared memory together.
    pub entries: usize,
    /// Channels of one vector that belong to one thread.
    pub channels: usize,
}

impl Tile {
    pub(super) fn new(heads: usize, dim: usize, backward: bool) -> Self {
        let channels = dim.div_ceil(THREADS);
        assert!(dim <= GPU_CHANNELS, "the GPU operators take vectors of up to {GPU_CHANNELS} channels, not of {dim}");
        if channels > 4 {
            Self { heads: 1, entries: 4, channels }
        } else {
            Self { heads: if heads == 1 { 1 } else { 4 }, entries: if backward { 4 } else { 8 }, channels }
        }
    }
}

/// Inner products of the tile's entries with the tile's heads. A thread belongs to one entry and takes every
/// `lanes`-th channel; its part for head `h` goes to `partial[from + h * THREADS + unit]`.
#[cube]
pub(super) fn multiply(
    partial: &mut Shared<[f32]>,
    from: usize,
    heads: &Shared<[f32]>,
    entries: &Shared<[f32]>,
    dim: usize,
    #[comptime] size: Tile,
) {
    let unit = UNIT_POS as usize;
    let padded = comptime!(size.channels * THREADS);
    let lanes = comptime!(THREADS / size.entries);
    let entry = unit / lanes * padded;
    let mut sums = Array::<f32>::new(size.heads);
    #[unroll]
    for h in 0..size.heads {
        sums[h] = 0.0f32;
    }
    let mut channel = unit % lanes;
    while channel < dim {
        let c = entries[entry + channel];
        #[unroll]
        for h in 0..size.heads {
            sums[h] += heads[h * padded + channel] * c;
        }
        channel += lanes;
    }
    #[unroll]
    for h in 0..size.heads {
        partial[from + h * THREADS + unit] = sums[h];
    }
}

/// The inner product of head and entry `pair = h * entries + e`, from the parts that [`multiply`] left.
#[cube]
pub(super) fn product(partial: &Shared<[f32]>, from: usize, pair: usize, #[comptime] size: Tile) -> f32 {
    let lanes = comptime!(THREADS / size.entries);
    let start = from + pair / size.entries * THREADS + pair % size.entries * lanes;
    let mut sum = 0.0f32;
    for lane in 0..lanes {
        sum += partial[start + lane];
    }
    sum
}
