//! The loss of each indexer against training tokens: one small chart for each variant that has indexers.

use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::Axis;
use super::curves::{self, LayerCurves, band, places, range_values, token_axis};
use super::plot::{Canvas, Drawn, Frame, UNIT, draw, text_width};
use super::{Figure, Layout};
use crate::report::ReportError;
use crate::report::analysis::Analysis;

/// Width and height of a small chart in pixels.
const SMALL: (i32, i32) = (400, 260);

/// The loss of each indexer against training tokens: one small chart for each variant that has indexers.
pub fn index_kl(analysis: &Analysis) -> Result<Option<Figure>, ReportError> {
    let variants: Vec<(&str, LayerCurves)> = analysis
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
    let (x, y) = (token_axis(0.0, all()), Axis::positive(&range_values(all())));
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
        layout: Layout::Many,
    }))
}

/// Lines from light to dark by depth, each named at its end.
fn layer_lines(canvas: &Canvas, layers: &LayerCurves) -> Drawn {
    let count = layers.len();
    for (index, (_, points)) in layers.iter().enumerate() {
        band(canvas, points, depth_colour(index, count))?;
        canvas.line(places(canvas, points), depth_colour(index, count), 1.8, None)?;
    }
    let wanted: Vec<i32> =
        layers.iter().map(|(_, points)| points.last().map_or(0, |last| canvas.at(last.tokens, last.mean).1)).collect();
    let (_, top, right, bottom) = canvas.bounds;
    for (index, ((tag, _), height)) in layers.iter().zip(spread(&wanted, 17 * UNIT, top, bottom)).enumerate() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{Fake, ablation};

    #[test]
    fn each_variant_with_indexers_has_a_chart() {
        let ablation = ablation(&[Fake::new("a", 0.0, &[0.4]), Fake::new("b", 0.0, &[])]);
        let figure = index_kl(&Analysis::new(&ablation)).unwrap().unwrap();
        assert_eq!(figure.panels.len(), 1);
        assert!(figure.panels[0].1.contains("layer 1"));
    }

    #[test]
    fn labels_are_moved_apart() {
        assert_eq!(spread(&[50, 50, 52], 10, 0, 100), [50, 60, 70]);
        assert_eq!(spread(&[98, 97], 10, 0, 100), [100, 90]);
        assert_eq!(spread(&[10, 90], 10, 0, 100), [10, 90]);
    }
}
