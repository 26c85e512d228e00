//! The report of an evaluation: the run as it was trained and with something switched, at several lengths.

use std::path::Path;

use csa2_train::tasks::Metric;

use super::charts::{self, evaluation_styles};
use super::format::html as escape;
use super::html::{document, fact_list, header};
use super::matrix::html_table;
use super::terminal::{cells, new_table, print, title_cells};
use super::{ReportError, format};
use crate::evaluation::{Evaluation, Mean, Part, Row};
use crate::results::write_atomic;
use crate::stats::Estimate;

/// What the mark of a setting means.
const FOREIGN: &str = "† Measured otherwise than trained";

/// Writes `report.html` into `out`.
///
/// # Errors
/// When a chart cannot be drawn or the file cannot be written.
pub fn write(out: &Path, evaluation: &Evaluation) -> Result<(), ReportError> {
    Ok(write_atomic(&out.join("report.html"), page(evaluation)?.as_bytes())?)
}

/// Every setting at every length for a terminal of `width` columns.
pub fn table(evaluation: &Evaluation, width: u16) -> String {
    let drawn = |(titles, rows): &Text| {
        let mut table = new_table();
        table.set_header(title_cells(titles, 1));
        for row in rows {
            table.add_row(cells(row, 1));
        }
        print(table, width)
    };
    let mut out = drawn(&rows(evaluation));
    if let Some((title, text)) = by_tag(evaluation) {
        out += &format!("\n{title}\n{}", drawn(&text));
    }
    out += &format!("{}.\n", key(evaluation));
    for line in foreign(evaluation) {
        out += &format!("{}\n", format::terminal(&line));
    }
    out
}

/// How the table is to be read.
fn key(evaluation: &Evaluation) -> String {
    let better = if evaluation.metric.higher_is_better() { "higher" } else { "lower" };
    let other = if evaluation.contexts().len() > 1 {
        format!("; other lengths than the task's own change its “{}”", evaluation.length_key)
    } else {
        String::new()
    };
    let trained = if evaluation.training_context.is_some() { "; *: the training length" } else { "" };
    format!(
        "± is half the 95% interval over sequences; {} is better where it is {better}{trained}{other}",
        evaluation.metric_label()
    )
}

/// What marked settings were not trained with.
fn foreign(evaluation: &Evaluation) -> Vec<String> {
    let mismatches = evaluation.mismatches();
    mismatches
        .into_iter()
        .map(|(setting, mismatch)| format!("{FOREIGN}: {}: {mismatch}.", setting.trim_end_matches(" †")))
        .collect()
}

fn number(mean: &Mean) -> String {
    format::estimate(&estimate(mean), format::value)
}

fn estimate(mean: &Mean) -> Estimate {
    Estimate { n: 0, mean: mean.mean, sd: None, half_width: mean.half_width }
}

/// Tags that every row has, so that they can be columns: where there is one length, those of positions and distances too.
fn shared_tags(evaluation: &Evaluation) -> Vec<&str> {
    let has = |row: &Row, name: &str| row.tags.iter().any(|part| part.name == name);
    let first = evaluation.rows.first().map_or(&[][..], |row| &row.tags);
    first
        .iter()
        .map(|part| part.name.as_str())
        .filter(|name| evaluation.rows.iter().all(|row| has(row, name)))
        .collect()
}

/// Titles and rows of text.
type Text = (Vec<String>, Vec<Vec<String>>);

/// What a row is of, as the first columns of every table.
fn named(evaluation: &Evaluation, row: &Row) -> [String; 2] {
    let trained = if evaluation.training_context == Some(row.context) { "*" } else { "" };
    [row.label(), format!("{}{trained}", row.context)]
}

/// Every setting at every length.
fn rows(evaluation: &Evaluation) -> Text {
    let mut titles =
        ["measured", "tokens", "sequences", &evaluation.metric_label(), "loss"].map(str::to_owned).to_vec();
    let several = evaluation.settings().len() > 1;
    titles.extend(several.then(|| "difference to the first setting".to_owned()));
    let row = |row: &Row| {
        let text = |mean: Option<Mean>| mean.map_or("–".into(), |mean| number(&mean));
        let judged = row.headline(evaluation.metric_tag.as_deref());
        let means = [judged.map(|measure| measure.metric), row.all.map(|measure| measure.loss)].map(text);
        let difference = row.difference.map_or("–".into(), |mean| format::estimate(&estimate(&mean), format::signed));
        let line = named(evaluation, row).into_iter().chain([row.sequences.to_string()]).chain(means);
        line.chain(several.then_some(difference)).collect()
    };
    (titles, evaluation.rows.iter().map(row).collect())
}

/// The metric by those tags that every row has; none where there are none.
fn by_tag(evaluation: &Evaluation) -> Option<(String, Text)> {
    let tags = shared_tags(evaluation);
    let kind = tags.first()?.rsplit_once(' ').map_or("kind of query", |(kind, _)| kind);
    let short = |tag: &&str| tag.strip_prefix(kind).unwrap_or(tag).trim().to_owned();
    let titles = ["measured", "tokens"].map(str::to_owned).into_iter().chain(tags.iter().map(short));
    let row = |row: &Row| {
        let mean = |tag: &&str| row.headline(Some(tag)).map_or("–".into(), |measure| number(&measure.metric));
        named(evaluation, row).into_iter().chain(tags.iter().map(mean)).collect()
    };
    let text = (titles.collect(), evaluation.rows.iter().map(row).collect());
    let name = if evaluation.metric == Metric::Accuracy { "Accuracy" } else { "Bits per byte" };
    Some((format!("{name} by {kind}"), text))
}

/// What was found, in sentences.
fn answer(evaluation: &Evaluation) -> Vec<String> {
    let label = evaluation.metric_label();
    let headline = |row: &Row| row.headline(evaluation.metric_tag.as_deref()).map(|measure| measure.metric);
    let settings = evaluation.settings();
    let mut out = Vec::new();
    for setting in &settings {
        let rows: Vec<&Row> = evaluation.rows.iter().filter(|row| row.label() == *setting).collect();
        let place = |row: &Row| match evaluation.training_context {
            Some(trained) if trained == row.context => format!("at the training length of {trained} tokens"),
            Some(trained) => {
                format!("at {} times that ({})", format::count(row.context as f64 / trained as f64), row.context)
            }
            None => format!("with {} tokens", row.context),
        };
        let told: Vec<String> =
            rows.iter().filter_map(|row| Some(format!("{} {}", number(&headline(row)?), place(row)))).collect();
        out.push(format!("{}: {label} {}.", format::heading(setting), told.join(", ")));
    }
    let text = evaluation.metric == Metric::BitsPerByte;
    let own = evaluation.rows.iter().find(|row| Some(row.context) == evaluation.training_context);
    if let Some(row) = own.or(evaluation.rows.first()).filter(|_| text)
        && let (Some(first), Some(last)) = (row.positions.first(), row.positions.last())
    {
        let at = |part: &Part| format!("{} at position {}", number(&part.measure.metric), part.name());
        out.push(format!("What context brings in {} tokens: bits per byte {}, {}.", row.context, at(first), at(last)));
    }
    out
}

fn page(evaluation: &Evaluation) -> Result<String, ReportError> {
    let title = format!("What {} reaches", evaluation.layers);
    let mut body = header("evaluation", &title);
    body += "<div class=\"answer\">\n<h3>Answer</h3>\n<ul>\n";
    for sentence in answer(evaluation) {
        body += &format!("<li>{}</li>\n", escape(&sentence));
    }
    body += "</ul>\n</div>\n";
    for line in foreign(evaluation) {
        body += &format!("<p class=\"warning\">{}</p>\n", escape(&line));
    }
    let trained = evaluation
        .training_context
        .map_or("not known: the run was imported".into(), |tokens| format!("{tokens} tokens"));
    body += &fact_list(&[
        ("Task", evaluation.task.clone()),
        ("Run", format!("{}, step {}", evaluation.run, evaluation.step)),
        ("Training length", trained),
    ]);
    body += "<h3>Settings and lengths</h3>\n";
    body += &html_table(rows(evaluation));
    if let Some((title, text)) = by_tag(evaluation) {
        body += &format!("<h4>{}</h4>\n{}", escape(&title), html_table(text));
    }
    body += &format!("<p class=\"quiet\">{}.</p>\n", escape(&key(evaluation)));
    body += "<h3>Figures</h3>\n<div class=\"figures\">\n";
    for chart in charts::evaluation(evaluation)? {
        body += &super::blocks::figure(&chart, &evaluation_styles(evaluation));
    }
    body += "</div>\n<h3>Groups of positions and distances</h3>\n";
    body += &groups(evaluation);
    body += "<h3>Method</h3>\n<dl class=\"method\">\n";
    for (term, text) in method(evaluation) {
        body += &format!("<dt>{term}</dt><dd>{}</dd>\n", escape(&text));
    }
    body += "</dl>\n<h3>How to reproduce</h3>\n";
    body += &fact_list(&[
        ("Command", evaluation.command.clone()),
        ("csa2 version", evaluation.version.clone()),
        ("Backend", evaluation.backend.clone()),
        ("Weights", evaluation.weights_sha256.chars().take(16).collect()),
    ]);
    Ok(document(&title, &body))
}

/// How numbers were put into groups, for every length.
fn groups(evaluation: &Evaluation) -> String {
    let mut table = Vec::new();
    for context in evaluation.contexts() {
        let Some(row) = evaluation.rows.iter().find(|row| row.context == context) else { continue };
        for (what, parts) in [("positions", &row.positions), ("distances", &row.distances)] {
            let (Some(first), Some(last)) = (parts.first(), parts.last()) else { continue };
            table.push(vec![
                format!("{context} tokens, {what}"),
                format!("{}–{}", first.from, last.to),
                (first.to + 1 - first.from).to_string(),
                parts.len().to_string(),
            ]);
        }
    }
    html_table((["", "range", "width of a group", "groups"].map(str::to_owned).to_vec(), table))
}

fn method(evaluation: &Evaluation) -> Vec<(&'static str, String)> {
    let mut method = vec![
        (
            "Measured",
            "The weights of the run's last checkpoint, on sequences of the evaluation set, which no training step sees; one forward pass \
             a batch, as in training."
                .to_owned(),
        ),
        (
            "Interval",
            "95% of the mean over targets, with sequences as what is drawn (Student's t; targets of one sequence are not independent). It \
             tells the spread between sequences of one run, not between runs. Where every sequence comes to the same, as with an accuracy \
             of 1, it has no width, which is no proof."
                .to_owned(),
        ),
        (
            "Length",
            format!(
                "Other lengths than the task's own are made by its “{}”; everything else of the task stays. Sequences of other lengths are \
                 other sequences.",
                evaluation.length_key
            ),
        ),
    ];
    if evaluation.metric == Metric::Accuracy {
        method.push((
            "Distance",
            "Tokens from the one that holds the answer (the value beside the key; of a chain of two hops its end) to the query.".into(),
        ));
    }
    if evaluation.settings().len() > 1 {
        method.push((
            "Switch",
            "One thing is otherwise than in the first setting, the weights are the same. The difference is that of the metric, taken sequence by \
             sequence, so its interval is narrower than those of the two. A pool bounds where reindex layers search; \
             quantization rounds cached vectors to the formats in which decoding would keep them."
                .into(),
        ));
    }
    method
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::evaluation::{Measure, TagPart};

    fn measure(value: f64) -> Measure {
        let mean = |mean| Mean { mean, half_width: Some(0.01) };
        Measure { targets: 8, sequences: 4, loss: mean(1.0 - value), metric: mean(value) }
    }

    fn row(setting: &str, context: usize, mismatch: Option<&str>) -> Row {
        let part = |from: usize| Part { from, to: from + 3, measure: measure(0.5) };
        Row {
            setting: setting.into(),
            layers: "full reindex".into(),
            pool: None,
            quantization: csa2_model::config::QuantizationConfig::default(),
            pool_mismatch: mismatch.map(str::to_owned),
            quantization_mismatch: None,
            replay: None,
            context,
            sequences: 4,
            task: "recall".into(),
            values: BTreeMap::new(),
            all: Some(measure(0.5)),
            difference: mismatch.map(|_| Mean { mean: -0.25, half_width: Some(0.125) }),
            tags: vec![
                TagPart { name: format!("depth {context}%"), measure: measure(0.25) },
                TagPart { name: "depth 9%".into(), measure: measure(0.75) },
            ],
            positions: vec![part(0), part(4)],
            distances: vec![part(1), part(5)],
        }
    }

    fn sample() -> Evaluation {
        let rows = vec![
            row("as trained", 16, None),
            row("as trained", 32, None),
            row("pool=4x2", 16, Some("weights trained with <none>, measured with one")),
            row("pool=4x2", 32, Some("weights trained with <none>, measured with one")),
        ];
        Evaluation {
            schema: 1,
            run: "runs/<script>alert(1)</script>".into(),
            step: 3,
            weights_sha256: "0123456789abcdef0123".into(),
            layers: "full reindex".into(),
            pool: None,
            pool_mismatch: None,
            task: "recall".into(),
            values: BTreeMap::new(),
            metric: Metric::Accuracy,
            metric_tag: None,
            training_context: Some(16),
            length_key: "gap".into(),
            rows,
            command: "csa2 eval & more".into(),
            backend: "flex".into(),
            version: "0".into(),
        }
    }

    #[test]
    fn the_page_is_well_formed_and_needs_nothing_beside_itself() {
        let page = page(&sample()).unwrap();
        let outside = page.replace("http://www.w3.org/2000/svg", "");
        for mark in ["http:", "https:", "src=", "@import", "url(", "<link", "<script", "NaN"] {
            assert!(!outside.contains(mark), "{mark}");
        }
        for element in ["svg", "figure", "table", "div", "dl", "ul", "li", "h3", "p"] {
            let opened = page.matches(&format!("<{element}>")).count() + page.matches(&format!("<{element} ")).count();
            assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "{element}");
        }
        assert!(page.contains("&lt;none&gt;") && page.contains("csa2 eval &amp; more"));
        // Length, position, distance and depth, the last three once for each length.
        assert_eq!(page.matches("<svg role=\"img\"").count(), 1 + 3 * 2);
        assert_eq!(page, super::page(&sample()).unwrap());
    }

    #[test]
    fn every_mismatch_is_told_and_the_training_length_marked() {
        let evaluation = sample();
        let text = table(&evaluation, 200);
        assert_eq!(text.matches("pool=4x2 †").count(), 2 * 2, "in both tables: {text}");
        assert!(text.contains("† Measured otherwise than trained: pool=4x2: weights trained with"), "{text}");
        assert_eq!(text.matches("16*").count(), 2 * 2, "{text}");
        // A tag that only one length has is no column.
        assert!(text.contains("Accuracy by depth\n") && text.contains(" 9%") && !text.contains(" 16%"), "{text}");
        assert!(text.contains("“gap”") && text.contains("−0.2500 ± 0.1250"), "{text}");
        let plain = Evaluation { rows: evaluation.rows[..1].to_vec(), ..evaluation.clone() };
        assert!(!table(&plain, 200).contains('†'));
        let told = answer(&evaluation);
        assert_eq!(
            told[0],
            "As trained: accuracy 0.5000 ± 0.0100 at the training length of 16 tokens, 0.5000 ± 0.0100 at 2 times that (32)."
        );
    }

    #[test]
    fn the_csv_has_one_line_a_group() {
        let evaluation = sample();
        let csv = evaluation.csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 1 + 4 * (1 + 2 + 2 + 2) + 2);
        assert!(csv.contains(",difference,,,,,,-0.25,0.125,,4\n"), "{csv}");
        let fields = lines[0].split(',').count();
        assert!(lines.iter().skip(1).take(14).all(|line| line.split(',').count() == fields), "{csv}");
        assert_eq!(lines[2], "as trained,,16,16,tag,depth 16%,,,0.75,0.01,0.25,0.01,8,4");
    }
}
