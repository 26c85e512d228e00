//! A matrix as a picture: the value in every cell, and its colour.

use super::plot::{INK, MUTED, TEXT, css, text_width};
use crate::report::format;

/// Size of a cell in pixels.
const CELL: (i32, i32) = (86, 48);

/// The colour of 1; 0 is white.
const DARK: (f64, f64, f64) = (0.0, 92.0, 150.0);

/// A matrix of shares.
pub struct HeatMap {
    /// What it shows, for readers that do not see it.
    pub title: String,
    /// Names of rows and columns.
    pub names: Vec<String>,
    /// What rows and columns are, above and to the left of their names.
    pub axes: [String; 2],
    /// From 0 to 1, with a second, smaller line of text; none is an empty cell.
    pub cells: Vec<Vec<Option<(f64, String)>>>,
}

/// The matrix as an `svg` element that takes the width of its place.
pub fn heat_map(map: &HeatMap) -> String {
    let widest = map.names.iter().chain(&map.axes[..1]).map(|name| text_width(name)).max().unwrap_or(0);
    let (left, top) = (widest + 14, 46);
    let count = map.names.len() as i32;
    let (width, height) = (left + count * CELL.0 + 8, top + count * CELL.1 + 8);
    let mut out = format!(
        "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
         style=\"max-width:{width}px\">",
        format::html(&map.title)
    );
    out += &text(left + count * CELL.0 / 2, 12, "middle", TEXT, &css(MUTED), &map.axes[1]);
    out += &text(left - 8, top - 12, "end", TEXT, &css(MUTED), &map.axes[0]);
    for (number, name) in map.names.iter().enumerate() {
        let at = number as i32;
        out += &text(left + at * CELL.0 + CELL.0 / 2, top - 12, "middle", TEXT, &css(INK), name);
        out += &text(left - 8, top + at * CELL.1 + CELL.1 / 2, "end", TEXT, &css(INK), name);
    }
    for (row, line) in map.cells.iter().enumerate() {
        for (column, cell) in line.iter().enumerate() {
            let (x, y) = (left + column as i32 * CELL.0, top + row as i32 * CELL.1);
            out += &self::cell(x, y, cell.as_ref());
        }
    }
    out + "</svg>"
}

fn cell(x: i32, y: i32, cell: Option<&(f64, String)>) -> String {
    let (width, height) = (CELL.0 - 2, CELL.1 - 2);
    let Some((value, note)) = cell else {
        return format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#f5f7f9\"/>")
            + &text(x + width / 2, y + height / 2, "middle", TEXT, &css(MUTED), "–");
    };
    let share = value.clamp(0.0, 1.0);
    let mixed = |dark: f64| (255.0 + share * (dark - 255.0)).round() as u8;
    let (red, green, blue) = (mixed(DARK.0), mixed(DARK.1), mixed(DARK.2));
    let ink = if share > 0.5 { "#ffffff" } else { "#1c2128" };
    let middle = x + width / 2;
    format!(
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#{red:02x}{green:02x}{blue:02x}\" \
         stroke=\"#e1e5ea\"/>"
    ) + &text(middle, y + height / 2 - 7, "middle", TEXT + 1.0, ink, &format!("{value:.3}"))
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
    fn every_cell_has_its_value_and_names_are_escaped() {
        let cells =
            vec![vec![Some((1.0, "± 0".into())), None], vec![Some((0.25, "<i>".into())), Some((0.0, String::new()))]];
        let map = HeatMap {
            title: "a \"b\"".into(),
            names: vec!["1 full".into(), "<script>".into()],
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
