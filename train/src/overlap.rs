//! How much the selections of different layers have in common.
//!
//! Layers are compared by the tokens that their selected entries stand for: entry `e` of ratio `m` stands for the tokens
//! `m e .. m e + m`. Where two layers have one ratio that is the comparison by entries.

use burn::tensor::TensorReadError;
use csa2_model::attention::SelectionTrace;
use rayon::prelude::*;

use crate::recall::{integers, marks};

/// What two selections have in common, as means over the queries of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Intersection over union of the tokens that the two selections stand for.
    pub iou: f64,
    /// The share of the first layer's own attention on its visible entries that lies on what the second selected.
    pub mass: f64,
    /// Intersection over union expected of selections made at random; none where the ratios differ.
    pub chance_iou: Option<f64>,
    /// The mass that a random selection of the second layer would hold.
    pub chance_mass: f64,
    /// Queries that count.
    pub queries: usize,
}

/// Which queries count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queries {
    /// Those to which both layers show an entry.
    All,
    /// Those to which both layers show more entries than they select: the others cannot but select everything.
    Choosing,
}

/// One layer's selections and attention on a batch, read from the device.
struct Layer {
    ratio: usize,
    entries: usize,
    width: usize,
    /// `[B S, N]`.
    mass: Vec<f32>,
    /// `[B S, K]`.
    topk: Vec<i32>,
}

impl Layer {
    fn read(trace: &SelectionTrace) -> Result<Self, TensorReadError> {
        let ([_, _, entries], [_, _, width]) = (trace.mass.dims(), trace.topk.dims());
        let mass = trace.mass.clone().try_into_data()?.iter().collect();
        Ok(Self { ratio: trace.ratio, entries, width, mass, topk: integers(trace.topk.clone())? })
    }

    /// Entries that the query at `position` sees.
    fn visible(&self, position: usize) -> usize {
        ((position + 1) / self.ratio).min(self.entries)
    }

    /// Which of `len` tokens the selection of query `row` stands for.
    fn tokens(&self, row: usize, len: usize) -> Vec<bool> {
        let selected = marks(&self.topk[row * self.width..(row + 1) * self.width], self.entries);
        (0..len).map(|token| selected.get(token / self.ratio).copied().unwrap_or(false)).collect()
    }

    fn selected(&self, visible: usize) -> usize {
        self.width.min(visible)
    }
}

/// Compares every selecting layer with every other: `[sequence][first][second]`, layers in the order of `traces`.
///
/// # Errors
/// When the device cannot be read.
pub fn compare(traces: &[SelectionTrace], queries: Queries) -> Result<Vec<Vec<Vec<Shares>>>, TensorReadError> {
    let Some(first) = traces.first() else { return Ok(Vec::new()) };
    let [batch, seq, _] = first.topk.dims();
    let layers = traces.iter().map(Layer::read).collect::<Result<Vec<_>, _>>()?;
    let one = |sequence: usize| {
        let mut sums = vec![vec![Shares::default(); layers.len()]; layers.len()];
        for position in 0..seq {
            let row = sequence * seq + position;
            let tokens: Vec<Vec<bool>> = layers.iter().map(|layer| layer.tokens(row, seq)).collect();
            for (i, a) in layers.iter().enumerate() {
                for (j, b) in layers.iter().enumerate() {
                    if [a, b].iter().all(|layer| counts(layer, position, queries)) {
                        add(&mut sums[i][j], (a, &tokens[i]), (b, &tokens[j]), row, position);
                    }
                }
            }
        }
        sums.into_iter().map(|line| line.into_iter().map(mean).collect()).collect()
    };
    Ok((0..batch).into_par_iter().map(one).collect())
}

fn counts(layer: &Layer, position: usize, queries: Queries) -> bool {
    match queries {
        Queries::All => layer.visible(position) > 0,
        Queries::Choosing => layer.visible(position) > layer.width,
    }
}

fn add(
    sums: &mut Shares,
    (a, a_tokens): (&Layer, &[bool]),
    (b, b_tokens): (&Layer, &[bool]),
    row: usize,
    position: usize,
) {
    let count = |both: fn(bool, bool) -> bool| a_tokens.iter().zip(b_tokens).filter(|&(&x, &y)| both(x, y)).count();
    let (common, either) = (count(|x, y| x && y), count(|x, y| x || y));
    sums.queries += 1;
    // A layer whose scores are no numbers selects nothing; two such have nothing in common.
    sums.iou += common as f64 / either.max(1) as f64;
    let [visible_a, visible_b] = [a, b].map(|layer| layer.visible(position));
    let mass = &a.mass[row * a.entries..row * a.entries + visible_a];
    let held = |entry: usize| {
        let tokens = &b_tokens[entry * a.ratio..(entry + 1) * a.ratio];
        tokens.iter().filter(|&&selected| selected).count() as f64 / a.ratio as f64
    };
    let on_b: f64 = mass.iter().enumerate().map(|(entry, mass)| f64::from(*mass) * held(entry)).sum();
    let all: f64 = mass.iter().map(|mass| f64::from(*mass)).sum();
    sums.mass += on_b / all.max(f64::MIN_POSITIVE);
    sums.chance_mass += b.selected(visible_b) as f64 / visible_b as f64;
    if a.ratio == b.ratio {
        let chance = expected_iou(visible_a, a.selected(visible_a), b.selected(visible_b));
        *sums.chance_iou.get_or_insert(0.0) += chance;
    }
}

fn mean(sums: Shares) -> Shares {
    let count = sums.queries.max(1) as f64;
    Shares {
        iou: sums.iou / count,
        mass: sums.mass / count,
        chance_iou: sums.chance_iou.map(|sum| sum / count),
        chance_mass: sums.chance_mass / count,
        queries: sums.queries,
    }
}

/// Mean intersection over union of `a` and `b` of `all` entries drawn at random and independently: over the hypergeometric
/// number of common ones.
fn expected_iou(all: usize, a: usize, b: usize) -> f64 {
    let least = (a + b).saturating_sub(all);
    // From the ratio of neighbouring probabilities, in logarithms so that large sets do not underflow.
    let mut weights = vec![0.0_f64];
    for common in least..a.min(b) {
        let [n, a, b, x] = [all, a, b, common].map(|count| count as f64);
        let ratio = (a - x) * (b - x) / ((x + 1.0) * (n - a - b + x + 1.0));
        weights.push(weights[weights.len() - 1] + ratio.ln());
    }
    let most = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights = weights.iter().enumerate().map(|(step, weight)| (least + step, (weight - most).exp()));
    let (sum, total) = weights.fold((0.0, 0.0), |(sum, total), (common, weight)| {
        (sum + weight * common as f64 / (a + b - common).max(1) as f64, total + weight)
    });
    sum / total
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};
    use proptest::prelude::*;

    use super::*;

    fn trace(layer: usize, ratio: usize, mass: &[f32], entries: usize, topk: &[i32]) -> SelectionTrace {
        let rows = mass.len() / entries;
        let (width, device) = (topk.len() / rows, Device::flex());
        SelectionTrace {
            layer,
            ratio,
            mass: burn::tensor::Tensor::from_data(TensorData::new(mass.to_vec(), [1, rows, entries]), &device),
            topk: burn::tensor::Tensor::from_data(TensorData::new(topk.to_vec(), [1, rows, width]), &device),
            pool: None,
        }
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
    }

    #[test]
    fn shares_by_hand() {
        // Four queries at ratio 1 and K = 2.
        let mass = [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.2, 0.5, 0.3, 0.0], [0.1, 0.2, 0.3, 0.4]].concat();
        let even = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]].concat();
        let a = trace(1, 1, &mass, 4, &[0, -1, 0, 1, 1, 2, 2, 3]);
        let b = trace(3, 1, &even, 4, &[0, -1, 0, 1, 0, 1, 2, 3]);
        let all = compare(&[a.clone(), b.clone()], Queries::All).unwrap();
        let choosing = compare(&[a, b], Queries::Choosing).unwrap();
        assert_eq!((all.len(), all[0][0][1].queries, choosing[0][0][1].queries), (1, 4, 2));
        // Queries 2 and 3 choose: {1, 2} against {0, 1} has one of three in common, {2, 3} against {2, 3} both.
        close(all[0][0][1].iou, (1.0 + 1.0 + 1.0 / 3.0 + 1.0) / 4.0);
        close(choosing[0][0][1].iou, f64::midpoint(1.0 / 3.0, 1.0));
        close(choosing[0][1][0].iou, choosing[0][0][1].iou);
        close(choosing[0][0][0].mass, f64::midpoint(0.8, 0.7));
        close(choosing[0][0][1].mass, 0.7);
        close(choosing[0][1][0].mass, f64::midpoint(2.0 / 3.0, 0.5));
        close(choosing[0][0][1].chance_mass, f64::midpoint(2.0 / 3.0, 0.5));
        // Of three entries two and two share one (1/3) or two (1), at odds 2 to 1; of four, none, one or two at 1 to 4 to 1.
        close(choosing[0][0][1].chance_iou.unwrap(), f64::midpoint(5.0 / 9.0, (4.0 / 3.0 + 1.0) / 6.0));
        close(all[0][0][0].iou, 1.0);
        close(all[0][1][1].iou, 1.0);
    }

    #[test]
    fn layers_of_different_ratio_are_compared_by_tokens() {
        // The last of four queries: entries of one token {0, 2} against the entry {2, 3} of two.
        let fine = trace(
            0,
            1,
            &[1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.2, 0.5, 0.3, 0.0, 0.1, 0.2, 0.3, 0.4],
            4,
            &[0, -1, 0, 1, 1, 2, 0, 2],
        );
        let coarse = trace(1, 2, &[0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.25, 0.75], 2, &[-1, 0, 0, 1]);
        let found = compare(&[fine, coarse], Queries::Choosing).unwrap();
        let (ab, ba) = (found[0][0][1], found[0][1][0]);
        assert_eq!((ab.queries, ba.queries, ab.chance_iou), (1, 1, None));
        close(ab.iou, 1.0 / 3.0);
        close(ab.mass, 0.7);
        close(ba.mass, 0.5 * 0.25 + 0.5 * 0.75);
        close(ab.chance_mass, 0.5);
        close(ba.chance_mass, 0.5);
    }

    #[test]
    fn a_layer_without_numbers_has_nothing_in_common() {
        let none = trace(0, 1, &[f32::MIN_POSITIVE], 1, &[-1]);
        close(compare(&[none], Queries::All).unwrap()[0][0][0].iou, 0.0);
        assert!(compare(&[], Queries::All).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn chance_is_the_mean_over_all_pairs_of_sets(all in 1_usize..8, a in 1_usize..8, b in 1_usize..8) {
            let (a, b) = (a.min(all), b.min(all));
            let sets = |size: usize| (0_u32..1 << all).filter(move |set| set.count_ones() as usize == size);
            let shares: Vec<f64> = sets(a).flat_map(|one| {
                sets(b).map(move |other| f64::from((one & other).count_ones()) / f64::from((one | other).count_ones()))
            }).collect();
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            prop_assert!((expected_iou(all, a, b) - mean).abs() < 1e-12);
        }
    }
}
