//! `report.html`: one page that needs nothing beside itself.

use std::collections::{BTreeMap, BTreeSet};

use super::analysis::{Analysis, Effect, Row, has_joint_ranking, joint_rows, joint_warnings};
use super::charts::Figure;
use super::format::html as escape;
use super::plot::{Style, Styles};
use super::table::{Cells, headers, missing_lines};
use super::{Ablation, ReportError, charts, curves, format, scatter, words};

const STYLE_SHEET: &str = include_str!("style.css");

/// The page over `ablations`: a section for each, and a joint overview where several share a metric.
pub fn page(ablations: &[Ablation]) -> Result<String, ReportError> {
    let analyses: Vec<Analysis> = ablations.iter().map(Analysis::new).collect();
    let styles = looks(ablations);
    let title = page_title(ablations);
    let mut body = format!("<header>\n<p class=\"kicker\">csa2 · ablation report</p>\n<h1>{}</h1>\n</header>\n", escape(&title));
    if analyses.len() > 1 {
        body.push_str(&overview(&analyses, &styles)?);
    }
    for (index, analysis) in analyses.iter().enumerate() {
        body.push_str(&section(index, analysis, &styles, analyses.len() > 1)?);
    }
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{STYLE_SHEET}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escape(&title)
    ))
}

fn page_title(ablations: &[Ablation]) -> String {
    match ablations {
        [only] => only.record.title.clone(),
        several => format!("{} ablations", several.len()),
    }
}

/// One look for each name, the same in every chart and section.
fn looks(ablations: &[Ablation]) -> Styles {
    let mut styles = Styles::new();
    for variant in ablations.iter().flat_map(|ablation| &ablation.variants) {
        let next = Style::of(styles.len());
        styles.entry(variant.record.name.clone()).or_insert(next);
    }
    styles
}

/// What stands above the sections of several ablations.
fn overview(analyses: &[Analysis], styles: &Styles) -> Result<String, ReportError> {
    let mut out = String::from("<section>\n<h2>Overview</h2>\n<ul class=\"contents\">\n");
    for (index, analysis) in analyses.iter().enumerate() {
        let record = &analysis.ablation.record;
        out.push_str(&format!(
            "<li><a href=\"#ablation-{index}\">{}</a> <span class=\"quiet\">{}</span></li>\n",
            escape(&record.title),
            escape(&record.task)
        ));
    }
    out.push_str("</ul>\n");
    for warning in joint_warnings(analyses) {
        out.push_str(&format!("<p class=\"warning\">{}</p>\n", escape(&warning)));
    }
    if has_joint_ranking(analyses) {
        out.push_str(&joint_table(analyses, styles));
        if let Some(chart) = scatter::joint(analyses, styles)? {
            out.push_str("<div class=\"figures\">\n");
            out.push_str(&figure(&chart, styles));
            out.push_str("</div>\n");
        }
    }
    out.push_str("</section>\n");
    Ok(out)
}

fn joint_table(analyses: &[Analysis], styles: &Styles) -> String {
    let label = analyses.first().map(|analysis| analysis.metric().label.as_str()).unwrap_or_default();
    let titles = ["ablation", "variant", "mix", label, "seeds", "bytes/token", "decode FLOPs", "tokens/s"];
    let mut out = table_head(&titles.map(str::to_owned), 3);
    for (index, row) in joint_rows(analyses) {
        let cells = Cells::new(row);
        out.push_str(&format!(
            "<tr><td><a href=\"#ablation-{index}\">{}</a></td>{}",
            escape(&analyses[index].ablation.record.name),
            name_cells(row, styles)
        ));
        for text in [cells.metric, cells.seeds, cells.bytes, cells.flops, cells.speed] {
            out.push_str(&format!("<td class=\"number\">{}</td>", escape(&text)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
    out
}

fn section(index: usize, analysis: &Analysis, styles: &Styles, joined: bool) -> Result<String, ReportError> {
    let record = &analysis.ablation.record;
    let mut out = format!("<section id=\"ablation-{index}\">\n");
    if joined {
        out.push_str(&format!("<h2 class=\"ablation\">{}</h2>\n", escape(&record.title)));
    }
    if let Some(question) = &record.question {
        out.push_str(&format!("<p class=\"question\">{}</p>\n", escape(question)));
    }
    out.push_str(&answer(analysis, styles));
    out.push_str(&facts(analysis));
    out.push_str("<h3>Ranking</h3>\n");
    out.push_str(&ranking(analysis, styles));
    out.push_str(&missing(analysis));
    out.push_str("<h3>Figures</h3>\n<div class=\"figures\">\n");
    for chart in figures(analysis, styles)? {
        out.push_str(&figure(&chart, styles));
    }
    out.push_str("</div>\n<h3>Variants</h3>\n");
    out.push_str(&variants(analysis, styles));
    out.push_str("<h3>Method</h3>\n<dl class=\"method\">\n");
    for (term, text) in words::method(analysis) {
        out.push_str(&format!("<dt>{term}</dt><dd>{}</dd>\n", escape(&text)));
    }
    out.push_str("</dl>\n<h3>How to reproduce</h3>\n");
    out.push_str(&reproduce(analysis));
    if !record.notes.is_empty() {
        out.push_str("<h3>Notes</h3>\n<ul>\n");
        for note in &record.notes {
            out.push_str(&format!("<li>{}</li>\n", escape(note)));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</section>\n");
    Ok(out)
}

fn answer(analysis: &Analysis, styles: &Styles) -> String {
    let mut out = String::from("<div class=\"answer\">\n<h3>Answer</h3>\n<ul>\n");
    for sentence in words::answer(analysis) {
        let name = |name: &str| format!("<b class=\"name\">{}{}</b>", swatch(styles.get(name)), escape(name));
        out.push_str(&format!("<li>{}</li>\n", sentence.print(escape, name)));
    }
    out.push_str("</ul>\n</div>\n");
    out
}

/// What was run, in one line of facts.
fn facts(analysis: &Analysis) -> String {
    let record = &analysis.ablation.record;
    let seeds: Vec<String> = record.seeds.iter().map(u64::to_string).collect();
    let facts = [
        ("Task", record.task.clone()),
        ("Budget", format!("{} tokens for each run", format::count(record.budget_tokens as f64))),
        ("Seeds", seeds.join(", ")),
        ("Baseline", record.baseline.clone()),
    ];
    let mut out = String::from("<dl class=\"facts\">\n");
    for (term, text) in facts {
        out.push_str(&format!("<div><dt>{term}</dt><dd>{}</dd></div>\n", escape(&text)));
    }
    out.push_str("</dl>\n");
    out
}

fn table_head(titles: &[String], left: usize) -> String {
    let mut out = String::from("<div class=\"wide\">\n<table>\n<thead><tr>");
    for (index, title) in titles.iter().enumerate() {
        let class = if index < left { "" } else { " class=\"number\"" };
        out.push_str(&format!("<th{class}>{}</th>", escape(title)));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    out
}

fn ranking(analysis: &Analysis, styles: &Styles) -> String {
    let titles = ["#", "variant", "mix"].map(str::to_owned).into_iter().chain(headers(analysis));
    let mut out = table_head(&titles.collect::<Vec<_>>(), 3);
    for row in &analysis.rows {
        let cells = Cells::new(row);
        let class = if row.effect == Effect::Baseline { " class=\"baseline\"" } else { "" };
        out.push_str(&format!("<tr{class}><td>{}</td>{}", escape(&cells.rank), name_cells(row, styles)));
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

fn name_cells(row: &Row, styles: &Styles) -> String {
    let record = &row.variant.record;
    format!(
        "<td class=\"variant\">{}{}</td><td class=\"mix\"><code>{}</code></td>",
        swatch(styles.get(&record.name)),
        escape(&record.name),
        escape(&record.layers)
    )
}

fn verdict(effect: Effect) -> String {
    let (class, sign) = match effect {
        Effect::Better => ("better", "▲ "),
        Effect::Worse => ("worse", "▼ "),
        _ => ("open", ""),
    };
    format!("<span class=\"verdict {class}\">{sign}{}</span>", effect.word())
}

/// A small sample of a variant's line and marker colour.
fn swatch(style: Option<&Style>) -> String {
    let Some(style) = style else { return String::new() };
    let dash = style.dash.map_or_else(String::new, |(on, off)| format!(" stroke-dasharray=\"{on} {off}\""));
    format!(
        "<svg class=\"swatch\" viewBox=\"0 0 26 10\" aria-hidden=\"true\"><path d=\"M0 5H26\" stroke=\"{0}\" \
         stroke-width=\"3\"{dash}/>{1}</svg>",
        style.css(),
        style.marker.element(13.0, 5.0, 4.4, &style.css())
    )
}

fn missing(analysis: &Analysis) -> String {
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

fn figures(analysis: &Analysis, styles: &Styles) -> Result<Vec<Figure>, ReportError> {
    let mut figures: Vec<Figure> = Vec::new();
    figures.extend(charts::learning(analysis, styles)?);
    figures.extend(scatter::metric_by_variant(analysis, styles)?);
    figures.extend(scatter::quality_by_cost(analysis, styles)?);
    for group in curves::tag_groups(analysis) {
        figures.push(charts::by_tag(analysis, &group, styles)?);
    }
    figures.extend(charts::index_kl(analysis)?);
    Ok(figures)
}

fn figure(chart: &Figure, styles: &Styles) -> String {
    let class = if chart.panels.len() > 1 { " class=\"panels\"" } else { "" };
    let mut out = format!("<figure{class}>\n<h4>{}</h4>\n<div class=\"drawings\">\n", escape(&chart.title));
    for (name, svg) in &chart.panels {
        let heading = name.as_ref().map_or_else(String::new, |name| {
            format!("<h5>{}{}</h5>\n", swatch(styles.get(name)), escape(name))
        });
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
fn variants(analysis: &Analysis, styles: &Styles) -> String {
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

fn reproduce(analysis: &Analysis) -> String {
    let record = &analysis.ablation.record;
    let command = record.command.clone().unwrap_or_else(|| "csa2 ablate CONFIG".to_owned());
    let unique = |of: &dyn Fn(&crate::results::RunSummary) -> String| {
        let found: BTreeSet<String> = words::summaries(analysis).map(of).collect();
        if found.is_empty() { "–".to_owned() } else { found.into_iter().collect::<Vec<_>>().join(", ") }
    };
    let seconds: f64 = words::summaries(analysis).map(|summary| summary.seconds).filter(|s| s.is_finite()).sum();
    let rows = [
        ("Command", command),
        ("Config hash", record.config_hash.clone()),
        ("csa2 version", unique(&|summary| summary.version.clone())),
        ("Backend", unique(&|summary| summary.backend.clone())),
        ("Threads", unique(&|summary| summary.threads.to_string())),
        ("Seconds, all runs", format!("{seconds:.0}")),
    ];
    let mut out = String::from("<dl class=\"facts\">\n");
    for (term, text) in rows {
        out.push_str(&format!("<div><dt>{term}</dt><dd><code>{}</code></dd></div>\n", escape(&text)));
    }
    out.push_str("</dl>\n");
    out.push_str(
        "<p class=\"quiet\">On one backend and one thread count the same config gives the same values. \
         <code>csa2 report</code> with the folder of the runs rebuilds this page without training.</p>\n",
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::RunState;
    use crate::report::testing::{Fake, ablation};

    fn sample() -> Ablation {
        ablation(&[
            Fake::new("windows", 0.0, &[0.07, 0.08]),
            Fake::new("reuse", 20.0, &[0.99, 0.991]),
            Fake::new("full", 40.0, &[0.98, 0.99]),
        ])
    }

    #[test]
    fn nothing_from_a_config_becomes_mark_up() {
        let evil = "<script>alert(1)</script>\"'&";
        let mut ablation = ablation(&[Fake::new(evil, 0.0, &[0.1, 0.2]), Fake::new("b", 1.0, &[0.3])]);
        ablation.variants[1].runs[1].state = RunState::Failed(evil.to_owned());
        ablation.variants[0].record.layers = evil.to_owned();
        ablation.variants[0].record.note = Some(evil.to_owned());
        ablation.variants[0].record.overrides = BTreeMap::from([(evil.to_owned(), evil.to_owned())]);
        ablation.strays = vec![evil.to_owned()];
        let record = &mut ablation.record;
        for text in [&mut record.title, &mut record.task, &mut record.metric.label, &mut record.config_hash, &mut record.name] {
            *text = evil.to_owned();
        }
        record.question = Some(evil.to_owned());
        record.command = Some(evil.to_owned());
        record.notes = vec![evil.to_owned()];
        let page = page(&[ablation.clone(), ablation]).unwrap();
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    }

    #[test]
    fn the_page_needs_nothing_beside_itself() {
        let page = page(&[sample()]).unwrap();
        let outside = page.replace("http://www.w3.org/2000/svg", "");
        for mark in ["http:", "https:", "src=", "@import", "url(", "<link", "<script"] {
            assert!(!outside.contains(mark), "{mark}");
        }
        assert_eq!(page.matches("<section").count(), page.matches("</section>").count());
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    }

    #[test]
    fn the_page_is_the_same_every_time() {
        assert_eq!(page(&[sample()]).unwrap(), page(&[sample()]).unwrap());
    }

    #[test]
    fn missing_runs_and_joint_warnings_are_shown() {
        let mut first = sample();
        first.variants[2].runs[0].state = RunState::Unfinished { tokens: 500 };
        let mut second = sample();
        second.record.task = "another task".to_owned();
        let page = page(&[first, second]).unwrap();
        assert!(page.contains("full, seed 1: unfinished: last measured at 500 tokens"));
        assert!(page.contains("The tasks differ"));
        assert!(page.contains("<h2>Overview</h2>") && page.contains("href=\"#ablation-1\""));
    }

    #[test]
    fn an_ablation_without_any_result_still_has_a_page() {
        let page = page(&[ablation(&[Fake::new("windows", 0.0, &[])])]).unwrap();
        assert!(page.contains("No run has a result yet") && page.contains("windows, seed 1: not started"));
    }
}
