//! Running sums: one mean per sequence of everything that is measured, and nothing else.

use std::collections::BTreeMap;

use crate::stats::{self, Estimate};

/// What a value is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    /// A layer, whatever the head.
    Layer(usize),
    /// The mean over a layer's heads.
    Heads(usize),
    /// A head of a layer.
    Head(usize, usize),
    /// Two layers.
    Pair(usize, usize),
}

/// The values of one kind.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// Sum and number in the sequence at hand.
    open: (f64, usize),
    /// A mean for every sequence that has a value.
    pub means: Vec<f64>,
    /// The least and the largest single value.
    pub range: Option<(f64, f64)>,
    /// Single values.
    pub count: usize,
}

impl Values {
    fn add(&mut self, value: f64) {
        self.open.0 += value;
        self.open.1 += 1;
        self.count += 1;
        let (low, high) = self.range.unwrap_or((value, value));
        self.range = Some((low.min(value), high.max(value)));
    }

    fn end(&mut self) {
        let (sum, count) = std::mem::take(&mut self.open);
        if count > 0 {
            self.means.push(sum / count as f64);
        }
    }

    /// Mean over sequences with its interval; none without a value.
    pub fn estimate(&self) -> Option<Estimate> {
        stats::estimate(&self.means).ok()
    }
}

/// All sums of a probe.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    values: BTreeMap<(Of, &'static str), Values>,
    /// Per layer and head: eigenvalue shares summed, and how many.
    spectra: BTreeMap<(usize, usize), (Vec<f64>, usize)>,
    /// Questions about hulls and families that no certificate answered.
    pub undecided: usize,
    /// Queries, and how many of them the model answers right; none for layers alone.
    answers: Option<(usize, usize)>,
}

impl Sums {
    /// The sequence at hand ends.
    pub fn end(&mut self) {
        self.values.values_mut().for_each(Values::end);
    }

    /// Counts the queries of a sequence of which `right` are answered right.
    pub fn answered(&mut self, queries: usize, right: Option<usize>) {
        let (all, so_far) = self.answers.unwrap_or_default();
        self.answers = right.map(|right| (all + queries, so_far + right));
    }

    /// Share of the queries that are answered right.
    pub fn accuracy(&self) -> Option<f64> {
        self.answers.filter(|(all, _)| *all > 0).map(|(all, right)| right as f64 / all as f64)
    }

    /// Adds a value of a layer.
    pub fn layer(&mut self, layer: usize, name: &'static str, value: f64) {
        self.values.entry((Of::Layer(layer), name)).or_default().add(value);
    }

    /// Adds a mean over a layer's heads.
    pub fn heads(&mut self, layer: usize, name: &'static str, value: f64) {
        self.values.entry((Of::Heads(layer), name)).or_default().add(value);
    }

    /// Adds a value of a head.
    pub fn head(&mut self, layer: usize, head: usize, name: &'static str, value: f64) {
        self.values.entry((Of::Head(layer, head), name)).or_default().add(value);
    }

    /// Adds a value of two layers.
    pub fn pair(&mut self, first: usize, second: usize, name: &'static str, value: f64) {
        self.values.entry((Of::Pair(first, second), name)).or_default().add(value);
    }

    /// Adds the eigenvalues' shares of a query.
    pub fn spectrum(&mut self, layer: usize, head: usize, shares: &[f64]) {
        let (sums, count) = self.spectra.entry((layer, head)).or_insert_with(|| (vec![0.0; shares.len()], 0));
        sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
        *count += 1;
    }

    /// The values of one kind.
    pub fn values(&self, of: Of) -> impl Iterator<Item = (&'static str, &Values)> {
        self.values.iter().filter(move |((found, _), _)| *found == of).map(|((_, name), values)| (*name, values))
    }

    /// The mean spectrum of a head.
    pub fn mean_spectrum(&self, layer: usize, head: usize) -> Vec<f64> {
        let Some((sums, count)) = self.spectra.get(&(layer, head)) else { return Vec::new() };
        sums.iter().map(|sum| sum / *count as f64).collect()
    }
}
