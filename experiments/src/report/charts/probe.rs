//! The figures of a probe: where attention goes, spectra, and how far twins are from the hull.

use plotters::style::text_anchor::{HPos, VPos};

use super::axis::Axis;
use super::plot::{Frame, INK, MUTED, Marker, Style, Styles, UNIT, draw, text_width};
use super::rows::bar;
use super::{Figure, Layout, SIZE};
use crate::probe::{LayerRecord, Mean, ProbeRecord};
use crate::report::ReportError;

/// Two layers whose outputs have a cosine below this, interval included, are called different: a convention.
pub const DIFFERENT: f64 = 0.9;

/// Height of a row in pixels.
const ROW: i32 = 40;

/// The parts of the attention over everything visible.
const PARTS: [(&str, &str); 4] = [
    ("window", "mass_window"),
    ("selected entries", "mass_selected"),
    ("sink", "mass_sink"),
    ("missed", "mass_missed"),
];

/// Distances of the twin's output.
const DISTANCES: [(&str, &str); 2] = [
    ("the twin's output for the query", "hull_distance"),
    ("the twin's output for another query", "hull_distance_elsewhere"),
];

/// The look of a distance.
fn mark(index: usize) -> Style {
    let colour = if index == 0 { Style::of(0).colour } else { MUTED };
    Style { colour, ..Style::of(index) }
}

/// The looks of parts, distances and layers.
pub fn probe_styles(record: &ProbeRecord) -> Styles {
    let area = |index| Style { marker: Marker::Area, ..Style::of(index) };
    let parts = PARTS.iter().enumerate().map(|(index, (name, _))| ((*name).to_owned(), area(index)));
    let marks = DISTANCES.iter().enumerate().map(|(index, (name, _))| ((*name).to_owned(), mark(index)));
    let layers = record.layers.iter().enumerate().map(|(index, layer)| (layer.name(), Style::of(index)));
    parts.chain(marks).chain(layers).collect()
}

/// All figures of a probe.
pub fn probe(record: &ProbeRecord) -> Result<Vec<Figure>, ReportError> {
    let alike = alike(record)?;
    Ok(alike.into_iter().chain([masses(record)?, distances(record)?, spectra(record)?]).collect())
}

fn frame<'a>(title: &'a str, rows: &[String], x: Axis, x_title: &'a str) -> Frame<'a> {
    let widest = rows.iter().map(|name| text_width(name)).max().unwrap_or(0);
    Frame {
        title,
        size: (SIZE.0, 26 + 44 + ROW * rows.len().max(2) as i32),
        sides: (widest + 14, 18),
        x,
        y: Axis::rows(rows.len()),
        x_title,
        y_title: "",
    }
}

fn masses(record: &ProbeRecord) -> Result<Figure, ReportError> {
    let title = "Where attention goes";
    let layers = &record.layers;
    let names: Vec<String> = layers.iter().map(LayerRecord::name).collect();
    let svg = draw(
        &frame(title, &names, Axis::linear(&[0.0, 1.0], (0.0, 1.0)), "share of the attention over everything visible"),
        |canvas| {
            for (row, layer) in layers.iter().enumerate() {
                let height = -(row as f64);
                let y = canvas.at(0.0, height).1;
                canvas.text((canvas.bounds.0 - 8 * UNIT, y), &layer.name(), HPos::Right, VPos::Center, INK)?;
                let mut left = 0.0;
                for (index, (_, name)) in PARTS.iter().enumerate() {
                    let Some(mean) = layer.mean(name) else { continue };
                    let right = left + mean.mean;
                    let (from, to) = (canvas.at(left, height).0, canvas.at(right, height).0);
                    canvas.rectangle((from, y - 10 * UNIT), (to, y + 10 * UNIT), Style::of(index).colour, 0.85)?;
                    let label = format!("{:.0}%", 100.0 * mean.mean);
                    if mean.mean >= 0.035 {
                        canvas.text((from.midpoint(to), y), &label, HPos::Center, VPos::Center, INK)?;
                    }
                    left = right;
                }
            }
            Ok(())
        },
    )?;
    Ok(Figure {
        title: title.to_owned(),
        panels: vec![(None, svg)],
        caption: format!(
            "Of the attention that the layer's own queries would spread over their window, every visible entry and the sink; mean over heads and \
             queries. What is missed lies on entries that the layer does not read. Without a number in the picture: {}.",
            unseen(record)
        ),
        legend: PARTS.iter().map(|(name, _)| (None, (*name).to_owned())).collect(),
        layout: Layout::Stacked,
    })
}

/// Parts that are too small for a number in their bar.
fn unseen(record: &ProbeRecord) -> String {
    let small = |layer: &LayerRecord| -> Vec<String> {
        let part = |(title, name): &(&str, &str)| {
            let mean = layer.mean(name).filter(|mean| mean.mean < 0.035)?;
            Some(format!("{title} {:.1}% in {}", 100.0 * mean.mean, layer.name()))
        };
        PARTS.iter().filter_map(part).collect()
    };
    let all: Vec<String> = record.layers.iter().flat_map(small).collect();
    if all.is_empty() { "nothing".into() } else { all.join(", ") }
}

fn spectra(record: &ProbeRecord) -> Result<Figure, ReportError> {
    let title = "Spectra of Sigma_p";
    let mean = |layer: &LayerRecord| -> Vec<f64> {
        let count = layer.heads.first().map_or(0, |head| head.spectrum.len());
        let at =
            |index: usize| layer.heads.iter().map(|head| head.spectrum[index]).sum::<f64>() / layer.heads.len() as f64;
        (0..count).map(at).collect()
    };
    // What is far below the largest is rounding.
    let spectra: Vec<Vec<f64>> = record
        .layers
        .iter()
        .map(mean)
        .map(|values| values.into_iter().take_while(|share| *share > 1e-7).collect())
        .collect();
    let values: Vec<f64> = spectra.iter().flatten().copied().collect();
    let longest = spectra.iter().map(Vec::len).max().unwrap_or(0);
    let frame = Frame {
        title,
        size: SIZE,
        sides: (58, 18),
        x: Axis::counting(1.0, &[longest.max(2) as f64]),
        y: Axis::positive(&[&values[..], &[1.0]].concat()),
        x_title: "direction, the strongest first",
        y_title: "share of the variance (logarithmic)",
    };
    let svg = draw(&frame, |canvas| {
        for (index, shares) in spectra.iter().enumerate().rev() {
            let style = Style::of(index);
            let places: Vec<_> =
                shares.iter().enumerate().map(|(at, share)| canvas.at(1.0 + at as f64, *share)).collect();
            if places.len() > 1 {
                canvas.line(places.clone(), style.colour, 1.8, style.dash)?;
            }
            for place in places {
                canvas.marker(place, &style, 3.0)?;
            }
        }
        Ok(())
    })?;
    Ok(Figure {
        title: title.to_owned(),
        panels: vec![(None, svg)],
        caption: format!(
            "Sigma_p is the covariance of the points under a query's weights. The derivative of the output by the query is Sigma_p over the square \
             root of d, the {} numbers of a head: a small change of the query moves the output in the strong directions, and next to nothing in the \
             weak ones. Mean over heads and queries.",
            record.head_dim
        ),
        legend: record.layers.iter().map(|layer| (None, layer.name())).collect(),
        layout: Layout::Stacked,
    })
}

/// A mean with its interval in a row.
struct Dot {
    row: f64,
    mean: Mean,
    style: Style,
}

/// Rows with means and intervals, and a dashed line at `marked`.
fn dots(
    title: &str,
    x_title: &str,
    rows: &[String],
    dots: &[Dot],
    shown: &[f64],
    marked: Option<f64>,
) -> Result<String, ReportError> {
    let half = |dot: &Dot| dot.mean.half_width.unwrap_or(0.0);
    let ends = dots.iter().flat_map(|dot| [dot.mean.mean - half(dot), dot.mean.mean + half(dot)]);
    let values: Vec<f64> = shown.iter().copied().chain(ends).collect();
    draw(&frame(title, rows, Axis::linear(&values, (f64::NEG_INFINITY, f64::INFINITY)), x_title), |canvas| {
        let (_, top, _, bottom) = canvas.bounds;
        if let Some(marked) = marked {
            let at = canvas.at(marked, 0.0).0;
            canvas.line(vec![(at, top), (at, bottom)], MUTED, 1.2, Some((4, 4)))?;
        }
        for (row, name) in rows.iter().enumerate() {
            let y = canvas.at(0.0, -(row as f64)).1;
            canvas.text((canvas.bounds.0 - 8 * UNIT, y), name, HPos::Right, VPos::Center, INK)?;
        }
        for dot in dots {
            let end = |value: f64| (canvas.at(value, -dot.row), !canvas.holds_x(value));
            if half(dot) > 0.0 {
                bar(canvas, end(dot.mean.mean - half(dot)), end(dot.mean.mean + half(dot)), dot.style.colour)?;
            }
            canvas.marker(canvas.at(dot.mean.mean, -dot.row), &dot.style, 4.5)?;
        }
        Ok(())
    })
}

/// How alike the outputs of layers with one address are; none without such layers.
fn alike(record: &ProbeRecord) -> Result<Option<Figure>, ReportError> {
    let title = "Outputs of layers with one address";
    let name = |number: usize| {
        record.layers.iter().find(|layer| layer.layer == number).map_or_else(|| number.to_string(), LayerRecord::name)
    };
    let pairs: Vec<(String, Mean)> = record
        .diversity
        .iter()
        .filter_map(|pair| {
            let cosine = pair.measures.get("output_cosine")?;
            Some((format!("{}, {}", name(pair.first), name(pair.second)), *cosine))
        })
        .collect();
    if pairs.is_empty() {
        return Ok(None);
    }
    let (rows, means): (Vec<String>, Vec<Mean>) = pairs.into_iter().unzip();
    let all: Vec<Dot> =
        means.into_iter().enumerate().map(|(row, mean)| Dot { row: row as f64, mean, style: Style::of(0) }).collect();
    let svg = dots(title, "cosine between the two outputs", &rows, &all, &[0.0, 1.0], Some(DIFFERENT))?;
    Ok(Some(Figure {
        title: title.to_owned(),
        panels: vec![(None, svg)],
        caption: format!(
            "0: unrelated, 1: the same. Dashed: {DIFFERENT}, below which they are called different. Bars: 95% interval over sequences, often narrower \
             than the mark."
        ),
        legend: Vec::new(),
        layout: Layout::Stacked,
    }))
}

fn distances(record: &ProbeRecord) -> Result<Figure, ReportError> {
    let title = "What the twin reads, beside the hull of the layer's points";
    let layers: Vec<&LayerRecord> =
        record.layers.iter().filter(|layer| record.twin.is_none() || layer.has_twin).collect();
    let rows: Vec<String> = layers.iter().map(|layer| layer.name()).collect();
    let of = |name: &str, lower: f64, style: Style| -> Vec<Dot> {
        let dot = |(row, layer): (usize, &&LayerRecord)| {
            Some(Dot { row: row as f64 + lower, mean: layer.mean(name)?, style })
        };
        layers.iter().enumerate().filter_map(dot).collect()
    };
    let both: Vec<Dot> = DISTANCES
        .iter()
        .zip([-0.15, 0.15])
        .enumerate()
        .flat_map(|(index, ((_, name), lower))| of(name, lower, mark(index)))
        .collect();
    let distance =
        dots(title, "distance from the hull, over the length of the output", &rows, &both, &[0.0, 1.0], Some(1.0))?;
    let gain = of("hull_distance_gain", 0.0, Style::of(0));
    let gain = dots("Nearer by", "how much nearer than for another query", &rows, &gain, &[0.0], Some(0.0))?;
    Ok(Figure {
        title: title.to_owned(),
        panels: vec![(None, distance), (None, gain)],
        caption: "Above, dashed: as far as the origin, which the sink always offers; nothing is farther from the hull. Below: the difference between the two marks, \
                  query by query; 0 (dashed) where the hull has nothing of what the query asks for. Bars: 95% interval over sequences."
            .to_owned(),
        legend: DISTANCES.iter().map(|(name, _)| (None, (*name).to_owned())).collect(),
        layout: Layout::Stacked,
    })
}
