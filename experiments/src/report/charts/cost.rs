//! Quality against cost, with the Pareto front.

use plotters::style::text_anchor::{HPos, VPos};

use super::axis::Axis;
use super::labels::{Room, place_labels};
use super::plot::{Canvas, Frame, INK, MUTED, Outcome, Place, Styles, UNIT, draw};
use super::rows::{bar, label, value_axis};
use super::{ALL, Figure, Layout, NAME, SIZE, best_title, metric_title, panels, style_of};
use crate::report::analysis::{Analysis, Row, near_best};
use crate::report::{ReportError, format};
use crate::stats::Estimate;

/// Pixels between the markers of variants of equal cost.
const BESIDE: i32 = 9;

/// The metric against the cache bytes that each token of context costs, with the Pareto front.
pub fn quality_by_cost(analysis: &Analysis, styles: &Styles) -> Result<Option<Figure>, ReportError> {
    let ranked: Vec<(&Row, Estimate)> = analysis.ranked().collect();
    if ranked.is_empty() {
        return Ok(None);
    }
    let title = format::heading(&format!("{} against cache bytes per token", analysis.metric().label));
    let (whole, mut numbered) = cost_drawing(&title, analysis, &ranked, styles)?;
    let close = near_best(ranked.iter().map(|(_, estimate)| estimate.mean));
    let mut part = None;
    if close > 0 {
        let (svg, part_numbered) = cost_drawing(&title, analysis, &ranked[..close], styles)?;
        numbered |= part_numbered;
        part = Some((best_title(close), svg));
    }
    let good = if analysis.metric().higher_is_better { "Up" } else { "Down" };
    let mut caption = format!(
        "{good} and left is better. Ringed and joined by the dotted line: the Pareto front, where no other variant has a \
         better mean for the same or fewer bytes. Bars: 95% interval, with an arrow where it goes on. \
         Variants of equal cost stand side by side."
    );
    let mut legend = Vec::new();
    if numbered {
        caption.push_str(" Numbers are ranks in the table.");
        legend = ranked.iter().map(|(row, _)| (row.rank, row.variant.record.name.clone())).collect();
    }
    Ok(Some(Figure { title, panels: panels(ALL, whole, part), caption, legend, layout: Layout::Pair }))
}

/// One drawing of quality against cost, and whether its points carry numbers in place of names.
fn cost_drawing(
    title: &str,
    analysis: &Analysis,
    ranked: &[(&Row, Estimate)],
    styles: &Styles,
) -> Result<(String, bool), ReportError> {
    let costs: Vec<f64> = ranked.iter().map(|(row, _)| cost(row)).collect();
    let frame = Frame {
        title,
        size: SIZE,
        sides: (58, 18),
        x: Axis::cost(&costs),
        y: value_axis(ranked.iter().map(|(row, _)| *row)),
        x_title: "cache bytes per token of context",
        y_title: &metric_title(analysis),
    };
    let mut numbered = false;
    let svg = draw(&frame, |canvas| {
        let points = place_points(canvas, ranked);
        let lines = draw_front(canvas, &points)?;
        let mut taken = Vec::new();
        for point in points.iter().rev() {
            taken.extend(draw_point(canvas, point, styles)?);
        }
        numbered = label_points(canvas, &points, &taken, &lines)?;
        Ok(())
    })?;
    Ok((svg, numbered))
}

fn cost(row: &Row) -> f64 {
    row.variant.record.cost.bytes_per_token
}

/// A variant in the drawing.
struct Point<'a> {
    row: &'a Row<'a>,
    estimate: Estimate,
    place: Place,
}

/// Places the variants; those of equal cost stand side by side, for their bars would hide each other.
fn place_points<'a>(canvas: &Canvas, ranked: &[(&'a Row<'a>, Estimate)]) -> Vec<Point<'a>> {
    let same = |one: &Row, other: &Row| cost(one).total_cmp(&cost(other)).is_eq();
    let shift = |index: usize, row: &Row| {
        let before = ranked[..index].iter().filter(|(other, _)| same(row, other)).count();
        let all = ranked.iter().filter(|(other, _)| same(row, other)).count();
        (2 * before as i32 + 1 - all as i32) * BESIDE * UNIT / 2
    };
    let points = ranked.iter().enumerate().map(|(index, (row, estimate))| {
        let (x, y) = canvas.at(cost(row), estimate.mean);
        Point { row, estimate: *estimate, place: (x + shift(index, row), y) }
    });
    points.collect()
}

/// Draws the front as steps: the best mean that a number of bytes can buy. The result is the room that it takes.
fn draw_front(canvas: &Canvas, points: &[Point]) -> Outcome<Vec<Room>> {
    let mut front: Vec<&Point> = points.iter().filter(|point| point.row.on_front).collect();
    front.sort_by(|left, right| cost(left.row).total_cmp(&cost(right.row)));
    let (_, top, right, bottom) = canvas.bounds;
    let mut places: Vec<Place> = Vec::new();
    for point in front {
        places.extend(places.last().map(|last| (point.place.0, last.1)));
        places.push(point.place);
    }
    places.extend(places.last().map(|last| (right, last.1)));
    if let Some(at) = canvas.break_x() {
        canvas.line(vec![(at, top), (at, bottom)], MUTED, 1.0, Some((2, 4)))?;
    }
    let taken = places.windows(2).map(|ends| Room::between(ends[0], ends[1])).collect();
    canvas.line(places, MUTED, 1.4, Some((3, 3)))?;
    Ok(taken)
}

/// Draws a point with its interval; the result is the room that it takes.
fn draw_point(canvas: &Canvas, point: &Point, styles: &Styles) -> Outcome<Vec<Room>> {
    let style = style_of(styles, point.row.variant);
    let (x, _) = point.place;
    let mut taken = vec![Room::around(point.place, 8 * UNIT, 8 * UNIT)];
    if let Some((low, high)) = point.estimate.interval() {
        let height = |value: f64| canvas.at(cost(point.row), value).1;
        let (from, to) = ((x, height(low)), (x, height(high)));
        bar(canvas, (from, !canvas.holds_y(low)), (to, !canvas.holds_y(high)), style.colour)?;
        taken.push(Room { left: x - 5 * UNIT, top: to.1, right: x + 5 * UNIT, bottom: from.1 });
    }
    canvas.marker(point.place, &style, 5.0)?;
    if point.row.on_front {
        canvas.ring(point.place, MUTED, 8.5)?;
    }
    Ok(taken)
}

/// Names the points, or numbers them by rank where the names find no room; returns whether it did the latter.
fn label_points(canvas: &Canvas, points: &[Point], taken: &[Room], lines: &[Room]) -> Outcome<bool> {
    let places: Vec<Place> = points.iter().map(|point| point.place).collect();
    let mut texts: Vec<String> = points.iter().map(|point| format::shorten(&label(point.row), NAME)).collect();
    let mut rooms = place_labels(&places, &texts, taken, lines, canvas.bounds);
    let numbered = rooms.iter().any(Option::is_none);
    if numbered {
        let rank = |point: &Point| point.row.rank.map(|rank| rank.to_string()).unwrap_or_default();
        texts = points.iter().map(rank).collect();
        rooms = place_labels(&places, &texts, taken, lines, canvas.bounds);
    }
    for (text, room) in texts.iter().zip(rooms) {
        if let Some(room) = room {
            canvas.text(room.centre(), text, HPos::Center, VPos::Center, INK)?;
        }
    }
    Ok(numbered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{Fake, ablation};

    #[test]
    fn free_mixes_have_a_place_and_few_points_their_names() {
        let ablation = ablation(&[
            Fake::new("windows", 0.0, &[0.1, 0.2]),
            Fake::new("full", 400.0, &[0.9, 0.95]),
            Fake::new("reuse", 8.0, &[0.5, 0.52]),
        ]);
        let figure = quality_by_cost(&Analysis::new(&ablation), &Styles::new()).unwrap().unwrap();
        assert!(figure.legend.is_empty());
        for text in ["1 full", "2 reuse", "3 windows"] {
            assert!(figure.panels[0].1.contains(text), "{text}");
        }
    }
}
