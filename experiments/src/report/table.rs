//! The ranked table: its cells, and the table as Markdown and as CSV.

use super::analysis::{Analysis, Row};
use super::joint::{has_joint_ranking, joint_rows, joint_warnings};
use super::matrix::{self, Matrix};
use super::{Ablation, format, words};

/// What stands below every table.
pub const KEY: &str = "± is half the 95% interval of the mean over seeds (Student's t); the difference is paired by seed. \
better / worse: its interval excludes zero; not settled: it includes zero.";

/// The texts of one row, in the order of [`headers`].
pub struct Cells {
    /// Place, or a dash.
    pub rank: String,
    /// Mean and interval of the metric.
    pub metric: String,
    /// Runs that count, of those planned where some are missing.
    pub seeds: String,
    /// Paired difference to the baseline.
    pub difference: String,
    /// What the difference says.
    pub effect: &'static str,
    /// Parameters.
    pub parameters: String,
    /// Cache bytes per token.
    pub bytes: String,
    /// Decode FLOPs.
    pub flops: String,
    /// Training speed.
    pub speed: String,
}

impl Cells {
    /// The texts of `row`.
    pub fn new(row: &Row) -> Self {
        let cost = &row.variant.record.cost;
        let (done, planned) = (row.values.len(), row.variant.runs.len());
        Self {
            rank: row.rank.map_or_else(|| "–".to_owned(), |rank| rank.to_string()),
            metric: row.estimate.map_or_else(|| "no result".to_owned(), |e| format::estimate(&e, format::value)),
            seeds: if done == planned { done.to_string() } else { format!("{done} of {planned}") },
            difference: row
                .difference
                .as_ref()
                .map_or_else(|| "–".to_owned(), |found| format::estimate(&found.estimate, format::signed)),
            effect: row.effect.word(),
            parameters: format::count(cost.parameters as f64),
            bytes: format::count(cost.bytes_per_token),
            flops: format::count(cost.decode_flops),
            speed: row.tokens_per_second.map_or_else(|| "–".to_owned(), format::count),
        }
    }

    /// The texts after rank, variant and mix, in the order of [`headers`].
    pub fn columns(self) -> [String; 8] {
        [
            self.metric,
            self.seeds,
            self.difference,
            self.effect.to_owned(),
            self.parameters,
            self.bytes,
            self.flops,
            self.speed,
        ]
    }
}

/// The column titles after rank, variant and mix.
pub fn headers(analysis: &Analysis) -> [String; 8] {
    let first = analysis.rows.first().map(|row| &row.variant.record.cost);
    let context = first.map_or_else(String::new, |cost| format!(" at {}", format::context(cost.decode_context)));
    [
        analysis.metric().label.clone(),
        "seeds".to_owned(),
        format!("difference to {}", short_baseline(&analysis.ablation.record.baseline)),
        "verdict".to_owned(),
        "parameters".to_owned(),
        "bytes/token".to_owned(),
        format!("decode FLOPs{context}"),
        "tokens/s".to_owned(),
    ]
}

/// A name that would make its column the widest gives way to the word.
fn short_baseline(name: &str) -> &str {
    if name.chars().count() > 16 { "baseline" } else { name }
}

/// The runs without a result and the folders that belong to none, a line each.
pub fn missing_lines(analysis: &Analysis) -> Vec<String> {
    let runs = analysis.without_result();
    let mut lines: Vec<String> = runs
        .iter()
        .map(|(variant, run)| format!("{}, seed {}: {}", variant.record.name, run.seed, run.state))
        .collect();
    let strays = analysis.ablation.strays.iter();
    lines.extend(strays.map(|stray| format!("{stray}: on disk, but not part of this ablation; not counted")));
    lines
}

/// `table.md`: a section for each ablation.
pub fn markdown(ablations: &[Ablation]) -> String {
    let analyses: Vec<Analysis> = ablations.iter().map(Analysis::new).collect();
    let mut out = String::new();
    for warning in joint_warnings(&analyses) {
        out.push_str(&format!("**Warning:** {}\n\n", format::markdown(&warning)));
    }
    for analysis in &analyses {
        markdown_section(&mut out, analysis);
    }
    if has_joint_ranking(&analyses) {
        markdown_joint(&mut out, &analyses);
    }
    out
}

fn markdown_section(out: &mut String, analysis: &Analysis) {
    let record = &analysis.ablation.record;
    out.push_str(&format!("## {}\n\n", format::markdown(&record.title)));
    if let Some(question) = &record.question {
        out.push_str(&format!("*{}*\n\n", format::markdown(question)));
    }
    for sentence in words::answer(analysis) {
        let bold = |name: &str| format!("**{}**", format::markdown(name));
        out.push_str(&format!("- {}\n", sentence.print(format::markdown, bold)));
    }
    out.push_str(&format!("\nTask: {}\n\n", format::markdown(&record.task)));
    let titles = ["#", "variant", "mix"].map(str::to_owned).into_iter().chain(headers(analysis));
    markdown_row(out, titles);
    out.push_str("|--:|:--|:--|--:|--:|--:|:--|--:|--:|--:|--:|\n");
    for row in &analysis.rows {
        let texts = Cells::new(row);
        let names = [texts.rank.clone(), row.variant.record.name.clone(), row.variant.record.layers.clone()];
        markdown_row(out, names.into_iter().chain(texts.columns()));
    }
    out.push_str(&format!("\n{}\n\n", format::markdown(KEY)));
    let matrices = Matrix::all(analysis);
    for matrix in &matrices {
        let (titles, rows) = matrix.cells();
        out.push_str(&format!("The same weights in other models, {}:\n\n", format::markdown(&matrix.label)));
        markdown_table(out, titles, rows);
    }
    if matrices.iter().any(Matrix::has_foreign) {
        out.push_str(&format!("{}\n\n", format::markdown(matrix::FOREIGN)));
    }
    if let Some((titles, rows)) = matrix::searches(analysis) {
        out.push_str(&format!("{}\n\n", format::markdown(&matrix::searches_key(analysis))));
        markdown_table(out, titles, rows);
    }
    let missing = missing_lines(analysis);
    if !missing.is_empty() {
        out.push_str("Runs without a result:\n\n");
        for line in missing {
            out.push_str(&format!("- {}\n", format::markdown(&line)));
        }
        out.push('\n');
    }
}

/// A table whose first column is text and whose others are numbers.
fn markdown_table(out: &mut String, titles: Vec<String>, rows: Vec<Vec<String>>) {
    let rule = "|:--".to_string() + &"|--:".repeat(titles.len() - 1) + "|\n";
    markdown_row(out, titles.into_iter());
    out.push_str(&rule);
    for row in rows {
        markdown_row(out, row.into_iter());
    }
    out.push('\n');
}

fn markdown_joint(out: &mut String, analyses: &[Analysis]) {
    let label = analyses.first().map(|analysis| analysis.metric().label.clone()).unwrap_or_default();
    out.push_str("## All ablations\n\n");
    let titles = ["ablation", "variant", "mix"].map(str::to_owned).into_iter().chain([label]);
    markdown_row(out, titles.chain(["seeds", "bytes/token", "decode FLOPs"].map(str::to_owned)));
    out.push_str("|:--|:--|:--|--:|--:|--:|--:|\n");
    for (index, row) in joint_rows(analyses) {
        let texts = Cells::new(row);
        let record = &row.variant.record;
        let names = [analyses[index].ablation.record.name.clone(), record.name.clone(), record.layers.clone()];
        markdown_row(out, names.into_iter().chain([texts.metric, texts.seeds, texts.bytes, texts.flops]));
    }
    out.push('\n');
}

fn markdown_row(out: &mut String, cells: impl Iterator<Item = String>) {
    let line: Vec<String> = cells.map(|cell| format::markdown(&cell)).collect();
    out.push_str(&format!("| {} |\n", line.join(" | ")));
}

/// `table.csv`: one line for each variant of each ablation, with unrounded numbers; an empty field is a number that
/// does not exist.
pub fn csv(ablations: &[Ablation]) -> String {
    let mut out = String::from(
        "ablation,rank,variant,mix,metric,mean,interval_95_half_width,seeds_counted,seeds_planned,baseline,\
         difference,difference_95_half_width,excludes_zero,verdict,parameters,bytes_per_token,window_bytes,\
         decode_context,decode_flops,tokens_per_second,without_result\n",
    );
    for ablation in ablations {
        let analysis = Analysis::new(ablation);
        for row in &analysis.rows {
            let fields: Vec<String> = csv_fields(&analysis, row).iter().map(|field| format::csv(field)).collect();
            out.push_str(&fields.join(","));
            out.push('\n');
        }
    }
    out
}

fn csv_fields(analysis: &Analysis, row: &Row) -> [String; 21] {
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    let record = &row.variant.record;
    let difference = row.difference.as_ref().map(|difference| difference.estimate);
    let missing = row.variant.runs.iter().filter(|run| run.summary().is_none());
    let missing: Vec<String> = missing.map(|run| format!("seed {}: {}", run.seed, run.state)).collect();
    [
        analysis.ablation.record.name.clone(),
        row.rank.map(|rank| rank.to_string()).unwrap_or_default(),
        record.name.clone(),
        record.layers.clone(),
        analysis.metric().name.clone(),
        number(row.estimate.map(|estimate| estimate.mean)),
        number(row.estimate.and_then(|estimate| estimate.half_width)),
        row.values.len().to_string(),
        row.variant.runs.len().to_string(),
        analysis.ablation.record.baseline.clone(),
        number(difference.map(|difference| difference.mean)),
        number(difference.and_then(|difference| difference.half_width)),
        row.effect.excludes_zero().map(|excludes| excludes.to_string()).unwrap_or_default(),
        row.effect.known_word().unwrap_or_default().to_owned(),
        record.cost.parameters.to_string(),
        record.cost.bytes_per_token.to_string(),
        record.cost.window_bytes.to_string(),
        record.cost.decode_context.to_string(),
        record.cost.decode_flops.to_string(),
        number(row.tokens_per_second),
        missing.join("; "),
    ]
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::report::RunState;
    use crate::report::testing::{Fake, ablation};

    pub fn nasty() -> Ablation {
        let mut ablation = ablation(&[Fake::new("a|b, \"c\"", 0.0, &[0.5, 0.6]), Fake::new("plain", 20.0, &[0.9])]);
        ablation.variants[1].runs[1].state = RunState::Failed("loss is NaN,\nat step 3".to_owned());
        ablation.strays = vec!["old/seed-9".to_owned()];
        ablation
    }

    #[test]
    fn csv_is_quoted_and_complete() {
        let text = csv(&[nasty()]);
        let mut lines = text.lines();
        assert_eq!(lines.next().unwrap().split(',').count(), 21);
        assert!(
            lines.next().unwrap().starts_with("fake,1,plain,swa full reuse*2,accuracy,0.9,,1,2,\"a|b, \"\"c\"\"\"")
        );
        assert!(text.contains("\"seed 2: failed: loss is NaN,\nat step 3\""), "{text}");
        assert!(text.contains("\n\"fake\"") || text.contains("\nfake,2,\"a|b, \"\"c\"\"\",swa"), "{text}");
    }

    #[test]
    fn markdown_rows_have_their_columns_whatever_the_names() {
        let text = markdown(&[nasty()]);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), 4);
        for row in rows {
            assert_eq!(row.replace("\\|", "").matches('|').count(), 12, "{row}");
        }
        assert!(text.contains("swa full reuse\\*2"), "{text}");
        assert!(text.contains("- plain, seed 2: failed: loss is NaN, at step 3"), "{text}");
    }
}
