//! Index scores, Top-K and the candidate pool on the CPU.
//!
//! Where several queries search the whole visible range, the keys are packed once so that a register holds one channel of
//! several entries: then no sum across a register is needed. Where few entries are searched (one query, a pool), keys are
//! read where they lie. Scores exist only for a few queries at a time.

use burn::backend::Flex;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::best::Best;
use super::kl::add_rectified;
use super::products::{Listed, inner_products};
use super::simd::{Real, dispatch, largest_of};
use super::{FlexTensor, Indices, Rows, tensor, with_real};
use crate::ops::{NAN_ROW, PoolUse, SelectBackend, SelectSpec};

/// Entries of a packed panel.
const PANEL: usize = 32;

/// Queries that one task handles, and how many scores it may hold for them.
const BLOCK: usize = 16;
const BLOCK_SCORES: usize = 1 << 18;

/// Entries that are scored at a time where keys are read in place.
const PIECE: usize = 128;

/// From how many queries on packing the keys pays.
const WORTH_PACKING: usize = 8;

struct Inputs {
    q: Rows,
    keys: Rows,
    weights: Rows,
    pool: Indices,
    spec: SelectSpec,
}

#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    /// Rows of keys, padding included.
    rows: usize,
    /// Blocks in a pool that is read.
    pool: usize,
    /// Blocks in a pool that is built.
    blocks: usize,
}

impl Inputs {
    fn sizes(&self) -> Sizes {
        let [batch, seq, heads, dim] = self.q.dims();
        let [_, rows, _] = self.keys.dims();
        let blocks = if let PoolUse::Build { blocks, .. } = self.spec.pool { blocks } else { 0 };
        Sizes { batch, seq, heads, dim, rows, pool: self.pool.values().len() / (batch * seq).max(1), blocks }
    }
}

/// Keys as panels `[panel, channel, PANEL]`, the last filled up with zeros.
fn packed<T: Real>(keys: &[T], entries: usize, dim: usize) -> Vec<T> {
    let mut panels = vec![T::zero(); entries.div_ceil(PANEL) * dim * PANEL];
    panels.par_chunks_mut(dim * PANEL).enumerate().for_each(|(panel, out)| {
        for (lane, key) in keys.chunks_exact(dim).take(entries).skip(panel * PANEL).take(PANEL).enumerate() {
            for (channel, &x) in key.iter().enumerate() {
                out[channel * PANEL + lane] = x;
            }
        }
    });
    panels
}

/// Some consecutive queries of one batch row.
struct Task<'a, T> {
    inputs: &'a Inputs,
    panels: Option<&'a [T]>,
    b: usize,
    /// Row of the first query.
    start: usize,
    topk: &'a mut [i32],
    built: &'a mut [i32],
}

impl<T: Real> WithSimd for Task<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let spec = self.inputs.spec;
        let Sizes { seq, heads, dim, rows, pool, blocks, .. } = self.inputs.sizes();
        let queries = self.topk.len() / spec.topk;
        let keys = self.inputs.keys.part::<T>(self.b, rows * dim);
        let most = spec.visible(self.start + queries - 1);
        let mut scores = Vec::new();
        let stride = most.next_multiple_of(PANEL);
        if let Some(panels) = self.panels {
            scores.resize(queries * stride, T::zero());
            for (panel, keys) in panels.chunks_exact(dim * PANEL).take(most.div_ceil(PANEL)).enumerate() {
                for t in 0..queries {
                    if spec.visible(self.start + t) > panel * PANEL {
                        let at = self.b * seq + self.start + t;
                        let (q, weights) = (self.inputs.q.part(at, heads * dim), self.inputs.weights.part(at, heads));
                        let place = t * stride + panel * PANEL;
                        score_panel(simd, q, weights, keys, &mut scores[place..place + PANEL]);
                    }
                }
            }
        }
        let (mut best, mut best_blocks) = (Best::<T>::new(spec.topk), Best::<T>::new(blocks));
        let (mut list, mut products): (Vec<u32>, Vec<T>) = (Vec::new(), vec![T::zero(); heads * PIECE]);
        for (t, row) in self.topk.chunks_exact_mut(spec.topk).enumerate() {
            let visible = spec.visible(self.start + t);
            let at = self.b * seq + self.start + t;
            let found = if self.panels.is_some() {
                &scores[t * stride..t * stride + visible]
            } else {
                list.clear();
                match spec.pool {
                    PoolUse::Read { size } => {
                        for &block in self.inputs.pool.part(at, pool) {
                            if let Ok(block) = usize::try_from(block) {
                                let end = ((block + 1) * size).min(visible);
                                list.extend((block * size).min(end) as u32..end as u32);
                            }
                        }
                    }
                    PoolUse::None | PoolUse::Build { .. } => list.extend(0..visible as u32),
                }
                scores.clear();
                scores.resize(list.len(), T::zero());
                let (q, weights) = (self.inputs.q.part(at, heads * dim), self.inputs.weights.part(at, heads));
                for (list, scores) in list.chunks(PIECE).zip(scores.chunks_mut(PIECE)) {
                    inner_products(simd, q, Listed { values: keys, list, dim }, &mut products, PIECE);
                    for (products, &weight) in products.chunks_exact(PIECE).zip(weights) {
                        add_rectified(simd, scores, &products[..list.len()], weight);
                    }
                }
                &scores[..]
            };
            let mut broken = false;
            for score in found {
                broken |= score.is_nan();
            }
            if broken {
                row.fill(NAN_ROW);
                continue;
            }
            best.clear();
            match spec.pool {
                PoolUse::Read { .. } => {
                    for (&score, &position) in found.iter().zip(&list) {
                        best.offer(score, position);
                    }
                }
                PoolUse::None | PoolUse::Build { .. } => best.offer_row(found, 0),
            }
            best.write(row);
            if let PoolUse::Build { size, .. } = spec.pool {
                let newest = visible.div_ceil(size).saturating_sub(1);
                best_blocks.clear();
                for (block, scores) in found.chunks(size).enumerate() {
                    if block == newest {
                        best_blocks.pin(block as u32);
                    } else {
                        best_blocks.offer(largest_of(simd, scores, T::neg_infinity()), block as u32);
                    }
                }
                best_blocks.write(&mut self.built[t * blocks..(t + 1) * blocks]);
            }
        }
    }
}

/// `scores[j] = sum_h weights[h] max(q[h] . keys[j], 0)` for the entries of one panel.
#[inline(always)]
fn score_panel<T: Real, S: Simd>(simd: S, q: &[T], weights: &[T], keys: &[T], scores: &mut [T]) {
    let lanes = T::lanes::<S>();
    let (mut head, heads, dim) = (0, weights.len(), keys.len() / PANEL);
    scores.fill(T::zero());
    while head < heads {
        let group = match heads - head {
            8.. if S::REGISTER_COUNT >= 32 => 8,
            4.. => 4,
            _ => 1,
        };
        let (q, weights) = (&q[head * dim..(head + group) * dim], &weights[head..head + group]);
        let mut start = 0;
        while start < PANEL {
            if PANEL - start >= 2 * lanes {
                match group {
                    8 => score_tile::<T, S, 8, 2>(simd, q, weights, keys, scores, start),
                    4 => score_tile::<T, S, 4, 2>(simd, q, weights, keys, scores, start),
                    _ => score_tile::<T, S, 1, 2>(simd, q, weights, keys, scores, start),
                }
                start += 2 * lanes;
            } else {
                match group {
                    8 => score_tile::<T, S, 8, 1>(simd, q, weights, keys, scores, start),
                    4 => score_tile::<T, S, 4, 1>(simd, q, weights, keys, scores, start),
                    _ => score_tile::<T, S, 1, 1>(simd, q, weights, keys, scores, start),
                }
                start += lanes;
            }
        }
        head += group;
    }
}

/// `H` heads, `V` registers of entries from `start` on.
#[inline(always)]
fn score_tile<T: Real, S: Simd, const H: usize, const V: usize>(
    simd: S,
    q: &[T],
    weights: &[T],
    keys: &[T],
    scores: &mut [T],
    start: usize,
) {
    let zero = T::splat(simd, T::zero());
    let dim = q.len() / H;
    let span = V * T::lanes::<S>();
    let mut heads: [&[T]; H] = [&[]; H];
    for h in 0..H {
        heads[h] = &q[h * dim..(h + 1) * dim];
    }
    let mut products = [[zero; V]; H];
    for (channel, keys) in keys.chunks_exact(PANEL).enumerate().take(dim) {
        let (row, _) = T::split::<S>(&keys[start..start + span]);
        let mut y = [zero; V];
        for v in 0..V {
            y[v] = row[v];
        }
        for h in 0..H {
            let x = T::splat(simd, heads[h][channel]);
            for v in 0..V {
                products[h][v] = T::fused(simd, x, y[v], products[h][v]);
            }
        }
    }
    let (target, _) = T::split_mut::<S>(&mut scores[start..start + span]);
    for v in 0..V {
        let mut sum = target[v];
        for h in 0..H {
            sum = T::fused(simd, T::rectify(simd, products[h][v]), T::splat(simd, weights[h]), sum);
        }
        target[v] = sum;
    }
}

fn select<T: Real>(inputs: &Inputs) -> (FlexTensor, FlexTensor) {
    let spec = inputs.spec;
    let Sizes { batch, seq, dim, rows, blocks, .. } = inputs.sizes();
    let pack = seq >= WORTH_PACKING && !matches!(spec.pool, PoolUse::Read { .. });
    let length = (BLOCK_SCORES / spec.entries.max(1)).clamp(1, BLOCK).min(seq);
    let mut topk = vec![0; batch * seq * spec.topk];
    // A tensor cannot be empty: where no pool is built it has one meaningless place a query.
    let places = blocks.max(1);
    let mut built = vec![crate::ops::NO_ENTRY; batch * seq * places];
    let rows_topk = topk.par_chunks_mut(seq * spec.topk);
    rows_topk.zip(built.par_chunks_mut(seq * places)).enumerate().for_each(|(b, (topk, built))| {
        let panels = pack.then(|| packed(inputs.keys.part::<T>(b, rows * dim), spec.entries, dim));
        let tasks = topk.par_chunks_mut(length * spec.topk).zip(built.par_chunks_mut(length * places)).enumerate();
        tasks.for_each(|(task, (topk, built))| {
            dispatch(Task { inputs, panels: panels.as_deref(), b, start: task * length, topk, built });
        });
    });
    (tensor(topk, [batch, seq, spec.topk]), tensor(built, [batch, seq, places]))
}

impl SelectBackend for Flex {
    fn index_select(
        q: FlexTensor,
        keys: FlexTensor,
        weights: FlexTensor,
        pool: FlexTensor,
        spec: SelectSpec,
    ) -> (FlexTensor, FlexTensor) {
        let inputs = Inputs {
            q: Rows::new(q),
            keys: Rows::new(keys),
            weights: Rows::new(weights),
            pool: Indices::new(pool),
            spec,
        };
        with_real!(inputs.q, select(&inputs))
    }
}
