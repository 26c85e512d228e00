//! The plane in which entries and outputs lie, with one scale in both directions.

use crate::report::ReportError;
use crate::report::drawing::{Axis, Canvas, Drawn, Frame, HPos, INK, MUTED, Marker, Style, UNIT, VPos, draw};
use plotters::style::RGBColor;

/// Pixels of the square that is drawn on.
const SIDE: i32 = 420;

/// What belongs to entries.
pub const ENTRY: Style = Style { colour: RGBColor(60, 64, 72), dash: None, marker: Marker::Square };

/// A look by number.
pub fn style(index: usize) -> Style {
    Style::of(index)
}

/// Draws on the square from `low` to `high` in both directions.
pub fn plane(title: &str, (low, high): (f64, f64), body: impl FnOnce(&Canvas) -> Drawn) -> Result<String, ReportError> {
    let axis = || Axis::linear(&[low, high], (low, high));
    let frame = Frame {
        title,
        size: (SIDE + 44 + 18, SIDE + 26 + 44),
        sides: (44, 18),
        x: axis(),
        y: axis(),
        x_title: "first coordinate",
        y_title: "second coordinate",
    };
    draw(&frame, body)
}

/// The hull of `corners`, which are in order around it.
pub fn hull(canvas: &Canvas, corners: &[[f64; 2]]) -> Drawn {
    let places: Vec<_> = corners.iter().map(|[x, y]| canvas.at(*x, *y)).collect();
    canvas.fill(places.clone(), RGBColor(0, 114, 178), 0.08)?;
    canvas.line(places.iter().copied().chain(places.first().copied()).collect(), MUTED, 1.2, None)
}

/// A point with its name to the right (or to the left, or above or below, by the signs of `side`).
pub fn named(canvas: &Canvas, [x, y]: [f64; 2], style: &Style, name: &str, side: (i32, i32)) -> Drawn {
    let at = canvas.at(x, y);
    canvas.marker(at, style, 4.5)?;
    let across = match side.0 {
        0 => HPos::Center,
        1 => HPos::Left,
        _ => HPos::Right,
    };
    let along = match side.1 {
        0 => VPos::Center,
        1 => VPos::Bottom,
        _ => VPos::Top,
    };
    let place = (at.0 + 10 * UNIT * side.0, at.1 - 9 * UNIT * side.1);
    canvas.text(place, name, across, along, INK)
}

/// A line through points.
pub fn path(canvas: &Canvas, points: &[[f64; 2]], colour: RGBColor, width: f64, dash: Option<(i32, i32)>) -> Drawn {
    canvas.line(points.iter().map(|[x, y]| canvas.at(*x, *y)).collect(), colour, width, dash)
}
