//! A matrix as a picture: the value in every cell, and its colour.

use super::plot::{INK, MUTED, TEXT, css, text_width};
use crate::report::format;

/// Size of a cell in pixels.
const CELL: (i32, i32) = (86, 48);

/// The colour of 1; 0 is white.
const DARK: (f64, f64, f64) = (0.0, 92.0, 150.0);

/// A matrix.
pub struct HeatMap {
    /// What it shows, for readers that do not see it.
    pub title: String,
    /// Names of rows.
    pub rows: Vec<String>,
    /// Names of columns.
    pub columns: Vec<String>,
    /// What rows and columns are, above and to the left of their names.
    pub axes: [String; 2],
    /// Row by row; none is an empty cell.
    pub cells: Vec<Vec<Option<HeatCell>>>,
}

/// A cell of a matrix.
pub struct HeatCell {
    /// How dark it is, from 0 to 1.
    pub shade: f64,
    /// Its value.
    pub text: String,
    /// A second, smaller line.
    pub note: String,
}

/// The matrix as an `svg` element that takes the width of its place.
pub fn heat_map(map: &HeatMap) -> String {
    let widest = map.rows.iter().chain(&map.axes[..1]).map(|name| text_width(name)).max().unwrap_or(0);
    let (left, top) = (widest + 14, 46);
    let (rows, columns) = (map.rows.len() as i32, map.columns.len() as i32);
    // Names of columns stand beside each other.
    let across = map.columns.iter().map(|name| text_width(name) + 8).fold(CELL.0, i32::max);
    let (width, height) = (left + columns * across + 8, top + rows * CELL.1 + 8);
    let mut out = format!(
        "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
         style=\"max-width:{width}px;min-width:{}px\">",
        format::html(&map.title),
        width.min(430)
    );
    out += &text(left + columns * across / 2, 12, "middle", TEXT, &css(MUTED), &map.axes[1]);
    out += &text(left - 8, top - 12, "end", TEXT, &css(MUTED), &map.axes[0]);
    for (number, name) in map.columns.iter().enumerate() {
        out += &text(left + number as i32 * across + across / 2, top - 12, "middle", TEXT, &css(INK), name);
    }
    for (number, name) in map.rows.iter().enumerate() {
        out += &text(left - 8, top + number as i32 * CELL.1 + CELL.1 / 2, "end", TEXT, &css(INK), name);
    }
    for (row, line) in map.cells.iter().enumerate() {
        for (column, cell) in line.iter().enumerate() {
            let (x, y) = (left + column as i32 * across, top + row as i32 * CELL.1);
            out += &self::cell((x, y), (across - 2, CELL.1 - 2), cell.as_ref());
        }
    }
    out + "</svg>"
}

/// White or near black, whichever stands out more from this colour (contrast as in WCAG 2).
fn ink(behind: [u8; 3]) -> &'static str {
    let linear = |part: u8| {
        let part = f64::from(part) / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    };
    let luminance = |[red, green, blue]: [u8; 3]| 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
    let contrast = |ink: [u8; 3]| {
        let (one, other) = (luminance(ink) + 0.05, luminance(behind) + 0.05);
        (one / other).max(other / one)
    };
    if contrast([255; 3]) > contrast([0x1c, 0x21, 0x28]) { "#ffffff" } else { "#1c2128" }
}

fn cell((x, y): (i32, i32), (width, height): (i32, i32), cell: Option<&HeatCell>) -> String {
    let Some(HeatCell { shade, text: value, note }) = cell else {
        return format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#f5f7f9\"/>")
            + &text(x + width / 2, y + height / 2, "middle", TEXT, &css(MUTED), "–");
    };
    let share = shade.clamp(0.0, 1.0);
    let mixed = |dark: f64| (255.0 + share * (dark - 255.0)).round() as u8;
    let (red, green, blue) = (mixed(DARK.0), mixed(DARK.1), mixed(DARK.2));
    let ink = ink([red, green, blue]);
    let middle = x + width / 2;
    format!(
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#{red:02x}{green:02x}{blue:02x}\" \
         stroke=\"#e1e5ea\"/>"
    ) + &text(middle, y + height / 2 - 7, "middle", TEXT + 1.0, ink, value)
        + &text(middle, y + height / 2 + 11, "middle", TEXT - 2.0, ink, note)
}

/// A line of text around (`x`, `y`); control characters, which XML forbids, become spaces.
fn text(x: i32, y: i32, anchor: &str, size: f64, colour: &str, content: &str) -> String {
    format!(
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" dominant-baseline=\"central\" font-size=\"{size}\" \
         fill=\"{colour}\" style=\"stroke:none\">{}</text>",
        format::html(&format::terminal(content))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_out_from_every_shade() {
        assert_eq!([ink([255; 3]), ink([0; 3]), ink([128, 174, 203])], ["#1c2128", "#ffffff", "#1c2128"]);
    }

    #[test]
    fn every_cell_has_its_value_and_names_are_escaped() {
        let cell = |shade: f64, note: &str| Some(HeatCell { shade, text: format!("{shade:.3}"), note: note.into() });
        let cells = vec![vec![cell(1.0, "± 0"), None], vec![cell(0.25, "<i>"), cell(0.0, "")]];
        let map = HeatMap {
            title: "a \"b\"".into(),
            rows: vec!["1 full".into(), "<script>".into()],
            columns: vec!["1 full".into(), "a column with a long name".into()],
            axes: ["of".into(), "on".into()],
            cells,
        };
        let svg = heat_map(&map);
        for part in
            ["1.000", "0.250", "0.000", "–", "&lt;script&gt;", "&lt;i&gt;", "a &quot;b&quot;", "#005c96", "#ffffff"]
        {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(!svg.contains("<script") && svg.matches("<rect").count() == 4);
    }
}
