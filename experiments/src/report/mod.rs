//! The report of one or several ablations: a table for the terminal, and `report.html`, `table.md`, `table.csv`.
//!
//! [`load`] reads what runs left on disk, `analysis` ranks the variants, `words` states the answer in sentences,
//! `table` and `html` print it, and `charts` draws it. Runs without a result are always listed with the reason.

mod analysis;
mod axis;
mod charts;
mod curves;
mod format;
mod html;
mod plot;
mod scatter;
mod table;
#[cfg(test)]
mod testing;
mod words;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::results::{
    AblationRecord, MetricLine, ResultsError, RunSummary, Status, VariantRecord, metrics_path, read_ablation,
    read_metrics, read_summary, run_dir, summary_path, write_atomic,
};

pub use table::terminal_table;

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
    let record = read_ablation(dir)?;
    let mut variants = Vec::with_capacity(record.variants.len());
    for variant in &record.variants {
        let runs: Result<Vec<Run>, ReportError> =
            record.seeds.iter().map(|seed| load_run(dir, &record, &variant.name, *seed)).collect();
        variants.push(Variant { record: variant.clone(), runs: runs? });
    }
    let strays = find_strays(dir, &record)?;
    Ok(Ablation { record, variants, strays })
}

fn load_run(dir: &Path, record: &AblationRecord, variant: &str, seed: u64) -> Result<Run, ReportError> {
    let run_dir = run_dir(dir, variant, seed);
    let lines = read_metrics(&metrics_path(&run_dir))?.lines;
    let state = match read_summary(&summary_path(&run_dir))? {
        Some(summary) => judge(record, summary),
        None => lines
            .last()
            .map_or(RunState::NotStarted, |line| RunState::Unfinished { tokens: line.tokens }),
    };
    Ok(Run { seed, state, lines })
}

/// Whether a run that ended may be counted.
fn judge(record: &AblationRecord, summary: RunSummary) -> RunState {
    if summary.config_hash != record.config_hash {
        return RunState::Failed(format!(
            "made under config {}, while this ablation is {}; not counted",
            summary.config_hash, record.config_hash
        ));
    }
    if summary.status == Status::Failed {
        return RunState::Failed(summary.failure.unwrap_or_else(|| "no reason was recorded".to_owned()));
    }
    match summary.final_values.get(&record.metric.name) {
        Some(value) if value.is_finite() => RunState::Finished(Box::new(summary)),
        Some(_) => RunState::Failed(format!("its final `{}` is not a finite number", record.metric.name)),
        None => RunState::Failed(format!("its summary has no final `{}`", record.metric.name)),
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
    std::fs::create_dir_all(out)
        .map_err(|source| ReportError::Folder { path: out.to_path_buf(), source })?;
    write_atomic(&out.join("report.html"), page.as_bytes())?;
    write_atomic(&out.join("table.md"), table::markdown(ablations).as_bytes())?;
    write_atomic(&out.join("table.csv"), table::csv(ablations).as_bytes())?;
    Ok(())
}
