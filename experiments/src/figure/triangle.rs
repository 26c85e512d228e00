//! Three entries of two numbers, the outputs of three queries, and the path of the output as a query sweeps.

use super::FigureError;
use super::plane::{ENTRY, hull, named, path, plane, style};
use crate::geometry::{Entries, ReadOut};
use crate::report::drawing::{HPos, INK, MUTED, UNIT, VPos};

/// The entries of the worked example.
pub const ENTRIES: [[f64; 2]; 3] = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]];

/// Their read-out.
pub fn read_out() -> Result<ReadOut, FigureError> {
    Ok(ReadOut::attention(Entries::from_rows(&ENTRIES)?)?)
}

pub fn draw() -> Result<String, FigureError> {
    let read_out = read_out()?;
    let output = |q: [f64; 2]| -> Result<[f64; 2], FigureError> {
        let o = read_out.read(&q)?.o;
        Ok([o[0], o[1]])
    };
    let sweep = |angle: f64| -> Result<Vec<[f64; 2]>, FigureError> {
        (-240..=240).map(|step| f64::from(step) / 8.0).map(|s| output([s * angle.cos(), s * angle.sin()])).collect()
    };
    let right = sweep(0.0)?;
    let others = [30.0_f64, 60.0, 90.0, 135.0].map(|degrees| sweep(degrees.to_radians()));
    let root = 2.0_f64.sqrt();
    let shown = [
        ([root, 0.0], "q = (1.414, 0)", (0, -1)),
        ([-root, 0.0], "q = (-1.414, 0)", (0, 1)),
        ([0.0, 0.0], "q = 0", (-1, -1)),
    ];
    let outputs = shown.map(|(q, name, side)| output(q).map(|o| (o, name, side)));
    let svg = plane("Three entries and what queries read of them", (-0.15, 1.15), |canvas| {
        hull(canvas, &ENTRIES)?;
        for points in others.iter().flatten() {
            path(canvas, points, MUTED, 0.8, Some((2, 3)))?;
        }
        path(canvas, &right, style(0).colour, 2.2, None)?;
        for (entry, (name, side)) in ENTRIES.iter().zip([("c1", (0, -1)), ("c2", (0, 1)), ("c3", (0, 1))]) {
            named(canvas, *entry, &ENTRY, name, side)?;
        }
        for (o, name, side) in outputs.iter().flatten() {
            named(canvas, *o, &style(1), name, *side)?;
        }
        let legend = canvas.at(0.0, 0.0);
        for (row, (text, colour, dash)) in [
            ("o(q) as q runs along the first axis", style(0).colour, None),
            ("along other lines through 0", MUTED, Some((2, 3))),
        ]
        .into_iter()
        .enumerate()
        {
            let y = legend.1 - (20 - 20 * row as i32) * UNIT;
            canvas.line(vec![(legend.0 - 36 * UNIT, y), (legend.0 - 8 * UNIT, y)], colour, 2.0, dash)?;
            canvas.text((legend.0, y), text, HPos::Left, VPos::Center, INK)?;
        }
        Ok(())
    })?;
    // What could not be computed is no picture with a hole.
    for made in others {
        made?;
    }
    for made in outputs {
        made?;
    }
    Ok(svg)
}
