//! What the selections of a run's layers have in common, on its evaluation set.
//!
//! For every pair of selecting layers (`full`, `reindex`): intersection over union of what they select, and how much of the first
//! one's own attention lies on what the second selects. Layers of different ratios are compared by the tokens that their entries
//! stand for (see [`csa2_train::overlap`]).

mod error;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::{DType, Device};
use csa2_model::attention::{Context, SelectionTrace};
use csa2_model::config::{ModelConfig, PoolConfig};
use csa2_model::mix::Mode;
use csa2_train::evaluate::{sample, tokens};
use csa2_train::files::remove_partial;
use csa2_train::overlap::{Queries, Shares, compare};
use csa2_train::recall::{MOST_PAIRS, pairs};
use csa2_train::tasks::TaskConfig;
use serde::Serialize;

use crate::ablation::progress::Progress;
use crate::folders;
use crate::report::csv_field;
use crate::results::{write_atomic, write_json};
use crate::stats::{self, Estimate};
use crate::subject::Subject;

pub use error::OverlapError;

/// Version of the file's form.
const SCHEMA: u32 = 1;

/// Sequences that are looked at where nothing else is said, or the whole set where that is smaller.
pub const SEQUENCES: usize = 128;

/// What is compared, and where.
#[derive(Debug, Clone)]
pub struct Options {
    /// The run's folder.
    pub run: PathBuf,
    /// Another task than the run's, and the folder of its files.
    pub task: Option<(TaskConfig, PathBuf)>,
    /// Folder for the results.
    pub out: PathBuf,
    /// Sequences of the evaluation set; none for [`SEQUENCES`], or all where there are fewer.
    pub sequences: Option<usize>,
    /// Sequences at a time.
    pub batch: usize,
    /// Which sequences.
    pub seed: u64,
    /// Threads.
    pub threads: usize,
    /// Name of the backend.
    pub backend: &'static str,
    /// Where it computes.
    pub device: Device,
    /// The command, for the report.
    pub command: String,
}

/// A selecting layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Selecting {
    /// Its number.
    pub layer: usize,
    /// `full` or `reindex`.
    pub mode: Mode,
    /// Its compression ratio.
    pub ratio: usize,
    /// The layer in whose candidate pool it searches.
    pub pool_from: Option<usize>,
}

impl Selecting {
    /// Its name in tables, such as `2 full@2`.
    pub fn name(&self) -> String {
        let ratio = if self.ratio > 1 { format!("@{}", self.ratio) } else { String::new() };
        format!("{} {}{ratio}", self.layer, self.mode)
    }
}

/// A mean over sequences with half of its 95% interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half the width of the 95% interval of the mean over sequences; none for one sequence.
    pub half_width: Option<f64>,
    /// What selections made at random would give; none where that is not defined.
    pub chance: Option<f64>,
}

/// What two layers have in common, over one kind of queries.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Common {
    /// Intersection over union of what they select.
    pub iou: Mean,
    /// Share of the first layer's own attention on its visible entries that lies on what the second selects.
    pub mass: Mean,
    /// Queries of a sequence that count.
    pub queries: usize,
}

/// Two selecting layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// The layer whose attention it is.
    pub first: usize,
    /// The layer whose selection it is.
    pub second: usize,
    /// Whether they have one ratio; if not, they are compared by the tokens that entries stand for.
    pub same_ratio: bool,
    /// Over the queries that see an entry of both; none where there are none.
    pub all: Option<Common>,
    /// Over the queries that see more entries of both than are selected; none where there are none.
    pub choosing: Option<Common>,
}

/// The comparison of a run's selecting layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overlap {
    /// Version of the file's form.
    pub schema: u32,
    /// The run's folder, as it was given.
    pub run: String,
    /// Steps that it had taken.
    pub run_step: u64,
    /// SHA-256 of its weights.
    pub weights_sha256: String,
    /// Its mix.
    pub mix: String,
    /// Entries that a selection holds.
    pub topk: usize,
    /// The size of candidate pools, where there are any.
    pub pool: Option<PoolConfig>,
    /// One line on the task.
    pub task: String,
    /// Sequences looked at.
    pub sequences: usize,
    /// Of how many.
    pub evaluation_sequences: usize,
    /// By which they were drawn.
    pub seed: u64,
    /// The selecting layers.
    pub layers: Vec<Selecting>,
    /// Every layer with every layer, row by row.
    pub pairs: Vec<Pair>,
    /// The command.
    pub command: String,
    /// Where it was computed.
    pub backend: String,
    /// By which csa2.
    pub version: String,
}

/// Compares the layers of a run and writes `overlap.json` and `overlap.csv`.
///
/// # Errors
/// When the run cannot be compared, the folder for the results cannot be used, or it was asked to stop.
pub fn run(options: &Options, stop: &AtomicBool) -> Result<Overlap, OverlapError> {
    const WHAT: &str = "overlap";
    let out = &options.out;
    let json = out.join("overlap.json");
    if !json.exists() {
        folders::check_free(out, WHAT)?;
    }
    let overlap = measure(options, stop)?;
    let _lock = folders::lock(out, WHAT)?;
    folders::check_weights(&json, &overlap.weights_sha256, WHAT)?;
    remove_partial(out);
    write_json(&json, &overlap)?;
    write_atomic(&out.join("overlap.csv"), overlap.csv().as_bytes())?;
    Ok(overlap)
}

/// Compares the layers of a run.
///
/// # Errors
/// As [`run`], but nothing is written.
pub fn measure(options: &Options, stop: &AtomicBool) -> Result<Overlap, OverlapError> {
    let Options { run, task, device, .. } = options;
    let right = "give one by --task";
    let (config, base) = task.as_ref().map_or((None, Path::new(".")), |(config, base)| (Some(config), base));
    let subject = Subject::open(run, config, base, right, device)?;
    let shown = run.display().to_string();
    let model = subject.run.model_config();
    if !model.layers.has_indexer() {
        return Err(OverlapError::NoSelection { run: shown, mix: model.layers.to_string() });
    }
    let (seq, there) = (subject.task.seq_len(), subject.task.eval_sequences());
    let pairs = pairs(&model.layers, seq);
    if pairs > MOST_PAIRS {
        return Err(OverlapError::TooLong { run: shown, seq, pairs });
    }
    let sequences = options.sequences.unwrap_or(SEQUENCES.min(there));
    if sequences > there {
        return Err(OverlapError::TooMany { asked: sequences, there });
    }
    let threads = options.threads;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|error| OverlapError::Threads { threads, error })?;
    let shares = pool.install(|| collect(&subject, sequences, options, stop))?;
    let layers: Vec<Selecting> = model
        .layers
        .selecting()
        .map(|layer| Selecting { layer: layer.index, mode: layer.mode, ratio: layer.ratio, pool_from: layer.pool_from })
        .collect();
    Ok(Overlap {
        schema: SCHEMA,
        pairs: all_pairs(&layers, &shares, &shown)?,
        run: shown,
        run_step: subject.run.state().step,
        weights_sha256: subject.weights.digest(),
        mix: model.layers.to_string(),
        topk: model.topk,
        pool: model.pool,
        task: subject.task.describe(),
        sequences,
        evaluation_sequences: there,
        seed: options.seed,
        layers,
        command: options.command.clone(),
        backend: options.backend.into(),
        version: env!("CARGO_PKG_VERSION").into(),
    })
}

/// `[sequence][first][second]`, over all queries and over those that choose.
type Matrices = [Vec<Vec<Vec<Shares>>>; 2];

fn collect(
    subject: &Subject,
    sequences: usize,
    options: &Options,
    stop: &AtomicBool,
) -> Result<Matrices, OverlapError> {
    let (config, device): (&ModelConfig, _) = (subject.run.model_config(), &options.device);
    let task = &*subject.task;
    let model = subject.weights.model(config, device)?;
    let cx = Context::new(config, task.seq_len(), DType::F32, device).with_selections(true);
    let seq = task.seq_len() as u64;
    let progress = Progress::new(sequences as u64 * seq, 0);
    let mut found = Matrices::default();
    for batch in sample(task, options.seed, sequences, options.batch) {
        if stop.load(Ordering::Relaxed) {
            progress.finish();
            return Err(OverlapError::Interrupted);
        }
        let traces: Vec<SelectionTrace> = model.forward(tokens(&batch, device), &cx).selections;
        for (found, queries) in found.iter_mut().zip([Queries::All, Queries::Choosing]) {
            found.extend(compare(&traces, queries)?);
        }
        progress.add(batch.rows as u64 * seq);
    }
    progress.finish();
    Ok(found)
}

fn all_pairs(layers: &[Selecting], shares: &Matrices, run: &str) -> Result<Vec<Pair>, OverlapError> {
    let mut pairs = Vec::new();
    for (i, first) in layers.iter().enumerate() {
        for (j, second) in layers.iter().enumerate() {
            let of = |matrices: &[Vec<Vec<Shares>>]| -> Result<Option<Common>, OverlapError> {
                let shares: Vec<Shares> = matrices.iter().map(|matrix| matrix[i][j]).collect();
                let not_finite = |_| OverlapError::NotFinite { run: run.into(), layer: first.layer, mode: first.mode };
                common(&shares).transpose().map_err(not_finite)
            };
            pairs.push(Pair {
                first: first.layer,
                second: second.layer,
                same_ratio: first.ratio == second.ratio,
                all: of(&shares[0])?,
                choosing: of(&shares[1])?,
            });
        }
    }
    Ok(pairs)
}

/// Means over sequences; none where no query counts.
fn common(shares: &[Shares]) -> Option<Result<Common, stats::StatsError>> {
    // The number of queries that count depends on positions alone, so it is that of every sequence.
    let first = shares.first().filter(|first| first.queries > 0)?;
    let over = |of: fn(&Shares) -> f64, chance: Option<f64>| {
        let estimate: Estimate = stats::estimate(&shares.iter().map(of).collect::<Vec<_>>())?;
        Ok(Mean { mean: estimate.mean, half_width: estimate.half_width, chance })
    };
    let whole = || {
        let iou = over(|shares| shares.iou, first.chance_iou)?;
        let mass = over(|shares| shares.mass, Some(first.chance_mass))?;
        Ok(Common { iou, mass, queries: first.queries })
    };
    Some(whole())
}

impl Overlap {
    /// Row `first`, column `second`, counted among the selecting layers.
    pub fn pair(&self, first: usize, second: usize) -> &Pair {
        &self.pairs[first * self.layers.len() + second]
    }

    /// One line a pair, kind of queries and measure, with unrounded numbers.
    pub fn csv(&self) -> String {
        let mut out = String::from(
            "first,second,same_ratio,queries,measure,mean,interval_95_half_width,chance,queries_per_sequence,sequences\n",
        );
        let name = |layer: usize| {
            let found = self.layers.iter().find(|selecting| selecting.layer == layer);
            csv_field(&found.map(Selecting::name).unwrap_or_default())
        };
        for pair in &self.pairs {
            for (queries, common) in [("all", pair.all), ("choosing", pair.choosing)] {
                let Some(common) = common else { continue };
                for (measure, value) in [("iou", common.iou), ("mass", common.mass)] {
                    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
                    let fields = [
                        name(pair.first),
                        name(pair.second),
                        pair.same_ratio.to_string(),
                        queries.into(),
                        measure.into(),
                        value.mean.to_string(),
                        number(value.half_width),
                        number(value.chance),
                        common.queries.to_string(),
                        self.sequences.to_string(),
                    ];
                    out += &(fields.join(",") + "\n");
                }
            }
        }
        out
    }
}
