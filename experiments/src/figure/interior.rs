//! What queries reach is the relative interior of the hull: targets inside with the query that reaches them, targets outside with the line
//! that separates them.

use super::FigureError;
use super::plane::{ENTRY, hull, named, path, plane, style};
use crate::geometry::{Entries, Family, Precision, Reach, ReadOut};
use crate::report::drawing::{HPos, INK, UNIT, VPos};

/// Corners of the hull in order around it, then an entry inside.
const ENTRIES: [[f64; 2]; 6] = [[-1.0, -0.8], [0.6, -1.1], [1.3, 0.1], [0.5, 1.1], [-0.9, 0.7], [0.2, -0.1]];
const TARGETS: [[f64; 2]; 7] =
    [[0.0, 0.3], [-0.6, -0.3], [0.9, 0.2], [0.55, -0.8], [1.3, 1.0], [-1.5, 0.2], [-0.4, -1.45]];

pub fn draw() -> Result<String, FigureError> {
    let read_out = ReadOut::attention(Entries::from_rows(&ENTRIES)?)?;
    let family = Family::new(read_out, Precision::DEFAULT)?;
    let mut reached = Vec::new();
    for target in TARGETS {
        reached.push((target, family.reach(&target)?));
    }
    Ok(plane("Targets that queries reach, and targets that none does", (-1.8, 1.8), |canvas| {
        hull(canvas, &ENTRIES[..5])?;
        for entry in &ENTRIES {
            named(canvas, *entry, &ENTRY, "", (0, 1))?;
        }
        for (target, reach) in &reached {
            match reach {
                Reach::Reached { query, .. } => {
                    let length = query.iter().map(|value| value * value).sum::<f64>().sqrt();
                    named(canvas, *target, &style(2), &format!("|q| = {length:.1}"), (0, 1))?;
                }
                Reach::OutsideOrBoundary { direction, margin, distance } => {
                    // The line in the middle between the target and the hull, across the direction.
                    let normal = [direction[0], direction[1]];
                    let middle = [0, 1].map(|i| target[i] + 0.5 * margin * normal[i]);
                    let end = |s: f64| [middle[0] - s * normal[1], middle[1] + s * normal[0]];
                    path(canvas, &[end(-0.7), end(0.7)], style(1).colour, 1.4, Some((5, 3)))?;
                    let nearest = [0, 1].map(|i| target[i] + margin * normal[i]);
                    path(canvas, &[*target, nearest], style(1).colour, 1.0, None)?;
                    // On the far side of the line.
                    let side = [0, 1].map(|i| if direction[i].abs() < 0.4 { 0 } else { direction[i].signum() as i32 });
                    named(
                        canvas,
                        *target,
                        &style(1),
                        &format!("{distance:.2} away"),
                        (0, if side[1] == 0 { 1 } else { side[1] }),
                    )?;
                }
                Reach::Undecided { .. } => named(canvas, *target, &style(3), "undecided", (0, 1))?,
            }
        }
        let corner = canvas.at(-1.75, 1.7);
        for (row, text) in
            ["entries, and their hull", "reached: length of the query", "outside: a separating line, the distance"]
                .into_iter()
                .enumerate()
        {
            let y = corner.1 + 18 * row as i32 * UNIT;
            canvas.marker((corner.0 + 6 * UNIT, y), &[ENTRY, style(2), style(1)][row], 4.5)?;
            canvas.text((corner.0 + 16 * UNIT, y), text, HPos::Left, VPos::Center, INK)?;
        }
        Ok(())
    })?)
}
