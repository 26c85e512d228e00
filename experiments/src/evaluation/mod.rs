//! What a trained run reaches on an evaluation set: as it was trained and with something switched, on sequences as long as in
//! training and of other lengths, in all, by position, by distance from the answer to the question and by the task's tags.
//!
//! `switch` says what can be switched, `sums` adds up what comes of every target, `memory` tells what a measurement holds, and `record`
//! is what comes of it.

mod error;
mod memory;
mod record;
mod replay;
mod sums;
pub mod switch;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use csa2_model::config::{ModelConfig, PoolConfig};
use csa2_model::cost::Cost;
use csa2_train::evaluate::{Tally, measuring, sample, tokens};
use csa2_train::files::remove_partial;
use csa2_train::tasks::{Batch, Task, TaskConfig};
use toml::{Table, Value};

use crate::ablation::progress::Progress;
use crate::ablation::{changed_model, check_size};
use crate::bench::free_memory;
use crate::folders;
use crate::results::{write_atomic, write_json};
use crate::subject::{Subject, build_task};

use self::sums::Sums;
use self::switch::{Setting, Switch, pool_words};

pub use error::EvaluationError;
pub use record::{Evaluation, Mean, Measure, Part, Row, TagPart};

/// Version of the file's form.
const SCHEMA: u32 = 1;

/// Which sequences are drawn, where not all are measured.
const SEED: u64 = 0;

/// What is measured, and where.
#[derive(Debug, Clone)]
pub struct Options {
    /// The run's folder.
    pub run: PathBuf,
    /// Another task than the run's.
    pub task: Option<TaskConfig>,
    /// Where the task's relative files lie.
    pub base: PathBuf,
    /// The run's mix with its candidate pool elsewhere.
    pub layers: Option<String>,
    /// Another size of the candidate pool.
    pub pool: Option<PoolConfig>,
    /// Leave for another pool than in training.
    pub pool_override: bool,
    /// What is switched, each by itself.
    pub switches: Vec<Switch>,
    /// Further lengths of sequences, besides the task's own.
    pub contexts: Vec<usize>,
    /// Sequences of the evaluation set; none for all.
    pub sequences: Option<usize>,
    /// Sequences of the task's own length at a time; of longer ones fewer, so that about as many tokens are in work.
    pub batch: usize,
    /// Folder for the results.
    pub out: PathBuf,
    /// Name of the backend.
    pub backend: &'static str,
    /// Where it computes.
    pub device: Device,
    /// The command, for the report.
    pub command: String,
}

/// A task at one length.
struct Length {
    task: Box<dyn Task>,
    /// Sequences measured.
    sequences: usize,
    /// Sequences at a time.
    rows: usize,
}

/// Everything that was checked before the first sequence.
struct Plan {
    subject: Subject,
    settings: Vec<Setting>,
    lengths: Vec<Length>,
}

/// Measures a run and writes `eval.json` and `eval.csv`.
///
/// # Errors
/// When the run cannot be measured so, the folder for the results cannot be used, or it was asked to stop.
pub fn run(options: &Options, stop: &AtomicBool) -> Result<Evaluation, EvaluationError> {
    const WHAT: &str = "evaluation";
    let out = &options.out;
    let json = out.join("eval.json");
    if !json.exists() {
        folders::check_free(out, WHAT)?;
    }
    let plan = plan(options, free_memory())?;
    let digest = plan.subject.weights.digest();
    folders::check_weights(&json, &digest, WHAT)?;
    let evaluation = collect(&plan, digest, options, stop)?;
    let _lock = folders::lock(out, WHAT)?;
    folders::check_weights(&json, &evaluation.weights_sha256, WHAT)?;
    remove_partial(out);
    write_json(&json, &evaluation)?;
    write_atomic(&out.join("eval.csv"), evaluation.csv().as_bytes())?;
    Ok(evaluation)
}

/// Checks everything, with so many bytes of memory free, where that is known.
fn plan(options: &Options, free: Option<u128>) -> Result<Plan, EvaluationError> {
    let subject =
        Subject::open(&options.run, options.task.as_ref(), &options.base, "give one by --task", &options.device)?;
    let settings = settings(options, subject.run.model_config())?;
    let own = subject.task.seq_len();
    let contexts: BTreeSet<usize> = options.contexts.iter().copied().chain([own]).collect();
    let mut lengths = Vec::new();
    for tokens in contexts {
        let context = |message: String| EvaluationError::Context { tokens, message };
        // Before a long one is built: its task may read files.
        for setting in &settings {
            let size = Cost::of(&setting.model).map_err(|error| error.to_string());
            let size = size.and_then(|cost| check_size(&setting.model, &cost, tokens));
            let run = options.run.display().to_string();
            size.map_err(
                |message| if tokens == own { EvaluationError::Size { run, message } } else { context(message) },
            )?;
        }
        let rows = (options.batch.saturating_mul(own) / tokens).clamp(1, options.batch);
        let needed = settings.iter().map(|setting| memory::needed(&setting.model, tokens, rows)).max().unwrap_or(0);
        if let Some(free) = free.filter(|free| needed > *free) {
            return Err(EvaluationError::Memory { tokens, rows, needed, free });
        }
        let stretched = subject.task_config.stretched(tokens).map_err(|error| context(error.to_string()))?;
        let task = build_task(&stretched, &options.base).map_err(|error| context(error.to_string()))?;
        let there = task.eval_sequences();
        let sequences = options.sequences.unwrap_or(there);
        if sequences > there {
            return Err(EvaluationError::TooMany { asked: sequences, tokens, there });
        }
        lengths.push(Length { task, sequences, rows });
    }
    Ok(Plan { subject, settings, lengths })
}

/// The models that are measured, in order.
fn settings(options: &Options, trained: &ModelConfig) -> Result<Vec<Setting>, EvaluationError> {
    let other_pool = |here: &ModelConfig, by: String, flags| EvaluationError::OtherPool {
        run: options.run.display().to_string(),
        trained: pool_words(&trained.layers, trained.pool),
        here: pool_words(&here.layers, here.pool),
        by,
        flags,
    };
    let model = changed(options, trained)?;
    let base = Setting::new(switch::base_name(&model, trained), model, trained);
    if base.pool_mismatch.is_some() && !options.pool_override {
        return Err(other_pool(&base.model, String::new(), "--layers and --pool"));
    }
    let wrong = |(switch, message)| EvaluationError::Switch { switch, message };
    let pool_twice = options.switches.iter().find(|switch| matches!(switch, Switch::Pool(_)));
    if let Some(switch) = pool_twice.filter(|_| options.layers.is_some() || options.pool.is_some()) {
        return Err(wrong((*switch, "the pool is already told by --layers and --pool; keep one of the two".into())));
    }
    let settings = switch::settings(base, &options.switches, trained).map_err(wrong)?;
    if let Some(setting) = settings.iter().find(|setting| setting.pool_mismatch.is_some() && !options.pool_override) {
        return Err(other_pool(&setting.model, format!(" (--switch {})", setting.name), "the switch"));
    }
    if options.pool_override && settings.iter().all(|setting| setting.pool_mismatch.is_none()) {
        return Err(EvaluationError::IdleOverride);
    }
    Ok(settings)
}

/// The run's model, its pool changed as the options say.
fn changed(options: &Options, trained: &ModelConfig) -> Result<ModelConfig, EvaluationError> {
    if let (Some(_), None, false) = (options.pool, &options.layers, trained.layers.has_pool()) {
        return Err(EvaluationError::NoPool { mix: trained.layers.to_string() });
    }
    let mut changes = Table::new();
    if let Some(layers) = &options.layers {
        changes.insert("layers".into(), Value::String(layers.clone()));
    }
    if let Some(pool) = options.pool {
        changes
            .insert("pool".into(), Value::try_from(pool).map_err(|error| EvaluationError::Model(error.to_string()))?);
    }
    changed_model(&changes, trained).map_err(EvaluationError::Model)
}

fn collect(plan: &Plan, digest: String, options: &Options, stop: &AtomicBool) -> Result<Evaluation, EvaluationError> {
    let Plan { subject, settings, lengths } = plan;
    let tokens = lengths.iter().map(|length| (length.sequences * length.task.seq_len()) as u64).sum::<u64>();
    let progress = Progress::new(tokens * settings.len() as u64, 0);
    let rows = every_row(plan, options, stop, &progress);
    progress.finish();
    let rows = rows?;
    let own = rows.iter().find(|row| row.context == subject.task.seq_len()).cloned();
    let Row { layers, pool, pool_mismatch, task, values, .. } = own.expect("the task's own length is always measured");
    Ok(Evaluation {
        schema: SCHEMA,
        run: options.run.display().to_string(),
        step: subject.run.state().step,
        weights_sha256: digest,
        layers,
        pool,
        pool_mismatch,
        task,
        values,
        metric: subject.task.metric(),
        metric_tag: subject.task.metric_tag().map(str::to_owned),
        training_context: subject.run.task().map(TaskConfig::seq_len),
        length_key: subject.task_config.length_key().into(),
        rows,
        command: options.command.clone(),
        backend: options.backend.into(),
        version: env!("CARGO_PKG_VERSION").into(),
    })
}

fn every_row(
    plan: &Plan,
    options: &Options,
    stop: &AtomicBool,
    progress: &Progress,
) -> Result<Vec<Row>, EvaluationError> {
    let mut rows = Vec::new();
    // Of every length what the first setting came to.
    let mut first: Vec<Vec<(f64, f64)>> = Vec::new();
    for setting in &plan.settings {
        let model = plan.subject.weights.model(&setting.model, &options.device)?;
        for (place, length) in plan.lengths.iter().enumerate() {
            let task = &*length.task;
            let cx = measuring(&setting.model, task.seq_len(), None, &options.device);
            let mut prompt = 0;
            let (mut tally, mut sums) = (Tally::new(task), Sums::new(task, length.batches()));
            for batch in length.batches() {
                if stop.load(Ordering::Relaxed) {
                    return Err(EvaluationError::Interrupted);
                }
                let output = match setting.replay {
                    None => model.forward(tokens(&batch, &options.device), &cx),
                    Some(replay) => replay::forward(&model, &setting.model, &batch, replay, &options.device),
                };
                prompt = prompt.max(replay::prompt(&batch));
                let outcomes = tally.add(&batch, &output)?;
                sums.add(&batch, &outcomes);
                progress.add((batch.rows * batch.len) as u64);
            }
            let values = tally.values();
            if let Some((name, &value)) = values.iter().find(|(_, value)| !value.is_finite()) {
                return Err(EvaluationError::NotFinite {
                    run: options.run.display().to_string(),
                    name: name.clone(),
                    value,
                });
            }
            let own = sums.by_sequence(task.metric_tag());
            let difference = first.get(place).and_then(|first| sums::difference(&own, first));
            if first.len() == place {
                first.push(own);
            }
            rows.push(Row {
                setting: setting.name.clone(),
                layers: setting.model.layers.to_string(),
                pool: setting.model.pool,
                quantization: setting.model.quantization,
                pool_mismatch: setting.pool_mismatch.clone(),
                quantization_mismatch: setting.quantization_mismatch.clone(),
                replay: setting.replay.map(|replay| replay::words(&setting.model, replay, prompt)),
                context: task.seq_len(),
                sequences: sums.sequences(),
                task: task.describe(),
                values,
                all: sums.all(),
                difference,
                tags: sums.tags(),
                positions: sums.positions(),
                distances: sums.distances(),
            });
        }
    }
    Ok(rows)
}

impl Length {
    /// The sequences that are measured.
    fn batches(&self) -> Box<dyn Iterator<Item = Batch> + '_> {
        let Self { task, sequences, rows } = self;
        if *sequences < task.eval_sequences() {
            return Box::new(sample(&**task, SEED, *sequences, *rows));
        }
        Box::new((0..task.eval_batches(*rows)).map(|index| task.eval_batch(index, *rows)))
    }
}
