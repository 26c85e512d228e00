//! The drawing board of the charts: a framed plot with axes, and the few shapes that the charts are made of.

use std::collections::BTreeMap;

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, LabelAreaPosition};
use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, DashedPathElement, PathElement, Polygon, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBColor, ShapeStyle, TRANSPARENT, TextStyle, WHITE};

use super::axis::Axis;
use crate::report::{ReportError, format};

/// Drawing units to a CSS pixel: the drawing library rounds to whole units, which must be finer than a pixel.
pub const UNIT: i32 = 4;

/// Text size in pixels.
pub const TEXT: f64 = 13.0;

/// Colour of axes and plain text.
pub const INK: RGBColor = RGBColor(60, 64, 72);
/// Colour of what stands in the background.
pub const MUTED: RGBColor = RGBColor(120, 126, 136);

const GRID: RGBColor = RGBColor(228, 231, 236);

/// The colours of Okabe and Ito, told apart with every kind of colour blindness; their yellow is left out, which is
/// lost on white paper.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// How a variant looks in every chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Style {
    /// Its colour.
    pub colour: RGBColor,
    /// Lengths of dash and gap in pixels; `None` for a whole line.
    pub dash: Option<(i32, i32)>,
    /// Its marker.
    pub marker: Marker,
}

/// Shapes that stay apart in grey print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// A disc.
    Disc,
    /// A square.
    Square,
    /// A triangle that points up.
    Triangle,
    /// A square that stands on its corner.
    Diamond,
    /// None: an area of the colour, in legends a patch.
    Area,
}

impl Marker {
    /// Corners for radius 1 around the origin; none for the disc. The sizes differ so that the areas are alike.
    fn corners(self) -> &'static [(f64, f64)] {
        match self {
            Self::Disc => &[],
            Self::Square | Self::Area => &[(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
            Self::Triangle => &[(0.0, -1.25), (1.1, 0.75), (-1.1, 0.75)],
            Self::Diamond => &[(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)],
        }
    }

    /// The marker as an SVG element, for legends outside the drawings.
    pub fn element(self, x: f64, y: f64, radius: f64, fill: &str) -> String {
        let corners = self.corners();
        if corners.is_empty() {
            return format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"{fill}\"/>");
        }
        let points: Vec<String> = corners
            .iter()
            .map(|(across, along)| format!("{:.1},{:.1}", x + radius * across, y + radius * along))
            .collect();
        format!("<polygon points=\"{}\" fill=\"{fill}\"/>", points.join(" "))
    }
}

impl Style {
    /// The look of the `index`-th variant: colours repeat after seven, then with dashes.
    pub fn of(index: usize) -> Self {
        let dash = [None, Some((7, 4)), Some((2, 3))];
        let marker = [Marker::Disc, Marker::Square, Marker::Triangle, Marker::Diamond];
        Self {
            colour: PALETTE[index % PALETTE.len()],
            dash: dash[index / PALETTE.len() % dash.len()],
            marker: marker[index % marker.len()],
        }
    }

    /// The colour as CSS writes it.
    pub fn css(&self) -> String {
        css(self.colour)
    }
}

/// A colour as CSS writes it.
pub fn css(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// The looks of all variants of a report, by name.
pub type Styles = BTreeMap<String, Style>;

/// The frame of a plot.
pub struct Frame<'a> {
    /// What the plot shows, for readers that do not see it.
    pub title: &'a str,
    /// Width and height in pixels.
    pub size: (i32, i32),
    /// Room for labels to the left of the plot, and beyond its right end, in pixels.
    pub sides: (i32, i32),
    /// The axes.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Title of the horizontal axis, below it.
    pub x_title: &'a str,
    /// Title of the vertical axis, above it.
    pub y_title: &'a str,
}

/// A position in drawing units.
pub type Place = (i32, i32);

/// What a drawing function returns beside its drawing.
pub type Outcome<T> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// The outcome of drawing something.
pub type Drawn = Outcome<()>;

/// A plot that is being drawn.
pub struct Canvas<'a, 'b> {
    area: &'a DrawingArea<SVGBackend<'b>, Shift>,
    x: &'a Axis,
    y: &'a Axis,
    /// Left, top, right and bottom of the plot, in drawing units.
    pub bounds: (i32, i32, i32, i32),
}

/// Draws `frame`, and in it what `body` draws; the result is an `svg` element that takes the width of its place.
pub fn draw(frame: &Frame, body: impl FnOnce(&Canvas) -> Drawn) -> Result<String, ReportError> {
    let mut text = String::new();
    let size = ((frame.size.0 * UNIT) as u32, (frame.size.1 * UNIT) as u32);
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    draw_on(&area, frame, body)
        .map_err(|error| ReportError::Chart { title: frame.title.to_owned(), message: error.to_string() })?;
    drop(area);
    Ok(fluid(&text, frame))
}

fn draw_on(area: &DrawingArea<SVGBackend, Shift>, frame: &Frame, body: impl FnOnce(&Canvas) -> Drawn) -> Drawn {
    let (x, y) = (&frame.x, &frame.y);
    let mut chart = ChartBuilder::on(area)
        .margin_top(26 * UNIT)
        .margin_right(frame.sides.1 * UNIT)
        .set_label_area_size(LabelAreaPosition::Left, frame.sides.0 * UNIT)
        .set_label_area_size(LabelAreaPosition::Bottom, 44 * UNIT)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .axis_style(ShapeStyle::from(GRID).stroke_width(UNIT as u32))
        .bold_line_style(ShapeStyle::from(GRID).stroke_width(UNIT as u32))
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|position| x.label(*position))
        .y_label_formatter(&|position| y.label(*position))
        .label_style(letters(TEXT, INK))
        .set_all_tick_mark_size(0)
        .draw()?;
    let (left, top) = chart.backend_coord(&(x.low, y.high));
    let (right, bottom) = chart.backend_coord(&(x.high, y.low));
    let canvas = Canvas { area, x, y, bounds: (left, top, right, bottom) };
    canvas.text((8 * UNIT, 4 * UNIT), frame.y_title, HPos::Left, VPos::Top, INK)?;
    let below = (left.midpoint(right), (frame.size.1 - 5) * UNIT);
    canvas.text(below, frame.x_title, HPos::Center, VPos::Bottom, INK)?;
    body(&canvas)?;
    area.present()
}

/// Replaces the fixed size of the drawing by the width of its place, and names it for readers that do not see it.
fn fluid(text: &str, frame: &Frame) -> String {
    let (width, height) = (frame.size.0 * UNIT, frame.size.1 * UNIT);
    let inside = text.split_once('>').map_or(text, |(_, inside)| inside);
    let title = format::html(frame.title);
    format!(
        "<svg role=\"img\" aria-label=\"{title}\" viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\">{inside}"
    )
}

fn letters(pixels: f64, colour: RGBColor) -> TextStyle<'static> {
    // The library divides sizes by 1.24 when it writes them.
    let size = pixels * 1.24 * f64::from(UNIT);
    TextStyle { color: colour.to_backend_color(), ..TextStyle::from(("sans-serif", size).into_font()) }
}

/// Width of `text` in pixels, on the large side of what sans-serif fonts take.
pub fn text_width(text: &str) -> i32 {
    (text.chars().count() as f64 * TEXT * 0.6).ceil() as i32
}

impl Canvas<'_, '_> {
    /// Where the values `x` and `y` lie; values beyond the axes lie at their ends.
    pub fn at(&self, x: f64, y: f64) -> Place {
        self.at_position(self.x.at(x), self.y.at(y))
    }

    /// Where the axis positions `x` and `y` lie.
    pub fn at_position(&self, x: f64, y: f64) -> Place {
        let (left, top, right, bottom) = self.bounds;
        (self.x.map(&x, (left, right)), self.y.map(&y, (bottom, top)))
    }

    /// Whether the horizontal axis holds the value.
    pub fn holds_x(&self, value: f64) -> bool {
        self.x.holds(value)
    }

    /// Whether the vertical axis holds the value.
    pub fn holds_y(&self, value: f64) -> bool {
        self.y.holds(value)
    }

    /// Where the horizontal axis breaks between zero and its logarithmic part.
    pub fn break_x(&self) -> Option<i32> {
        let position = self.x.break_at()?;
        Some(self.at_position(position, self.y.low).0)
    }

    /// A line through `places`, `width` pixels wide.
    pub fn line(&self, places: Vec<Place>, colour: RGBColor, width: f64, dash: Option<(i32, i32)>) -> Drawn {
        let style = ShapeStyle::from(colour).stroke_width((width * f64::from(UNIT)).round() as u32);
        match dash {
            Some((on, off)) => self.area.draw(&DashedPathElement::new(places, on * UNIT, off * UNIT, style)),
            None => self.area.draw(&PathElement::new(places, style)),
        }
    }

    /// A filled polygon.
    pub fn fill(&self, places: Vec<Place>, colour: RGBColor, opacity: f64) -> Drawn {
        self.area.draw(&Polygon::new(places, colour.mix(opacity)))
    }

    /// A filled rectangle between two corners.
    pub fn rectangle(&self, from: Place, to: Place, colour: RGBColor, opacity: f64) -> Drawn {
        self.area.draw(&Rectangle::new([from, to], colour.mix(opacity).filled()))
    }

    /// A marker with a white rim; `radius` in pixels.
    pub fn marker(&self, at: Place, style: &Style, radius: f64) -> Drawn {
        self.shape(at, style.marker, radius + 1.2, WHITE)?;
        self.shape(at, style.marker, radius, style.colour)
    }

    fn shape(&self, (x, y): Place, marker: Marker, radius: f64, colour: RGBColor) -> Drawn {
        let size = |factor: f64| (factor * radius * f64::from(UNIT)).round() as i32;
        match marker.corners() {
            [] => self.area.draw(&Circle::new((x, y), size(1.0), colour.filled())),
            corners => {
                let outline: Vec<Place> =
                    corners.iter().map(|(across, along)| (x + size(*across), y + size(*along))).collect();
                self.area.draw(&Polygon::new(outline, colour))
            }
        }
    }

    /// A small circle, empty inside; `radius` in pixels.
    pub fn dot(&self, at: Place, colour: RGBColor, radius: f64) -> Drawn {
        let inside = (radius * f64::from(UNIT)).round() as i32;
        self.area.draw(&Circle::new(at, inside, WHITE.filled()))?;
        self.ring(at, colour, radius)
    }

    /// A ring; `radius` in pixels.
    pub fn ring(&self, at: Place, colour: RGBColor, radius: f64) -> Drawn {
        let style = ShapeStyle::from(colour).stroke_width((1.5 * f64::from(UNIT)) as u32);
        self.area.draw(&Circle::new(at, (radius * f64::from(UNIT)).round() as i32, style))
    }

    /// A line of text; control characters, which XML forbids, become spaces.
    pub fn text(&self, at: Place, text: &str, across: HPos, along: VPos, colour: RGBColor) -> Drawn {
        let style = letters(TEXT, colour).pos(Pos::new(across, along));
        self.area.draw(&Text::new(format::terminal(text), at, style))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_scales_and_escapes_what_it_is_given() {
        let frame = Frame {
            title: "a \"title\" <x>",
            size: (320, 200),
            sides: (40, 10),
            x: Axis::counting(0.0, &[100.0]),
            y: Axis::linear(&[0.0, 1.0], (0.0, 1.0)),
            x_title: "<script>",
            y_title: "a & b",
        };
        let svg = draw(&frame, |canvas| {
            assert_eq!(canvas.at(0.0, 5.0).0, canvas.bounds.0);
            assert_eq!(canvas.at(1e9, 5.0), (canvas.bounds.2, canvas.bounds.1));
            canvas.text(canvas.at(50.0, 0.5), "\u{1b}[0m</svg>", HPos::Left, VPos::Center, INK)
        })
        .unwrap();
        assert!(
            svg.starts_with("<svg role=\"img\" aria-label=\"a &quot;title&quot; &lt;x&gt;\" viewBox=\"0 0 1280 800\"")
        );
        assert!(!svg.contains("<script>") && svg.contains("&lt;script&gt;"), "{svg}");
        assert_eq!(svg.matches("</svg>").count(), 1);
        assert!(!svg.contains('\u{1b}') && svg.contains("a &amp; b"));
    }

    #[test]
    fn twenty_one_variants_look_different() {
        let looks: Vec<Style> = (0..21).map(Style::of).collect();
        for (index, look) in looks.iter().enumerate() {
            let same = |other: &Style| (other.colour, other.dash) == (look.colour, look.dash);
            assert!(!looks[..index].iter().any(same), "{index}");
        }
    }
}
