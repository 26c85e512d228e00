//! The report of what decoding costs.

use std::path::Path;

use super::blocks::{figure, table_head};
use super::charts::{decode, decode_styles};
use super::format::{context, csv, html as escape};
use super::html::{document, fact_list, header};
use super::terminal::{cells, new_table, print, title_cells};
use super::{ReportError, format};
use crate::bench::decode::{CacheFile, Found, Measured, Row, Times};
use crate::results::{write_atomic, write_json};

/// Columns of names on the left.
const LEFT: usize = 1;

/// Modes in the order in which they are told.
const MODES: [&str; 6] = ["swa", "full", "reuse", "reindex", "stale", "dense"];

/// Those that some mix has.
fn modes(found: &Found) -> Vec<&'static str> {
    let has = |mode: &&str| found.mixes.iter().flat_map(|mix| &mix.rows).any(|row| row.modes.contains_key(mode));
    MODES.into_iter().filter(has).collect()
}

/// Writes `decode.json`, `decode.csv` and `report.html` into `out`.
///
/// # Errors
/// When a chart cannot be drawn or a file cannot be written.
pub fn write(out: &Path, found: &Found) -> Result<(), ReportError> {
    let page = page(found)?;
    write_json(&out.join("decode.json"), found)?;
    write_atomic(&out.join("decode.csv"), table_csv(found).as_bytes())?;
    Ok(write_atomic(&out.join("report.html"), page.as_bytes())?)
}

/// Everything for a terminal of `width` columns.
pub fn table(found: &Found, width: u16) -> String {
    let mut out = String::new();
    let sections = [(tokens_titles(found), tokens(found)), (rates_titles(), rates(found))];
    for (titles, rows) in sections {
        let mut table = new_table();
        table.set_header(title_cells(&titles, LEFT));
        for row in rows {
            table.add_row(cells(&row, LEFT));
        }
        out += &format!("{}\n", print(table, width));
    }
    for mix in &found.mixes {
        out += &format!("{}: {}, layers = \"{}\"\n", mix.key, mix.name, mix.layers);
    }
    for line in lines(found) {
        out += &format!("- {}\n", format::terminal(&line));
    }
    out += "Times are lower quartiles, of a token also the median; those of a mode are per token, all its layers together.\n";
    out
}

fn tokens_titles(found: &Found) -> Vec<String> {
    let modes = modes(found).into_iter().map(str::to_owned);
    let titles = ["mix", "context", "token", "median"].map(str::to_owned).into_iter().chain(modes);
    titles.chain(["bytes held", "entries scored"].map(str::to_owned)).collect()
}

fn tokens(found: &Found) -> Vec<Vec<String>> {
    let row = |mix: &Measured, row: &Row| {
        let modes = modes(found).into_iter();
        let modes = modes.map(|mode| row.modes.get(mode).map_or("–".into(), |times| seconds(times.quartile)));
        let start = [mix.key.into(), context(row.context), seconds(row.token.quartile), seconds(row.token.median)];
        let end = [row.bytes.to_string(), row.scored.to_string()];
        start.into_iter().chain(modes).chain(end).collect()
    };
    found.mixes.iter().flat_map(|mix| mix.rows.iter().map(move |each| row(mix, each))).collect()
}

fn rates_titles() -> Vec<String> {
    ["rate", "of", "time", "GB per s"].map(str::to_owned).into()
}

fn rates(found: &Found) -> Vec<Vec<String>> {
    let gigabytes = |rate: f64| format!("{:.2}", rate / 1e9);
    let mut rows = Vec::new();
    for (when, rate) in ["before", "after"].iter().zip(found.copying) {
        rows.push(vec![format!("copying memory, {when} scoring"), "–".into(), "–".into(), gigabytes(rate)]);
    }
    for scoring in &found.scoring {
        rows.push(vec![
            format!("scoring packed keys, {} heads", scoring.heads),
            format!("{} entries", context(scoring.entries)),
            seconds(scoring.seconds.quartile),
            gigabytes(scoring.rate()),
        ]);
    }
    let CacheFile { bytes, saved, loaded, forked } = found.file;
    for (what, Times { quartile, .. }) in [
        ("saving caches, with sync", saved),
        ("loading caches, with checksum", loaded),
        ("forking caches, which are shared", forked),
    ] {
        let rate = gigabytes(bytes as f64 / quartile);
        rows.push(vec![what.into(), format!("{bytes} bytes"), seconds(quartile), rate]);
    }
    rows
}

/// What stands in no table.
fn lines(found: &Found) -> Vec<String> {
    let ratios = found.ratios.iter().map(|ratio| format!("{}: {:.3}", ratio.what, ratio.value));
    let prefill = found.prefill.iter().map(|read| {
        format!("reading a prompt of {} tokens: {:.0} tokens/s", read.tokens, read.tokens as f64 / read.seconds)
    });
    let name = |key: &str| found.mixes.iter().find(|mix| mix.key == key).map_or(key.to_owned(), |mix| mix.name.clone());
    let memory = found.memory.iter().map(|growth| {
        let figures = match &growth.figures {
            Ok(figures) => format!(
                "{} bytes held, {} allocated, {} resident, {} after decoding; {} resident before",
                figures.bytes, figures.allocated, figures.made_up, figures.decoded, figures.before
            ),
            Err(reason) => format!("not measured: {reason}"),
        };
        let [start, end] = [growth.start, growth.context].map(context);
        format!("{}, memory from {start} to {end}: {figures}", name(growth.mix))
    });
    let mut lines: Vec<String> = ratios.chain(prefill).chain(memory).collect();
    lines.extend(load(found));
    lines
}

fn load(found: &Found) -> Option<String> {
    let [before, after] = found.load;
    Some(format!("load of the machine: {} before, {} after (this included)", before?, after?))
}

/// Seconds in a unit that suits them.
fn seconds(seconds: f64) -> String {
    let units = [(1.0, "s"), (1e-3, "ms")];
    let (size, unit) = units.into_iter().find(|(size, _)| seconds >= *size).unwrap_or((1e-6, "us"));
    let number = seconds / size;
    format!("{number:.*} {unit}", if number < 10.0 { 2 } else { usize::from(number < 100.0) })
}

fn table_csv(found: &Found) -> String {
    let mut out = "mix,layers,context,repetitions,token_seconds,token_seconds_median".to_owned();
    for mode in MODES {
        out += &format!(",{mode}_seconds,{mode}_seconds_median");
    }
    out += ",bytes,allocated,scored_entries\n";
    for mix in &found.mixes {
        for row in &mix.rows {
            let Times { quartile, median } = row.token;
            out += &format!(
                "{},{},{},{},{quartile},{median}",
                csv(mix.key),
                csv(&mix.layers),
                row.context,
                row.repetitions
            );
            for mode in MODES {
                let times = row.modes.get(mode).map(|times| format!("{},{}", times.quartile, times.median));
                out += &format!(",{}", times.unwrap_or_else(|| ",".into()));
            }
            out += &format!(",{},{},{}\n", row.bytes, row.allocated, row.scored);
        }
    }
    out
}

fn page(found: &Found) -> Result<String, ReportError> {
    let title = "What decoding a token costs";
    let mut body = header("decoding", title);
    if !found.run.release {
        body += "<p class=\"warning\">Not a release build: these figures say nothing about speed.</p>\n";
    }
    body += "<div class=\"answer\">\n<h3>Ratios</h3>\n<ul>\n";
    for ratio in &found.ratios {
        body += &format!("<li>{}: <b>{:.3}</b></li>\n", escape(&ratio.what), ratio.value);
    }
    body += "</ul>\n</div>\n<h3>Figures</h3>\n<div class=\"figures\">\n";
    let styles = decode_styles(found);
    for chart in decode(found, &styles)? {
        body += &figure(&chart, &styles);
    }
    body += "</div>\n<h3>Tokens</h3>\n";
    body += &html_table(&tokens_titles(found), &tokens(found));
    body += "<h3>Rates</h3>\n";
    body += &html_table(&rates_titles(), &rates(found));
    body += "<h3>Prompts, memory, machine</h3>\n<ul>\n";
    for line in &lines(found)[found.ratios.len()..] {
        body += &format!("<li>{}</li>\n", escape(line));
    }
    body += "</ul>\n<h3>Method</h3>\n<dl class=\"method\">\n";
    for (term, text) in method(found) {
        body += &format!("<dt>{term}</dt><dd>{}</dd>\n", escape(&text));
    }
    body += "</dl>\n<h3>How to reproduce</h3>\n";
    body += &fact_list(&[
        ("Command", found.run.command.clone()),
        ("Program", found.run.program.into()),
        ("Backend", found.run.backend.into()),
        ("Device", found.run.device.clone()),
        ("Threads", found.run.threads.to_string()),
        ("Form", format!("decode.json, schema {}", found.schema)),
    ]);
    Ok(document(title, &body))
}

fn html_table(titles: &[String], rows: &[Vec<String>]) -> String {
    let mut out = table_head(titles, LEFT);
    for row in rows {
        out += "<tr>";
        for (index, text) in row.iter().enumerate() {
            let class = if index < LEFT { "" } else { " class=\"number\"" };
            out += &format!("<td{class}>{}</td>", escape(text));
        }
        out += "</tr>\n";
    }
    out + "</tbody>\n</table>\n</div>\n"
}

fn method(found: &Found) -> Vec<(&'static str, String)> {
    let mixes = found
        .mixes
        .iter()
        .map(|mix| format!("{} ({}): {}", mix.key, mix.name, mix.layers))
        .collect::<Vec<_>>()
        .join("; ");
    vec![
        (
            "Networks",
            format!(
                "{mixes}. {}; random weights. Full everywhere keeps in each layer the ratio of the content that the first mix reads there, or next; \
                 windows of dense layers have no limit.",
                found.sizes
            ),
        ),
        (
            "Caches",
            "In the number formats above, filled with made-up vectors: no context is read. What is searched, read and \
             held is the same as after a real context; which entries are chosen is not."
                .into(),
        ),
        (
            "Times",
            format!(
                "{} tokens at every context, in turns of ten with two before each turn that are not counted. A token ends when its logits \
                 have been read. The lower quartile, because on a machine that does other things the median is theirs.",
                found.tokens
            ),
        ),
        (
            "Scoring and copying",
            "One query against packed keys of 64 channels, its Top-K of 64 included; bytes are those of codes and scales. Copying: bytes \
             copied, each read and written, by all threads together. Lower quartiles of 20."
                .into(),
        ),
        (
            "Memory",
            "Growth of the resident memory of a process of its own, in which tokens have been decoded before, against the growth of the bytes \
             that the caches hold; once after filling them and once after decoding as well. It starts at an eighth of the context, so that scratch memory of \
             scoring, which does not grow with the context, is there before. Pages are of ordinary size there; with those of 2 MiB, which the program \
             asks for otherwise, it is up to 4% of 100 MB more or less."
                .into(),
        ),
        ("Files", "Caches of the first mix at the longest context, lower quartiles of 5, in the folder for temporary files.".into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::decode::testing::found;

    #[test]
    fn every_figure_is_in_table_and_page() {
        let found = found();
        let text = table(&found, 200);
        let page = page(&found).unwrap();
        for part in ["released layout", "dense everywhere", "16K", "512K", "4.00 ms", "5.00 ms", "104857600", "1048576"]
        {
            assert!(text.contains(part), "{part}: {text}");
            assert!(page.contains(part), "{part}");
        }
        for part in ["time of a token at 512K, dense everywhere over released layout: 50.000", "4096 tokens/s"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(page.contains("a &lt;processor&gt;") && page.contains("csa2 bench decode --context 16K,512K"));
        assert!(!page.contains("Not a release build") && page.matches("<svg role=\"img\"").count() == 2);
        // Half of the load is not known.
        assert!(!text.contains("load of the machine"));
    }

    #[test]
    fn the_file_has_a_line_for_every_context_of_every_mix() {
        let found = found();
        let text = table_csv(&found);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(rows.len(), 7);
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{text}");
        assert_eq!(rows[1][..3], ["released", "swa*2 full", "16384"]);
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &found).unwrap();
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.path().join("decode.json")).unwrap()).unwrap();
        assert_eq!(json["mixes"][2]["rows"][1]["token"]["quartile"], 0.2);
        assert_eq!(json["memory"][0]["made_up"], 1.02e6);
    }
}
