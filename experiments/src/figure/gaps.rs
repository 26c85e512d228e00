//! Old content and new content: the output of a layer that makes its own, and the hull of the points of one that reuses.

use super::FigureError;
use super::plane::{ENTRY, hull, named, path, plane, style};
use crate::geometry::{Entries, Hull, Membership, Precision, ReadOut};
use crate::report::drawing::{HPos, INK, MUTED, Style, UNIT, VPos};

/// What a reusing layer reads, around its hull, and what a layer with content of its own reads.
const OLD: [[f64; 2]; 4] = [[-1.2, -0.7], [0.3, -0.9], [0.5, 0.4], [-0.8, 0.6]];
const NEW: [[f64; 2]; 4] = [[-0.2, -0.4], [1.4, -0.3], [1.2, 1.2], [0.1, 0.9]];
/// The queries of both.
const QUERY: [f64; 2] = [1.5, 1.0];

pub fn draw() -> Result<String, FigureError> {
    let read = |rows: &[[f64; 2]]| -> Result<[f64; 2], FigureError> {
        let o = ReadOut::attention(Entries::from_rows(rows)?)?.read(&QUERY)?.o;
        Ok([o[0], o[1]])
    };
    let (own, twin) = (read(&OLD)?, read(&NEW)?);
    let located = Hull::new(&Entries::from_rows(&OLD)?, Precision::DEFAULT)?.locate(&twin)?;
    let nearest = match &located {
        Membership::Outside { weights, distance, .. } => {
            let mix = |i: usize| weights.iter().zip(&OLD).map(|(weight, row)| weight * row[i]).sum::<f64>();
            Some(([mix(0), mix(1)], *distance))
        }
        _ => None,
    };
    Ok(plane("The output of a twin, and the hull of what is reused", (-1.8, 1.8), |canvas| {
        hull(canvas, &OLD)?;
        let around: Vec<[f64; 2]> = NEW.iter().chain(&NEW[..1]).copied().collect();
        path(canvas, &around, MUTED, 1.2, Some((4, 4)))?;
        for (old, new) in OLD.iter().zip(&NEW) {
            named(canvas, *old, &ENTRY, "", (0, 1))?;
            named(canvas, *new, &Style { colour: MUTED, ..ENTRY }, "", (0, 1))?;
        }
        if let Some((nearest, distance)) = nearest {
            path(canvas, &[twin, nearest], style(1).colour, 1.2, None)?;
            let middle = [0, 1].map(|i| f64::midpoint(twin[i], nearest[i]));
            let place = canvas.at(middle[0], middle[1]);
            let text = format!("{distance:.2} outside");
            canvas.text((place.0 + 6 * UNIT, place.1 + 8 * UNIT), &text, HPos::Left, VPos::Top, INK)?;
        }
        named(canvas, own, &style(0), "own output", (-1, -1))?;
        named(canvas, twin, &style(1), "twin", (1, 0))?;
        let corner = canvas.at(-1.75, 1.7);
        for (row, text) in ["solid: entries that the reusing layer reads", "dashed: entries that the twin makes anew"]
            .into_iter()
            .enumerate()
        {
            canvas.text((corner.0, corner.1 + 18 * row as i32 * UNIT), text, HPos::Left, VPos::Center, INK)?;
        }
        Ok(())
    })?)
}
