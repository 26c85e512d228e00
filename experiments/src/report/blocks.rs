//! The parts of a section of `report.html`.

use std::collections::{BTreeMap, BTreeSet};

use super::analysis::{Analysis, Effect, Row};
use super::charts::{Figure, Layout, Marker, Style, Styles};
use super::format::html as escape;
use super::table::{Cells, headers, missing_lines};
use super::{format, method};
use crate::results::RunSummary;

pub fn table_head(titles: &[String], left: usize) -> String {
    let mut out = String::from("<div class=\"wide\">\n<table>\n<thead><tr>");
    for (index, title) in titles.iter().enumerate() {
        let class = if index < left { "" } else { " class=\"number\"" };
        out.push_str(&format!("<th{class}>{}</th>", escape(title)));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    out
}

pub fn ranking(analysis: &Analysis, styles: &Styles) -> String {
    let titles = ["#", "variant and mix"].map(str::to_owned).into_iter().chain(headers(analysis));
    let mut out = table_head(&titles.collect::<Vec<_>>(), 2);
    for row in &analysis.rows {
        let cells = Cells::new(row);
        let class = if row.effect == Effect::Baseline { " class=\"baseline\"" } else { "" };
        out.push_str(&format!("<tr{class}><td>{}</td>{}", escape(&cells.rank), name_cell(row, styles)));
        for text in [&cells.metric, &cells.seeds, &cells.difference] {
            out.push_str(&format!("<td class=\"number\">{}</td>", escape(text)));
        }
        out.push_str(&format!("<td class=\"number\">{}</td>", verdict(row.effect)));
        for text in [&cells.parameters, &cells.bytes, &cells.flops, &cells.speed] {
            out.push_str(&format!("<td class=\"number\">{}</td>", escape(text)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
    out.push_str(
        "<p class=\"quiet\">± is half the 95% interval of the mean over seeds; differences are paired by seed. \
         <b>better</b> and <b>worse</b>: the interval of the difference excludes zero. <b>not settled</b>: it includes \
         zero.</p>\n",
    );
    out
}

pub fn name_cell(row: &Row, styles: &Styles) -> String {
    let record = &row.variant.record;
    format!(
        "<td class=\"variant\"><b>{}{}</b><code>{}</code></td>",
        swatch(styles.get(&record.name)),
        escape(&record.name),
        escape(&record.layers)
    )
}

fn verdict(effect: Effect) -> String {
    if effect == Effect::Missing {
        return effect.word().to_owned();
    }
    let (class, sign) = match effect {
        Effect::Better => ("better", "▲ "),
        Effect::Worse => ("worse", "▼ "),
        _ => ("open", ""),
    };
    format!("<span class=\"verdict {class}\">{sign}{}</span>", effect.word())
}

/// A small sample of a variant's line and marker colour.
pub fn swatch(style: Option<&Style>) -> String {
    let Some(style) = style else {
        return String::new();
    };
    if style.marker == Marker::Area {
        return format!(
            "<svg class=\"swatch\" viewBox=\"0 0 26 10\" aria-hidden=\"true\"><rect x=\"7\" width=\"12\" height=\"10\" fill=\"{}\"/></svg>",
            style.css()
        );
    }
    let dash = style.dash.map_or_else(String::new, |(on, off)| format!(" stroke-dasharray=\"{on} {off}\""));
    format!(
        "<svg class=\"swatch\" viewBox=\"0 0 26 10\" aria-hidden=\"true\"><path d=\"M0 5H26\" stroke=\"{0}\" \
         stroke-width=\"3\"{dash}/>{1}</svg>",
        style.css(),
        style.marker.element(13.0, 5.0, 4.4, &style.css())
    )
}

pub fn missing(analysis: &Analysis) -> String {
    let lines = missing_lines(analysis);
    if lines.is_empty() {
        return String::new();
    }
    let mut out = String::from("<div class=\"missing\">\n<h3>Runs without a result</h3>\n<ul>\n");
    for line in lines {
        out.push_str(&format!("<li>{}</li>\n", escape(&line)));
    }
    out.push_str("</ul>\n</div>\n");
    out
}

pub fn figure(chart: &Figure, styles: &Styles) -> String {
    let class = match chart.layout {
        Layout::Many => " class=\"panels\"",
        Layout::Pair if chart.panels.len() > 1 => " class=\"pair\"",
        Layout::Pair | Layout::Stacked => "",
    };
    let mut out = format!("<figure{class}>\n<h4>{}</h4>\n<div class=\"drawings\">\n", escape(&chart.title));
    for (name, svg) in &chart.panels {
        let heading = name
            .as_ref()
            .map_or_else(String::new, |name| format!("<h5>{}{}</h5>\n", swatch(styles.get(name)), escape(name)));
        out.push_str(&format!("<div class=\"drawing\">{heading}<div class=\"scroll\">{svg}</div></div>\n"));
    }
    out.push_str("</div>\n");
    if !chart.legend.is_empty() {
        out.push_str("<ul class=\"legend\">\n");
        for (rank, name) in &chart.legend {
            out.push_str(&format!(
                "<li>{}{}{}</li>\n",
                swatch(styles.get(name)),
                rank.map_or_else(String::new, |rank| format!("{rank} ")),
                escape(name)
            ));
        }
        out.push_str("</ul>\n");
    }
    out.push_str(&format!("<figcaption>{}</figcaption>\n</figure>\n", escape(&chart.caption)));
    out
}

/// Each variant with its mix, its cost and what it changes in the base.
pub fn variants(analysis: &Analysis, styles: &Styles) -> String {
    let mut out = String::from("<div class=\"cards\">\n");
    for row in &analysis.rows {
        let record = &row.variant.record;
        let cost = &record.cost;
        out.push_str(&format!(
            "<div class=\"card\">\n<h4>{}{}</h4>\n<p><code>{}</code></p>\n",
            swatch(styles.get(&record.name)),
            escape(&record.name),
            escape(&record.layers)
        ));
        if let Some(note) = &record.note {
            out.push_str(&format!("<p>{}</p>\n", escape(note)));
        }
        out.push_str(&format!(
            "<p class=\"quiet\">{} parameters; {} bytes per token; windows {} bytes in all; {} FLOPs to decode a token at \
             {}</p>\n",
            format::count(cost.parameters as f64),
            format::count(cost.bytes_per_token),
            format::count(cost.window_bytes as f64),
            format::count(cost.decode_flops),
            format::context(cost.decode_context)
        ));
        out.push_str(&format!("<p class=\"quiet\">config hash <code>{}</code></p>\n", escape(&record.config_hash)));
        out.push_str(&overrides(&record.overrides));
        out.push_str("</div>\n");
    }
    out.push_str("</div>\n");
    out
}

fn overrides(overrides: &BTreeMap<String, String>) -> String {
    if overrides.is_empty() {
        return "<p class=\"quiet\">Exactly the base.</p>\n".to_owned();
    }
    let mut out = String::from("<ul class=\"overrides\">\n");
    for (key, value) in overrides {
        out.push_str(&format!("<li><code>{} = {}</code></li>\n", escape(key), escape(value)));
    }
    out.push_str("</ul>\n");
    out
}

pub fn reproduce(analysis: &Analysis) -> String {
    let record = &analysis.ablation.record;
    let command = record.command.clone().unwrap_or_else(|| "csa2 ablate CONFIG".to_owned());
    let unique = |of: &dyn Fn(&RunSummary) -> String| {
        let found: BTreeSet<String> = method::summaries(analysis).map(of).collect();
        if found.is_empty() { "–".to_owned() } else { found.into_iter().collect::<Vec<_>>().join(", ") }
    };
    let seconds: f64 = method::summaries(analysis).map(|summary| summary.seconds).filter(|s| s.is_finite()).sum();
    let numbers = if record.evaluations.is_empty() {
        "VARIANT/seed-N/summary.json beside this page"
    } else {
        "VARIANT/seed-N/summary.json beside this page; matrix.csv names the runs of every cell"
    };
    let rows = [
        ("Command", command),
        ("csa2 version", unique(&|summary| summary.version.clone())),
        ("Backend", unique(&|summary| summary.backend.clone())),
        ("Threads", unique(&|summary| summary.threads.to_string())),
        ("Numbers run by run", numbers.to_owned()),
        ("Seconds of all runs", format!("{seconds:.0}")),
    ];
    let mut out = String::from("<dl class=\"facts\">\n");
    for (term, text) in rows {
        out.push_str(&format!("<div><dt>{term}</dt><dd><code>{}</code></dd></div>\n", escape(&text)));
    }
    out.push_str("</dl>\n");
    out.push_str(
        "<p class=\"quiet\">On one backend and one thread count the same config gives the same values; the hash of each \
         variant's config stands with the variant. <code>csa2 report</code> with the folder of the runs rebuilds this page \
         without training.</p>\n",
    );
    out
}
