//! Index scores, Top-K and the candidate pool on the CPU, one query at a time.

use std::cmp::Ordering;

use burn::backend::Flex;
use rayon::prelude::*;

use super::{FlexTensor, Real, Rows, dot, indices, relu, tensor, with_real};
use crate::ops::{NAN_ROW, NO_ENTRY, PoolUse, SelectBackend, SelectSpec};

/// Best score first; of equal scores, the lowest position first.
fn better<T: Real>(scores: &[T], a: usize, b: usize) -> Ordering {
    scores[b].partial_cmp(&scores[a]).unwrap_or(Ordering::Equal).then(a.cmp(&b))
}

/// Writes the `row.len()` best of `candidates` into `row`, ascending, the rest as "no entry".
fn best<T: Real>(scores: &[T], candidates: &mut Vec<usize>, row: &mut [i32]) {
    if candidates.len() > row.len() {
        candidates.select_nth_unstable_by(row.len(), |&a, &b| better(scores, a, b));
        candidates.truncate(row.len());
    }
    candidates.sort_unstable();
    row.fill(NO_ENTRY);
    for (place, &j) in row.iter_mut().zip(candidates.iter()) {
        *place = j as i32;
    }
}

/// Chooses the pool's blocks: the block of the newest visible entry always, then the blocks with the best entry.
fn best_blocks<T: Real>(scores: &[T], size: usize, blocks: &mut Vec<usize>, row: &mut [i32]) {
    let mut block_scores: Vec<T> =
        scores.chunks(size).map(|block| block.iter().copied().fold(T::neg_infinity(), T::max)).collect();
    if let Some(newest) = block_scores.last_mut() {
        *newest = T::infinity();
    }
    blocks.clear();
    blocks.extend(0..block_scores.len());
    best(&block_scores, blocks, row);
}

fn select<T: Real>(q: &Rows, keys: &Rows, weights: &Rows, pool: &[i32], spec: SelectSpec) -> (FlexTensor, FlexTensor) {
    let [batch, seq, heads, dim] = q.dims();
    let [_, padded, _] = keys.dims();
    let (q, keys, weights) = (q.values::<T>(), keys.values::<T>(), weights.values::<T>());
    let blocks = match spec.pool {
        PoolUse::Build { blocks, .. } => blocks,
        PoolUse::Read { .. } | PoolUse::None => 0,
    };
    let mut topk = vec![NO_ENTRY; batch * seq * spec.topk];
    let mut built = vec![NO_ENTRY; batch * seq * blocks.max(1)];
    topk.par_chunks_mut(seq * spec.topk).zip(built.par_chunks_mut(seq * blocks.max(1))).enumerate().for_each(
        |(b, (topk, built))| {
            let mut scores = Vec::with_capacity(spec.entries);
            let mut candidates = Vec::with_capacity(spec.entries);
            for t in 0..seq {
                let at = (b * seq + t) * heads;
                let visible = spec.visible(t);
                candidates.clear();
                match spec.pool {
                    PoolUse::None | PoolUse::Build { .. } => candidates.extend(0..visible),
                    PoolUse::Read { size } => {
                        let width = pool.len() / (batch * seq);
                        let kept = &pool[(b * seq + t) * width..(b * seq + t + 1) * width];
                        for block in kept.iter().filter_map(|&block| usize::try_from(block).ok()) {
                            candidates.extend((block * size).min(visible)..((block + 1) * size).min(visible));
                        }
                    }
                }
                scores.clear();
                scores.resize(visible, T::neg_infinity());
                let mut numbers = true;
                for &j in &candidates {
                    let key = &keys[(b * padded + j) * dim..(b * padded + j + 1) * dim];
                    let mut score = T::zero();
                    for h in at..at + heads {
                        score += weights[h] * relu(dot(&q[h * dim..(h + 1) * dim], key));
                    }
                    numbers &= !score.is_nan();
                    scores[j] = score;
                }
                let row = &mut topk[t * spec.topk..(t + 1) * spec.topk];
                if !numbers {
                    row.fill(NAN_ROW);
                    continue;
                }
                if let PoolUse::Build { blocks, size } = spec.pool {
                    let mut kept = Vec::with_capacity(visible / size + 1);
                    best_blocks(&scores, size, &mut kept, &mut built[t * blocks..(t + 1) * blocks]);
                }
                best(&scores, &mut candidates, row);
            }
        },
    );
    let built_dims = if blocks == 0 { [batch, seq, 1] } else { [batch, seq, blocks] };
    (tensor(topk, [batch, seq, spec.topk]), tensor(built, built_dims))
}

impl SelectBackend for Flex {
    fn index_select(
        q: FlexTensor,
        keys: FlexTensor,
        weights: FlexTensor,
        pool: FlexTensor,
        spec: SelectSpec,
    ) -> (FlexTensor, FlexTensor) {
        let (q, keys, weights, pool) = (Rows::new(q), Rows::new(keys), Rows::new(weights), indices(pool));
        with_real!(q.0, select(&q, &keys, &weights, &pool, spec))
    }
}
