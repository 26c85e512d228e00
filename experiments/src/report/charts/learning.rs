//! Learning curves: the metric on validation data against training tokens.

use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{extent, metric_axis};
use super::curves::{Point, band, curve, dense_tokens, places, range_values, token_axis};
use super::plot::{Canvas, Drawn, Frame, INK, Styles, UNIT, draw, text_width};
use super::{Figure, Layout, SIZE, metric_title, panels, style_of};
use crate::report::analysis::Analysis;
use crate::report::{ReportError, Variant, format};
use crate::results::Split;

/// The metric on validation data against training tokens.
pub fn learning(analysis: &Analysis, styles: &Styles) -> Result<Option<Figure>, ReportError> {
    let metric = analysis.metric();
    let curves: Vec<VariantCurve> = analysis
        .rows
        .iter()
        .map(|row| (row.variant, curve(row.variant, &metric.name, Split::Validation)))
        .filter(|(_, points)| !points.is_empty())
        .collect();
    if curves.is_empty() {
        return Ok(None);
    }
    let dense = curves.iter().map(|(variant, _)| dense_tokens(variant)).max().unwrap_or(0);
    let title = format::heading(&format!("{} while training", metric.label));
    let whole = learning_drawing(&title, analysis, &curves, (0.0, dense), styles)?;
    let mut part = None;
    if let Some((from, late)) = late_part(&curves) {
        let drawing = learning_drawing(&title, analysis, &late, (from, dense), styles)?;
        part = Some(("Enlarged: the second half".to_owned(), drawing));
    }
    Ok(Some(Figure {
        title,
        panels: panels("The whole training", whole, part),
        caption: learning_caption(&curves, dense),
        legend: curves.iter().map(|(variant, _)| (None, variant.record.name.clone())).collect(),
        layout: Layout::Pair,
    }))
}

/// A variant with its curve.
type VariantCurve<'a> = (&'a Variant, Vec<Point>);

/// The second half of all curves with its first number of tokens, where it takes so little of the height of the whole
/// that its differences would be lost.
fn late_part<'a>(curves: &[VariantCurve<'a>]) -> Option<(f64, Vec<VariantCurve<'a>>)> {
    let most = curves.iter().flat_map(|(_, points)| points).map(|point| point.tokens).fold(0.0, f64::max);
    let is_late = |point: &&Point| point.tokens >= 0.5 * most;
    let late: Vec<VariantCurve> = curves
        .iter()
        .map(|(variant, points)| (*variant, points.iter().filter(is_late).copied().collect()))
        .filter(|(_, points): &VariantCurve| !points.is_empty())
        .collect();
    let height = |curves: &[VariantCurve]| {
        let values = range_values(curves.iter().map(|(_, points)| points.as_slice()));
        extent(values.into_iter()).map_or(0.0, |(low, high)| high - low)
    };
    let is_flat = height(&late) > 0.0 && height(&late) < 0.3 * height(curves);
    is_flat.then_some((0.5 * most, late))
}

/// Draws curves from a number of tokens on, over the dense phase that ends at another.
fn learning_drawing(
    title: &str,
    analysis: &Analysis,
    curves: &[VariantCurve],
    (from, dense): (f64, u64),
    styles: &Styles,
) -> Result<String, ReportError> {
    let all = || curves.iter().map(|(_, points)| points.as_slice());
    let frame = Frame {
        title,
        size: SIZE,
        sides: (58, 18),
        x: token_axis(from, all()),
        y: metric_axis(&range_values(all()), &[]),
        x_title: "training tokens",
        y_title: &metric_title(analysis),
    };
    draw(&frame, |canvas| {
        if dense as f64 > from {
            shade_dense(canvas, dense)?;
        }
        for (variant, points) in curves.iter().rev() {
            band(canvas, points, style_of(styles, variant).colour)?;
        }
        curves.iter().rev().try_for_each(|(variant, points)| {
            let style = style_of(styles, variant);
            canvas.line(places(canvas, points), style.colour, 2.2, style.dash)
        })
    })
}

fn learning_caption(curves: &[VariantCurve], dense: u64) -> String {
    let mut caption =
        "Lines: mean over seeds. Bands: from the worst seed to the best. Every run that measured something is drawn, \
         also where it did not finish."
            .to_owned();
    if dense > 0 {
        let with: Vec<&str> = curves
            .iter()
            .filter(|(variant, _)| dense_tokens(variant) > 0)
            .map(|(variant, _)| variant.record.name.as_str())
            .collect();
        let whose =
            if with.len() == curves.len() { "of all variants".to_owned() } else { format!("of {}", with.join(", ")) };
        caption.push_str(&format!(" Shaded: the dense phase {whose}."));
    }
    caption
}

fn shade_dense(canvas: &Canvas, tokens: u64) -> Drawn {
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

    #[test]
    fn curves_have_bands_only_over_several_seeds() {
        let two = ablation(&[Fake::new("a", 0.0, &[0.4, 0.8])]);
        let one = ablation(&[Fake::new("a", 0.0, &[0.4])]);
        let svg = |ablation| learning(&Analysis::new(ablation), &Styles::new()).unwrap().unwrap().panels.remove(0).1;
        assert!(svg(&two).contains("<polygon") && !svg(&one).contains("<polygon"));
        assert!(svg(&two).contains("dense phase"));
    }

    #[test]
    fn a_flat_second_half_is_enlarged() {
        let mut ablation = ablation(&[Fake::new("a", 0.0, &[0.8])]);
        let panels = |ablation: &crate::report::Ablation| {
            learning(&Analysis::new(ablation), &Styles::new()).unwrap().unwrap().panels.len()
        };
        // The fake curve rises in a straight line.
        assert_eq!(panels(&ablation), 1);
        for (line, value) in ablation.variants[0].runs[0].lines.iter_mut().zip([9.0, 2.1, 2.05, 2.0]) {
            line.values.insert("accuracy".to_owned(), value);
        }
        assert_eq!(panels(&ablation), 2);
    }

    #[test]
    fn without_measurements_there_is_no_figure() {
        let empty = ablation(&[Fake::new("a", 0.0, &[])]);
        assert!(learning(&Analysis::new(&empty), &Styles::new()).unwrap().is_none());
    }
}
