//! The report of a layer search.

use std::path::Path;

use super::blocks::{figure, table_head};
use super::charts::{trade_offs, trade_styles};
use super::format::html as escape;
use super::html::{document, fact_list, header};
use super::terminal::{cells, new_table, print, title_cells};
use super::{ReportError, format};
use crate::results::{MetricRecord, write_atomic};
use crate::search::{Found, Point};

/// Writes `report.html` into `out`.
///
/// # Errors
/// When a chart cannot be drawn or the file cannot be written.
pub fn write(out: &Path, found: &Found) -> Result<(), ReportError> {
    Ok(write_atomic(&out.join("report.html"), page(found)?.as_bytes())?)
}

/// The search for a terminal of `width` columns.
pub fn table(found: &Found, width: u16) -> String {
    let mut table = new_table();
    table.set_header(title_cells(&titles(found), 2));
    for point in &found.path {
        table.add_row(cells(&row(found, point), 2));
    }
    let mut out = format!("{} · {}\n", format::terminal(&found.title), format::terminal(&found.task));
    out += &print(table, width);
    for point in &found.path {
        out += &format!("  {:>3}  layers = \"{}\"\n", point.step, point.mix);
    }
    for sentence in sentences(found) {
        out += &format!("- {}\n", format::terminal(&sentence));
    }
    for excluded in found.excluded() {
        out += &format!("  no candidate: {}\n", format::terminal(&excluded.replace('\n', " ")));
    }
    out
}

fn titles(found: &Found) -> Vec<String> {
    let Found { measure, other, .. } = found;
    let (measure, other) = (&measure.label, &other.label);
    let scored = format!("entries scored at {}", format::context(found.decode_context));
    let mut titles =
        vec!["step".to_owned(), "change".to_owned(), format!("{measure}, calibration"), "worse by".to_owned()];
    titles.extend([format!("{other}, calibration"), format!("{measure}, evaluation"), format!("{other}, evaluation")]);
    titles.extend(["selecting layers".to_owned(), scored, "bytes/token".to_owned()]);
    titles
}

/// A value, with its size where four decimals would hide it.
fn fine(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-3 {
        let text = format!("{value:.1e}");
        return text.replace('-', "−");
    }
    format::value(value)
}

/// A difference, with its sign.
fn signed(difference: f64) -> String {
    let text = fine(difference);
    if difference > 0.0 { format!("+{text}") } else { text }
}

fn value(values: &std::collections::BTreeMap<String, f64>, measure: &MetricRecord) -> String {
    values.get(&measure.name).map_or("–".into(), |value| fine(*value))
}

fn row(found: &Found, point: &Point) -> Vec<String> {
    let Found { measure, other, .. } = found;
    vec![
        point.step.to_string(),
        point.change.clone().unwrap_or_else(|| "the run's own mix".into()),
        value(&point.calibration, measure),
        if point.step == 0 { "–".into() } else { signed(point.worsening) },
        value(&point.calibration, other),
        value(&point.evaluation, measure),
        value(&point.evaluation, other),
        point.selecting.to_string(),
        format::count(point.scored_entries),
        format::count(point.bytes_per_token),
    ]
}

/// What came out, in sentences.
fn sentences(found: &Found) -> Vec<String> {
    let Found { measure, other, path, .. } = found;
    let Some((start, last)) = path.first().zip(path.last()) else { return Vec::new() };
    let steps = format::plural(path.len() - 1, "change");
    let mut out =
        vec![format!("From `{}` the search took {steps}, down to `{}`. {}", start.mix, last.mix, found.ending())];
    let rise = |pair: &[Point]| pair[1].worsening - pair[0].worsening;
    let steepest = path.windows(2).max_by(|one, other| rise(one).total_cmp(&rise(other)));
    if let Some(pair) = steepest.filter(|pair| rise(pair) > 0.0) {
        let (before, after) = (&pair[0], &pair[1]);
        let mut text = format!(
            "The {} gets worse most at step {} ({}), by {}.",
            measure.label,
            after.step,
            after.change.as_deref().unwrap_or_default(),
            fine(rise(pair))
        );
        if before.step > 0 {
            text += &format!(
                " The mix before it, `{}`, has {} {} and {} {} on the evaluation set (the run's own: {} and {}), with {} instead of \
                 {} entries scored for a token at {} and {} instead of {} bytes per token.",
                before.mix,
                measure.label,
                value(&before.evaluation, measure),
                other.label,
                value(&before.evaluation, other),
                value(&start.evaluation, measure),
                value(&start.evaluation, other),
                format::count(before.scored_entries),
                format::count(start.scored_entries),
                format::context(found.decode_context),
                format::count(before.bytes_per_token),
                format::count(start.bytes_per_token),
            );
        }
        out.push(text);
    }
    out
}

fn page(found: &Found) -> Result<String, ReportError> {
    let mut body = header("layer search", &found.title);
    body += "<p class=\"question\">Which layers can stop selecting entries of their own, without training, and what does it cost?</p>\n";
    body += "<div class=\"answer\">\n<h3>Answer</h3>\n<ul>\n";
    for sentence in sentences(found) {
        body += &format!("<li>{}</li>\n", with_code(&sentence));
    }
    body += "</ul>\n</div>\n";
    body += &fact_list(&[
        ("Task", found.task.clone()),
        ("Run", format!("{}, step {}", found.run, found.run_step)),
        (
            "Kept low",
            if found.measure.higher_is_better {
                format!("the loss of {}", found.measure.label)
            } else {
                found.measure.label.clone()
            },
        ),
        ("Calibration", format!("{} sequences, seed {}", found.calibration.sequences, found.calibration.seed)),
        ("Evaluation", format!("{} sequences", found.evaluation_sequences)),
    ]);
    body += "<h3>The way down</h3>\n";
    body += &path_table(found);
    body += "<h3>Figures</h3>\n<div class=\"figures\">\n";
    for chart in trade_offs(found)? {
        body += &figure(&chart, &trade_styles());
    }
    body += "</div>\n<h3>All that was tried</h3>\n";
    body += &tried_table(found);
    let excluded = found.excluded();
    if !excluded.is_empty() {
        body += "<h3>No candidates</h3>\n<ul>\n";
        for line in excluded {
            body += &format!("<li>{}</li>\n", with_code(&line));
        }
        body += "</ul>\n";
    }
    body += "<h3>Method</h3>\n<dl class=\"method\">\n";
    for (term, text) in method(found) {
        body += &format!("<dt>{term}</dt><dd>{}</dd>\n", with_code(&text));
    }
    body += "</dl>\n<h3>How to reproduce</h3>\n";
    body += &fact_list(&[
        ("Command", found.command.clone()),
        ("csa2 version", found.version.clone()),
        ("Backend", found.backend.clone()),
        ("Threads", found.threads.to_string()),
        ("Configuration", found.config_sha256.chars().take(16).collect()),
        ("Weights", found.weights_sha256.chars().take(16).collect()),
    ]);
    Ok(document(&found.title, &body))
}

/// Escaped text in which what stands between two backquotes is code.
fn with_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(place, part)| if place % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) })
        .collect()
}

fn path_table(found: &Found) -> String {
    let mut titles = titles(found);
    titles[1] = "change, and the mix after it".into();
    let mut out = table_head(&titles, 2);
    for point in &found.path {
        for (place, text) in row(found, point).iter().enumerate() {
            out += &match place {
                0 => format!("<tr><td>{}</td>", escape(text)),
                1 => format!(
                    "<td class=\"variant\"><b>{}</b><code>layers = &quot;{}&quot;</code></td>",
                    escape(text),
                    escape(&point.mix)
                ),
                _ => format!("<td class=\"number\">{}</td>", escape(text)),
            };
        }
        out += "</tr>\n";
    }
    out + "</tbody>\n</table>\n</div>\n"
}

/// A row for every change, a column for every round, in each cell how much worse the measure got.
fn tried_table(found: &Found) -> String {
    let mut changes: Vec<_> = found.rounds.iter().flat_map(|round| &round.tried).map(|tried| &tried.change).collect();
    changes.sort_by_key(|change| (change.layer, change.to.name(), change.from.name()));
    changes.dedup_by_key(|change| (change.layer, change.to, change.from));
    let rounds: Vec<_> = found.rounds.iter().filter(|round| !round.tried.is_empty()).collect();
    let titles = std::iter::once("change".to_owned()).chain((1..=rounds.len()).map(|number| format!("step {number}")));
    let mut out = table_head(&titles.collect::<Vec<_>>(), 1);
    for change in changes {
        out += &format!("<tr><td>layer {}: {} to {}</td>", change.layer, change.from, change.to);
        for round in &rounds {
            let same = |other: &crate::search::Change| {
                (other.layer, other.from, other.to) == (change.layer, change.from, change.to)
            };
            let place = round.tried.iter().position(|tried| same(&tried.change));
            let text = place.map_or(String::new(), |place| signed(round.tried[place].worth.worsening));
            let taken = place.is_some() && place == round.taken;
            let text = if taken { format!("<b>{text}</b>") } else { text };
            out += &format!("<td class=\"number\">{text}</td>");
        }
        out += "</tr>\n";
    }
    out += "</tbody>\n</table>\n</div>\n";
    out + &format!(
        "<p class=\"quiet\">How much worse the {} of the calibration set is than with the run's own mix, after each single change \
         of the mix before the step. <b>Bold</b>: the change that was taken.</p>\n",
        escape(&found.measure.label)
    )
}

fn method(found: &Found) -> Vec<(&'static str, String)> {
    let reindex = if found.full_to_reindex { ", and from `full` to `reindex`" } else { "" };
    vec![
        (
            "Changes",
            format!(
                "One layer goes from `full` or `reindex` to `reuse`{reindex}. It keeps all weights that it still has; its \
                 compressor, index keys or indexer are left out, nothing is trained and nothing is made up. Layers above that read \
                 what it owned read what is nearest below them, at the ratio of that."
            ),
        ),
        (
            "Pools",
            "A layer that searches in a candidate pool goes on to search in the same one, and no layer comes to search in one: \
             changes that would do either are no candidates. `+pool` stays on a layer as long as the layer is `full`."
                .into(),
        ),
        (
            "Choice",
            format!(
                "Every step measures all single changes of the current mix and takes the one with the best {}; of equal ones that \
                 with fewer scored entries, then with fewer bytes, then the lowest. The search is greedy: it does not look at \
                 pairs of changes, and another order may end better.",
                found.measure.label
            ),
        ),
        (
            "Data",
            "The calibration set is made of training sequences of a random stream of its own. The evaluation set is that of the \
             task; no change is chosen by it. There is one run and so no interval."
                .into(),
        ),
        (
            "Cost",
            format!(
                "Entries scored: over all indexers, to decode one token that sees {} tokens; a layer that searches in a pool scores \
                 the pool. Bytes per token: main KV and index keys, as in `csa2 plan`.",
                format::context(found.decode_context)
            ),
        ),
    ]
}
