//! The worked examples of the mathematics as pictures: what a query can do with fixed entries, and what not.
//!
//! Each drawing is made of the functions of [`geometry`](crate::geometry), so that what it shows is what they compute.

mod collinear;
mod dimensions;
mod ellipse;
mod gaps;
mod interior;
mod plane;
mod rotation;
mod tilt;
mod triangle;

use thiserror::Error;

use crate::geometry::GeometryError;
use crate::report::ReportError;

/// Why a picture cannot be drawn.
#[derive(Debug, Error)]
pub enum FigureError {
    /// The mathematics refuses.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The drawing library fails.
    #[error(transparent)]
    Drawing(#[from] ReportError),
}

/// One picture.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name, and that of its file.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    draw: fn() -> Result<String, FigureError>,
}

/// Lines end around letters. Reports have this in their style sheet.
const LETTERS: &str = "<style>text{paint-order:stroke;stroke:#fff;stroke-width:16px;stroke-linejoin:round}</style>";

impl Figure {
    /// Draws it as SVG.
    ///
    /// # Errors
    /// When the mathematics or the drawing library refuses.
    pub fn svg(&self) -> Result<String, FigureError> {
        let drawn = (self.draw)()?;
        Ok(drawn.split_once('>').map_or_else(|| drawn.clone(), |(head, body)| format!("{head}>{LETTERS}{body}")))
    }
}

/// All pictures, in the order of the chapters that they belong to.
pub const FIGURES: [Figure; 8] = [
    Figure {
        name: "triangle",
        about: "three entries, and the path of the output as the query sweeps",
        draw: triangle::draw,
    },
    Figure {
        name: "ellipse",
        about: "the Jacobian: where a circle of small changes of the query takes the output",
        draw: ellipse::draw,
    },
    Figure {
        name: "tilt",
        about: "tilting from a baseline: mass moves between entries, none is added",
        draw: tilt::draw,
    },
    Figure {
        name: "collinear",
        about: "three entries on a line: the middle one never gets more than a third",
        draw: collinear::draw,
    },
    Figure {
        name: "interior",
        about: "what is reached is the relative interior of the hull: targets inside and outside",
        draw: interior::draw,
    },
    Figure {
        name: "dimensions",
        about: "how many dimensions of re-weighting there are, and how many queries reach",
        draw: dimensions::draw,
    },
    Figure {
        name: "gaps",
        about: "the output of a layer with content of its own, and the hull of what is reused",
        draw: gaps::draw,
    },
    Figure {
        name: "rotation",
        about: "how far the derivative is from symmetric, with rotated values and with unrotated ones",
        draw: rotation::draw,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_picture_is_one_svg_and_the_same_every_time() {
        for figure in FIGURES {
            let svg = figure.svg().unwrap();
            assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{}", figure.name);
            assert_eq!(svg.matches("<svg").count(), 1, "{}", figure.name);
            assert_eq!(figure.svg().unwrap(), svg, "{}", figure.name);
        }
    }

    /// The pictures in `docs/` are these; `csa2 figure --out docs/figures` makes them again.
    #[test]
    fn the_documentation_has_the_pictures_as_they_are_drawn() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/figures");
        for figure in FIGURES {
            let path = folder.join(format!("{}.svg", figure.name));
            let there = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(there == figure.svg().unwrap(), "{}: draw it again", path.display());
        }
    }
}
