//! Runs every variant with every seed: what is finished stays, what is not goes on, several at a time.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, TryLockError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use burn::tensor::Device;
use csa2_train::checkpoints::Store;
use csa2_train::files::{FileError, make_folder, write_atomic};
use csa2_train::trainer::{Finished, Outcome, TrainError, Trainer};
use thiserror::Error;

use super::progress::{Progress, duration};
use super::record::record;
use super::{AblationConfig, Variant};
use crate::results::{
    AblationRecord, ResultsError, RunSummary, SCHEMA, Status, ablation_path, read_ablation, read_summary, run_dir,
    summary_path, write_json,
};

/// How an ablation is run.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// The ablation's folder.
    pub out: PathBuf,
    /// Start anew; what is there is moved aside.
    pub fresh: bool,
    /// Runs at a time.
    pub jobs: usize,
    /// Threads of one run. Results are reproduced for the same number.
    pub threads: usize,
    /// Name of the backend.
    pub backend: &'static str,
    /// Where it computes.
    pub device: Device,
    /// The command, for the report.
    pub command: String,
}

/// Why an ablation stopped.
#[derive(Debug, Error)]
pub enum RunnerError {
    /// A file cannot be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Results cannot be written or read.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A run stopped for a reason that is not its own.
    #[error("variant \"{variant}\", seed {seed}: {error}")]
    Run {
        /// The variant.
        variant: String,
        /// The seed.
        seed: u64,
        /// Why.
        error: Box<TrainError>,
    },
    /// Results of another configuration are in the way.
    #[error(
        "{}: holds results of another configuration. Changed:{}\n\
         Run with --fresh to start anew (what is there is moved aside), or give the ablation another name.",
        path.display(), list(changes)
    )]
    Changed {
        /// The folder.
        path: PathBuf,
        /// What changed.
        changes: Vec<String>,
    },
    /// Another process runs the same ablation.
    #[error("{}: another csa2 is running this ablation; wait for it or give another --out", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// The folder holds something else.
    #[error("{}: is not empty and holds no ablation; give another --out", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// The thread pool of a run cannot be made.
    #[error("cannot start {threads} threads for a run: {error}")]
    Threads {
        /// How many.
        threads: usize,
        /// Why.
        error: rayon::ThreadPoolBuildError,
    },
}

fn list(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n  {line}")).collect()
}

/// How an ablation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Every run is finished, but for those that failed.
    Done {
        /// How many failed.
        failed: usize,
    },
    /// It was asked to stop.
    Interrupted,
}

/// One run to be done.
struct Job<'a> {
    variant: &'a Variant,
    hash: &'a str,
    seed: u64,
    folder: PathBuf,
}

/// Runs the ablation to its end, or until `stop` is set.
///
/// # Errors
/// When the folder holds something else, or files or device fail. What was finished or checkpointed before stays.
pub fn run(config: &AblationConfig, options: &RunnerOptions, stop: &AtomicBool) -> Result<Ended, RunnerError> {
    let hashes: Vec<String> = config
        .variants
        .iter()
        .map(|variant| variant.hash(options.backend, options.threads))
        .collect::<Result<_, _>>()
        .map_err(|error| FileError::content(&config.path, error))?;
    let new = record(config, &hashes, options.command.clone());
    let _lock = open_folder(options, &new)?;
    write_json(&ablation_path(&options.out), &new)?;

    let mut queue = VecDeque::new();
    let (mut total, mut before, mut kept) = (0, 0, 0);
    // Seed by seed, so that every variant has a first result early.
    for &seed in &config.section.seeds {
        for (variant, hash) in config.variants.iter().zip(&hashes) {
            let folder = run_dir(&options.out, &variant.name, seed);
            let budget = budget(variant);
            total += budget;
            if finished(&folder, hash)? {
                kept += 1;
                before += budget;
                continue;
            }
            let state = Store::new(&folder).state().map_err(|error| RunnerError::Run {
                variant: variant.name.clone(),
                seed,
                error: Box::new(error.into()),
            })?;
            before += state.map_or(0, |s| s.step * variant.run.train.tokens_per_step(variant.task.seq_len()));
            queue.push_back(Job { variant, hash, seed, folder });
        }
    }
    let runs = queue.len();
    let progress = Progress::new(total, before);
    let jobs = options.jobs.clamp(1, runs.max(1));
    if kept > 0 {
        progress.say(&format!("{kept} of {} runs are finished and stay as they are", kept + runs));
    }
    if runs > 0 {
        progress.say(&format!(
            "{runs} runs to do, {jobs} at a time, {} thread{} each, on {}; results in {}",
            options.threads,
            if options.threads == 1 { "" } else { "s" },
            options.backend,
            options.out.display()
        ));
    }
    let shared = SharedQueue {
        queue: Mutex::new(queue),
        failed: Mutex::new(Vec::new()),
        error: Mutex::new(None),
        halt: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| shared.work(options, stop, &progress));
        }
    });
    progress.finish();
    if let Some(error) = shared.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    if stop.load(Ordering::Relaxed) {
        return Ok(Ended::Interrupted);
    }
    Ok(Ended::Done { failed: shared.failed.into_inner().unwrap_or_else(PoisonError::into_inner).len() })
}

fn budget(variant: &Variant) -> u64 {
    let seq = variant.task.seq_len();
    variant.run.train.steps(seq) * variant.run.train.tokens_per_step(seq)
}

fn finished(folder: &Path, hash: &str) -> Result<bool, ResultsError> {
    if !summary_path(folder).exists() {
        return Ok(false);
    }
    let summary = read_summary(&summary_path(folder))?;
    Ok(summary.status == Status::Finished && summary.config_hash == hash)
}

struct SharedQueue<'a> {
    queue: Mutex<VecDeque<Job<'a>>>,
    failed: Mutex<Vec<String>>,
    error: Mutex<Option<RunnerError>>,
    /// Set when a run met an error that concerns all, so that the others stop with a checkpoint.
    halt: AtomicBool,
}

impl SharedQueue<'_> {
    /// Takes runs from the queue until there is none.
    fn work(&self, options: &RunnerOptions, stop: &AtomicBool, progress: &Progress) {
        loop {
            if stop.load(Ordering::Relaxed) || self.halt.load(Ordering::Relaxed) {
                return;
            }
            let next = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(job) = next else { return };
            match self.one(&job, options, stop, progress) {
                Ok(Some(failure)) => {
                    progress.say(&format!("{}, seed {}: failed: {failure}", job.variant.name, job.seed));
                    self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                }
                Ok(None) => {}
                Err(error) => {
                    self.halt.store(true, Ordering::Relaxed);
                    self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        }
    }

    /// Trains one run; gives the reason if it failed by itself.
    fn one(
        &self,
        job: &Job,
        options: &RunnerOptions,
        stop: &AtomicBool,
        progress: &Progress,
    ) -> Result<Option<String>, RunnerError> {
        write_config(job)?;
        let per_step = job.variant.run.train.tokens_per_step(job.variant.task.seq_len());
        let asked = AtomicBool::new(false);
        let counted = AtomicU64::new(0);
        let count = |_: u64| {
            counted.fetch_add(1, Ordering::Relaxed);
            progress.add(per_step);
            if stop.load(Ordering::Relaxed) || self.halt.load(Ordering::Relaxed) {
                asked.store(true, Ordering::Relaxed);
            }
        };
        let trainer = Trainer {
            config: &job.variant.run,
            task: job.variant.task.clone(),
            seed: job.seed,
            config_hash: job.hash,
            folder: &job.folder,
            device: options.device.clone(),
            stop: &asked,
            progress: &count,
        };
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .build()
            .map_err(|error| RunnerError::Threads { threads: options.threads, error })?;
        // A panic is a fault of ours, but it should not take the other runs with it.
        let outcome = catch_unwind(AssertUnwindSafe(|| pool.install(|| trainer.run())));
        let summary = match outcome {
            Ok(Ok(Outcome::Interrupted { .. })) => return Ok(None),
            Ok(Ok(Outcome::Finished(finished))) => summary(job, options, Ok(finished)),
            Ok(Err(error @ TrainError::NotFinite { step, .. })) => {
                summary(job, options, Err((step, error.to_string())))
            }
            Ok(Err(error)) => {
                let (variant, seed) = (job.variant.name.clone(), job.seed);
                return Err(RunnerError::Run { variant, seed, error: Box::new(error) });
            }
            Err(panic) => {
                let steps = counted.load(Ordering::Relaxed);
                summary(job, options, Err((steps, format!("internal error: {}", panic_text(&*panic)))))
            }
        };
        write_json(&summary_path(&job.folder), &summary)?;
        if summary.status == Status::Finished {
            progress.say(&said(job, &summary));
        }
        Ok(summary.failure)
    }
}

fn said(job: &Job, summary: &RunSummary) -> String {
    let metric = job.variant.task.metric().name();
    let key = job.variant.task.metric_tag().map_or(metric.to_string(), |tag| format!("{metric}/{tag}"));
    let value = summary.final_values.get(&key).copied().unwrap_or(f64::NAN);
    format!("{}, seed {}: {key} {value:.4} in {}", job.variant.name, job.seed, duration(summary.seconds))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}

fn summary(job: &Job, options: &RunnerOptions, ended: Result<Finished, (u64, String)>) -> RunSummary {
    let (status, failure, done) = match ended {
        Ok(done) => (Status::Finished, None, done),
        Err((steps, failure)) => {
            let tokens = steps * job.variant.run.train.tokens_per_step(job.variant.task.seq_len());
            (Status::Failed, Some(failure), Finished { steps, tokens, values: BTreeMap::new(), seconds: 0.0 })
        }
    };
    RunSummary {
        schema: SCHEMA,
        variant: job.variant.name.clone(),
        seed: job.seed,
        config_hash: job.hash.into(),
        status,
        failure,
        steps: done.steps,
        tokens: done.tokens,
        final_values: done.values,
        seconds: done.seconds,
        tokens_per_second: done.tokens as f64 / done.seconds.max(1e-9),
        backend: options.backend.into(),
        threads: options.threads as u64,
        version: env!("CARGO_PKG_VERSION").into(),
    }
}

/// The resolved configuration, for people and for later commands.
fn write_config(job: &Job) -> Result<(), RunnerError> {
    make_folder(&job.folder)?;
    let path = job.folder.join("config.toml");
    let text = toml::to_string(&job.variant.run).map_err(|error| FileError::content(&path, error))?;
    let head = format!("# Resolved configuration, hash {}, of variant \"{}\".\n\n", job.hash, job.variant.name);
    Ok(write_atomic(&path, (head + &text).as_bytes())?)
}

/// Makes or takes up the folder, and keeps other processes out while the result lives.
fn open_folder(options: &RunnerOptions, new: &AblationRecord) -> Result<File, RunnerError> {
    let out = &options.out;
    let known = ablation_path(out).exists();
    if out.exists() && !known {
        let entries = fs::read_dir(out).map_err(|source| FileError::reading(out, source))?;
        if entries.flatten().any(|entry| entry.file_name() != LOCK) {
            return Err(RunnerError::Foreign { path: out.clone() });
        }
    }
    let lock = lock(out)?;
    if !known {
        return Ok(lock);
    }
    if options.fresh {
        move_aside(out)?;
        return self::lock(out);
    }
    let changes = changes(&read_ablation(&ablation_path(out))?, new, out);
    if changes.is_empty() { Ok(lock) } else { Err(RunnerError::Changed { path: out.clone(), changes }) }
}

/// File whose lock says that a process works in the folder.
const LOCK: &str = ".lock";

fn lock(out: &Path) -> Result<File, RunnerError> {
    make_folder(out)?;
    let path = out.join(LOCK);
    let lock = File::create(&path).map_err(|source| FileError::writing(&path, source))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(RunnerError::Busy { path: out.to_path_buf() }),
        Err(TryLockError::Error(source)) => Err(FileError::writing(&path, source).into()),
    }
}

/// What differs from the results on disk. New variants and seeds may join, and what only the report shows may change.
fn changes(old: &AblationRecord, new: &AblationRecord, out: &Path) -> Vec<String> {
    let mut changes = Vec::new();
    if old.name != new.name {
        changes.push(format!("the ablation's name, from \"{}\" to \"{}\"", old.name, new.name));
    }
    for variant in &new.variants {
        let Some(was) = old.variants.iter().find(|was| was.name == variant.name) else { continue };
        let begun = out.join(&variant.name).exists();
        if was.config_hash != variant.config_hash && begun {
            let (from, to) = (&was.config_hash, &variant.config_hash);
            let mut text = format!("variant \"{}\" (hash {from}, now {to})", variant.name);
            if was.layers != variant.layers {
                text += &format!(": layers \"{}\", now \"{}\"", was.layers, variant.layers);
            }
            changes.push(text);
        }
    }
    for was in &old.variants {
        if !new.variants.iter().any(|v| v.name == was.name) && out.join(&was.name).exists() {
            changes.push(format!("variant \"{}\" has results, but is no longer in the configuration", was.name));
        }
    }
    changes
}

/// Moves results out of the way under a name that tells when.
fn move_aside(out: &Path) -> Result<(), RunnerError> {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let aside = out.with_file_name(format!("{name}.before-{seconds}"));
    fs::rename(out, &aside).map_err(|source| FileError::writing(out, source))?;
    eprintln!("moved {} to {}", out.display(), aside.display());
    Ok(())
}

#[cfg(test)]
mod tests;
