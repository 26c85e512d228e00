//! What selections are worth: how many of the entries that a layer's attention wants most its indexer finds.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorReadError};
use csa2_model::attention::SelectionTrace;
use csa2_model::mix::LayerPlan;

/// Selections are measured on sequences of at most that many pairs of a token and an entry.
pub const MOST_PAIRS: usize = 1 << 22;

/// Pairs of a token and an entry in a sequence of `seq` tokens, in the layer that has most.
pub fn pairs(plan: &LayerPlan, seq: usize) -> usize {
    let of_layers = plan.layers().iter().filter(|layer| layer.ratio > 0).map(|layer| seq * (seq / layer.ratio));
    of_layers.max().unwrap_or(0)
}

/// Sums over the queries that have a choice: those that see more entries than a selection holds.
#[derive(Clone, Debug, Default)]
struct Sums {
    queries: f64,
    recall: f64,
    first: f64,
    chance: f64,
    kept: f64,
    most: f64,
    /// Only where the layer searches in a pool.
    pooled: f64,
    in_pool: f64,
    found_in_pool: f64,
}

/// Measurements of all selecting layers.
#[derive(Clone, Debug, Default)]
pub struct Recall {
    layers: BTreeMap<usize, Sums>,
}

/// The places of the `count` largest masses among `entries`; of equal ones the first.
fn best(mass: &[f32], entries: impl Iterator<Item = usize>, count: usize) -> Vec<usize> {
    let mut entries: Vec<usize> = entries.collect();
    entries.sort_by(|&a, &b| mass[b].total_cmp(&mass[a]).then(a.cmp(&b)));
    entries.truncate(count);
    entries
}

/// The share of `wanted` that `listed` marks.
fn share(wanted: &[usize], listed: &[bool]) -> f64 {
    wanted.iter().filter(|&&entry| listed[entry]).count() as f64 / wanted.len().max(1) as f64
}

/// Which of `count` entries a row lists.
pub(crate) fn marks(row: &[i32], count: usize) -> Vec<bool> {
    let mut listed = vec![false; count];
    row.iter().filter_map(|&entry| usize::try_from(entry).ok()).filter(|&e| e < count).for_each(|e| listed[e] = true);
    listed
}

pub(crate) fn integers(tensor: Tensor<3, burn::tensor::Int>) -> Result<Vec<i32>, TensorReadError> {
    Ok(tensor.try_into_data()?.convert::<i32>().iter().collect())
}

impl Recall {
    /// Adds the selections of one batch.
    ///
    /// # Errors
    /// When the device cannot be read.
    pub fn add(&mut self, traces: &[SelectionTrace]) -> Result<(), TensorReadError> {
        for trace in traces {
            let ([_, seq, entries], [_, _, width]) = (trace.mass.dims(), trace.topk.dims());
            let mass: Vec<f32> = trace.mass.clone().try_into_data()?.iter().collect();
            let topk = integers(trace.topk.clone())?;
            let size = trace.pool.as_ref().map(|pool| pool.dims()[2]);
            let pool = size.zip(trace.pool.clone().map(integers).transpose()?);
            let sums = self.layers.entry(trace.layer).or_default();
            for (row, mass) in mass.chunks_exact(entries).enumerate() {
                let visible = ((row % seq + 1) / trace.ratio).min(entries);
                if visible <= width {
                    continue;
                }
                let selected = marks(&topk[row * width..(row + 1) * width], entries);
                let wanted = best(mass, 0..visible, width);
                let sum = |chosen: &dyn Fn(usize) -> bool| {
                    (0..visible).filter(|&entry| chosen(entry)).map(|entry| f64::from(mass[entry])).sum::<f64>()
                };
                sums.queries += 1.0;
                let all = sum(&|_| true).max(f64::MIN_POSITIVE);
                sums.recall += share(&wanted, &selected);
                sums.first += share(&wanted[..1], &selected);
                sums.chance += width as f64 / visible as f64;
                sums.kept += sum(&|entry| selected[entry]) / all;
                sums.most += sum(&|entry| wanted.contains(&entry)) / all;
                if let Some((size, pool)) = &pool {
                    let pool = marks(&pool[row * size..(row + 1) * size], entries);
                    sums.pooled += 1.0;
                    sums.in_pool += share(&wanted, &pool);
                    sums.found_in_pool += share(&best(mass, (0..visible).filter(|&e| pool[e]), width), &selected);
                }
            }
        }
        Ok(())
    }

    /// Means by name, per layer: `topk_recall` (the selection against the layer's own K best of all visible entries),
    /// `topk_chance` (the recall of a random selection), `top1_recall` (how often it holds the one best entry), `mass_kept` (the
    /// share of attention on visible entries that the selection keeps), `mass_best` (what the own K best would keep); in a pool `pool_recall` (the own K best that the pool holds) and `topk_recall_in_pool` (against the K
    /// best of the pool). Only queries that see more than K entries count.
    pub fn values(&self) -> impl Iterator<Item = (String, f64)> + '_ {
        self.layers.iter().filter(|(_, sums)| sums.queries > 0.0).flat_map(|(layer, sums)| {
            let mean = |name: &str, sum: f64, count: f64| (format!("{name}/layer {layer}"), sum / count);
            let mut values = vec![
                mean("topk_recall", sums.recall, sums.queries),
                mean("topk_chance", sums.chance, sums.queries),
                mean("top1_recall", sums.first, sums.queries),
                mean("mass_kept", sums.kept, sums.queries),
                mean("mass_best", sums.most, sums.queries),
            ];
            if sums.pooled > 0.0 {
                values.push(mean("pool_recall", sums.in_pool, sums.pooled));
                values.push(mean("topk_recall_in_pool", sums.found_in_pool, sums.pooled));
            }
            values
        })
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Int, TensorData};

    use super::*;

    fn numbers(values: &[f32], width: usize) -> Tensor<3> {
        let rows = values.len() / width;
        Tensor::from_data(TensorData::new(values.to_vec(), [1, rows, width]), &Device::flex())
    }

    fn rows(values: &[i32], width: usize) -> Tensor<3, Int> {
        let rows = values.len() / width;
        Tensor::from_data(TensorData::new(values.to_vec(), [1, rows, width]), &Device::flex())
    }

    #[test]
    fn shares_by_hand() {
        // Four queries at ratio 1 and K = 2: only the last two have a choice.
        let mass = [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.2, 0.5, 0.3, 0.0], [0.1, 0.2, 0.3, 0.4]].concat();
        let topk = rows(&[0, -1, 0, 1, 1, 2, 0, 3], 2);
        let pool = rows(&[0, -1, -1, 0, 1, -1, 1, 2, -1, 0, 1, 3], 3);
        let mut recall = Recall::default();
        recall.add(&[SelectionTrace { layer: 5, ratio: 1, mass: numbers(&mass, 4), topk, pool: Some(pool) }]).unwrap();
        let values: BTreeMap<String, f64> = recall.values().collect();
        let close = |name: &str, expected: f64| {
            let found = values[&format!("{name}/layer 5")];
            assert!((found - expected).abs() < 1e-6, "{name}: {found} instead of {expected}");
        };
        // Query 2 wants {1, 2} and has both; query 3 wants {3, 2} and has one.
        close("topk_recall", 0.75);
        close("topk_chance", f64::midpoint(2.0 / 3.0, 0.5));
        close("top1_recall", 1.0);
        close("mass_kept", f64::midpoint(0.8, 0.5));
        close("mass_best", f64::midpoint(0.8, 0.7));
        // The pool of query 3 lacks entry 2; of its rest {0, 1, 3} the best two are {3, 1}.
        close("pool_recall", 0.75);
        close("topk_recall_in_pool", 0.75);
        assert_eq!(values.len(), 7);
    }

    #[test]
    fn without_a_choice_there_is_nothing_to_tell() {
        let trace = SelectionTrace {
            layer: 1,
            ratio: 1,
            mass: numbers(&[1.0, 0.0, 0.5, 0.5], 2),
            topk: rows(&[0, -1, 0, 1], 2),
            pool: None,
        };
        let mut recall = Recall::default();
        recall.add(&[trace]).unwrap();
        assert_eq!(recall.values().count(), 0);
    }
}
