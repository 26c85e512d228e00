//! The charts of points: the metric of each variant, and quality against cost.

use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};

use super::analysis::{Analysis, Row};
use super::axis::{Axis, metric_axis};
use super::charts::{Figure, SIZE, metric_title, style_of};
use super::plot::{Canvas, Drawn, Frame, INK, Place, Style, Styles, TEXT, UNIT, draw, text_width};
use super::{ReportError, format};
use crate::stats::Estimate;

/// Characters of a name that are shown beside a point or a row.
const NAME: usize = 26;

/// Height of a row in pixels.
const ROW: i32 = 30;

const FRONT: RGBColor = RGBColor(120, 126, 136);

/// A row of [`rows`]: its label and its numbers.
pub struct Entry<'a> {
    /// What stands to the left of the row.
    pub label: String,
    /// The variant with its numbers.
    pub row: &'a Row<'a>,
}

/// The metric of each variant with its interval and the value of each seed.
pub fn metric_by_variant(analysis: &Analysis, styles: &Styles) -> Result<Option<Figure>, ReportError> {
    let entries: Vec<Entry> =
        analysis.ranked().map(|(row, _)| Entry { label: label(row), row }).collect();
    let baseline = analysis.baseline().and_then(|row| row.estimate).map(|estimate| estimate.mean);
    let title = format!("{} of each variant", analysis.metric().label);
    let caption = format!(
        "Large markers: mean over seeds. Small dots: single seeds. Bars: 95% interval of the mean (Student's t); an arrow \
         says that it goes on beyond the axis, no bar that there is one seed. Dashed: the mean of the baseline {}.",
        analysis.ablation.record.baseline
    );
    rows(&title, &metric_title(analysis), &entries, baseline, caption, styles)
}

/// The metric of every variant of several ablations.
pub fn joint(analyses: &[Analysis], styles: &Styles) -> Result<Option<Figure>, ReportError> {
    let Some(first) = analyses.first() else { return Ok(None) };
    let entries: Vec<Entry> = super::analysis::joint_rows(analyses)
        .into_iter()
        .filter(|(_, row)| row.estimate.is_some())
        .map(|(index, row)| Entry {
            label: format!("{}: {}", analyses[index].ablation.record.name, row.variant.record.name),
            row,
        })
        .collect();
    let caption = "All ablations together. Large markers: mean over seeds; small dots: single seeds; bars: 95% interval.";
    rows("All ablations", &metric_title(first), &entries, None, caption.to_owned(), styles)
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
    let labels: Vec<String> = entries.iter().map(|entry| format::shorten(&entry.label, NAME)).collect();
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
    let svg = draw(&frame, |canvas| {
        if let Some(mean) = baseline {
            let (_, top, _, bottom) = canvas.bounds;
            let x = canvas.at(mean, 0.0).0;
            canvas.line(vec![(x, top), (x, bottom)], FRONT, 1.2, Some((4, 4)))?;
        }
        for (index, (entry, label)) in entries.iter().zip(&labels).enumerate() {
            one_row(canvas, index, entry, label, &style_of(styles, entry.row.variant))?;
        }
        Ok(())
    })?;
    Ok(Some(Figure { title: title.to_owned(), panels: vec![(None, svg)], caption, legend: Vec::new() }))
}

fn one_row(canvas: &Canvas, index: usize, entry: &Entry, label: &str, style: &Style) -> Drawn {
    let Some(estimate) = entry.row.estimate else { return Ok(()) };
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
        canvas.dot(canvas.at(*value, height), style.colour, 2.6, 0.55)?;
    }
    canvas.marker(canvas.at(estimate.mean, height), style, 5.0)
}

/// A bar between two places; an end that is cut off carries an arrow, any other a short stroke across.
fn bar(canvas: &Canvas, from: (Place, bool), to: (Place, bool), colour: RGBColor) -> Drawn {
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

/// The metric against the cache bytes that each token of context costs, with the Pareto front.
pub fn quality_by_cost(analysis: &Analysis, styles: &Styles) -> Result<Option<Figure>, ReportError> {
    let ranked: Vec<(&Row, Estimate)> = analysis.ranked().collect();
    if ranked.is_empty() {
        return Ok(None);
    }
    let title = format!("{} against cache bytes per token", analysis.metric().label);
    let costs: Vec<f64> = ranked.iter().map(|(row, _)| cost(row)).collect();
    let x = Axis::cost(&costs);
    let has_break = x.break_at().is_some();
    let frame = Frame {
        title: &title,
        size: SIZE,
        sides: (58, 18),
        x,
        y: value_axis(ranked.iter().map(|(row, _)| *row)),
        x_title: if has_break { "cache bytes per token of context (logarithmic beyond 0)" } else { "cache bytes per token of context" },
        y_title: &metric_title(analysis),
    };
    let mut numbered = false;
    let svg = draw(&frame, |canvas| {
        draw_front(canvas, &ranked)?;
        let mut taken = Vec::new();
        for (row, estimate) in ranked.iter().rev() {
            taken.extend(cost_point(canvas, row, estimate, &style_of(styles, row.variant))?);
        }
        let points: Vec<Place> = ranked.iter().map(|(row, estimate)| canvas.at(cost(row), estimate.mean)).collect();
        let names: Vec<String> = ranked.iter().map(|(row, _)| format::shorten(&label(row), NAME)).collect();
        numbered = label_points(canvas, &points, &names, &ranked, &taken)?;
        Ok(())
    })?;
    let mut caption = "Up and left is better. ".to_owned();
    if !analysis.metric().higher_is_better {
        caption = "Down and left is better. ".to_owned();
    }
    caption.push_str(
        "Ringed and joined by the dotted line: the Pareto front, where no other variant has a better mean for the same or \
         fewer bytes. Bars: 95% interval, with an arrow where it goes on. Windows alone keep no bytes that grow.",
    );
    if numbered {
        caption.push_str(" Numbers are ranks in the table.");
    }
    let legend = if numbered { ranked.iter().map(|(row, _)| (row.rank, row.variant.record.name.clone())).collect() } else { Vec::new() };
    Ok(Some(Figure { title, panels: vec![(None, svg)], caption, legend }))
}

fn cost(row: &Row) -> f64 {
    row.variant.record.cost.bytes_per_token
}

/// Rank and name.
fn label(row: &Row) -> String {
    let rank = row.rank.map_or_else(String::new, |rank| format!("{rank} "));
    format!("{rank}{}", row.variant.record.name)
}

/// An axis that holds every seed, and of the intervals what fits.
fn value_axis<'a>(rows: impl Iterator<Item = &'a Row<'a>>) -> Axis {
    let (mut values, mut intervals) = (Vec::new(), Vec::new());
    for row in rows {
        values.extend(row.values.values().copied());
        intervals.extend(row.estimate.and_then(|estimate| estimate.interval()));
    }
    metric_axis(&values, &intervals)
}

/// The front as steps: what the best mean is that a number of bytes can buy.
fn draw_front(canvas: &Canvas, ranked: &[(&Row, Estimate)]) -> Drawn {
    let mut front: Vec<(f64, f64)> =
        ranked.iter().filter(|(row, _)| row.on_front).map(|(row, estimate)| (cost(row), estimate.mean)).collect();
    front.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut places: Vec<Place> = Vec::new();
    for (bytes, mean) in front {
        let place = canvas.at(bytes, mean);
        places.extend(places.last().map(|last| (place.0, last.1)));
        places.push(place);
    }
    places.extend(places.last().map(|last| (canvas.bounds.2, last.1)));
    if let Some(at) = canvas.break_x() {
        let (_, top, _, bottom) = canvas.bounds;
        canvas.line(vec![(at, top), (at, bottom)], FRONT, 1.0, Some((2, 4)))?;
    }
    canvas.line(places, FRONT, 1.4, Some((3, 3)))
}

/// Draws a point with its interval; the result is the room that it takes.
fn cost_point(
    canvas: &Canvas,
    row: &Row,
    estimate: &Estimate,
    style: &Style,
) -> Result<Vec<Room>, plotters::drawing::DrawingAreaErrorKind<std::io::Error>> {
    let place = canvas.at(cost(row), estimate.mean);
    let mut taken = vec![Room::around(place, 8 * UNIT, 8 * UNIT)];
    if let Some((low, high)) = estimate.interval() {
        let (from, to) = (canvas.at(cost(row), low), canvas.at(cost(row), high));
        bar(canvas, (from, !canvas.holds_y(low)), (to, !canvas.holds_y(high)), style.colour)?;
        taken.push(Room { left: place.0 - 5 * UNIT, top: to.1, right: place.0 + 5 * UNIT, bottom: from.1 });
    }
    canvas.marker(place, style, 5.0)?;
    if row.on_front {
        canvas.ring(place, FRONT, 8.5)?;
    }
    Ok(taken)
}

/// A rectangle on the drawing.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Room {
    left: i32,
    top: i32,
    right: i32,
    bottom: i32,
}

impl Room {
    fn around((x, y): Place, half_width: i32, half_height: i32) -> Self {
        Self { left: x - half_width, top: y - half_height, right: x + half_width, bottom: y + half_height }
    }

    fn meets(&self, other: &Self) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    fn inside(&self, (left, top, right, bottom): (i32, i32, i32, i32)) -> bool {
        self.left >= left && self.right <= right && self.top >= top && self.bottom <= bottom
    }
}

/// Names the points, or numbers them by rank where the names find no room; returns whether it did the latter.
fn label_points(
    canvas: &Canvas,
    points: &[Place],
    names: &[String],
    ranked: &[(&Row, Estimate)],
    taken: &[Room],
) -> Result<bool, plotters::drawing::DrawingAreaErrorKind<std::io::Error>> {
    let numbers: Vec<String> =
        ranked.iter().map(|(row, _)| row.rank.map(|rank| rank.to_string()).unwrap_or_default()).collect();
    let by_name = place_labels(points, names, taken, canvas.bounds);
    let numbered = by_name.iter().any(Option::is_none);
    let (texts, rooms) =
        if numbered { (&numbers, place_labels(points, &numbers, taken, canvas.bounds)) } else { (&names.to_vec(), by_name) };
    for (text, room) in texts.iter().zip(rooms) {
        if let Some(room) = room {
            let at = (room.left.midpoint(room.right), room.top.midpoint(room.bottom));
            canvas.text(at, text, HPos::Center, VPos::Center, INK)?;
        }
    }
    Ok(numbered)
}

/// Finds for each point a place of its label that meets no marker, bar or earlier label; `None` where there is none.
fn place_labels(points: &[Place], texts: &[String], taken: &[Room], bounds: (i32, i32, i32, i32)) -> Vec<Option<Room>> {
    let mut taken = taken.to_vec();
    let mut found = Vec::with_capacity(points.len());
    for ((x, y), text) in points.iter().zip(texts) {
        let (half_width, half_height) = (text_width(text) * UNIT / 2 + UNIT, (TEXT * 0.65) as i32 * UNIT);
        let (beside, above) = (half_width + 11 * UNIT, half_height + 10 * UNIT);
        let offsets = [
            (beside, 0),
            (-beside, 0),
            (0, -above),
            (0, above),
            (beside, -above),
            (beside, above),
            (-beside, -above),
            (-beside, above),
        ];
        let room = offsets
            .iter()
            .map(|(across, along)| Room::around((x + across, y + along), half_width, half_height))
            .find(|room| room.inside(bounds) && !taken.iter().any(|other| other.meets(room)));
        taken.extend(room);
        found.push(room);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{Fake, ablation};

    const BOUNDS: (i32, i32, i32, i32) = (0, 0, 2400, 1200);

    #[test]
    fn labels_meet_neither_each_other_nor_markers() {
        let points = [(1000, 600), (1040, 620), (1080, 600), (2300, 100)];
        let texts = ["one".to_owned(), "two".to_owned(), "three".to_owned(), "at the edge".to_owned()];
        let taken: Vec<Room> = points.iter().map(|point| Room::around(*point, 32, 32)).collect();
        let rooms: Vec<Room> = place_labels(&points, &texts, &taken, BOUNDS).into_iter().map(Option::unwrap).collect();
        for (index, room) in rooms.iter().enumerate() {
            assert!(room.inside(BOUNDS));
            assert!(!taken.iter().any(|other| other.meets(room)));
            assert!(!rooms[..index].iter().any(|other| other.meets(room)));
        }
    }

    #[test]
    fn a_crowd_is_numbered_instead() {
        let points = vec![(1000, 600); 30];
        let texts = vec!["a very long name of a variant".to_owned(); 30];
        assert!(place_labels(&points, &texts, &[], BOUNDS).contains(&None));
    }

    #[test]
    fn every_seed_is_drawn_and_free_mixes_have_a_place() {
        let ablation = ablation(&[
            Fake::new("windows", 0.0, &[0.1, 0.2]),
            Fake::new("full", 400.0, &[0.9, 0.95]),
            Fake::new("reuse", 8.0, &[0.9, 0.92]),
        ]);
        let analysis = Analysis::new(&ablation);
        let dots = metric_by_variant(&analysis, &Styles::new()).unwrap().unwrap();
        // A rim, a marker or a seed: discs only, for the looks of all three variants are those of the first.
        assert_eq!(dots.panels[0].1.matches("<circle").count(), 3 * 2 + 6);
        let front = quality_by_cost(&analysis, &Styles::new()).unwrap().unwrap();
        assert!(front.panels[0].1.contains("logarithmic beyond 0"));
        assert!(front.panels[0].1.contains("1 full") && front.legend.is_empty());
    }
}
