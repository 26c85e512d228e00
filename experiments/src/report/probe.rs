//! The report of a probe: what the queries of a run can and cannot do, for readers who have not seen the mathematics.

use std::path::Path;

use csa2_model::config::Values;

use super::charts::{self, HeatCell, HeatMap, heat_map};
use super::format::html as escape;
use super::html::{document, fact_list, header};
use super::terminal::{cells, new_table, print, title_cells};
use super::{ReportError, format};
use crate::probe::{HEAD, LAYER, LayerRecord, Mean, ProbeRecord};
use crate::results::write_atomic;

/// Writes `report.html` into `out`.
///
/// # Errors
/// When a chart cannot be drawn or the file cannot be written.
pub fn write(out: &Path, record: &ProbeRecord) -> Result<(), ReportError> {
    Ok(write_atomic(&out.join("report.html"), page(record)?.as_bytes())?)
}

/// The columns of the table: name, measure, and what it means.
const COLUMNS: [(&str, &str); 10] = [
    ("points", "entries"),
    ("affine rank", "affine_rank"),
    ("not reached", "unreachable"),
    ("eff. points", "effective_entries"),
    ("mass missed", "mass_missed"),
    ("fresh entries", "overlap"),
    ("outside hull", "outside_hull"),
    ("hull distance", "hull_distance"),
    ("of another query", "hull_distance_elsewhere"),
    ("output differs", "output_difference"),
];

/// What the columns are, below the table.
const READING: &str = "Points: what one query reads, its window, the selected entries and the sink. Affine rank: dimensions that its outputs can fill. \
    Not reached: directions in which no query changes the weights. Effective points: as many equal weights would be as spread out. Mass missed: \
    attention that would fall on entries that are not read. Fresh entries: how many of the entries that attention would choose itself are read. \
    The last four compare with what the twin reads: how often that lies outside the hull of the points, how far, how far what it reads for another \
    query does, and how far it is from what the layer reads.";

/// Measures that compare a layer with its twin.
const OF_TWIN: [&str; 4] = ["outside_hull", "hull_distance", "hull_distance_elsewhere", "output_difference"];

/// A measure of a layer in tables and pictures. With a twin run, those of the twin are told only where the run has one; the file has
/// them, against a fresh address, everywhere.
fn shown(record: &ProbeRecord, layer: &LayerRecord, name: &str) -> Option<Mean> {
    let compared = record.twin.is_none() || layer.has_twin || !OF_TWIN.contains(&name);
    layer.mean(name).filter(|_| compared)
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
        Some(half) if half > 0.0 => format!("{:.0}% ± {:.0}", 100.0 * mean.mean, 100.0 * half),
        _ => format!("{:.0}%", 100.0 * mean.mean),
    }
}

fn rows(record: &ProbeRecord) -> (Vec<String>, Vec<Vec<String>>) {
    let titles = std::iter::once("layer").chain(COLUMNS.map(|(title, _)| title)).map(str::to_owned).collect();
    let row = |layer: &LayerRecord| {
        let value = |(_, name): (&str, &str)| shown(record, layer, name).map_or("–".into(), |mean| number(&mean));
        std::iter::once(layer.name()).chain(COLUMNS.map(value)).collect()
    };
    (titles, record.layers.iter().map(row).collect())
}

/// The measures for a terminal of `width` columns.
pub fn table(record: &ProbeRecord, width: u16) -> String {
    let mut out = format!("{} · {}\n", format::terminal(&record.mix), format::terminal(&record.task));
    out += &format!("{}; {}\n", sampled(record), twin(record));
    let (titles, rows) = rows(record);
    let mut table = new_table();
    table.set_header(title_cells(&titles, 1));
    for row in &rows {
        table.add_row(cells(row, 1));
    }
    out += &print(table, width);
    for sentence in answer(record) {
        out += &format!("- {}\n", format::terminal(&sentence));
    }
    out += "Means over sequences, ± half the 95% interval; of measures of heads the mean over heads and the widest half.\n";
    out + untwinned(record).as_str()
}

/// What the gaps in the table are.
fn untwinned(record: &ProbeRecord) -> String {
    let without = record.layers.iter().filter(|layer| record.twin.is_some() && !layer.has_twin).map(LayerRecord::name);
    let names: Vec<String> = without.collect();
    if names.is_empty() {
        return String::new();
    }
    format!(
        "–: the twin run has no full layer that stands for {}, so there is nothing to compare; probe.json has the comparison with a fresh address.\n",
        joined(&names)
    )
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
    format!("{sequences}, {queries} of each, seed {}", record.seed)
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

/// What was found, in sentences.
pub fn answer(record: &ProbeRecord) -> Vec<String> {
    let mut out = Vec::new();
    let told = |name: &str, layers: &mut dyn Iterator<Item = &LayerRecord>| {
        layers
            .filter_map(|layer| Some(format!("{} in layer {}", number(&layer.mean(name)?), layer.name())))
            .collect::<Vec<_>>()
    };
    let alike: Vec<String> = record
        .diversity
        .iter()
        .filter_map(|pair| {
            Some(format!(
                "{} for layers {} and {}",
                number(pair.measures.get("output_cosine")?),
                pair.first,
                pair.second
            ))
        })
        .collect();
    if !alike.is_empty() {
        let apart: Vec<String> =
            record.diversity.iter().filter_map(|pair| Some(number(pair.measures.get("weights_apart")?))).collect();
        out.push(format!(
            "Do layers that read the same address do the same? The cosine of their outputs is {} (1: the same, 0: unrelated); their weights \
             differ by {} (0: the same, 1: nothing in common).",
            joined(&alike),
            joined(&apart)
        ));
    }
    let missed = told("mass_missed", &mut record.layers.iter());
    out.push(format!(
        "What does a layer miss? Of the attention that its own queries would spread over everything visible, the share on entries that it \
         does not read is {}.",
        joined(&missed)
    ));
    if record.layers.iter().all(|layer| layer.mean("overlap").is_none()) {
        out.push(format!(
            "No query that was looked at sees more than K = {} entries, so every layer reads all that there is: what is missed is 0 by that, and so is \
             the distance of what a fresh address would give. Longer sequences would say more.",
            record.topk
        ));
    }
    let compared = || record.layers.iter().filter(|layer| record.twin.is_none() || layer.has_twin);
    let other = match &record.twin {
        Some(_) => "what a twin layer reads that makes content, address and query anew at the same input",
        None => "what the layer would read with the same queries at an address of its own, found by an exact search",
    };
    let outside: Vec<String> = compared()
        .filter_map(|layer| Some(format!("{} in layer {}", percent(&layer.mean("outside_hull")?), layer.name())))
        .collect();
    let distance = told("hull_distance", &mut compared());
    let elsewhere = told("hull_distance_elsewhere", &mut compared());
    if !outside.is_empty() {
        let there = if record.twin.is_some() { "the twin reads" } else { "it would read there" };
        let comparison = if elsewhere.is_empty() {
            String::new()
        } else {
            format!("; for comparison, that of what {there} for another query of the sequence: {}", joined(&elsewhere))
        };
        let spanned = told("affine_rank", &mut compared());
        out.push(format!(
            "Could another query have read {other}? Every output is a weighted mean of the points that a query reads, so it lies in their hull, and \
             what lies outside is out of reach. Of the outputs, {} lie outside. The distance from the hull, over the output's length, is \
             {}{comparison}. (The points span so many of {} dimensions: {}. What has a part in any other direction is outside, however \
             near.)",
            joined(&outside),
            joined(&distance),
            record.head_dim,
            joined(&spanned)
        ));
        if record.twin.is_some() {
            out.push(
                "A twin run was trained apart and has coordinates of its own, so its outputs can be far from the hull whatever they say. Only where \
                 the distance is clearly below that of another query does it tell how much of the same output a query could read."
                    .into(),
            );
        }
    }
    let repair = told("repair_kl", &mut compared());
    if !repair.is_empty() {
        let all = record.layers.iter().filter_map(|layer| layer.mean("unreachable")).all(|mean| mean.most <= 0.0);
        let why = if all {
            " (every re-weighting of so few points is in reach, so at this size there is no such gap)"
        } else {
            ""
        };
        out.push(format!(
            "What no change of a query repairs of the twin's weights on the same entries, in nats of KL: {}{why}.",
            joined(&repair)
        ));
    }
    let skew = told("asymmetry_unrotated", &mut record.layers.iter());
    let lowest = told("smallest_eigenvalue_unrotated", &mut record.layers.iter());
    let own: f64 =
        record.layers.iter().filter_map(|layer| layer.mean("asymmetry")).map(|mean| mean.most).fold(0.0, f64::max);
    if !skew.is_empty() {
        out.push(match record.values {
            Values::Rotated => format!(
                "Does a query move what it reads the way that it moves? Here the derivative is symmetric (asymmetry at most {own:.0e}), because key and \
                 value are one rotated vector. With values that are not rotated its asymmetry would be {}, and the smallest eigenvalue of its \
                 symmetric part {} of the largest.",
                joined(&skew),
                joined(&lowest)
            ),
            Values::Unrotated => format!(
                "Does a query move what it reads the way that it moves? Not here, where values are not rotated: the asymmetry of the derivative is \
                 {}, and the smallest eigenvalue of its symmetric part {} of the largest.",
                joined(&skew),
                joined(&lowest)
            ),
        });
    }
    if record.undecided > 0 {
        let many = format::plural(record.undecided, "question");
        out.push(format!("{many} about hulls and families stayed undecided; they are counted nowhere."));
    }
    out
}

fn page(record: &ProbeRecord) -> Result<String, ReportError> {
    let title = format!("What the queries of {} can reach", record.mix);
    let mut body = header("probe", &title);
    body += "<p class=\"question\">A layer that reuses content and address brings nothing but its query. Its output is a weighted mean of the \
             points that it reads, so a query can move it inside their hull and nowhere else. How much room is that on this model, and what lies \
             outside?</p>\n";
    body += "<div class=\"answer\">\n<h3>Answer</h3>\n<ul>\n";
    for sentence in answer(record) {
        body += &format!("<li>{}</li>\n", escape(&sentence));
    }
    body += "</ul>\n</div>\n";
    body += &fact_list(&[
        ("Task", record.task.clone()),
        ("Run", format!("{}, step {}", record.run, record.run_step)),
        ("Sampled", sampled(record)),
        ("Twin", twin(record).trim_start_matches("twin: ").into()),
    ]);
    body += "<h3>Layers</h3>\n";
    body += &super::matrix::html_table(rows(record));
    body += "<p class=\"quiet\">Means over sequences, ± half the 95% interval. Where a measure belongs to heads: the mean over heads, and the \
             widest half.</p>\n";
    body += &format!("<p class=\"quiet\">{}</p>\n", escape(READING));
    body +=
        &format!("<p class=\"quiet\">{}</p>\n<h3>Figures</h3>\n<div class=\"figures\">\n", escape(&untwinned(record)));
    let columns = [&COLUMNS[..], &[("skew unrotated", "asymmetry_unrotated")]].concat();
    body += &heat(record, "Layers and measures", &columns);
    for (title, name) in [
        ("Effective number of points, by head", "effective_entries"),
        ("Share of attention that is missed, by head", "mass_missed"),
        ("Asymmetry if values were not rotated, by head", "asymmetry_unrotated"),
        ("Distance of the twin's output from the hull, by head", "hull_distance"),
    ] {
        body += &by_head(record, title, name);
    }
    for chart in charts::probe(record)? {
        body += &super::blocks::figure(&chart, &charts::probe_styles(record));
    }
    body += "</div>\n<h3>What is measured</h3>\n<dl class=\"method\">\n";
    for (term, text) in method() {
        body += &format!("<dt>{}</dt><dd>{}</dd>\n", escape(&term), escape(&text));
    }
    body += "</dl>\n<h3>How to reproduce</h3>\n";
    body += &fact_list(&[
        ("Command", record.command.clone()),
        ("csa2 version", record.version.clone()),
        ("Backend", record.backend.clone()),
        ("Weights", record.weights_sha256.chars().take(16).collect()),
    ]);
    Ok(document(&title, &body))
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

fn heat(record: &ProbeRecord, title: &str, columns: &[(&str, &str)]) -> String {
    // A column has a scale of its own: from 0 to its largest value.
    let most = |name: &str| {
        record.layers.iter().filter_map(|layer| shown(record, layer, name)).map(|mean| mean.mean).fold(0.0, f64::max)
    };
    let cell = |layer: &LayerRecord, name: &str| {
        let mean = shown(record, layer, name)?;
        let most = most(name);
        let shade = if most > 0.0 { mean.mean / most } else { 0.0 };
        let note = mean.half_width.map_or(String::new(), |half| format!("± {half:.3}"));
        Some(HeatCell { shade, text: format!("{:.3}", mean.mean), note })
    };
    let map = HeatMap {
        title: title.to_owned(),
        rows: record.layers.iter().map(LayerRecord::name).collect(),
        columns: columns.iter().map(|(title, _)| (*title).to_owned()).collect(),
        axes: ["layer".to_owned(), "measure".to_owned()],
        cells: record.layers.iter().map(|layer| columns.iter().map(|(_, name)| cell(layer, name)).collect()).collect(),
    };
    drawn(
        &map,
        "grid-column: 1 / -1",
        "Every column has a scale of its own, from 0 (white) to its largest value. In small type half of the 95% interval.",
    )
}

fn by_head(record: &ProbeRecord, title: &str, name: &str) -> String {
    let heads = record.layers.first().map_or(0, |layer| layer.heads.len());
    let layers = || record.layers.iter().filter(|layer| shown(record, layer, name).is_some());
    let means = || layers().flat_map(|layer| &layer.heads).filter_map(|head| head.measures.get(name));
    if means().next().is_none() {
        return String::new();
    }
    let most = means().map(|mean| mean.mean).fold(0.0, f64::max);
    let cell = |layer: &LayerRecord, head: usize| {
        shown(record, layer, name)?;
        let mean = layer.heads.get(head)?.measures.get(name)?;
        let shade = if most > 0.0 { mean.mean / most } else { 0.0 };
        let note = mean.half_width.map_or(String::new(), |half| format!("± {half:.3}"));
        Some(HeatCell { shade, text: format!("{:.3}", mean.mean), note })
    };
    let map = HeatMap {
        title: title.to_owned(),
        rows: record.layers.iter().map(LayerRecord::name).collect(),
        columns: (0..heads).map(|head| head.to_string()).collect(),
        axes: ["layer".to_owned(), "head".to_owned()],
        cells: record.layers.iter().map(|layer| (0..heads).map(|head| cell(layer, head)).collect()).collect(),
    };
    drawn(&map, "", "One scale, from 0 (white) to the largest value. In small type half of the 95% interval.")
}

/// Every measure in words.
fn method() -> Vec<(String, String)> {
    let plain = |(name, text): &(&str, &str)| (name.replace('_', " "), format!("{text}."));
    let mut terms: Vec<(String, String)> = vec![(
        "points".into(),
        "What one query reads: the tokens of its window, the selected entries, and the attention sink, which acts as a point at the origin. \
         Every output is a mean of these points with positive weights."
            .into(),
    )];
    terms[0].0 = "points (entries)".into();
    terms.extend(LAYER.iter().skip(1).map(plain));
    terms.extend(HEAD.iter().map(plain));
    let more = [
        (
            "fresh entries (overlap)",
            "share of the K entries that attention itself would choose, summed over heads, that the layer reads; only queries that see more \
             than K entries count.",
        ),
        (
            "twin",
            "The same layer at the same input with more made fresh: in a twin run its content, address and query; without one its address \
             alone, by an exact search with the layer's own queries.",
        ),
        (
            "outside hull",
            "share of the twin's outputs that are outside the hull of the layer's points: no query reaches them.",
        ),
        ("hull distance", "distance of the twin's output from that hull, over the output's length; 0 inside."),
        (
            "of another query (hull distance elsewhere)",
            "the same for what the twin reads for another sampled query of the sequence: what an output has that belongs elsewhere.",
        ),
        (
            "output differs (output difference)",
            "distance of the twin's output from what the layer itself reads, over the output's length.",
        ),
        (
            "tilt cosine",
            "cosines of the principal angles between the columns of the layer's points and of the twin's, over the same tokens and entries: 1 \
             where both can re-weight in the same directions. Only with a twin run.",
        ),
        (
            "repair KL",
            "KL, in nats, of the twin's weights over the same entries from the one member of the layer's family with the same mean. Only with a \
             twin run.",
        ),
        (
            "operator difference",
            "distance between what the network's own operator read, in 32 bits, and what is computed here in 64, over the length: the check that both \
             look at the same numbers.",
        ),
        ("output cosine", "cosine between what two layers with one address give to the residual stream for one token."),
        ("weights apart", "total variation between their weights, averaged over heads."),
        (
            "rank",
            "Singular values below 1e-6 of the largest count as none, for points are 32-bit numbers; everything else is computed in 64 bits.",
        ),
    ];
    terms.extend(more.map(|(term, text)| (term.to_owned(), text.to_owned())));
    terms
}
