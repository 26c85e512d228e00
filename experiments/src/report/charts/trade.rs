//! Quality against cost on the way of a layer search.

use std::collections::BTreeMap;

use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Axis, metric_axis};
use super::labels::{Room, place_labels};
use super::plot::{Canvas, Drawn, Frame, INK, MUTED, Marker, Outcome, Place, Style, Styles, UNIT, draw};
use super::{Figure, Layout, NAME, SIZE};
use crate::report::{ReportError, format};
use crate::results::MetricRecord;
use crate::search::{Found, Point};

const CALIBRATION: &str = "calibration set";
const EVALUATION: &str = "evaluation set";
const REST: &str = "candidates not taken (calibration set)";

/// The looks of the figures' series.
pub fn trade_styles() -> Styles {
    let rest = Style { colour: MUTED, dash: Some((2, 3)), marker: Marker::Disc };
    [(CALIBRATION, Style::of(0)), (EVALUATION, Style::of(1)), (REST, rest)]
        .map(|(name, style)| (name.to_owned(), style))
        .into()
}

/// A cost with its name.
struct CostAxis {
    name: String,
    /// From scored entries and bytes per token.
    of: fn(f64, f64) -> f64,
}

/// The measure, and what was measured besides, against scored entries and against cache bytes.
pub fn trade_offs(found: &Found) -> Result<Vec<Figure>, ReportError> {
    let context = format::context(found.decode_context);
    let costs = [
        CostAxis { name: format!("entries scored for a token at {context}"), of: |scored, _| scored },
        CostAxis { name: "cache bytes per token of context".into(), of: |_, bytes| bytes },
    ];
    [&found.measure, &found.other].into_iter().map(|measure| figure(found, measure, &costs)).collect()
}

fn figure(found: &Found, measure: &MetricRecord, costs: &[CostAxis]) -> Result<Figure, ReportError> {
    let title = format!("{} against cost", format::heading(&measure.label));
    let mut numbered = false;
    let mut panels = Vec::new();
    for cost in costs {
        let (svg, crowded) = drawing(found, measure, cost)?;
        numbered |= crowded;
        panels.push((Some(format::heading(&cost.name)), svg));
    }
    let chosen = measure.name == found.measure.name;
    let good = if measure.higher_is_better { "Up" } else { "Down" };
    let mut caption = format!(
        "{good} and left is better. Each step along the lines is one change; changes are chosen on the calibration set, \
         nothing is chosen on the evaluation set."
    );
    if numbered {
        caption.push_str(" Numbers are steps: 0 is the run's own mix.");
    }
    let series = [CALIBRATION, EVALUATION].into_iter().chain(chosen.then_some(REST));
    let mut legend: Vec<(Option<usize>, String)> = series.map(|name| (None, name.to_owned())).collect();
    if numbered {
        legend.extend(found.path.iter().map(|point| (Some(point.step), point.mix.clone())));
    }
    Ok(Figure { title, panels, caption, legend, layout: Layout::Pair })
}

/// A mix's value where it has one.
fn value(values: &BTreeMap<String, f64>, measure: &MetricRecord) -> Option<f64> {
    values.get(&measure.name).copied().filter(|value| value.is_finite())
}

/// Cost and value of the candidates that were not taken; known of the measure by which the search chose.
fn rest(found: &Found, measure: &MetricRecord, cost: &CostAxis) -> Vec<(f64, f64)> {
    let start = found.path.first().and_then(|point| value(&point.calibration, measure));
    let Some(start) = start.filter(|_| measure.name == found.measure.name) else { return Vec::new() };
    let sign = if measure.higher_is_better { -1.0 } else { 1.0 };
    let tried = found.rounds.iter().flat_map(|round| {
        round.tried.iter().enumerate().filter(|(place, _)| round.taken != Some(*place)).map(|(_, tried)| tried.worth)
    });
    let worths = tried.filter(|worth| worth.worsening.is_finite());
    worths
        .map(|worth| ((cost.of)(worth.scored_entries, worth.bytes_per_token), start + sign * worth.worsening))
        .collect()
}

/// One drawing, and whether its points carry numbers in place of mixes.
fn drawing(found: &Found, measure: &MetricRecord, cost: &CostAxis) -> Result<(String, bool), ReportError> {
    let series = |of: fn(&Point) -> &BTreeMap<String, f64>| -> Vec<(&Point, f64, f64)> {
        let points = found.path.iter().filter_map(|point| {
            Some((point, (cost.of)(point.scored_entries, point.bytes_per_token), value(of(point), measure)?))
        });
        points.collect()
    };
    let chosen = series(|point| &point.calibration);
    let judged = series(|point| &point.evaluation);
    let others = rest(found, measure, cost);
    let all = || chosen.iter().chain(&judged).map(|(_, x, y)| (*x, *y)).chain(others.iter().copied());
    let (costs, values): (Vec<f64>, Vec<f64>) = all().unzip();
    let better = if measure.higher_is_better { "higher" } else { "lower" };
    let frame = Frame {
        title: &format!("{} against {}", measure.label, cost.name),
        size: SIZE,
        sides: (58, 18),
        x: Axis::cost(&costs),
        y: if measure.name == "loss" { Axis::positive(&values) } else { metric_axis(&values, &[]) },
        x_title: &cost.name,
        y_title: &format!("{} ({better} is better)", measure.label),
    };
    let styles = trade_styles();
    let mut numbered = false;
    let svg = draw(&frame, |canvas| {
        for &(x, y) in &others {
            canvas.dot(canvas.at(x, y), MUTED, 2.6)?;
        }
        // The larger marker below shows around the smaller one where both lie on each other.
        let below = line(canvas, &judged, &styles[EVALUATION], 6.5)?;
        let places = line(canvas, &chosen, &styles[CALIBRATION], 3.8)?;
        let lines: Vec<Room> = [&below, &places].into_iter().flat_map(|places| rooms(places)).collect();
        numbered = label(canvas, &chosen, &places, &lines)?;
        Ok(())
    })?;
    Ok((svg, numbered))
}

/// A line through a series with a marker at each point; the result is where the points lie.
fn line(canvas: &Canvas, series: &[(&Point, f64, f64)], style: &Style, radius: f64) -> Outcome<Vec<Place>> {
    let places: Vec<Place> = series.iter().map(|(_, x, y)| canvas.at(*x, *y)).collect();
    if places.len() > 1 {
        canvas.line(places.clone(), style.colour, 1.6, style.dash)?;
    }
    places.iter().try_for_each(|place| -> Drawn { canvas.marker(*place, style, radius) })?;
    Ok(places)
}

/// Pieces of a line for which labels are to leave room: short ones, for a rectangle around a long slope would take everything.
fn rooms(places: &[Place]) -> Vec<Room> {
    const PIECES: i32 = 24;
    let piece = |ends: &[Place], number: i32| {
        let at = |from: i32, to: i32, part: i32| from + (to - from) * part / PIECES;
        let place = |part: i32| (at(ends[0].0, ends[1].0, part), at(ends[0].1, ends[1].1, part));
        Room::between(place(number), place(number + 1))
    };
    places.windows(2).flat_map(|ends| (0..PIECES).map(|number| piece(ends, number)).collect::<Vec<_>>()).collect()
}

/// Writes the mixes beside their points, or the steps where the mixes find no room; returns whether it did the latter.
fn label(canvas: &Canvas, series: &[(&Point, f64, f64)], places: &[Place], lines: &[Room]) -> Outcome<bool> {
    let taken: Vec<Room> = places.iter().map(|place| Room::around(*place, 8 * UNIT, 8 * UNIT)).collect();
    let mut texts: Vec<String> = series.iter().map(|(point, ..)| format::shorten(&point.mix, NAME)).collect();
    let mut rooms = place_labels(places, &texts, &taken, lines, canvas.bounds);
    let numbered = rooms.iter().any(Option::is_none);
    if numbered {
        texts = series.iter().map(|(point, ..)| point.step.to_string()).collect();
        rooms = place_labels(places, &texts, &taken, lines, canvas.bounds);
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

    #[test]
    fn a_slope_leaves_room_on_both_of_its_sides() {
        let slope = rooms(&[(0, 0), (2400, 1200), (2400, 0)]);
        assert_eq!(slope.len(), 48);
        let beside = [(1200, 300), (600, 700)];
        let texts = ["a mix".to_owned(), "other".to_owned()];
        let found = place_labels(&beside, &texts, &[], &slope, (0, 0, 2400, 1200));
        let right = |place: Place| place_labels(&[place], &texts[..1], &[], &[], (0, 0, 2400, 1200))[0];
        // Both stand where they would without the line.
        assert_eq!(found, [right(beside[0]), place_labels(&beside[1..], &texts[1..], &[], &[], (0, 0, 2400, 1200))[0]]);
    }
}
