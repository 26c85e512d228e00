//! Ranking the variants of an ablation, and joining several ablations.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{Ablation, Run, Variant};
use crate::results::MetricRecord;
use crate::stats::{self, Estimate, PairedDifference, Verdict};

/// An ablation with its variants ranked.
pub struct Analysis<'a> {
    /// The ablation.
    pub ablation: &'a Ablation,
    /// One row for each variant: best first, variants without a result last.
    pub rows: Vec<Row<'a>>,
}

/// One variant with what its runs say.
pub struct Row<'a> {
    /// The variant.
    pub variant: &'a Variant,
    /// Place by the mean, from 1; equal means share one. `None` without a result.
    pub rank: Option<usize>,
    /// The metric at the end of each run that counts, by seed.
    pub values: BTreeMap<u64, f64>,
    /// Mean over those seeds.
    pub estimate: Option<Estimate>,
    /// Paired difference to the baseline, where both share a seed.
    pub difference: Option<PairedDifference>,
    /// What the difference says.
    pub effect: Effect,
    /// Mean training speed of the runs that count.
    pub tokens_per_second: Option<f64>,
    /// No other variant is at least as good for at most the same bytes per token, and better in one of the two.
    pub on_front: bool,
}

/// A paired difference to the baseline in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// This is the baseline.
    Baseline,
    /// The interval excludes zero on the good side.
    Better,
    /// The interval excludes zero on the bad side.
    Worse,
    /// The interval includes zero.
    NotSettled,
    /// One shared seed gives no interval.
    OneSeed,
    /// Every seed shows the same difference, which gives no interval either.
    NoSpread,
    /// The variant or the baseline has no result, or they share no seed.
    Missing,
}

impl Effect {
    /// The word in the table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NotSettled => "not settled",
            Self::OneSeed => "1 seed",
            Self::NoSpread => "no spread",
            Self::Missing => "–",
        }
    }

    /// The word, where there is something to say.
    pub fn known_word(self) -> Option<&'static str> {
        (self != Self::Missing).then(|| self.word())
    }

    /// Whether the interval excludes zero, where there is an interval.
    pub fn excludes_zero(self) -> Option<bool> {
        match self {
            Self::Better | Self::Worse => Some(true),
            Self::NotSettled => Some(false),
            Self::Baseline | Self::OneSeed | Self::NoSpread | Self::Missing => None,
        }
    }
}

impl<'a> Analysis<'a> {
    /// Ranks the variants of `ablation`.
    pub fn new(ablation: &'a Ablation) -> Self {
        let baseline = ablation
            .variants
            .iter()
            .find(|variant| variant.record.name == ablation.record.baseline)
            .map(|variant| final_values(ablation, variant))
            .unwrap_or_default();
        let mut rows: Vec<Row<'a>> =
            ablation.variants.iter().map(|variant| row(ablation, variant, &baseline)).collect();
        rows.sort_by(|left, right| order(&ablation.record.metric, left, right));
        set_ranks(&mut rows);
        set_front(&mut rows, ablation.record.metric.higher_is_better);
        Self { ablation, rows }
    }

    /// The metric of the ranking.
    pub fn metric(&self) -> &'a MetricRecord {
        &self.ablation.record.metric
    }

    /// The rows that have a result, best first.
    pub fn ranked(&self) -> impl Iterator<Item = (&Row<'a>, Estimate)> {
        self.rows.iter().filter_map(|row| row.estimate.map(|estimate| (row, estimate)))
    }

    /// The row of the baseline.
    pub fn baseline(&self) -> Option<&Row<'a>> {
        self.rows.iter().find(|row| row.effect == Effect::Baseline)
    }

    /// The runs that do not count, by variant, in the order of the table.
    pub fn without_result(&self) -> Vec<(&'a Variant, &'a Run)> {
        let runs = self.rows.iter().flat_map(|row| row.variant.runs.iter().map(move |run| (row.variant, run)));
        runs.filter(|(_, run)| run.summary().is_none()).collect()
    }
}

/// The metric at the end of each run that counts, by seed.
fn final_values(ablation: &Ablation, variant: &Variant) -> BTreeMap<u64, f64> {
    let name = &ablation.record.metric.name;
    let value = |run: &Run| run.summary()?.final_values.get(name).map(|value| (run.seed, *value));
    variant.runs.iter().filter_map(value).collect()
}

fn row<'a>(ablation: &Ablation, variant: &'a Variant, baseline: &BTreeMap<u64, f64>) -> Row<'a> {
    let values = final_values(ablation, variant);
    let numbers: Vec<f64> = values.values().copied().collect();
    let is_baseline = variant.record.name == ablation.record.baseline;
    let difference = if is_baseline { None } else { stats::paired_difference(&values, baseline).ok() };
    let effect = match &difference {
        _ if is_baseline => Effect::Baseline,
        Some(difference) => effect(difference, ablation.record.metric.higher_is_better),
        None => Effect::Missing,
    };
    let speeds = variant.runs.iter().filter_map(|run| run.summary().map(|summary| summary.tokens_per_second));
    let speeds: Vec<f64> = speeds.filter(|speed| speed.is_finite()).collect();
    Row {
        variant,
        rank: None,
        estimate: stats::estimate(&numbers).ok(),
        values,
        difference,
        effect,
        tokens_per_second: stats::estimate(&speeds).ok().map(|estimate| estimate.mean),
        on_front: false,
    }
}

/// What a paired difference says, given the direction of the metric.
pub fn effect(difference: &PairedDifference, higher_is_better: bool) -> Effect {
    match difference.verdict {
        Verdict::ExcludesZero if (difference.estimate.mean > 0.0) == higher_is_better => Effect::Better,
        Verdict::ExcludesZero => Effect::Worse,
        Verdict::IncludesZero => Effect::NotSettled,
        Verdict::OneSeed => Effect::OneSeed,
        Verdict::NoSpread => Effect::NoSpread,
    }
}

/// Best mean first; equal means by fewer bytes per token, then as recorded; variants without a result last.
pub fn order(metric: &MetricRecord, left: &Row, right: &Row) -> Ordering {
    let bytes = |row: &Row| row.variant.record.cost.bytes_per_token;
    match (&left.estimate, &right.estimate) {
        (Some(a), Some(b)) => {
            let ascending = a.mean.total_cmp(&b.mean);
            let by_metric = if metric.higher_is_better { ascending.reverse() } else { ascending };
            by_metric.then(bytes(left).total_cmp(&bytes(right)))
        }
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

/// Numbers sorted rows; equal means share a number.
fn set_ranks(rows: &mut [Row]) {
    let mut previous: Option<(f64, usize)> = None;
    for (index, row) in rows.iter_mut().enumerate() {
        let Some(estimate) = row.estimate else {
            continue;
        };
        let rank = match previous {
            Some((mean, rank)) if mean.total_cmp(&estimate.mean).is_eq() => rank,
            _ => index + 1,
        };
        row.rank = Some(rank);
        previous = Some((estimate.mean, rank));
    }
}

fn set_front(rows: &mut [Row], higher_is_better: bool) {
    let sign = if higher_is_better { 1.0 } else { -1.0 };
    let points: Vec<Option<(f64, f64)>> = rows
        .iter()
        .map(|row| row.estimate.map(|estimate| (sign * estimate.mean, row.variant.record.cost.bytes_per_token)))
        .collect();
    for (row, point) in rows.iter_mut().zip(&points) {
        row.on_front = point.is_some_and(|(quality, bytes)| {
            !points
                .iter()
                .flatten()
                .any(|(other, cost)| *other >= quality && *cost <= bytes && (*other > quality || *cost < bytes))
        });
    }
}

/// How many of the best lie so close together, beside the others, that they need a drawing of their own; 0 where they
/// do not. `means` are sorted, best first.
pub fn near_best(means: impl Iterator<Item = f64>) -> usize {
    let means: Vec<f64> = means.collect();
    let (Some(best), Some(worst)) = (means.first(), means.last()) else {
        return 0;
    };
    let reach = 0.1 * (best - worst).abs();
    let close = means.iter().filter(|mean| (*mean - best).abs() <= reach).count();
    if close > 1 && close < means.len() { close } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{Fake, ablation};

    fn names<'a>(analysis: &Analysis<'a>) -> Vec<&'a str> {
        analysis.rows.iter().map(|row| row.variant.record.name.as_str()).collect()
    }

    #[test]
    fn higher_is_better_ranks_downwards() {
        let ablation = ablation(&[
            Fake::new("windows", 0.0, &[0.07, 0.08]),
            Fake::new("full", 40.0, &[0.98, 0.99]),
            Fake::new("reuse", 20.0, &[0.99, 0.99]),
            Fake::new("absent", 1.0, &[]),
        ]);
        let analysis = Analysis::new(&ablation);
        assert_eq!(names(&analysis), ["reuse", "full", "windows", "absent"]);
        let ranks: Vec<Option<usize>> = analysis.rows.iter().map(|row| row.rank).collect();
        assert_eq!(ranks, [Some(1), Some(2), Some(3), None]);
        let front: Vec<bool> = analysis.rows.iter().map(|row| row.on_front).collect();
        assert_eq!(front, [true, false, true, false]);
        assert_eq!(analysis.rows[0].effect, Effect::Better);
    }

    #[test]
    fn lower_is_better_turns_ranking_effect_and_front_around() {
        let mut ablation = ablation(&[
            Fake::new("windows", 0.0, &[2.0, 2.01]),
            Fake::new("full", 40.0, &[1.5, 1.52]),
            Fake::new("bad", 50.0, &[2.5, 2.52]),
        ]);
        ablation.record.metric.higher_is_better = false;
        let analysis = Analysis::new(&ablation);
        assert_eq!(names(&analysis), ["full", "windows", "bad"]);
        let effects: Vec<Effect> = analysis.rows.iter().map(|row| row.effect).collect();
        assert_eq!(effects, [Effect::Better, Effect::Baseline, Effect::Worse]);
        let front: Vec<bool> = analysis.rows.iter().map(|row| row.on_front).collect();
        assert_eq!(front, [true, true, false]);
    }

    #[test]
    fn equal_means_share_a_rank_and_the_cheaper_comes_first() {
        let ablation = ablation(&[
            Fake::new("windows", 9.0, &[0.5]),
            Fake::new("cheap", 3.0, &[0.5]),
            Fake::new("last", 1.0, &[0.4]),
        ]);
        let analysis = Analysis::new(&ablation);
        assert_eq!(names(&analysis), ["cheap", "windows", "last"]);
        let ranks: Vec<Option<usize>> = analysis.rows.iter().map(|row| row.rank).collect();
        assert_eq!(ranks, [Some(1), Some(1), Some(3)]);
        assert_eq!(analysis.rows[2].effect, Effect::OneSeed);
    }

    #[test]
    fn a_close_group_at_the_top_is_found() {
        let at = |means: &[f64]| near_best(means.iter().copied());
        assert_eq!(at(&[0.99, 0.98, 0.97, 0.07]), 3);
        assert_eq!(at(&[1.5, 1.52, 2.9]), 2);
        assert_eq!([at(&[0.9, 0.5, 0.1]), at(&[0.9, 0.9]), at(&[0.9]), at(&[])], [0; 4]);
    }
}
