//! The metric of each variant: a row with its mean, its interval and its seeds.

use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Axis, metric_axis};
use super::plot::{Canvas, Drawn, Frame, INK, MUTED, Place, Style, Styles, UNIT, draw, text_width};
use super::{ALL, Figure, Layout, ROW_NAME, SIZE, best_title, metric_title, panels, style_of};
use crate::report::analysis::{Analysis, Row, near_best};
use crate::report::joint::joint_rows;
use crate::report::{ReportError, format};

/// Height of a row in pixels.
const ROW: i32 = 30;

/// A row of [`rows`]: its label and its numbers.
pub struct Entry<'a> {
    /// What stands to the left of the row.
    pub label: String,
    /// The variant with its numbers.
    pub row: &'a Row<'a>,
}

/// The metric of each variant with its interval and the value of each seed.
pub fn metric_by_variant(analysis: &Analysis, styles: &Styles) -> Result<Option<Figure>, ReportError> {
    let entries: Vec<Entry> = analysis.ranked().map(|(row, _)| Entry { label: label(row), row }).collect();
    let baseline = analysis.baseline().and_then(|row| row.estimate).map(|estimate| estimate.mean);
    let title = format::heading(&format!("{} of each variant", analysis.metric().label));
    let caption = format!(
        "Large markers: mean over seeds. Small circles: single seeds. Bars: 95% interval of the mean (Student's t); an arrow \
         says that it goes on beyond the axis, no bar that there is one seed. Dashed: the mean of the baseline {}.",
        analysis.ablation.record.baseline
    );
    rows(&title, &metric_title(analysis), &entries, baseline, caption, styles)
}

/// The metric of every variant of several ablations.
pub fn joint(analyses: &[Analysis], styles: &Styles) -> Result<Option<Figure>, ReportError> {
    let Some(first) = analyses.first() else {
        return Ok(None);
    };
    let entries: Vec<Entry> = joint_rows(analyses)
        .into_iter()
        .filter(|(_, row)| row.estimate.is_some())
        .map(|(index, row)| Entry {
            label: format!("{}: {}", analyses[index].ablation.record.name, row.variant.record.name),
            row,
        })
        .collect();
    let caption =
        "All ablations together. Large markers: mean over seeds; small circles: single seeds; bars: 95% interval.";
    let figure = rows("All ablations", &metric_title(first), &entries, None, caption.to_owned(), styles)?;
    Ok(figure.map(|figure| Figure { layout: Layout::Pair, ..figure }))
}

fn rows(
    title: &str,
    x_title: &str,
    entries: &[Entry],
    baseline: Option<f64>,
    caption: String,
    styles: &Styles,
) -> Result<Option<Figure>, ReportError> {
    if entries.is_empty() {
        return Ok(None);
    }
    let whole = row_drawing(title, x_title, entries, baseline, styles)?;
    let close = near_best(entries.iter().filter_map(|entry| entry.row.estimate.map(|estimate| estimate.mean)));
    let mut part = None;
    if close > 0 {
        part = Some((best_title(close), row_drawing(title, x_title, &entries[..close], None, styles)?));
    }
    Ok(Some(Figure {
        title: title.to_owned(),
        panels: panels(ALL, whole, part),
        caption,
        legend: Vec::new(),
        layout: Layout::Stacked,
    }))
}

fn row_drawing(
    title: &str,
    x_title: &str,
    entries: &[Entry],
    baseline: Option<f64>,
    styles: &Styles,
) -> Result<String, ReportError> {
    let labels: Vec<String> = entries.iter().map(|entry| format::shorten(&entry.label, ROW_NAME)).collect();
    let widest = labels.iter().map(|label| text_width(label)).max().unwrap_or(0);
    let frame = Frame {
        title,
        size: (SIZE.0, 26 + 44 + ROW * entries.len().max(2) as i32),
        sides: (widest + 14, 18),
        x: value_axis(entries.iter().map(|entry| entry.row)),
        y: Axis::rows(entries.len()),
        x_title,
        y_title: "",
    };
    draw(&frame, |canvas| {
        if let Some(mean) = baseline {
            let (_, top, _, bottom) = canvas.bounds;
            let x = canvas.at(mean, 0.0).0;
            canvas.line(vec![(x, top), (x, bottom)], MUTED, 1.2, Some((4, 4)))?;
        }
        for (index, (entry, label)) in entries.iter().zip(&labels).enumerate() {
            one_row(canvas, index, entry, label, &style_of(styles, entry.row.variant))?;
        }
        Ok(())
    })
}

fn one_row(canvas: &Canvas, index: usize, entry: &Entry, label: &str, style: &Style) -> Drawn {
    let Some(estimate) = entry.row.estimate else {
        return Ok(());
    };
    let height = -(index as f64);
    let left = canvas.bounds.0;
    let y = canvas.at(0.0, height).1;
    canvas.text((left - 8 * UNIT, y), label, HPos::Right, VPos::Center, INK)?;
    if let Some((low, high)) = estimate.interval() {
        let from = (canvas.at(low, height), !canvas.holds_x(low));
        let to = (canvas.at(high, height), !canvas.holds_x(high));
        bar(canvas, from, to, style.colour)?;
    }
    for value in entry.row.values.values() {
        canvas.dot(canvas.at(*value, height), style.colour, 3.0)?;
    }
    canvas.marker(canvas.at(estimate.mean, height), style, 5.0)
}

/// A bar between two places; an end that is cut off carries an arrow, any other a short stroke across.
pub fn bar(canvas: &Canvas, from: (Place, bool), to: (Place, bool), colour: RGBColor) -> Drawn {
    canvas.line(vec![from.0, to.0], colour, 1.6, None)?;
    let upright = from.0.0 == to.0.0 && from.0.1 != to.0.1;
    for ((place, cut), other) in [(from, to.0), (to, from.0)] {
        let turn = |along: i32, across: i32| {
            if upright { (place.0 + across, place.1 + along) } else { (place.0 + along, place.1 + across) }
        };
        let away = if upright { (place.1 - other.1).signum() } else { (place.0 - other.0).signum() };
        if cut {
            let back = -7 * UNIT * away;
            canvas.fill(vec![place, turn(back, 4 * UNIT), turn(back, -4 * UNIT)], colour, 1.0)?;
        } else {
            canvas.line(vec![turn(0, 4 * UNIT), turn(0, -4 * UNIT)], colour, 1.6, None)?;
        }
    }
    Ok(())
}

/// Rank and name.
pub fn label(row: &Row) -> String {
    let rank = row.rank.map_or_else(String::new, |rank| format!("{rank} "));
    format!("{rank}{}", row.variant.record.name)
}

/// An axis that holds every seed, and of the intervals what fits.
pub fn value_axis<'a>(rows: impl Iterator<Item = &'a Row<'a>>) -> Axis {
    let (mut values, mut intervals) = (Vec::new(), Vec::new());
    for row in rows {
        values.extend(row.values.values().copied());
        intervals.extend(row.estimate.and_then(|estimate| estimate.interval()));
    }
    metric_axis(&values, &intervals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{Fake, ablation};

    #[test]
    fn every_seed_is_drawn() {
        let ablation = ablation(&[
            Fake::new("windows", 0.0, &[0.1, 0.2]),
            Fake::new("full", 400.0, &[0.9, 0.95]),
            Fake::new("reuse", 8.0, &[0.5, 0.52]),
        ]);
        let figure = metric_by_variant(&Analysis::new(&ablation), &Styles::new()).unwrap().unwrap();
        // Two circles, rim and body, for each marker and each seed: without a look of their own all markers are discs.
        assert_eq!(figure.panels.len(), 1);
        assert_eq!(figure.panels[0].1.matches("<circle").count(), 2 * (3 + 6));
    }

    #[test]
    fn close_leaders_are_enlarged() {
        let ablation = ablation(&[
            Fake::new("windows", 0.0, &[0.1]),
            Fake::new("full", 400.0, &[0.9]),
            Fake::new("reuse", 8.0, &[0.91]),
        ]);
        let figure = metric_by_variant(&Analysis::new(&ablation), &Styles::new()).unwrap().unwrap();
        assert_eq!(figure.panels.len(), 2);
        assert!(!figure.panels[1].1.contains("windows"));
    }
}
