//! Inputs that an operator could meet: values of unit variance, causal lists of entries.

use std::collections::BTreeSet;

use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use csa2_model::ops::{NO_ENTRY, PoolUse, SelectSpec};
use csa2_train::random;

/// Name of the random streams.
const STREAM: &str = "bench";

/// Normal values with variance 1.
pub(super) fn normal<const D: usize>(dims: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(dims, Distribution::Normal(0.0, 1.0), device)
}

/// [`normal`] values that take a gradient, where the device computes any.
pub(super) fn leaf<const D: usize>(dims: [usize; D], device: &Device) -> Tensor<D> {
    normal(dims, device).set_require_grad(device.is_autodiff())
}

/// The queries stand at the end of a sequence of `entries * ratio` tokens, or at its start where that is shorter.
pub(super) fn spec(seq: usize, entries: usize, ratio: usize, topk: usize, pool: PoolUse) -> SelectSpec {
    SelectSpec { ratio, start: (entries * ratio).saturating_sub(seq), entries, topk, pool }
}

/// `count` different numbers below `limit`, every such set equally likely (R. Floyd), or all where there are fewer.
fn subset(below: &mut dyn FnMut(usize) -> usize, limit: usize, count: usize) -> BTreeSet<usize> {
    let mut set = BTreeSet::new();
    for last in limit.saturating_sub(count)..limit {
        if !set.insert(below(last + 1)) {
            set.insert(last);
        }
    }
    set
}

/// Rows `[batch, seq, width]` of the numbers that `row` gives for each query, filled up with [`NO_ENTRY`]. It is handed a
/// source of random numbers below a limit, and the query's row.
fn rows(
    [batch, seq, width]: [usize; 3],
    device: &Device,
    mut row: impl FnMut(&mut dyn FnMut(usize) -> usize, usize) -> BTreeSet<usize>,
) -> Tensor<3, Int> {
    let mut rng = random::stream(0, STREAM, 0);
    let mut below = |limit| random::below(&mut rng, limit);
    let mut values = Vec::with_capacity(batch * seq * width);
    for at in 0..batch * seq {
        values.extend(row(&mut below, at % seq).into_iter().map(|j| j as i32));
        values.resize((at + 1) * width, NO_ENTRY);
    }
    Tensor::from_data(TensorData::new(values, [batch, seq, width]), device)
}

/// A Top-K row for every query: different entries that it sees, ascending; the same for the same shape.
pub(super) fn lists(batch: usize, seq: usize, spec: SelectSpec, device: &Device) -> Tensor<3, Int> {
    rows([batch, seq, spec.topk], device, |below, t| subset(below, spec.visible(t), spec.topk))
}

/// A pool for every query: different blocks of `size` entries that it sees, the newest always among them, ascending.
pub(super) fn pool(
    batch: usize,
    seq: usize,
    blocks: usize,
    size: usize,
    spec: SelectSpec,
    device: &Device,
) -> Tensor<3, Int> {
    rows([batch, seq, blocks], device, |below, t| {
        let Some(newest) = spec.visible(t).div_ceil(size).checked_sub(1) else { return BTreeSet::new() };
        let mut kept = subset(below, newest, blocks - 1);
        kept.insert(newest);
        kept
    })
}

/// Entries that the query in row `t` searches, pool applied.
pub(super) fn searched(spec: SelectSpec, blocks: usize, t: usize) -> usize {
    let visible = spec.visible(t);
    match spec.pool {
        PoolUse::Read { size } if visible > blocks * size => {
            let newest = visible - (visible.div_ceil(size) - 1) * size;
            (blocks - 1) * size + newest
        }
        _ => visible,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(tensor: Tensor<3, Int>) -> Vec<i32> {
        tensor.into_data().convert::<i32>().try_to_vec().unwrap()
    }

    #[test]
    fn lists_are_causal_ascending_distinct_and_the_same_again() {
        let device = Device::flex();
        for (entries, ratio) in [(7, 1), (3, 2), (12, 1)] {
            let spec = spec(7, entries, ratio, 3, PoolUse::None);
            let list = values(lists(2, 7, spec, &device));
            assert_eq!(list, values(lists(2, 7, spec, &device)));
            for (at, row) in list.chunks(3).enumerate() {
                let real: Vec<i32> = row.iter().copied().filter(|&j| j != NO_ENTRY).collect();
                assert_eq!(real.len(), spec.visible(at % 7).min(3), "{row:?}");
                assert!(real.is_sorted_by(|a, b| a < b) && real.iter().all(|&j| (j as usize) < spec.visible(at % 7)));
                assert!(row[real.len()..].iter().all(|&j| j == NO_ENTRY));
            }
        }
    }

    #[test]
    fn pools_hold_the_newest_block_and_their_entries_are_counted() {
        let device = Device::flex();
        let (blocks, size) = (3, 4);
        let spec = spec(20, 20, 1, 2, PoolUse::Read { size });
        for (t, row) in values(pool(1, 20, blocks, size, spec, &device)).chunks(blocks).enumerate() {
            let visible = spec.visible(t);
            let kept: Vec<usize> = row.iter().filter_map(|&block| usize::try_from(block).ok()).collect();
            assert!(kept.is_sorted_by(|a, b| a < b) && kept.last() == Some(&((visible - 1) / size)), "{row:?}");
            let entries: usize = kept.iter().map(|block| ((block + 1) * size).min(visible) - block * size).sum();
            assert_eq!(searched(spec, blocks, t), entries, "query {t}");
        }
    }
}
