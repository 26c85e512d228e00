//! Values at the end of training by tag, such as the accuracy by distance.

use super::axis::{Axis, metric_axis};
use super::curves::TagGroup;
use super::plot::{Canvas, Drawn, Frame, Style, Styles, draw};
use super::{ALL, Figure, Layout, SIZE, best_title, panels};
use crate::report::analysis::{Analysis, near_best};
use crate::report::{ReportError, format};

/// Values at the end of training by tag, such as accuracy by distance.
pub fn by_tag(analysis: &Analysis, group: &TagGroup, styles: &Styles) -> Result<Figure, ReportError> {
    let rows: Vec<TaggedRow> = analysis
        .rows
        .iter()
        .zip(&group.means)
        .filter(|(_, means)| means.iter().any(Option::is_some))
        .map(|(row, means)| (row.variant.record.name.as_str(), means.as_slice()))
        .collect();
    let is_metric = group.metric == analysis.metric().name;
    let label = if is_metric { analysis.metric().label.clone() } else { words(&group.metric) };
    let by = if group.name.is_empty() { "part" } else { &group.name };
    let title = format::heading(&format!("{label} by {by}"));
    let whole = tag_drawing(&title, &label, by, group, &rows, styles)?;
    let close = near_best(analysis.ranked().map(|(_, estimate)| estimate.mean));
    let mut part = None;
    // Without a gap among the rows, the first of them are the best.
    if is_metric && close > 0 && rows.len() == analysis.ranked().count() {
        part = Some((best_title(close), tag_drawing(&title, &label, by, group, &rows[..close], styles)?));
    }
    Ok(Figure {
        title,
        panels: panels(ALL, whole, part),
        caption: "At the end of training, mean over the seeds that finished.".to_owned(),
        legend: rows.iter().map(|(name, _)| (None, (*name).to_owned())).collect(),
        layout: Layout::Pair,
    })
}

/// What a value is called by people.
fn words(metric: &str) -> String {
    let known = match metric {
        "topk_recall" => "Top-K recall",
        "topk_chance" => "Top-K recall of a random selection",
        "topk_recall_in_pool" => "Top-K recall inside the pool",
        "pool_recall" => "share of the Top-K inside the pool",
        "top1_recall" => "recall of the one entry wanted most",
        "mass_kept" => "attention on the selection",
        "mass_best" => "attention that K entries could hold",
        "index_kl" => "indexer's KL",
        other => return other.replace('_', " "),
    };
    known.to_owned()
}

/// The name of a variant, and its mean at each label of a group.
type TaggedRow<'a> = (&'a str, &'a [Option<f64>]);

fn tag_drawing(
    title: &str,
    label: &str,
    by: &str,
    group: &TagGroup,
    rows: &[TaggedRow],
    styles: &Styles,
) -> Result<String, ReportError> {
    let values: Vec<f64> = rows.iter().flat_map(|(_, means)| means.iter().flatten().copied()).collect();
    let frame = Frame {
        title,
        size: SIZE,
        sides: (58, 18),
        x: Axis::categories(&group.labels),
        y: metric_axis(&values, &[]),
        x_title: by,
        y_title: label,
    };
    draw(&frame, |canvas| {
        rows.iter().rev().try_for_each(|(name, means)| {
            let style = styles.get(*name).copied().unwrap_or(Style::of(0));
            tagged_line(canvas, means, &style)
        })
    })
}

fn tagged_line(canvas: &Canvas, means: &[Option<f64>], style: &Style) -> Drawn {
    let places: Vec<_> =
        means.iter().enumerate().filter_map(|(index, mean)| mean.map(|mean| canvas.at(index as f64, mean))).collect();
    if places.len() > 1 {
        canvas.line(places.clone(), style.colour, 2.0, style.dash)?;
    }
    places.into_iter().try_for_each(|place| canvas.marker(place, style, 4.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::charts::curves::tag_groups;
    use crate::report::testing::{Fake, ablation};

    #[test]
    fn only_variants_with_values_are_drawn() {
        let ablation = ablation(&[Fake::new("a", 0.0, &[0.4]), Fake::new("b", 0.0, &[])]);
        let analysis = Analysis::new(&ablation);
        let figure = by_tag(&analysis, &tag_groups(&analysis)[0], &Styles::new()).unwrap();
        assert_eq!(figure.title, "Accuracy by distance");
        assert_eq!(figure.legend, [(None, "a".to_owned())]);
        assert!(figure.panels[0].1.contains("8-15") && figure.panels[0].1.contains("16-31"));
    }
}
