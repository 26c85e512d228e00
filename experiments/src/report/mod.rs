//! The report of one or several ablations: a table for the terminal, and `report.html`, `table.md`, `table.csv`.
//!
//! [`load`] reads what runs left on disk, `analysis` ranks the variants, `words` states the answer in sentences,
//! `table` and `html` print it, and `charts` draws it. Runs without a result are always listed with the reason.

#![allow(
    clippy::format_push_string,
    reason = "writing into a String cannot fail, and `write!` would return a Result to drop at every line of a page"
)]

mod analysis;
mod blocks;
mod charts;
mod decode;
mod evaluation;
mod format;
mod html;
mod joint;
mod json;
mod matrix;
mod method;
mod overlap;
mod probe;
mod search;
mod table;
mod terminal;
#[cfg(test)]
mod testing;
mod words;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use self::analysis::Analysis;
use self::matrix::Matrix;
use crate::results::{
    AblationRecord, MetricLine, ResultsError, RunSummary, Status, VariantRecord, ablation_path, metrics_path,
    read_ablation, read_metrics, read_summary, run_dir, summary_path, write_atomic,
};

pub use decode::{table as decode_table, write as write_decode};
pub use evaluation::{table as evaluation_table, write as write_evaluation};
pub use format::{context as context_label, csv as csv_field};
pub use json::render as render_json;
pub use overlap::{table as overlap_table, write as write_overlap};
pub use probe::{table as probe_table, write as write_probe};
pub use search::{table as search_table, write as write_search};
pub use terminal::terminal_table;

/// What pictures besides reports are drawn with.
pub(crate) mod drawing {
    pub use super::charts::axis::Axis;
    pub use super::charts::plot::{Canvas, Drawn, Frame, INK, MUTED, Marker, Style, UNIT, draw};
    pub use plotters::style::text_anchor::{HPos, VPos};
}

/// An ablation with everything that its runs left on disk.
#[derive(Debug, Clone)]
pub struct Ablation {
    /// What was asked.
    pub record: AblationRecord,
    /// The variants in the order of the record.
    pub variants: Vec<Variant>,
    /// Run folders, relative to the ablation, that belong to no variant and seed of the record. They are not counted.
    pub strays: Vec<String>,
}

/// One variant with its runs.
#[derive(Debug, Clone)]
pub struct Variant {
    /// The variant as recorded.
    pub record: VariantRecord,
    /// One run for each seed, in the order of the record.
    pub runs: Vec<Run>,
}

/// One run: a variant trained with a seed.
#[derive(Debug, Clone)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// How far it came.
    pub state: RunState,
    /// What it measured on the way.
    pub lines: Vec<MetricLine>,
}

/// How far a run came.
#[derive(Debug, Clone)]
pub enum RunState {
    /// Finished, with a finite value of the metric.
    Finished(Box<RunSummary>),
    /// It ended without a value that can be counted, for this reason.
    Failed(String),
    /// It has measurements but no summary yet.
    Unfinished {
        /// Tokens at its last measurement.
        tokens: u64,
    },
    /// It left nothing on disk.
    NotStarted,
}

/// What can go wrong with a report.
#[derive(Debug, Error)]
pub enum ReportError {
    /// The results cannot be read, or the report cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The report cannot be written.
    #[error(transparent)]
    File(#[from] csa2_train::files::FileError),
    /// A folder cannot be listed or made.
    #[error("{}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A chart cannot be drawn.
    #[error("chart `{title}` cannot be drawn: {message}")]
    Chart {
        /// Title of the chart.
        title: String,
        /// What the drawing library said.
        message: String,
    },
    /// A report of nothing was asked for.
    #[error("no ablation to report: name at least one folder that holds an ablation.json")]
    Nothing,
}

impl Ablation {
    /// How many runs have no result that counts.
    pub fn without_result(&self) -> usize {
        self.variants.iter().flat_map(|variant| &variant.runs).filter(|run| run.summary().is_none()).count()
    }
}

impl Run {
    /// The summary of a run that counts.
    pub fn summary(&self) -> Option<&RunSummary> {
        match &self.state {
            RunState::Finished(summary) => Some(summary),
            _ => None,
        }
    }
}

impl fmt::Display for RunState {
    /// The state in words that end a line such as "variant, seed 1: …".
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished(_) => write!(formatter, "finished"),
            Self::Failed(reason) => write!(formatter, "failed: {reason}"),
            Self::Unfinished { tokens } => {
                write!(formatter, "unfinished: last measured at {} tokens", format::count(*tokens as f64))
            }
            Self::NotStarted => write!(formatter, "not started"),
        }
    }
}

/// Reads the ablation in `dir` with all of its runs.
///
/// # Errors
/// [`ReportError`] with the path of what is missing, broken or of another file format. An unfinished run is no error.
pub fn load(dir: &Path) -> Result<Ablation, ReportError> {
    let record = read_ablation(&ablation_path(dir))?;
    let mut variants = Vec::with_capacity(record.variants.len());
    for variant in &record.variants {
        let runs: Result<Vec<Run>, ReportError> =
            record.seeds.iter().map(|seed| load_run(dir, &record, variant, *seed)).collect();
        variants.push(Variant { record: variant.clone(), runs: runs? });
    }
    let strays = find_strays(dir, &record)?;
    Ok(Ablation { record, variants, strays })
}

fn load_run(dir: &Path, record: &AblationRecord, variant: &VariantRecord, seed: u64) -> Result<Run, ReportError> {
    let run_dir = run_dir(dir, &variant.name, seed);
    let lines = read_metrics(&metrics_path(&run_dir))?.lines;
    let summary = summary_path(&run_dir);
    let state = if summary.exists() {
        judge(&record.metric.name, &variant.config_hash, read_summary(&summary)?)
    } else {
        lines.last().map_or(RunState::NotStarted, |line| RunState::Unfinished { tokens: line.tokens })
    };
    Ok(Run { seed, state, lines })
}

/// Whether a run that ended may be counted.
fn judge(metric: &str, config_hash: &str, summary: RunSummary) -> RunState {
    if summary.config_hash != config_hash {
        return RunState::Failed(format!(
            "made under config {}, while this variant is {config_hash}; not counted",
            summary.config_hash
        ));
    }
    if summary.status == Status::Failed {
        return RunState::Failed(summary.failure.unwrap_or_else(|| "no reason was recorded".to_owned()));
    }
    match summary.final_values.get(metric) {
        Some(value) if value.is_finite() => RunState::Finished(Box::new(summary)),
        Some(_) => RunState::Failed(format!("its final `{metric}` is not a finite number")),
        None => RunState::Failed(format!("its summary has no final `{metric}`")),
    }
}

/// Lists run folders on disk that the record does not know, so that none is dropped in silence.
fn find_strays(dir: &Path, record: &AblationRecord) -> Result<Vec<String>, ReportError> {
    let known: BTreeSet<(String, String)> = record
        .variants
        .iter()
        .flat_map(|variant| record.seeds.iter().map(|seed| (variant.name.clone(), format!("seed-{seed}"))))
        .collect();
    let mut strays = Vec::new();
    for variant in subfolders(dir)? {
        for run in subfolders(&dir.join(&variant))? {
            if run.starts_with("seed-") && !known.contains(&(variant.clone(), run.clone())) {
                strays.push(format!("{variant}/{run}"));
            }
        }
    }
    strays.sort();
    Ok(strays)
}

fn subfolders(dir: &Path) -> Result<Vec<String>, ReportError> {
    let error = |source| ReportError::Folder { path: dir.to_path_buf(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(error)? {
        let entry = entry.map_err(error)?;
        if entry.path().is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

/// Writes `report.html`, `table.md` and `table.csv` into `out`, which is made if it is absent. Each file is replaced
/// whole or not at all.
///
/// # Errors
/// [`ReportError`] with the path that cannot be written, or without any ablation.
pub fn write(out: &Path, ablations: &[Ablation]) -> Result<(), ReportError> {
    if ablations.is_empty() {
        return Err(ReportError::Nothing);
    }
    let page = html::page(ablations)?;
    std::fs::create_dir_all(out).map_err(|source| ReportError::Folder { path: out.to_path_buf(), source })?;
    write_atomic(&out.join("report.html"), page.as_bytes())?;
    write_atomic(&out.join("table.md"), table::markdown(ablations).as_bytes())?;
    write_atomic(&out.join("table.csv"), table::csv(ablations).as_bytes())?;
    // One file for one ablation; joined ones have theirs beside their runs.
    if let [only] = ablations
        && let matrices = Matrix::all(&Analysis::new(only))
        && !matrices.is_empty()
    {
        write_atomic(&out.join("matrix.csv"), matrix::csv(&matrices).as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::testing::{Fake, ablation};
    use super::*;
    use crate::results::{metrics_text, write_json};

    /// Writes what runs would leave on disk.
    fn save(dir: &Path, ablation: &Ablation) {
        write_json(&ablation_path(dir), &ablation.record).unwrap();
        for variant in &ablation.variants {
            for run in variant.runs.iter().filter(|run| !run.lines.is_empty()) {
                let run_dir = run_dir(dir, &variant.record.name, run.seed);
                std::fs::create_dir_all(&run_dir).unwrap();
                let lines = metrics_text(&run.lines).unwrap();
                write_atomic(&metrics_path(&run_dir), lines.as_bytes()).unwrap();
                if let Some(summary) = run.summary() {
                    write_json(&summary_path(&run_dir), summary).unwrap();
                }
            }
        }
    }

    fn edit_summary(ablation: &mut Ablation, variant: usize, edit: impl Fn(&mut RunSummary)) {
        if let RunState::Finished(summary) = &mut ablation.variants[variant].runs[0].state {
            edit(summary);
        }
    }

    #[test]
    fn every_run_is_read_with_its_state() {
        let names = ["done", "failed", "unfinished", "absent", "other", "nan", "unmeasured"];
        let finals = |name: &&str| if *name == "absent" { vec![] } else { vec![0.5] };
        let fakes: Vec<Fake> = names.iter().map(|name| Fake::new(name, 0.0, &finals(name))).collect();
        let mut saved = ablation(&fakes);
        edit_summary(&mut saved, 1, |summary| {
            summary.status = Status::Failed;
            summary.failure = Some("gradient of layer 2 is not finite".to_owned());
        });
        saved.variants[2].runs[0].state = RunState::Unfinished { tokens: 0 };
        edit_summary(&mut saved, 4, |summary| {
            "stale".clone_into(&mut summary.config_hash);
        });
        edit_summary(&mut saved, 5, |summary| {
            summary.final_values.insert("accuracy".to_owned(), f64::NAN);
        });
        edit_summary(&mut saved, 6, |summary| summary.final_values.clear());
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), &saved);
        std::fs::create_dir_all(run_dir(dir.path(), "done", 9)).unwrap();

        let loaded = load(dir.path()).unwrap();
        let states: Vec<String> = loaded.variants.iter().map(|variant| variant.runs[0].state.to_string()).collect();
        assert_eq!(
            states,
            [
                "finished",
                "failed: gradient of layer 2 is not finite",
                "unfinished: last measured at 1000 tokens",
                "not started",
                "failed: made under config stale, while this variant is abc; not counted",
                "failed: its final `accuracy` is not a finite number",
                "failed: its summary has no final `accuracy`",
            ]
        );
        assert_eq!(loaded.strays, ["done/seed-9"]);
        assert_eq!(loaded.variants[0].runs[0].lines, saved.variants[0].runs[0].lines);
    }

    #[test]
    fn a_report_is_written_beside_its_runs_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), &ablation(&[Fake::new("a", 0.0, &[0.5, 0.6]), Fake::new("b", 2.0, &[0.7])]));
        let loaded = [load(dir.path()).unwrap()];
        let out = dir.path().join("new").join("folder");
        for _ in 0..2 {
            write(&out, &loaded).unwrap();
        }
        let mut files = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        files.sort();
        assert_eq!(files, ["report.html", "table.csv", "table.md"]);
        let page = std::fs::read_to_string(out.join("report.html")).unwrap();
        assert!(page.contains("b, seed 2: not started"));
        assert!(matches!(write(&out, &[]), Err(ReportError::Nothing)));
    }

    #[test]
    fn a_folder_without_an_ablation_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let message = load(&dir.path().join("nothing")).unwrap_err().to_string();
        assert!(message.contains("nothing") && message.contains("ablation.json"), "{message}");
    }
}
