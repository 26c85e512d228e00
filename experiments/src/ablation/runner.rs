//! Runs every variant with every seed: what is finished stays, what is not goes on, several at a time.

mod folder;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;
use csa2_train::checkpoints::Store;
use csa2_train::config::StartRecord;
use csa2_train::files::{FileError, make_folder, remove_partial, write_atomic};
use csa2_train::trainer::{Finished, Outcome, TrainError, Trainer};
use thiserror::Error;

use super::progress::{Progress, duration};
use super::record::record;
use super::searched;
use super::{AblationConfig, Variant};
use crate::bench::BenchError;
use crate::folders::FolderError;
use crate::results::{
    ResultsError, RunSummary, SCHEMA, Status, ablation_path, read_summary, run_dir, summary_path, write_json,
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
    /// Results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The record of what was run before cannot be read.
    #[error("{0}\nRun with --fresh to start anew (what is there is moved aside), or give another --out.")]
    Record(ResultsError),
    /// A run's summary cannot be read.
    #[error("{error}\nRemove this summary and run the same command again: the run is taken up at its last checkpoint.")]
    Summary {
        /// What is wrong; it names the file.
        error: ResultsError,
    },
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
         (A hash covers a variant's configuration, its data, the backend and --threads.)\n\
         Run with --fresh to start anew (what is there is moved aside), or give the ablation another name.",
        path.display(), list(changes)
    )]
    Changed {
        /// The folder.
        path: PathBuf,
        /// What changed.
        changes: Vec<String>,
    },
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Results cannot be moved out of the way.
    #[error("{}: cannot be moved aside: {source}; move it yourself, or give another --out", path.display())]
    Aside {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The time of a search cannot be measured.
    #[error("measuring the search for addresses: {0}")]
    Search(BenchError),
    /// No thread for a run.
    #[error("cannot start a thread for a run: {0}; lower --jobs")]
    Worker(io::Error),
    /// The thread pool of a run cannot be made.
    #[error("cannot start {threads} threads for a run: {error}; lower --threads or --jobs")]
    Threads {
        /// How many.
        threads: usize,
        /// Why.
        error: rayon::ThreadPoolBuildError,
    },
}

fn list(lines: &[String]) -> String {
    lines.iter().flat_map(|line| ["\n  ", line]).collect()
}

/// How an ablation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Every run has come to its end, or failed.
    Done,
    /// It was asked to stop.
    Interrupted,
}

/// One run to be done.
struct Job<'a> {
    variant: &'a Variant,
    hash: &'a str,
    seed: u64,
    folder: PathBuf,
    /// The run whose weights it starts from.
    from: Option<PathBuf>,
}

/// Runs the ablation to its end, or until `stop` is set.
///
/// # Errors
/// When the folder holds something else, or files or device fail. What was finished or checkpointed before stays.
pub fn run(config: &AblationConfig, options: &RunnerOptions, stop: &AtomicBool) -> Result<Ended, RunnerError> {
    let hashes =
        config.hashes(options.backend, options.threads).map_err(|error| FileError::content(&config.path, &error))?;
    let mut new = record(config, &hashes, options.command.clone());
    let _lock = folder::open(options, &new)?;
    write_json(&ablation_path(&options.out), &new)?;

    let todo = todo(config, &hashes, &options.out)?;
    let runs = todo.queue.len();
    let progress = Progress::new(todo.total, todo.before);
    let jobs = options.jobs.clamp(1, runs.max(1));
    if todo.kept > 0 {
        progress.say(&format!("{} of {} runs are finished and stay as they are", todo.kept, todo.kept + runs));
    }
    if runs > 0 {
        progress.say(&format!(
            "{}, {jobs} at a time, {} each, on {}; results in {}",
            counted(runs, "run to do", "runs to do"),
            counted(options.threads, "thread", "threads"),
            options.backend,
            options.out.display()
        ));
    }
    let shared = SharedQueue {
        queue: Mutex::new(todo.queue),
        running: Mutex::default(),
        error: Mutex::new(None),
        halt: AtomicBool::new(false),
    };
    let started = std::thread::scope(|scope| {
        let work = || shared.work(options, stop, &progress);
        (0..jobs).try_for_each(|_| std::thread::Builder::new().spawn_scoped(scope, work).map(|_| ()))
    });
    progress.finish();
    if let Some(error) = shared.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    if stop.load(Ordering::Relaxed) {
        return Ok(Ended::Interrupted);
    }
    // The threads that could be started did the whole queue, unless there was none.
    let left = shared.queue.into_inner().unwrap_or_else(PoisonError::into_inner).len();
    started.or_else(|error| if left > 0 { Err(RunnerError::Worker(error)) } else { Ok(()) })?;
    // Measured when nothing else runs.
    let pool = thread_pool(options.threads)?;
    pool.install(|| searched::measure(config, &mut new, &options.device)).map_err(RunnerError::Search)?;
    write_json(&ablation_path(&options.out), &new)?;
    Ok(Ended::Done)
}

/// The threads of one run.
fn thread_pool(threads: usize) -> Result<rayon::ThreadPool, RunnerError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|error| RunnerError::Threads { threads, error })
}

/// `1 run`, `2 runs`.
fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// What is left of an ablation. Tokens saturate: a sum beyond 64 bits only makes the bar wrong.
struct Todo<'a> {
    queue: VecDeque<Job<'a>>,
    /// Tokens of all runs.
    total: u64,
    /// Tokens that earlier calls trained.
    before: u64,
    /// Runs that are finished.
    kept: usize,
}

/// Looks at what is on disk. Runs go seed by seed, so that every variant has a first result early.
fn todo<'a>(config: &'a AblationConfig, hashes: &'a [String], out: &Path) -> Result<Todo<'a>, RunnerError> {
    let mut todo = Todo { queue: VecDeque::new(), total: 0, before: 0, kept: 0 };
    for &seed in &config.section.seeds {
        for (variant, hash) in config.variants.iter().zip(hashes) {
            let folder = run_dir(out, &variant.name, seed);
            let seq = variant.task.seq_len();
            let per_step = variant.run.train.tokens_per_step(seq);
            let budget = variant.run.train.steps(seq).saturating_mul(per_step);
            todo.total = todo.total.saturating_add(budget);
            if finished(&folder, hash, variant).map_err(|error| RunnerError::Summary { error })? {
                todo.kept += 1;
                todo.before = todo.before.saturating_add(budget);
                continue;
            }
            let state = Store::new(&folder).state().map_err(|error| RunnerError::Run {
                variant: variant.name.clone(),
                seed,
                error: Box::new(error.into()),
            })?;
            let done = state.map_or(0, |state| state.step.saturating_mul(per_step)).min(budget);
            todo.before = todo.before.saturating_add(done);
            let elsewhere = || variant.start.as_ref().map(|(folder, _)| folder.clone());
            let from = variant.from.as_ref().map(|from| run_dir(out, from, seed)).or_else(elsewhere);
            todo.queue.push_back(Job { variant, hash, seed, folder, from });
        }
    }
    Ok(todo)
}

fn finished(folder: &Path, hash: &str, variant: &Variant) -> Result<bool, ResultsError> {
    if !summary_path(folder).exists() {
        return Ok(false);
    }
    let summary = read_summary(&summary_path(folder))?;
    // An evaluation that was added later is made up for.
    let measured = variant.evaluations.iter().all(|(name, _)| summary.evaluations.contains_key(name));
    Ok(summary.status == Status::Finished && summary.config_hash == hash && measured)
}

struct SharedQueue<'a> {
    queue: Mutex<VecDeque<Job<'a>>>,
    /// Folders of the runs that are being trained.
    running: Mutex<Vec<PathBuf>>,
    error: Mutex<Option<RunnerError>>,
    /// Set when a run met an error that concerns all, so that the others stop with a checkpoint.
    halt: AtomicBool,
}

/// What a worker does next.
enum Next<'a> {
    Run(Job<'a>),
    /// All that is left starts from runs that others are still training.
    Wait,
    Nothing,
}

impl<'a> SharedQueue<'a> {
    /// The next run whose start is there.
    fn next(&self) -> Next<'a> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.is_empty() {
            return Next::Nothing;
        }
        // A start that is neither waiting nor running has ended: well, or with a failure that its follower meets.
        let waits = |job: &Job| {
            let from = |folder: &PathBuf| running.contains(folder) || queue.iter().any(|other| other.folder == *folder);
            job.from.as_ref().is_some_and(from)
        };
        let ready = queue.iter().position(|job| !waits(job));
        let job = ready.and_then(|place| queue.remove(place));
        running.extend(job.iter().map(|job| job.folder.clone()));
        job.map_or(Next::Wait, Next::Run)
    }

    /// Takes runs from the queue until there is none.
    fn work(&self, options: &RunnerOptions, stop: &AtomicBool, progress: &Progress) {
        loop {
            if stop.load(Ordering::Relaxed) || self.halt.load(Ordering::Relaxed) {
                return;
            }
            let job = match self.next() {
                Next::Run(job) => job,
                Next::Wait => {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    continue;
                }
                Next::Nothing => return,
            };
            let ended = self.one(&job, options, stop, progress);
            self.running.lock().unwrap_or_else(PoisonError::into_inner).retain(|folder| *folder != job.folder);
            match ended {
                Ok(Some(failure)) => {
                    progress.say(&format!("{}, seed {}: failed: {failure}", job.variant.name, job.seed));
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
        if let Some(failure) = no_start(job)? {
            let summary = summary(job, options, Err((0, failure)));
            make_folder(&job.folder)?;
            write_json(&summary_path(&job.folder), &summary)?;
            return Ok(summary.failure);
        }
        write_config(job)?;
        let per_step = job.variant.run.train.tokens_per_step(job.variant.task.seq_len());
        let asked = AtomicBool::new(false);
        let steps = AtomicU64::new(0);
        let count = |done: u64| {
            steps.store(done, Ordering::Relaxed);
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
            from: job.from.as_deref(),
            evaluations: &job.variant.evaluations,
            device: options.device.clone(),
            stop: &asked,
            progress: &count,
        };
        let pool = thread_pool(options.threads)?;
        // A panic is a fault of ours, but it should not take the other runs with it.
        let outcome = catch_unwind(AssertUnwindSafe(|| pool.install(|| trainer.run())));
        let summary = match outcome {
            Ok(Ok(Outcome::Interrupted { .. })) => return Ok(None),
            Ok(Ok(Outcome::Finished(finished))) => summary(job, options, Ok(finished)),
            Ok(Err(error @ TrainError::NotFinite { step, .. })) => {
                summary(job, options, Err((step, error.to_string())))
            }
            Ok(Err(error)) => {
                return Err(failed(job, error));
            }
            Err(panic) => {
                let steps = steps.load(Ordering::Relaxed);
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

/// Why a run cannot start from the one that it names: that has not come to its end.
fn no_start(job: &Job) -> Result<Option<String>, RunnerError> {
    // A run elsewhere was looked at before anything began.
    let Some(from) = job.from.as_ref().filter(|_| job.variant.from.is_some()) else { return Ok(None) };
    let path = summary_path(from);
    if path.exists() {
        let summary = read_summary(&path).map_err(|error| RunnerError::Summary { error })?;
        if summary.status == Status::Finished {
            return Ok(None);
        }
    }
    let name = job.variant.from.as_deref().unwrap_or_default();
    Ok(Some(format!("it starts from variant \"{name}\", whose run with this seed has not come to its end")))
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
            (
                Status::Failed,
                Some(failure),
                Finished { steps, tokens, values: BTreeMap::new(), evaluations: BTreeMap::new(), seconds: 0.0 },
            )
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
        evaluations: done.evaluations,
        seconds: done.seconds,
        tokens_per_second: done.tokens as f64 / done.seconds.max(1e-9),
        backend: options.backend.into(),
        threads: options.threads as u64,
        version: env!("CARGO_PKG_VERSION").into(),
    }
}

/// The error of a run that stopped for a reason that is not its own.
fn failed(job: &Job, error: TrainError) -> RunnerError {
    RunnerError::Run { variant: job.variant.name.clone(), seed: job.seed, error: Box::new(error) }
}

/// The resolved configuration, for people and for later commands.
fn write_config(job: &Job) -> Result<(), RunnerError> {
    make_folder(&job.folder)?;
    remove_partial(&job.folder);
    let path = job.folder.join("config.toml");
    let mut run = job.variant.run.clone();
    if let Some(folder) = &job.from {
        let state = Store::new(folder).state().map_err(|error| failed(job, error.into()))?;
        run.start = state.map(|state| StartRecord {
            run: folder.display().to_string(),
            step: state.step,
            config_hash: state.config_hash,
        });
    }
    let text = toml::to_string(&run).map_err(|error| FileError::content(&path, &error))?;
    let head = format!("# Resolved configuration, hash {}, of variant \"{}\".\n\n", job.hash, job.variant.name);
    Ok(write_atomic(&path, (head + &text).as_bytes())?)
}

#[cfg(test)]
mod tests;
