//! The figures of decoding: time against context.

use super::axis::Axis;
use super::plot::{Frame, Style, Styles, draw};
use super::{Figure, Layout, SIZE};
use crate::bench::decode::{Found, Measured};
use crate::report::ReportError;

/// Modes, in the order in which they are drawn.
const MODES: [&str; 6] = ["full", "reuse", "reindex", "swa", "stale", "dense"];

/// A name, and a value at each context.
type Curve = (String, Vec<(f64, f64)>);

/// The looks of mixes and modes.
pub fn decode_styles(found: &Found) -> Styles {
    let mixes = found.mixes.iter().map(|mix| mix.name.clone()).enumerate();
    let modes = MODES.iter().map(|mode| mode_name(mode)).enumerate();
    mixes.chain(modes).map(|(index, name)| (name, Style::of(index))).collect()
}

fn mode_name(mode: &str) -> String {
    format!("{mode} layers")
}

/// All figures of decoding; none where only one context was measured.
pub fn decode(found: &Found, styles: &Styles) -> Result<Vec<Figure>, ReportError> {
    if found.contexts.len() < 2 {
        return Ok(Vec::new());
    }
    let mut figures = vec![tokens(found, styles)?];
    if let Some(mix) = found.mixes.first() {
        figures.push(modes(mix, &found.contexts, styles)?);
    }
    Ok(figures)
}

fn tokens(found: &Found, styles: &Styles) -> Result<Figure, ReportError> {
    let curve = |mix: &Measured| {
        let points = mix.rows.iter().map(|row| (row.context as f64, 1e3 * row.token.quartile));
        (mix.name.clone(), points.collect())
    };
    let curves: Vec<Curve> = found.mixes.iter().map(curve).collect();
    figure(
        "Time of a token",
        "milliseconds, lower quartile",
        "All layers and the head. Both axes are logarithmic: a time in proportion to the context rises along a straight line, tenfold with tenfold context.",
        &curves,
        &found.contexts,
        styles,
    )
}

fn modes(mix: &Measured, contexts: &[u64], styles: &Styles) -> Result<Figure, ReportError> {
    let curve = |mode: &&str| {
        let points = mix.rows.iter().filter_map(|row| Some((row.context as f64, 1e6 * row.modes.get(*mode)?.quartile)));
        (mode_name(mode), points.collect())
    };
    let counts = |mode: &str| mix.rows.first().is_some_and(|row| row.modes.contains_key(mode));
    let curves: Vec<Curve> = MODES.iter().filter(|mode| counts(mode)).map(curve).collect();
    let layers = format!("{}: {}", mix.name, mix.layers);
    figure(
        &format!("Time of a token of {}, by mode", mix.name),
        "microseconds, lower quartile",
        &format!("All layers of a mode together. {layers}. Only full layers search all entries."),
        &curves,
        contexts,
        styles,
    )
}

fn figure(
    title: &str,
    y_title: &str,
    caption: &str,
    curves: &[Curve],
    contexts: &[u64],
    styles: &Styles,
) -> Result<Figure, ReportError> {
    let values: Vec<f64> = curves.iter().flat_map(|(_, points)| points.iter().map(|point| point.1)).collect();
    let frame = Frame {
        title,
        size: SIZE,
        sides: (58, 18),
        x: Axis::contexts(contexts),
        y: Axis::powers(&values),
        x_title: "tokens of context",
        y_title,
    };
    let svg = draw(&frame, |canvas| {
        for (name, points) in curves.iter().rev() {
            let style = styles.get(name).copied().unwrap_or(Style::of(0));
            let places: Vec<_> = points.iter().map(|&(x, y)| canvas.at(x, y)).collect();
            canvas.line(places.clone(), style.colour, 2.0, style.dash)?;
            for place in places {
                canvas.marker(place, &style, 4.5)?;
            }
        }
        Ok(())
    })?;
    Ok(Figure {
        title: title.to_owned(),
        panels: vec![(None, svg)],
        caption: caption.to_owned(),
        legend: curves.iter().map(|(name, _)| (None, name.clone())).collect(),
        layout: Layout::Stacked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::decode::testing::found;

    #[test]
    fn every_mix_and_every_mode_has_a_curve() {
        let mut found = found();
        let figures = decode(&found, &decode_styles(&found)).unwrap();
        let names = |figure: &Figure| figure.legend.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&figures[0]), ["released layout", "full everywhere", "dense everywhere"]);
        assert_eq!(names(&figures[1]), ["full layers", "reuse layers", "reindex layers", "swa layers"]);
        for figure in &figures {
            let svg = &figure.panels[0].1;
            assert!(svg.contains("16K") && svg.contains("512K"), "{svg}");
            for (_, name) in &figure.legend {
                let colour = decode_styles(&found)[name].css();
                assert!(svg.to_lowercase().contains(&format!("stroke=\"{colour}\"")), "{name}: {svg}");
            }
        }
        found.contexts.truncate(1);
        assert!(decode(&found, &Styles::new()).unwrap().is_empty());
    }
}
