//! The figures of an evaluation: the metric against the length of sequences, by position, by distance and by tag.

use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Axis, metric_axis};
use super::plot::{Canvas, Drawn, Frame, INK, MUTED, Style, Styles, UNIT, draw, text_width};
use super::rows::bar;
use super::{Figure, Layout, SIZE};
use crate::evaluation::{Evaluation, Mean, Measure, Part, Row};
use crate::report::{ReportError, format};
use csa2_train::tasks::Metric;

/// Points of a curve that have markers and bars; more have a band, for bars would hide the curve.
const FEW: usize = 16;

/// One curve: the name of its setting, and its points.
struct Line {
    name: String,
    points: Vec<(f64, Mean)>,
}

/// One drawing: its title, its horizontal axis, its curves, and where the training length lies on it.
struct Panel {
    title: Option<String>,
    x: Axis,
    lines: Vec<Line>,
    trained: Option<f64>,
}

/// The looks of settings.
pub fn evaluation_styles(evaluation: &Evaluation) -> Styles {
    evaluation.settings().into_iter().enumerate().map(|(index, name)| (name, Style::of(index))).collect()
}

/// All figures of an evaluation.
pub fn evaluation(evaluation: &Evaluation) -> Result<Vec<Figure>, ReportError> {
    let figures =
        [against_context(evaluation), Some(by_position(evaluation)), by_distance(evaluation), by_tag(evaluation)];
    figures
        .into_iter()
        .flatten()
        .map(|(title, x_title, y_title, panels, caption)| {
            figure(evaluation, &title, (&x_title, &y_title), panels, &caption)
        })
        .collect()
}

/// Title of a figure, titles of its axes, its drawings, its caption.
type Plotted = (String, String, String, Vec<Panel>, String);

/// `… tokens`, and whether that is the training length.
fn length_name(evaluation: &Evaluation, context: usize) -> String {
    let trained = if evaluation.training_context == Some(context) { " (as in training)" } else { "" };
    format!("{context} tokens{trained}")
}

fn against_context(evaluation: &Evaluation) -> Option<Plotted> {
    let contexts = evaluation.contexts();
    if contexts.len() < 2 {
        return None;
    }
    let label = evaluation.metric_label();
    let place = |context: usize| contexts.iter().position(|other| *other == context).unwrap_or(0) as f64;
    let point = |row: &Row| Some((place(row.context), row.headline(evaluation.metric_tag.as_deref())?.metric));
    let names: Vec<String> = contexts.iter().map(usize::to_string).collect();
    let panel = Panel {
        title: None,
        x: Axis::categories(&names),
        lines: lines(evaluation, |_| true, |row| point(row).into_iter().collect()),
        trained: evaluation.training_context.filter(|tokens| contexts.contains(tokens)).map(place),
    };
    let caption = format!(
        "The same weights on sequences of other lengths, of which the task's “{}” changes and nothing else. Bars: 95% interval over sequences, with an arrow where it goes on. Dashed: the training length.",
        evaluation.length_key
    );
    Some((
        format::heading(&format!("{label} against the length of sequences")),
        "tokens of a sequence".into(),
        label,
        vec![panel],
        caption,
    ))
}

/// What is drawn by position: bits per byte of text, the loss elsewhere.
fn by_position(evaluation: &Evaluation) -> Plotted {
    let (name, label, of): (_, _, fn(&Measure) -> Mean) = match evaluation.metric {
        Metric::BitsPerByte => ("bits per byte", "bits per byte", |measure| measure.metric),
        Metric::Accuracy => ("loss", "cross-entropy in nats", |measure| measure.loss),
    };
    let panels = panels(evaluation, |row| &row.positions, of, true);
    let caption = format!(
        "Mean over the targets at a position{}; bars or bands: 95% interval over sequences. Position 0 is the first token.",
        grouped(evaluation, |row| &row.positions)
    );
    (format::heading(&format!("{name} by position")), "position in the sequence".into(), label.into(), panels, caption)
}

fn by_distance(evaluation: &Evaluation) -> Option<Plotted> {
    if evaluation.rows.iter().all(|row| row.distances.is_empty()) {
        return None;
    }
    let panels = panels(evaluation, |row| &row.distances, |measure| measure.metric, false);
    let caption = format!(
        "Tokens from the one that holds the answer to the query that asks for it{}; bars or bands: 95% interval over sequences.",
        grouped(evaluation, |row| &row.distances)
    );
    let label = if evaluation.metric == Metric::Accuracy { "accuracy, all queries" } else { "bits per byte" };
    Some(("Accuracy by distance".into(), "distance in tokens".into(), label.into(), panels, caption))
}

/// Where the task has tags that are neither positions nor distances, which have drawings of their own.
fn by_tag(evaluation: &Evaluation) -> Option<Plotted> {
    let tags: Vec<&str> = evaluation.rows.first()?.tags.iter().map(|part| part.name.as_str()).collect();
    let kind = tags.first()?.rsplit_once(' ').map_or("kind of query", |(kind, _)| kind);
    if matches!(kind, "position" | "distance") {
        return None;
    }
    let labels: Vec<String> =
        tags.iter().map(|tag| tag.strip_prefix(kind).unwrap_or(tag).trim_start().to_owned()).collect();
    let points = |row: &Row| {
        let place = |name: &str| tags.iter().position(|tag| *tag == name);
        row.tags.iter().filter_map(|part| Some((place(&part.name)? as f64, part.measure.metric))).collect()
    };
    let panels = evaluation.contexts().into_iter().map(|context| Panel {
        title: Some(length_name(evaluation, context)),
        x: Axis::categories(&labels),
        lines: lines(evaluation, |row| row.context == context, points),
        trained: None,
    });
    let caption = match kind {
        "depth" => "Where the fact lies in the haystack: 0% is its oldest token, 100% the last before the queries.",
        _ => "Mean over the targets of each kind.",
    };
    let caption = format!("{caption} Bars: 95% interval over sequences.");
    Some((format!("Accuracy by {kind}"), kind.to_owned(), "accuracy".into(), panels.collect(), caption))
}

/// In words, that several neighbours stand together.
fn grouped(evaluation: &Evaluation, of: fn(&Row) -> &Vec<Part>) -> &'static str {
    let together = evaluation.rows.iter().flat_map(of).any(|part| part.to > part.from);
    if together { ", neighbours together as the table says" } else { "" }
}

/// One drawing for each length.
fn panels(evaluation: &Evaluation, of: fn(&Row) -> &Vec<Part>, mean: fn(&Measure) -> Mean, mark: bool) -> Vec<Panel> {
    let points = |row: &Row| of(row).iter().map(|part| (part.middle(), mean(&part.measure))).collect::<Vec<_>>();
    let panel = |context: usize| {
        let rows = evaluation.rows.iter().filter(|row| row.context == context);
        let parts: Vec<&Part> = rows.flat_map(of).collect();
        let first = parts.iter().map(|part| part.from).min().unwrap_or(0) as f64;
        let last = parts.iter().map(|part| part.to).max().unwrap_or(1) as f64;
        Panel {
            title: Some(length_name(evaluation, context)),
            x: Axis::counting(first, &[last]),
            lines: lines(evaluation, |row| row.context == context, points),
            trained: evaluation
                .training_context
                .map(|tokens| tokens as f64)
                .filter(|at| mark && *at > first && *at < last),
        }
    };
    evaluation.contexts().into_iter().map(panel).collect()
}

/// A curve for each setting, over the rows that count.
fn lines(
    evaluation: &Evaluation,
    counts: impl Fn(&Row) -> bool,
    points: impl Fn(&Row) -> Vec<(f64, Mean)>,
) -> Vec<Line> {
    let line = |name: String| {
        let rows = evaluation.rows.iter().filter(|row| row.label() == name && counts(row));
        Line { points: rows.flat_map(&points).collect(), name }
    };
    evaluation.settings().into_iter().map(line).collect()
}

fn figure(
    evaluation: &Evaluation,
    title: &str,
    (x_title, y_title): (&str, &str),
    panels: Vec<Panel>,
    caption: &str,
) -> Result<Figure, ReportError> {
    let styles = evaluation_styles(evaluation);
    // One scale, so that drawings can be compared.
    let means = || panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points).map(|(_, mean)| mean);
    let values: Vec<f64> = means().map(|mean| mean.mean).collect();
    let ends: Vec<(f64, f64)> =
        means().filter_map(|mean| mean.half_width.map(|half| (mean.mean - half, mean.mean + half))).collect();
    let y = metric_axis(&values, &ends);
    let several = panels.len() > 1;
    let drawn = panels.into_iter().map(|panel| {
        let frame = Frame { title, size: SIZE, sides: (58, 18), x: panel.x.clone(), y: y.clone(), x_title, y_title };
        let svg = draw(&frame, |canvas| drawing(canvas, &panel, &styles))?;
        Ok((panel.title.filter(|_| several), svg))
    });
    Ok(Figure {
        title: title.to_owned(),
        panels: drawn.collect::<Result<_, ReportError>>()?,
        caption: caption.to_owned(),
        legend: evaluation.settings().into_iter().map(|name| (None, name)).collect(),
        layout: if several { Layout::Pair } else { Layout::Stacked },
    })
}

fn drawing(canvas: &Canvas, panel: &Panel, styles: &Styles) -> Drawn {
    let (left, top, right, bottom) = canvas.bounds;
    if let Some(trained) = panel.trained {
        let at = canvas.at(trained, 0.0).0;
        canvas.line(vec![(at, top), (at, bottom)], MUTED, 1.4, Some((5, 4)))?;
        let label = "trained";
        let fits = at + (text_width(label) + 6) * UNIT < right;
        let (place, anchor) = if fits { (at + 5 * UNIT, HPos::Left) } else { (at - 5 * UNIT, HPos::Right) };
        canvas.text((place.max(left), bottom - 4 * UNIT), label, anchor, VPos::Bottom, INK)?;
    }
    let style = |line: &Line| styles.get(&line.name).copied().unwrap_or(Style::of(0));
    for line in panel.lines.iter().rev().filter(|line| line.points.len() > FEW) {
        let end =
            |sign: f64| move |(x, mean): &(f64, Mean)| canvas.at(*x, mean.mean + sign * mean.half_width.unwrap_or(0.0));
        let outline: Vec<_> = line.points.iter().map(end(1.0)).chain(line.points.iter().rev().map(end(-1.0))).collect();
        canvas.fill(outline, style(line).colour, 0.14)?;
    }
    for (index, line) in panel.lines.iter().enumerate().rev() {
        // Side by side, for their bars would hide each other.
        let few = line.points.len() <= FEW;
        let shift = if few { (2 * index as i32 - (panel.lines.len() as i32 - 1)) * 5 * UNIT / 2 } else { 0 };
        let at = |x: f64, value: f64| {
            let (across, along) = canvas.at(x, value);
            (across + shift, along)
        };
        for (x, mean) in line.points.iter().filter(|_| few) {
            if let Some(half) = mean.half_width.filter(|half| *half > 0.0) {
                let end = |value: f64| (at(*x, value), !canvas.holds_y(value));
                bar(canvas, end(mean.mean - half), end(mean.mean + half), style(line).colour)?;
            }
        }
        let places: Vec<_> = line.points.iter().map(|(x, mean)| at(*x, mean.mean)).collect();
        if places.len() > 1 {
            canvas.line(places.clone(), style(line).colour, 2.0, style(line).dash)?;
        }
        if few {
            places.into_iter().try_for_each(|place| canvas.marker(place, &style(line), 3.6))?;
        }
    }
    Ok(())
}
