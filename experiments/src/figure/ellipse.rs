//! The derivative of the output for the query as an ellipse.

use super::FigureError;
use super::plane::{ENTRY, hull, named, path, plane, style};
use super::triangle::{ENTRIES, read_out};
use crate::report::drawing::{HPos, INK, UNIT, VPos};

/// Length of the changes of the query.
const CHANGE: f64 = 1.0;

pub fn draw() -> Result<String, FigureError> {
    let read_out = read_out()?;
    let q = [2.0_f64.sqrt(), 0.0];
    let o = read_out.read(&q)?.o;
    let jacobian = read_out.jacobian(&q)?;
    let (mut linear, mut exact) = (Vec::new(), Vec::new());
    for step in 0..=72 {
        let angle = f64::from(step) * std::f64::consts::TAU / 72.0;
        let u = [CHANGE * angle.cos(), CHANGE * angle.sin()];
        linear.push([0, 1].map(|i| o[i] + jacobian[(i, 0)] * u[0] + jacobian[(i, 1)] * u[1]));
        let moved = read_out.read(&[q[0] + u[0], q[1] + u[1]])?.o;
        exact.push([moved[0], moved[1]]);
    }
    Ok(plane("Where a circle of changes of the query takes the output", (-0.15, 1.15), |canvas| {
        hull(canvas, &ENTRIES)?;
        for (entry, (name, side)) in ENTRIES.iter().zip([("c1", (0, -1)), ("c2", (0, 1)), ("c3", (0, 1))]) {
            named(canvas, *entry, &ENTRY, name, side)?;
        }
        path(canvas, &linear, style(0).colour, 2.0, None)?;
        path(canvas, &exact, style(1).colour, 1.4, Some((4, 3)))?;
        named(canvas, [o[0], o[1]], &style(0), "o(q)", (0, 1))?;
        let legend = canvas.at(0.0, 0.0);
        for (row, (text, colour, dash)) in [
            ("the Jacobian's ellipse for |dq| = 1", style(0).colour, None),
            ("the outputs o(q + dq) themselves", style(1).colour, Some((4, 3))),
        ]
        .into_iter()
        .enumerate()
        {
            let y = legend.1 - (20 - 20 * row as i32) * UNIT;
            canvas.line(vec![(legend.0 - 36 * UNIT, y), (legend.0 - 8 * UNIT, y)], colour, 2.0, dash)?;
            canvas.text((legend.0, y), text, HPos::Left, VPos::Center, INK)?;
        }
        Ok(())
    })?)
}
