//! The line charts: learning curves, values by tag, and the indexer's losses.

use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};

use super::analysis::Analysis;
use super::axis::{Axis, metric_axis};
use super::curves::{self, Point, TagGroup};
use super::plot::{Canvas, Drawn, Frame, INK, Style, Styles, UNIT, draw, text_width};
use super::{ReportError, Variant};
use crate::results::Split;

/// Width and height of a chart in pixels.
pub const SIZE: (i32, i32) = (620, 380);

/// Width and height of one of many small charts.
const SMALL: (i32, i32) = (400, 260);

/// One figure of the report.
pub struct Figure {
    /// What it shows.
    pub title: String,
    /// Its drawings, each with a title where there are several.
    pub panels: Vec<(Option<String>, String)>,
    /// How to read it.
    pub caption: String,
    /// The variants in it, best first, where their names do not stand in the drawing; with the rank where that does.
    pub legend: Vec<(Option<usize>, String)>,
}

/// The metric on validation data against training tokens.
pub fn learning(analysis: &Analysis, styles: &Styles) -> Result<Option<Figure>, ReportError> {
    let metric = analysis.metric();
    let curves: Vec<(&Variant, Vec<Point>)> = analysis
        .rows
        .iter()
        .map(|row| (row.variant, curves::curve(row.variant, &metric.name, Split::Validation)))
        .filter(|(_, points)| !points.is_empty())
        .collect();
    if curves.is_empty() {
        return Ok(None);
    }
    let dense = curves.iter().map(|(variant, _)| curves::dense_tokens(variant)).max().unwrap_or(0);
    let title = format!("{} while training", metric.label);
    let frame = Frame {
        title: &title,
        size: SIZE,
        sides: (58, 18),
        x: token_axis(curves.iter().map(|(_, points)| points.as_slice())),
        y: metric_axis(&range_values(curves.iter().map(|(_, points)| points.as_slice())), &[]),
        x_title: "training tokens",
        y_title: &metric_title(analysis),
    };
    let svg = draw(&frame, |canvas| {
        shade_dense(canvas, dense)?;
        for (variant, points) in curves.iter().rev() {
            band(canvas, points, style_of(styles, variant).colour)?;
        }
        for (variant, points) in curves.iter().rev() {
            let style = style_of(styles, variant);
            canvas.line(places(canvas, points), style.colour, 2.2, style.dash)?;
        }
        Ok(())
    })?;
    Ok(Some(Figure {
        title,
        panels: vec![(None, svg)],
        caption: learning_caption(&curves, dense),
        legend: curves.iter().map(|(variant, _)| (None, variant.record.name.clone())).collect(),
    }))
}

fn learning_caption(curves: &[(&Variant, Vec<Point>)], dense: u64) -> String {
    let mut caption =
        "Lines: mean over seeds. Bands: from the worst seed to the best. Every run that measured something is drawn, \
         also where it did not finish."
            .to_owned();
    if dense > 0 {
        let with: Vec<&str> = curves
            .iter()
            .filter(|(variant, _)| curves::dense_tokens(variant) > 0)
            .map(|(variant, _)| variant.record.name.as_str())
            .collect();
        let whose = if with.len() == curves.len() { "of all variants".to_owned() } else { format!("of {}", with.join(", ")) };
        caption.push_str(&format!(" Shaded: the dense phase {whose}."));
    }
    caption
}

/// Values at the end of training by tag, such as accuracy by distance.
pub fn by_tag(analysis: &Analysis, group: &TagGroup, styles: &Styles) -> Result<Figure, ReportError> {
    let rows: Vec<(&str, &Vec<Option<f64>>)> = analysis
        .rows
        .iter()
        .zip(&group.means)
        .filter(|(_, means)| means.iter().any(Option::is_some))
        .map(|(row, means)| (row.variant.record.name.as_str(), means))
        .collect();
    let values: Vec<f64> = rows.iter().flat_map(|(_, means)| means.iter().flatten().copied()).collect();
    let is_metric = group.metric == analysis.metric().name;
    let label = if is_metric { analysis.metric().label.clone() } else { group.metric.replace('_', " ") };
    let by = if group.name.is_empty() { "part" } else { &group.name };
    let title = format!("{label} by {by}");
    let frame = Frame {
        title: &title,
        size: SIZE,
        sides: (58, 18),
        x: Axis::categories(&group.labels),
        y: metric_axis(&values, &[]),
        x_title: by,
        y_title: &label,
    };
    let svg = draw(&frame, |canvas| {
        for (name, means) in rows.iter().rev() {
            let style = styles.get(*name).copied().unwrap_or(Style::of(0));
            tagged_line(canvas, means, &style)?;
        }
        Ok(())
    })?;
    Ok(Figure {
        title,
        panels: vec![(None, svg)],
        caption: "At the end of training, mean over the seeds that finished.".to_owned(),
        legend: rows.iter().map(|(name, _)| (None, (*name).to_owned())).collect(),
    })
}

fn tagged_line(canvas: &Canvas, means: &[Option<f64>], style: &Style) -> Drawn {
    let places: Vec<_> = means
        .iter()
        .enumerate()
        .filter_map(|(index, mean)| mean.map(|mean| canvas.at(index as f64, mean)))
        .collect();
    if places.len() > 1 {
        canvas.line(places.clone(), style.colour, 2.0, style.dash)?;
    }
    places.into_iter().try_for_each(|place| canvas.marker(place, style, 4.0))
}

/// The loss of each indexer against training tokens: one small chart for each variant that has indexers.
pub fn index_kl(analysis: &Analysis) -> Result<Option<Figure>, ReportError> {
    let variants: Vec<(&str, Vec<(String, Vec<Point>)>)> = analysis
        .rows
        .iter()
        .map(|row| (row.variant.record.name.as_str(), curves::index_kl(row.variant)))
        .filter(|(_, layers)| !layers.is_empty())
        .collect();
    if variants.is_empty() {
        return Ok(None);
    }
    // One range for all, so that the small charts can be compared.
    let all = || variants.iter().flat_map(|(_, layers)| layers.iter().map(|(_, points)| points.as_slice()));
    let (x, y) = (token_axis(all()), Axis::positive(&range_values(all())));
    let longest = variants.iter().flat_map(|(_, layers)| layers.iter().map(|(tag, _)| text_width(tag))).max();
    let mut panels = Vec::new();
    for (name, layers) in &variants {
        let frame = Frame {
            title: &format!("indexer KL of {name}"),
            size: SMALL,
            sides: (52, longest.unwrap_or(0) + 12),
            x: x.clone(),
            y: y.clone(),
            x_title: "training tokens",
            y_title: "KL (teacher ‖ indexer), nats",
        };
        panels.push((Some((*name).to_owned()), draw(&frame, |canvas| layer_lines(canvas, layers))?));
    }
    Ok(Some(Figure {
        title: "What the indexers still miss".to_owned(),
        panels,
        caption: "KL divergence of each indexer from the attention that it imitates, by layer: 0 is a perfect copy. \
                  Lines: mean over seeds; bands: from the least to the largest seed."
            .to_owned(),
        legend: Vec::new(),
    }))
}

/// Lines from light to dark by depth, each named at its end.
fn layer_lines(canvas: &Canvas, layers: &[(String, Vec<Point>)]) -> Drawn {
    let count = layers.len();
    for (index, (_, points)) in layers.iter().enumerate() {
        band(canvas, points, depth_colour(index, count))?;
        canvas.line(places(canvas, points), depth_colour(index, count), 1.8, None)?;
    }
    let wanted: Vec<i32> = layers
        .iter()
        .map(|(_, points)| points.last().map_or(0, |last| canvas.at(last.tokens, last.mean).1))
        .collect();
    let (_, top, right, bottom) = canvas.bounds;
    for (index, ((tag, _), height)) in layers.iter().zip(spread(&wanted, 14 * UNIT, top, bottom)).enumerate() {
        canvas.text((right + 6 * UNIT, height), tag, HPos::Left, VPos::Center, depth_colour(index, count))?;
    }
    Ok(())
}

/// Moves heights apart until neighbours are `gap` from each other, as near to where they were as a sweep gets them.
fn spread(wanted: &[i32], gap: i32, top: i32, bottom: i32) -> Vec<i32> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|index| wanted[*index]);
    let mut heights = wanted.to_vec();
    let mut least = top;
    for index in &order {
        heights[*index] = heights[*index].max(least);
        least = heights[*index] + gap;
    }
    let mut most = bottom;
    for index in order.iter().rev() {
        heights[*index] = heights[*index].min(most);
        most = heights[*index] - gap;
    }
    heights
}

/// A ramp of one colour family that stays readable on white: teal to dark violet.
fn depth_colour(index: usize, count: usize) -> RGBColor {
    let share = if count > 1 { index as f64 / (count - 1) as f64 } else { 0.5 };
    let mix = |from: f64, to: f64| (from + share * (to - from)).round() as u8;
    RGBColor(mix(42.0, 68.0), mix(157.0, 20.0), mix(143.0, 110.0))
}

fn token_axis<'a>(curves: impl Iterator<Item = &'a [Point]>) -> Axis {
    let tokens: Vec<f64> = curves.flatten().map(|point| point.tokens).collect();
    Axis::counting(&tokens)
}

fn range_values<'a>(curves: impl Iterator<Item = &'a [Point]>) -> Vec<f64> {
    curves.flatten().flat_map(|point| [point.low, point.high]).collect()
}

/// The label of the metric with its direction.
pub fn metric_title(analysis: &Analysis) -> String {
    let metric = analysis.metric();
    format!("{} ({} is better)", metric.label, if metric.higher_is_better { "higher" } else { "lower" })
}

/// The look of a variant.
pub fn style_of(styles: &Styles, variant: &Variant) -> Style {
    styles.get(&variant.record.name).copied().unwrap_or(Style::of(0))
}

fn places(canvas: &Canvas, points: &[Point]) -> Vec<(i32, i32)> {
    points.iter().map(|point| canvas.at(point.tokens, point.mean)).collect()
}

fn band(canvas: &Canvas, points: &[Point], colour: RGBColor) -> Drawn {
    let upper = points.iter().map(|point| canvas.at(point.tokens, point.high));
    let lower = points.iter().rev().map(|point| canvas.at(point.tokens, point.low));
    let outline: Vec<(i32, i32)> = upper.chain(lower).collect();
    if points.iter().any(|point| point.high > point.low) { canvas.fill(outline, colour, 0.16) } else { Ok(()) }
}

fn shade_dense(canvas: &Canvas, tokens: u64) -> Drawn {
    if tokens == 0 {
        return Ok(());
    }
    let (left, top, right, bottom) = canvas.bounds;
    let end = canvas.at(tokens as f64, 0.0).0;
    canvas.rectangle((left, top), (end, bottom), INK, 0.07)?;
    let label = "dense phase";
    // Beside a narrow phase the label stands to its right.
    let inside = end - left >= (text_width(label) + 8) * UNIT;
    let at = if inside { left } else { end.min(right - text_width(label) * UNIT) };
    canvas.text((at + 5 * UNIT, top + 4 * UNIT), label, HPos::Left, VPos::Top, INK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{Fake, ablation};

    fn styles() -> Styles {
        [("a".to_owned(), Style::of(0)), ("b".to_owned(), Style::of(1))].into()
    }

    #[test]
    fn curves_have_bands_only_over_several_seeds() {
        let two = ablation(&[Fake::new("a", 0.0, &[0.4, 0.8])]);
        let one = ablation(&[Fake::new("a", 0.0, &[0.4])]);
        let svg = |ablation| learning(&Analysis::new(ablation), &styles()).unwrap().unwrap().panels.remove(0).1;
        assert!(svg(&two).contains("<polygon") && !svg(&one).contains("<polygon"));
        assert!(svg(&two).contains("dense phase"));
    }

    #[test]
    fn figures_without_data_are_left_out() {
        let empty = ablation(&[Fake::new("a", 0.0, &[])]);
        let analysis = Analysis::new(&empty);
        assert!(learning(&analysis, &styles()).unwrap().is_none());
        assert!(index_kl(&analysis).unwrap().is_none());
    }

    #[test]
    fn tags_and_layers_are_drawn() {
        let ablation = ablation(&[Fake::new("a", 0.0, &[0.4]), Fake::new("b", 0.0, &[])]);
        let analysis = Analysis::new(&ablation);
        let group = curves::tag_groups(&analysis).remove(0);
        let figure = by_tag(&analysis, &group, &styles()).unwrap();
        assert_eq!((figure.title.as_str(), figure.legend.as_slice()), ("accuracy by distance", &[(None, "a".to_owned())][..]));
        assert!(figure.panels[0].1.contains("8-15"));
        let kl = index_kl(&analysis).unwrap().unwrap();
        assert_eq!(kl.panels.len(), 1);
        assert!(kl.panels[0].1.contains("layer 1"));
    }

    #[test]
    fn labels_are_moved_apart() {
        assert_eq!(spread(&[50, 50, 52], 10, 0, 100), [50, 60, 70]);
        assert_eq!(spread(&[98, 97], 10, 0, 100), [100, 90]);
        assert_eq!(spread(&[10, 90], 10, 0, 100), [10, 90]);
    }
}
