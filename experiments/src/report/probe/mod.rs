//! The report of a probe: what the queries of a run can and cannot do, for readers who have not seen the mathematics.

mod answers;
mod terms;

use std::path::Path;

use super::charts::{self, HeatCell, HeatMap, heat_map};
use super::format::html as escape;
use super::html::{document, fact_list, header};
use super::terminal::{cells, new_table, print, title_cells};
use super::{ReportError, format};
use crate::probe::{LayerRecord, Mean, ProbeRecord};
use crate::results::write_atomic;

use terms::{COLUMNS, OF_TWIN, SHARES, TOLD_BELOW, WORDS};

/// Writes `report.html` into `out`.
///
/// # Errors
/// When a chart cannot be drawn or the file cannot be written.
pub fn write(out: &Path, record: &ProbeRecord) -> Result<(), ReportError> {
    Ok(write_atomic(&out.join("report.html"), page(record)?.as_bytes())?)
}

/// A measure with its interval: a share in percent.
fn value(name: &str, mean: &Mean) -> String {
    if SHARES.contains(&name) { percent(mean) } else { number(mean) }
}

fn number(mean: &Mean) -> String {
    let digits = if mean.mean.abs() >= 100.0 { 1 } else { 3 };
    let text = match mean.half_width {
        // The same in every sequence: a count.
        Some(half) if half <= 0.0 && mean.least >= mean.most => format!("{}", mean.mean),
        Some(half) => format!("{:.digits$} ± {half:.digits$}", mean.mean),
        None => format!("{:.digits$}", mean.mean),
    };
    text.replace('-', "−")
}

/// A share as a percentage.
fn percent(mean: &Mean) -> String {
    match mean.half_width {
        Some(half) if half > 0.0 => format!("{:.1}% ± {:.1}", 100.0 * mean.mean, 100.0 * half),
        _ => format!("{:.0}%", 100.0 * mean.mean),
    }
}

fn rows(record: &ProbeRecord, columns: &[&str]) -> (Vec<String>, Vec<Vec<String>>) {
    let titles = std::iter::once("layer".to_owned()).chain(columns.iter().map(|name| terms::title(name))).collect();
    let row = |layer: &LayerRecord| {
        let cell = |name: &&str| layer.mean(name).map_or("–".into(), |mean| value(name, &mean));
        std::iter::once(layer.name()).chain(columns.iter().map(cell)).collect()
    };
    (titles, record.layers.iter().map(row).collect())
}

/// The measures for a terminal of `width` columns.
pub fn table(record: &ProbeRecord, width: u16) -> String {
    let mut out = format!("{} · {}\n", format::terminal(&record.mix), format::terminal(&record.task));
    out += &format!("{}; {}\n", sampled(record), twin(record));
    // What the sentences below tell, and what the page has besides, would make every cell two lines.
    let columns: Vec<&str> = COLUMNS.into_iter().filter(|name| !TOLD_BELOW.contains(name)).collect();
    let (titles, rows) = rows(record, &columns);
    let mut table = new_table();
    table.set_header(title_cells(&titles, 1));
    for row in &rows {
        table.add_row(cells(row, 1));
    }
    out += &print(table, width);
    for sentence in answers::answer(record).into_iter().chain(answers::also(record)) {
        out += &format!("- {}\n", format::terminal(&sentence));
    }
    out += "Means over sequences and heads, ± half the 95% interval over sequences.\n";
    out + &answers::untwinned(record).map_or(String::new(), |line| line + "\n")
}

fn sampled(record: &ProbeRecord) -> String {
    let of = record.evaluation_sequences.map_or(String::new(), |all| format!(" of {all}"));
    let sequences = match of.as_str() {
        "" => format::plural(record.sequences, "sequence"),
        of => format!("{}{of} sequences", record.sequences),
    };
    let queries = match record.queries_per_sequence {
        1 => "one query".to_owned(),
        count => format!("at most {count} queries"),
    };
    let answers =
        |right: f64| format!(" at positions with a target, of which the model answers {:.1}% right", 100.0 * right);
    let answers = record.accuracy.map_or(String::new(), answers);
    format!("{sequences}, {queries} of each{answers}, seed {}", record.seed)
}

fn twin(record: &ProbeRecord) -> String {
    match &record.twin {
        Some(twin) => format!("twin: {}, step {} ({})", twin.run, twin.step, twin.mix),
        None => "twin: the layer itself with the address of an exact search".into(),
    }
}

/// `a`, `a and b`, `a, b and c`.
fn joined(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn page(record: &ProbeRecord) -> Result<String, ReportError> {
    let title = format!("What the queries of {} can reach", record.mix);
    let mut body = header("probe", &title);
    body += "<p class=\"question\">A layer that reuses content and address brings nothing of its own but a query and a small window. Its output is a \
             weighted mean of the points that it reads, so a query can move it inside their hull and nowhere else. How much room is that on this \
             model, and what lies outside?</p>\n";
    body += "<div class=\"answer\">\n<h3>Answer</h3>\n";
    body += &list(&answers::answer(record));
    body += "</div>\n<h3>Words</h3>\n<dl class=\"method\">\n";
    for (term, text) in WORDS {
        body += &format!("<dt>{}</dt><dd>{}</dd>\n", escape(term), escape(text));
    }
    body += "</dl>\n";
    body += &fact_list(&[
        ("Task", record.task.clone()),
        ("Run", format!("{}, step {}", record.run, record.run_step)),
        ("Mix", record.mix.clone()),
        ("Sizes", sizes(record)),
        ("Sampled", sampled(record)),
        ("Twin", twin(record).trim_start_matches("twin: ").into()),
    ]);
    body += "<h3>Layers</h3>\n";
    let (titles, mut rows) = rows(record, &COLUMNS);
    // A layer's name stays on one line.
    for row in &mut rows {
        row[0] = row[0].replace(' ', "\u{a0}");
    }
    body += &format!("<div class=\"tight\">{}</div>\n", super::matrix::html_table((titles, rows)));
    let mut notes = vec![READING.to_owned()];
    notes.extend(answers::untwinned(record));
    for note in notes {
        body += &format!("<p class=\"quiet\">{}</p>\n", escape(&note));
    }
    let also = answers::also(record);
    if !also.is_empty() {
        body += &format!("<h3>Also measured</h3>\n{}", list(&also));
    }
    body += "<h3>Figures</h3>\n<div class=\"figures\">\n";
    let (beside, own): (Vec<&str>, Vec<&str>) = COLUMNS.into_iter().partition(|name| OF_TWIN.contains(name));
    body += &heat(record, "Layers: what they read", &[&own[..], &["asymmetry_unrotated"]].concat());
    body += &heat(record, "Layers: beside the twin", &beside);
    for (title, name) in [
        ("Effective points, by head", "effective_entries"),
        ("Mass missed, by head", "mass_missed"),
        ("Hull distance of the twin's output, by head", "hull_distance"),
        ("Asymmetry unrotated, by head", "asymmetry_unrotated"),
    ] {
        body += &by_head(record, title, name);
    }
    for chart in charts::probe(record)? {
        body += &super::blocks::figure(&chart, &charts::probe_styles(record));
    }
    body += "</div>\n<h3>What is measured</h3>\n<dl class=\"method\">\n";
    for (term, text) in terms::glossary() {
        body += &format!("<dt>{}</dt><dd>{}</dd>\n", escape(&term), escape(&text));
    }
    body += "</dl>\n<p class=\"quiet\">Those that are not on this page are in probe.csv and probe.json, beside it, with the least and the most of single \
             queries.</p>\n<h3>How to reproduce</h3>\n";
    body += &fact_list(&[
        ("Command", record.command.clone()),
        ("csa2 version", record.version.clone()),
        ("Backend", record.backend.clone()),
        ("Hash of the weights", record.weights_sha256.chars().take(16).collect()),
    ]);
    Ok(document(&title, &body))
}

/// What the columns are, below the table.
const READING: &str = "Affine rank: dimensions that the points span, and so the outputs; at most one less than the points. Not reached: directions in \
    which no query changes the weights; 0 where queries make every re-weighting. Effective points: as many equal weights would be as spread out. Mass \
    missed: attention that would fall on entries that are not read; lower: the address suits the layer better. Best entries read: of the K entries \
    with the most attention, how many are read; higher: it suits better. The rest compares with the twin, with distances as shares of the length of \
    its output: how often that lies outside the hull of the points; how far (0: in reach, 1: as far as the origin); how far what the twin reads \
    for another query does; by how much the first is nearer (higher: more is in reach, at most the second); and how far it is from what the layer does \
    read (0: the same, 1.41: as two unrelated vectors of one length). Heads are averaged.";

/// Sizes that the number of points comes from.
fn sizes(record: &ProbeRecord) -> String {
    let heads = record.layers.first().map_or(0, |layer| layer.heads.len());
    format!(
        "{} of d = {}; a query reads at most {} tokens of its window, K = {} entries and the sink, {} points",
        format::plural(heads, "head"),
        record.head_dim,
        record.window,
        record.topk,
        record.window + record.topk + 1
    )
}

fn list(sentences: &[String]) -> String {
    let mut out = String::from("<ul>\n");
    for sentence in sentences {
        out += &format!("<li>{}</li>\n", escape(sentence));
    }
    out + "</ul>\n"
}

fn drawn(map: &HeatMap, style: &str, caption: &str) -> String {
    format!(
        "<figure style=\"{style}\">\n<h4>{}</h4>\n<div class=\"drawings\"><div class=\"drawing\"><div class=\"scroll\">{}</div></div></div>\n\
         <figcaption>{}</figcaption>\n</figure>\n",
        escape(&map.title),
        heat_map(map),
        escape(caption)
    )
}

/// A cell in the shade of its mean.
fn shaded(name: &str, mean: &Mean, most: f64) -> HeatCell {
    let shade = if most > 0.0 { mean.mean / most } else { 0.0 };
    let (unit, factor) = if SHARES.contains(&name) { ("%", 100.0) } else { ("", 1.0) };
    let digits = if factor > 1.0 { 1 } else { 3 };
    if mean.least >= mean.most {
        // The same everywhere.
        return HeatCell { shade, text: format!("{}{unit}", factor * mean.mean), note: String::new() };
    }
    let text = format!("{:.digits$}{unit}", factor * mean.mean).replace('-', "−");
    let note = mean.half_width.map_or(String::new(), |half| format!("± {:.digits$}", factor * half));
    HeatCell { shade, text, note }
}

fn heat(record: &ProbeRecord, title: &str, columns: &[&str]) -> String {
    // A column has a scale of its own: from 0 to its largest value.
    let most = |name: &str| {
        record.layers.iter().filter_map(|layer| layer.mean(name)).map(|mean| mean.mean).fold(0.0, f64::max)
    };
    let cell = |layer: &LayerRecord, name: &str| Some(shaded(name, &layer.mean(name)?, most(name)));
    let map = HeatMap {
        title: title.to_owned(),
        rows: record.layers.iter().map(LayerRecord::name).collect(),
        columns: columns.iter().map(|name| terms::title(name)).collect(),
        axes: ["layer".to_owned(), "measure".to_owned()],
        cells: record.layers.iter().map(|layer| columns.iter().map(|name| cell(layer, name)).collect()).collect(),
    };
    drawn(
        &map,
        "grid-column: 1 / -1",
        "Every column has a scale of its own, from 0 (white) to its largest value. In small type half the 95% interval.",
    )
}

fn by_head(record: &ProbeRecord, title: &str, name: &str) -> String {
    let heads = record.layers.first().map_or(0, |layer| layer.heads.len());
    let layers = || record.layers.iter().filter(|layer| layer.mean(name).is_some());
    let means = || layers().flat_map(|layer| &layer.heads).filter_map(|head| head.measures.get(name));
    if means().next().is_none() {
        return String::new();
    }
    let most = means().map(|mean| mean.mean).fold(0.0, f64::max);
    let cell = |layer: &LayerRecord, head: usize| {
        layer.mean(name)?;
        Some(shaded(name, layer.heads.get(head)?.measures.get(name)?, most))
    };
    let map = HeatMap {
        title: title.to_owned(),
        rows: record.layers.iter().map(LayerRecord::name).collect(),
        columns: (0..heads).map(|head| head.to_string()).collect(),
        axes: ["layer".to_owned(), "head".to_owned()],
        cells: record.layers.iter().map(|layer| (0..heads).map(|head| cell(layer, head)).collect()).collect(),
    };
    drawn(&map, "", "One scale, from 0 (white) to the largest value. In small type half the 95% interval.")
}
