//! How far the derivative of the output for the query is from symmetric, with rotated values and with unrotated ones.

use super::FigureError;
use super::plane::style;
use crate::geometry::{Entries, ReadOut, Rope, Rotated, rotated_map};
use crate::report::drawing::{Axis, Frame, HPos, INK, VPos, draw as draw_frame};

/// Numbers in an entry, all of them rotated.
const WIDTH: usize = 4;
/// Entries, at the positions 0, 1, …
const ENTRIES: usize = 6;
/// The last position of the query.
const LAST: usize = 24;

pub fn draw() -> Result<String, FigureError> {
    let value = |j: usize, i: usize| ((j * WIDTH + i) as f64 * 1.3).sin();
    let rows: Vec<Vec<f64>> = (0..ENTRIES).map(|j| (0..WIDTH).map(|i| value(j, i)).collect()).collect();
    let read_out = ReadOut::attention(Entries::from_rows(&rows)?)?;
    let rope = Rope::standard(WIDTH, 100.0)?;
    let places: Vec<f64> = (0..ENTRIES).map(|j| j as f64).collect();
    let mut lines = Vec::new();
    for rotated in [Rotated::KeysAndValuesAndBack, Rotated::Keys] {
        let mut line = Vec::new();
        for at in ENTRIES - 1..=LAST {
            let map = rotated_map(&read_out, &rope, &places, &[0.8, -0.4, 1.1, 0.3], at as f64, rotated)?;
            line.push((at as f64, map.asymmetry));
        }
        lines.push(line);
    }
    let frame = Frame {
        title: "How far the derivative is from symmetric",
        size: (620, 340),
        sides: (52, 18),
        x: Axis::counting(0.0, &[LAST as f64]),
        y: Axis::linear(&[0.0, 2.0], (0.0, 2.0)),
        x_title: "position of the query; entries at 0 to 5",
        y_title: "asymmetry: |J - J^T| / |J|",
    };
    Ok(draw_frame(&frame, |canvas| {
        for (index, line) in lines.iter().enumerate() {
            let style = style(index);
            canvas.line(
                line.iter().map(|(at, value)| canvas.at(*at, *value)).collect(),
                style.colour,
                2.0,
                style.dash,
            )?;
            for (at, value) in line {
                canvas.marker(canvas.at(*at, *value), &style, 3.5)?;
            }
        }
        let words = [("keys and values rotated, output rotated back: 0", 0.12), ("keys alone rotated", 1.9)];
        for (text, y) in words {
            canvas.text(canvas.at(LAST as f64 - 0.5, y), text, HPos::Right, VPos::Center, INK)?;
        }
        Ok(())
    })?)
}
