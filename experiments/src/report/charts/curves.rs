//! What the charts draw: measurements of several seeds brought together.

use std::collections::{BTreeMap, BTreeSet};

use plotters::style::RGBColor;

use super::axis::Axis;
use super::plot::{Canvas, Drawn};
use crate::report::analysis::Analysis;
use crate::report::{Run, Variant};
use crate::results::{Phase, Split};

/// Points of one curve that are drawn at most; more would only make the file larger.
const MOST_POINTS: usize = 240;

/// The prefix of the indexer's losses among the values.
const INDEX_KL: &str = "index_kl";

/// A point of a curve over seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Training tokens seen.
    pub tokens: f64,
    /// Mean over the seeds that were measured here.
    pub mean: f64,
    /// Least of them.
    pub low: f64,
    /// Largest of them.
    pub high: f64,
}

/// The values named `key` over training, over all seeds of a variant. Values that are not finite are left out.
pub fn curve(variant: &Variant, key: &str, split: Split) -> Vec<Point> {
    let mut by_tokens: BTreeMap<u64, BTreeMap<u64, f64>> = BTreeMap::new();
    for run in &variant.runs {
        for line in run.lines.iter().filter(|line| line.split == split) {
            if let Some(value) = line.values.get(key).copied().filter(|value| value.is_finite()) {
                by_tokens.entry(line.tokens).or_default().insert(run.seed, value);
            }
        }
    }
    let points: Vec<Point> = by_tokens.iter().map(|(tokens, values)| point(*tokens, values)).collect();
    thin(&points)
}

fn point(tokens: u64, values: &BTreeMap<u64, f64>) -> Point {
    let mean = values.values().sum::<f64>() / values.len() as f64;
    let low = values.values().copied().fold(f64::INFINITY, f64::min);
    let high = values.values().copied().fold(f64::NEG_INFINITY, f64::max);
    Point { tokens: tokens as f64, mean, low, high }
}

/// Keeps every k-th point and the last.
fn thin(points: &[Point]) -> Vec<Point> {
    let every = points.len().div_ceil(MOST_POINTS).max(1);
    let last = points.len().saturating_sub(1);
    let kept = points.iter().enumerate().filter(|(index, _)| index % every == 0 || *index == last);
    kept.map(|(_, point)| *point).collect()
}

/// Tokens at the last measurement in the dense phase; 0 where there is none.
pub fn dense_tokens(variant: &Variant) -> u64 {
    let lines = variant.runs.iter().flat_map(|run| &run.lines);
    lines.filter(|line| line.phase == Phase::Dense).map(|line| line.tokens).max().unwrap_or(0)
}

/// The curve of each layer, by its tag.
pub type LayerCurves = Vec<(String, Vec<Point>)>;

/// The indexer's loss of each layer over training: the validation curves where there are any, the training ones
/// otherwise.
pub fn index_kl(variant: &Variant) -> LayerCurves {
    for split in [Split::Validation, Split::Train] {
        let lines = variant.runs.iter().flat_map(|run| &run.lines).filter(|line| line.split == split);
        let keys: BTreeSet<&str> = lines
            .flat_map(|line| line.values.keys())
            .filter(|key| key.split_once('/').is_some_and(|(prefix, _)| prefix == INDEX_KL))
            .map(String::as_str)
            .collect();
        let mut curves: LayerCurves = keys
            .into_iter()
            .map(|key| (key.split_once('/').map_or(key, |(_, tag)| tag).to_owned(), curve(variant, key, split)))
            .filter(|(_, points)| !points.is_empty())
            .collect();
        if !curves.is_empty() {
            curves.sort_by_key(|(tag, _)| first_number(tag));
            return curves;
        }
    }
    Vec::new()
}

/// Values at the end of training that differ by a tag, such as the accuracy by distance.
#[derive(Debug, Clone, PartialEq)]
pub struct TagGroup {
    /// The name before the slash.
    pub metric: String,
    /// What the tags have in common, such as `distance`.
    pub name: String,
    /// The tags in order, such as `8-15`.
    pub labels: Vec<String>,
    /// For each row of the analysis, the mean over its seeds at each label.
    pub means: Vec<Vec<Option<f64>>>,
}

/// The groups of tagged values among the final values of the runs that count; the indexer's losses are drawn elsewhere.
pub fn tag_groups(analysis: &Analysis) -> Vec<TagGroup> {
    let finals = analysis.rows.iter().flat_map(|row| &row.variant.runs).filter_map(Run::summary);
    let keys: BTreeSet<&str> = finals.flat_map(|summary| summary.final_values.keys()).map(String::as_str).collect();
    let mut groups: BTreeMap<(&str, &str), Vec<(&str, &str)>> = BTreeMap::new();
    for key in keys {
        let Some((metric, tag)) = key.split_once('/') else {
            continue;
        };
        if metric != INDEX_KL {
            let (name, label) = tag.rsplit_once(' ').unwrap_or(("", tag));
            groups.entry((metric, name)).or_default().push((label, key));
        }
    }
    let mut found: Vec<TagGroup> =
        groups.into_iter().map(|((metric, name), tags)| tag_group(analysis, metric, name, tags)).collect();
    // The metric of the ranking is what the reader came for.
    found.sort_by_key(|group| group.metric != analysis.metric().name);
    found
}

fn tag_group(analysis: &Analysis, metric: &str, name: &str, mut tags: Vec<(&str, &str)>) -> TagGroup {
    tags.sort_by_key(|(label, _)| (first_number(label), *label));
    let mean = |variant: &Variant, key: &str| {
        let values: Vec<f64> = variant
            .runs
            .iter()
            .filter_map(|run| run.summary()?.final_values.get(key).copied())
            .filter(|value| value.is_finite())
            .collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let row = |variant: &Variant| tags.iter().map(|(_, key)| mean(variant, key)).collect();
    TagGroup {
        metric: metric.to_owned(),
        name: name.to_owned(),
        labels: tags.iter().map(|(label, _)| (*label).to_owned()).collect(),
        means: analysis.rows.iter().map(|found| row(found.variant)).collect(),
    }
}

/// The first number in a tag, by which `8-15` comes before `16-31`; tags without one come last.
fn first_number(tag: &str) -> u64 {
    let digits = tag.chars().skip_while(|character| !character.is_ascii_digit());
    let digits: String = digits.take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(u64::MAX)
}

/// The axis of training tokens under `curves`, beginning at `from`.
pub fn token_axis<'a>(from: f64, curves: impl Iterator<Item = &'a [Point]>) -> Axis {
    let tokens: Vec<f64> = curves.flatten().map(|point| point.tokens).collect();
    Axis::counting(from, &tokens)
}

/// Every value that the bands of `curves` reach.
pub fn range_values<'a>(curves: impl Iterator<Item = &'a [Point]>) -> Vec<f64> {
    curves.flatten().flat_map(|point| [point.low, point.high]).collect()
}

/// Where the means of a curve lie.
pub fn places(canvas: &Canvas, points: &[Point]) -> Vec<(i32, i32)> {
    points.iter().map(|point| canvas.at(point.tokens, point.mean)).collect()
}

/// Fills the range over seeds around a curve; nothing where it has no width.
pub fn band(canvas: &Canvas, points: &[Point], colour: RGBColor) -> Drawn {
    let upper = points.iter().map(|point| canvas.at(point.tokens, point.high));
    let lower = points.iter().rev().map(|point| canvas.at(point.tokens, point.low));
    let outline: Vec<(i32, i32)> = upper.chain(lower).collect();
    if points.iter().any(|point| point.high > point.low) { canvas.fill(outline, colour, 0.16) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{Fake, ablation};

    #[test]
    fn a_curve_holds_mean_and_range_over_seeds() {
        let ablation = ablation(&[Fake::new("a", 0.0, &[0.4, 0.8])]);
        let points = curve(&ablation.variants[0], "accuracy", Split::Validation);
        assert_eq!(points.len(), 4);
        let last = points[3];
        assert!((last.mean - 0.6).abs() < 1e-12 && (last.low, last.high) == (0.4, 0.8));
        assert!((last.tokens - 1000.0).abs() < 1e-12);
        assert!(curve(&ablation.variants[0], "accuracy", Split::Train).is_empty());
        assert_eq!(dense_tokens(&ablation.variants[0]), 250);
    }

    #[test]
    fn values_that_are_not_finite_are_left_out() {
        let mut ablation = ablation(&[Fake::new("a", 0.0, &[0.4, 0.8])]);
        ablation.variants[0].runs[0].lines[3].values.insert("accuracy".to_owned(), f64::NAN);
        let points = curve(&ablation.variants[0], "accuracy", Split::Validation);
        assert_eq!((points[3].mean, points[3].low), (0.8, 0.8));
    }

    #[test]
    fn tags_are_grouped_and_sorted_by_number() {
        let ablation = ablation(&[Fake::new("a", 0.0, &[0.5]), Fake::new("b", 0.0, &[])]);
        let groups = tag_groups(&Analysis::new(&ablation));
        assert_eq!(groups.len(), 1);
        assert_eq!((groups[0].metric.as_str(), groups[0].name.as_str()), ("accuracy", "distance"));
        assert_eq!(groups[0].labels, ["8-15", "16-31"]);
        assert_eq!(groups[0].means, [vec![Some(0.5), Some(0.45)], vec![None, None]]);
        let kl = index_kl(&ablation.variants[0]);
        assert_eq!((kl[0].0.as_str(), kl[0].1.len()), ("layer 1", 4));
    }

    #[test]
    fn long_curves_are_thinned_and_keep_their_end() {
        let points: Vec<Point> =
            (0..10_001).map(|index| Point { tokens: f64::from(index), mean: 0.0, low: 0.0, high: 0.0 }).collect();
        let thinned = thin(&points);
        assert!(thinned.len() <= MOST_POINTS + 1);
        assert_eq!(thinned.last(), points.last());
    }
}
