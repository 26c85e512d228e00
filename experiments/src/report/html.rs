//! `report.html`: one page that needs nothing beside itself.

use super::analysis::Analysis;
use super::blocks::{figure, missing, name_cell, ranking, reproduce, swatch, table_head, variants};
use super::charts::{Style, Styles};
use super::format::html as escape;
use super::joint::{has_joint_ranking, joint_rows, joint_warnings};
use super::matrix;
use super::table::Cells;
use super::{Ablation, ReportError, charts, format, method, words};

const STYLE_SHEET: &str = include_str!("style.css");

/// The page over `ablations`: a section for each, and a joint overview where several share a metric.
pub fn page(ablations: &[Ablation]) -> Result<String, ReportError> {
    let analyses: Vec<Analysis> = ablations.iter().map(Analysis::new).collect();
    let styles = looks(ablations);
    let title = page_title(ablations);
    let mut body = header("ablation report", &title);
    if analyses.len() > 1 {
        body.push_str(&overview(&analyses, &styles)?);
    }
    for (index, analysis) in analyses.iter().enumerate() {
        body.push_str(&section(index, analysis, &styles, analyses.len() > 1)?);
    }
    Ok(document(&title, &body))
}

/// A whole page that needs nothing beside itself; `body` is HTML.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{STYLE_SHEET}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escape(title)
    )
}

/// What stands at the top of a page.
pub fn header(kind: &str, title: &str) -> String {
    format!("<header>\n<p class=\"kicker\">csa2 · {kind}</p>\n<h1>{}</h1>\n</header>\n", escape(title))
}

/// Facts side by side, each a term and its text.
pub fn fact_list(facts: &[(&str, String)]) -> String {
    let mut out = String::from("<dl class=\"facts\">\n");
    for (term, text) in facts {
        out.push_str(&format!("<div><dt>{term}</dt><dd>{}</dd></div>\n", escape(text)));
    }
    out + "</dl>\n"
}

fn page_title(ablations: &[Ablation]) -> String {
    match ablations {
        [only] => only.record.title.clone(),
        several => format!("{} ablations side by side", several.len()),
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
        if let Some(chart) = charts::joint(analyses, styles)? {
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
    let titles = ["ablation", "variant and mix", label, "seeds", "bytes/token", "decode FLOPs", "tokens/s"];
    let mut out = table_head(&titles.map(str::to_owned), 2);
    for (index, row) in joint_rows(analyses) {
        let cells = Cells::new(row);
        out.push_str(&format!(
            "<tr><td><a href=\"#ablation-{index}\">{}</a></td>{}",
            escape(&analyses[index].ablation.record.name),
            name_cell(row, styles)
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
    out.push_str(&matrix::html(analysis));
    out.push_str("<h3>Figures</h3>\n<div class=\"figures\">\n");
    for chart in charts::all(analysis, styles)? {
        out.push_str(&figure(&chart, styles));
    }
    out.push_str("</div>\n<h3>Variants</h3>\n");
    out.push_str(&variants(analysis, styles));
    out.push_str("<h3>Method</h3>\n<dl class=\"method\">\n");
    for (term, text) in method::method(analysis) {
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
    // Where weights were measured in several models, that is what was asked; the ranking compares each in its own.
    for line in matrix::answer(analysis) {
        out.push_str(&format!("<li>{}</li>\n", escape(&line)));
    }
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
        (
            "Budget",
            format!(
                "{} tokens for each run{}",
                format::count(record.budget_tokens as f64),
                method::own_budgets(analysis)
            ),
        ),
        ("Seeds", seeds.join(", ")),
        ("Baseline", record.baseline.clone()),
    ];
    fact_list(&facts)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
        ablation.variants[0].record.config_hash = evil.to_owned();
        ablation.variants[0].record.overrides = BTreeMap::from([(evil.to_owned(), evil.to_owned())]);
        ablation.strays = vec![evil.to_owned()];
        let record = &mut ablation.record;
        for text in [&mut record.title, &mut record.task, &mut record.metric.label, &mut record.name] {
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
