//! Tilting from a baseline: the weights of five entries before and after a change of the query.

use super::FigureError;
use super::plane::style;
use crate::geometry::{Entries, ReadOut, tilted};
use crate::report::drawing::{Axis, Frame, HPos, INK, UNIT, VPos, draw as draw_frame};

/// Five entries of two numbers.
const ENTRIES: [[f64; 2]; 5] = [[1.6, 0.2], [0.9, 1.3], [-0.4, 1.5], [-1.4, -0.2], [0.3, -1.4]];
/// The query that reads first, and its change.
const QUERY: [f64; 2] = [0.9, 0.3];
const CHANGE: [f64; 2] = [-1.6, 1.4];

pub fn draw() -> Result<String, FigureError> {
    let read_out = ReadOut::attention(Entries::from_rows(&ENTRIES)?)?;
    let before = read_out.read(&QUERY)?.p;
    let t = read_out.tilt(&CHANGE)?;
    let after = tilted(&before, &t)?;
    let labels: Vec<String> = t.iter().enumerate().map(|(at, t)| format!("c{}, t = {t:+.2}", at + 1)).collect();
    let most = before.iter().chain(&after).copied().fold(0.0, f64::max);
    let frame = Frame {
        title: "Weights before and after a tilt",
        size: (620, 340),
        sides: (44, 18),
        x: Axis::categories(&labels),
        y: Axis::linear(&[0.0, most], (0.0, 1.0)),
        x_title: "entry, and its tilt t = <dq, c> / sqrt(d)",
        y_title: "probability",
    };
    Ok(draw_frame(&frame, |canvas| {
        for entry in 0..before.len() {
            for (side, p) in [(-1.0, before[entry]), (1.0, after[entry])] {
                let style = style(usize::from(side > 0.0));
                let place = |x: f64, y: f64| canvas.at(entry as f64 + side * x, y);
                let (from, to) = (place(0.02, 0.0), place(0.3, p));
                canvas.rectangle((from.0.min(to.0), to.1), (from.0.max(to.0), from.1), style.colour, 0.85)?;
                let middle = place(0.16, p);
                canvas.text((middle.0, middle.1 - 3 * UNIT), &format!("{p:.2}"), HPos::Center, VPos::Bottom, INK)?;
            }
        }
        let (_, top, right, _) = canvas.bounds;
        for (row, text) in ["before: p* of the query q*", "after: p of q* + dq"].into_iter().enumerate() {
            let y = top + (10 + 20 * row as i32) * UNIT;
            canvas.rectangle(
                (right - 200 * UNIT, y - 5 * UNIT),
                (right - 188 * UNIT, y + 5 * UNIT),
                style(row).colour,
                0.85,
            )?;
            canvas.text((right - 182 * UNIT, y), text, HPos::Left, VPos::Center, INK)?;
        }
        Ok(())
    })?)
}
