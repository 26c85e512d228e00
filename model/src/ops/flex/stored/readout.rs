//! The read-out over stored latents: the online softmax of `flex/readout`, with vectors that are dequantized a piece at a time.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::super::products::Listed;
use super::super::readout::{Online, PIECE};
use super::super::simd::dispatch;
use crate::ops::NO_ENTRY;
use crate::ops::stored::ReadoutInputs;

/// Entries that one task handles: a window without a limit is shared out among the threads.
const SEGMENT: usize = 4096;

/// From how many queries on it pays to dequantize windows, which overlap, once for all of them.
const WORTH_UNPACKING: usize = 8;

/// The window latents that the queries of one row of the batch read, in the order of their positions.
struct Unpacked {
    /// The first one's position.
    first: usize,
    values: Vec<f32>,
}

impl Unpacked {
    /// Those of every row that has queries; none where a window has no limit.
    fn all(inputs: &ReadoutInputs<'_>) -> Vec<Option<Self>> {
        let mut ranges = vec![None::<(usize, usize)>; inputs.windows.len()];
        for place in inputs.places {
            let window = &inputs.windows[place.row];
            if window.width.is_some() {
                let (first, last) = (window.first(place.position), place.position);
                let range = ranges[place.row].get_or_insert((first, last));
                *range = (range.0.min(first), range.1.max(last));
            }
        }
        let rows = ranges.into_par_iter().zip(inputs.windows);
        rows.map(|(range, window)| {
            let (first, last) = range?;
            let mut values = vec![0.0; (last + 1 - first) * inputs.dim];
            for (i, out) in values.chunks_exact_mut(inputs.dim).enumerate() {
                let (past, at) = window.place(first + i);
                if past { window.past.read(at, out) } else { window.new.read(at, out) }
            }
            Some(Self { first, values })
        })
        .collect()
    }
}

/// What a query reads: its window, and the entries listed for it.
struct Reads<'a> {
    inputs: &'a ReadoutInputs<'a>,
    /// The window, where it has been dequantized already.
    unpacked: Option<&'a Unpacked>,
    /// Number of the query.
    t: usize,
    /// The first position of the window, and how many there are.
    first: usize,
    window: usize,
    /// Entries of the row's main store.
    listed: Vec<u32>,
    /// A row of scores was not a number, or an entry is listed that is not there.
    broken: bool,
}

impl<'a> Reads<'a> {
    fn new(inputs: &'a ReadoutInputs<'a>, unpacked: &'a [Option<Unpacked>], t: usize) -> Self {
        let place = inputs.places[t];
        let first = inputs.windows[place.row].first(place.position);
        let width = inputs.topk.len() / inputs.places.len();
        let (mut listed, mut broken) = (Vec::with_capacity(width), false);
        for &index in &inputs.topk[t * width..(t + 1) * width] {
            match usize::try_from(index) {
                Ok(j) if j < inputs.main[place.row].len() => listed.push(j as u32),
                Err(_) if index == NO_ENTRY => {}
                _ => broken = true,
            }
        }
        let unpacked = unpacked.get(place.row).and_then(Option::as_ref);
        Self { inputs, unpacked, t, first, window: place.position + 1 - first, listed, broken }
    }

    fn len(&self) -> usize {
        self.window + self.listed.len()
    }

    /// Dequantizes entry number `i` of what the query reads.
    #[inline(always)]
    fn read(&self, i: usize, out: &mut [f32]) {
        let row = self.inputs.places[self.t].row;
        if i < self.window {
            let window = self.inputs.windows[row];
            let (past, at) = window.place(self.first + i);
            if past { window.past.read(at, out) } else { window.new.read(at, out) }
        } else {
            self.inputs.main[row].read(self.listed[i - self.window] as usize, out);
        }
    }
}

/// A part of what one query reads.
struct Task<'a> {
    reads: &'a Reads<'a>,
    from: usize,
}

impl WithSimd for Task<'_> {
    type Output = Online<f32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Online<f32> {
        let Reads { inputs, t, .. } = *self.reads;
        let &ReadoutInputs { heads, dim, scale, .. } = inputs;
        let q = &inputs.q[t * heads * dim..(t + 1) * heads * dim];
        // The sink is counted once.
        let mut online = Online::new(simd, q, scale as f32, (self.from == 0).then_some(inputs.sink), heads);
        let end = (self.from + SEGMENT).min(self.reads.len());
        let mut start = self.from;
        if let Some(Unpacked { first, values }) = self.reads.unpacked {
            let mut list = [0; PIECE];
            while start < self.reads.window.min(end) {
                let count = PIECE.min(self.reads.window.min(end) - start);
                for (i, row) in list[..count].iter_mut().enumerate() {
                    *row = (self.reads.first + start + i - first) as u32;
                }
                online.attend(simd, Listed { values, list: &list[..count], dim });
                start += count;
            }
        }
        let mut vectors = vec![0.0; PIECE.min(end - start) * dim];
        let counting: [u32; PIECE] = std::array::from_fn(|at| at as u32);
        while start < end {
            let count = PIECE.min(end - start);
            for (i, out) in vectors.chunks_exact_mut(dim).take(count).enumerate() {
                self.reads.read(start + i, out);
            }
            online.attend(simd, Listed { values: &vectors, list: &counting[..count], dim });
            start += count;
        }
        online
    }
}

/// Outputs `[T, H, d]` and log-sum-exps `[T, H]`.
pub(in super::super::super) fn readout(inputs: &ReadoutInputs<'_>) -> (Vec<f32>, Vec<f32>) {
    let &ReadoutInputs { heads, dim, .. } = inputs;
    let mut output = vec![0.0; inputs.places.len() * heads * dim];
    let mut lse = vec![0.0; inputs.places.len() * heads];
    let unpacked = if inputs.places.len() >= WORTH_UNPACKING { Unpacked::all(inputs) } else { Vec::new() };
    output.par_chunks_mut(heads * dim).zip(lse.par_chunks_mut(heads)).enumerate().for_each(|(t, (output, lse))| {
        let reads = Reads::new(inputs, &unpacked, t);
        if reads.broken {
            output.fill(f32::NAN);
            lse.fill(f32::NAN);
            return;
        }
        let tasks = (0..reads.len().div_ceil(SEGMENT)).into_par_iter();
        // In the order of the parts, whatever the number of threads.
        let parts: Vec<_> = tasks.map(|part| dispatch(Task { reads: &reads, from: part * SEGMENT })).collect();
        let whole =
            parts.into_iter().reduce(|all, next| all.joined(&next)).expect("a query reads its own window entry");
        whole.finish(output, lse);
    });
    (output, lse)
}
