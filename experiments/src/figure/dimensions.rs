//! How many dimensions of re-weighting there are, and how many a query reaches, as entries are added.

use super::FigureError;
use super::plane::style;
use crate::geometry::{Dimensions, Entries};
use crate::report::drawing::{Axis, Frame, HPos, INK, UNIT, VPos, draw as draw_frame};

/// Numbers in an entry.
const WIDTH: usize = 8;
/// Entries at most.
const MOST: usize = 24;

pub fn draw() -> Result<String, FigureError> {
    // Entries in general position; sines of evenly spaced numbers would lie in a plane.
    let value = |j: usize, i: usize| (((j * WIDTH + i) as f64).powi(2) * 0.7).sin();
    let mut counts = Vec::new();
    for n in 2..=MOST {
        let rows: Vec<Vec<f64>> = (0..n).map(|j| (0..WIDTH).map(|i| value(j, i)).collect()).collect();
        counts.push((n as f64, Dimensions::of(&Entries::from_rows(&rows)?, 1e-9)?));
    }
    let frame = Frame {
        title: "Dimensions of re-weighting, and those that queries reach",
        size: (620, 340),
        sides: (44, 18),
        x: Axis::counting(2.0, &[MOST as f64]),
        y: Axis::counting(0.0, &[MOST as f64]),
        x_title: "number of entries, each of 8 numbers",
        y_title: "dimensions",
    };
    Ok(draw_frame(&frame, |canvas| {
        let line = |of: &dyn Fn(&Dimensions) -> usize| -> Vec<_> {
            counts.iter().map(|(n, found)| canvas.at(*n, of(found) as f64)).collect()
        };
        let (all, reached) = (line(&|found| found.simplex), line(&|found| found.family));
        canvas.fill(all.iter().chain(reached.iter().rev()).copied().collect(), style(1).colour, 0.12)?;
        canvas.line(all, style(1).colour, 2.0, Some((5, 3)))?;
        canvas.line(reached, style(0).colour, 2.2, None)?;
        let words = [
            ("of all distributions: entries - 1", 14.6, 15.6),
            ("out of reach", 18.8, 12.5),
            ("of those that queries reach", 14.0, 6.2),
        ];
        for (text, x, y) in words {
            let across = if y > 15.0 { HPos::Right } else { HPos::Left };
            let place = canvas.at(x, y);
            canvas.text((place.0, place.1 - 2 * UNIT), text, across, VPos::Center, INK)?;
        }
        Ok(())
    })?)
}
