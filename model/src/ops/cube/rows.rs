//! Rows of entry numbers as the other kernels want them: in ascending order, and counted.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::shared::{THREADS, add_up, address, dims, empty, grid, indices, workgroup};

/// Lists of entries in ascending order.
pub(super) struct SortedRows {
    /// The numbers `[B, S, K]`: those of entries first, everything else (no entry, out of range) after them.
    pub entries: CubeTensor,
    /// Where in its row each number stood `[B, S, K]`; `[1]` unless asked for.
    pub places: CubeTensor,
    /// How many entries a row lists `[B, S]`, duplicates included, or -1 for one that is not a number.
    pub counts: CubeTensor,
}

/// What a number means that names no entry and is not [`NO_ENTRY`](crate::ops::NO_ENTRY).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Strange {
    /// The row is not a number.
    NotANumber,
    /// Nothing, as if it were absent.
    Absent,
}

/// One workgroup per row: counts, then copies a row that is in order and ranks the numbers of one that is not. Numbers
/// compare as unsigned, so negative ones come last; equal ones keep their order.
#[cube(launch, address_type = "dynamic")]
fn sort_kernel(
    index: &[i32],
    entries: &mut [i32],
    places: &mut [i32],
    counts: &mut [i32],
    rows: usize,
    width: usize,
    limit: usize,
    #[comptime] strict: bool,
    #[comptime] with_places: bool,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let start = row * width;
    let mut scratch = Shared::<[u32]>::new_slice(THREADS);

    let mut listed = 0u32;
    let mut strange = 0u32;
    let mut unsorted = 0u32;
    let mut place = unit;
    while place < width {
        let number = index[start + place];
        let key = u32::reinterpret(number);
        if number >= 0 && (key as usize) < limit {
            listed += 1;
        } else if number != -1 {
            strange += 1;
        }
        if place + 1 < width && key > u32::reinterpret(index[start + place + 1]) {
            unsorted += 1;
        }
        place += THREADS;
    }
    let listed = add_up::<u32>(&mut scratch, listed);
    let strange = add_up::<u32>(&mut scratch, strange);
    let unsorted = add_up::<u32>(&mut scratch, unsorted);
    if unit == 0 {
        let mut count = i32::cast_from(listed);
        if comptime!(strict) && strange > 0 {
            count = i32::new(-1);
        }
        counts[row] = count;
    }

    let mut base = 0usize;
    while base < width {
        let place = base + unit;
        let mut number = i32::new(-1);
        if place < width {
            number = index[start + place];
        }
        let key = u32::reinterpret(number);
        let mut rank = place;
        if unsorted > 0 {
            rank = 0;
            let mut tile = 0usize;
            while tile < width {
                if tile + unit < width {
                    scratch[unit] = u32::reinterpret(index[start + tile + unit]);
                }
                sync_cube();
                let mut filled = width - tile;
                if filled > THREADS {
                    filled = THREADS.runtime();
                }
                for other in 0..filled {
                    let value = scratch[other];
                    if value < key || (value == key && tile + other < place) {
                        rank += 1;
                    }
                }
                sync_cube();
                tile += THREADS;
            }
        }
        if place < width {
            entries[start + rank] = number;
            if comptime!(with_places) {
                places[start + rank] = i32::cast_from(place);
            }
        }
        base += THREADS;
    }
}

/// Sorts rows `[B, S, K]` of numbers of the `limit` entries.
pub(super) fn sorted(index: CubeTensor, limit: usize, strange: Strange, with_places: bool) -> SortedRows {
    let index = indices(index);
    let [batch, seq, width] = dims(&index);
    let entries = empty(&index, [batch, seq, width], DType::I32);
    let places = empty(&index, if with_places { [batch, seq, width] } else { [1, 1, 1] }, DType::I32);
    let counts = empty(&index, [batch, seq], DType::I32);
    sort_kernel::launch(
        &index.client,
        grid(&index, batch * seq),
        workgroup(),
        address(&[&index]),
        index.clone().into_buffer_arg(),
        entries.clone().into_buffer_arg(),
        places.clone().into_buffer_arg(),
        counts.clone().into_buffer_arg(),
        batch * seq,
        width,
        limit,
        strange == Strange::NotANumber,
        with_places,
    );
    SortedRows { entries, places, counts }
}

/// How often the ascending row `listed[start .. start + count]` holds `number`.
#[cube]
pub(super) fn occurrences(listed: &[i32], start: usize, count: usize, number: i32) -> usize {
    let first = lower_bound(listed, start, count, number);
    lower_bound(listed, start, count, number + 1) - first
}

/// How many numbers of the ascending row `listed[start .. start + count]` are below `number`.
#[cube]
pub(super) fn lower_bound(listed: &[i32], start: usize, count: usize, number: i32) -> usize {
    let mut low = 0usize;
    let mut high = count;
    while low < high {
        let middle = (low + high) / 2;
        if listed[start + middle] < number {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
