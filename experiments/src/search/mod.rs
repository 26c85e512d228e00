//! Which layers of a trained model can stop selecting entries of their own, without training: a greedy search over mixes.
//!
//! Every round measures all single changes of the current mix (`full` or `reindex` to `reuse`, and where it is asked for `full`
//! to `reindex`) on a calibration set and takes the one that costs least. A changed model keeps the run's weights of all that its
//! layers still have; a change that would need new weights is no candidate, nor is one that the mix language refuses or that would
//! make a layer search in another candidate pool than before.

mod changes;
mod config;
mod greedy;
mod log;
mod results;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::{DType, Device, TensorReadError};
use csa2_model::attention::Context;
use csa2_model::config::{ConfigError, ModelConfig};
use csa2_model::cost::Cost;
use csa2_model::mix::LayerPlan;
use csa2_train::evaluate::{calibration, evaluate, evaluate_on};
use csa2_train::files::{FileError, remove_partial};
use csa2_train::runs::ReuseError;
use serde_json::json;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::ablation::progress::Progress;
use crate::ablation::record;
use crate::folders::{self, FolderError};
use crate::results::{MetricRecord, ResultsError, write_atomic, write_json};
use crate::subject::{Subject, SubjectError};

pub use changes::{Change, Excluded};
pub use config::{Calibration, MeasureKind, SearchConfig, SearchFile};
pub use greedy::{Round, Rules, Stop, Tried, Worth};
pub use log::Set;
pub use results::{Found, Point};

/// Why a search ended without a result.
#[derive(Debug, Error)]
pub enum SearchError {
    /// The run cannot be measured.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The folder for the results cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file cannot be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A mix cannot have the run's weights.
    #[error(transparent)]
    Weights(#[from] ReuseError),
    /// The costs of a mix cannot be counted.
    #[error(transparent)]
    Cost(#[from] ConfigError),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(#[from] TensorReadError),
    /// The folder holds another search's measurements.
    #[error(
        "{}: holds measurements of another search. Changed:{}\nGive another --out, or remove the folder to search anew.",
        path.display(), changes.iter().flat_map(|line| ["\n  ", line]).collect::<String>()
    )]
    Changed {
        /// The folder.
        path: PathBuf,
        /// What differs.
        changes: Vec<String>,
    },
    /// No layer of the run can change.
    #[error("{run}: the mix `{mix}` has no layer that could change{}", why.iter().flat_map(|line| ["\n  ", line]).collect::<String>())]
    Nothing {
        /// The run's folder.
        run: String,
        /// Its mix.
        mix: String,
        /// Why its selecting layers cannot.
        why: Vec<String>,
    },
    /// The run's own mix has no measure.
    #[error("{run}: the run's own mix has a {measure} of {value} on the {set}; there is nothing to compare with")]
    NotFinite {
        /// The run's folder.
        run: String,
        /// What is measured.
        measure: String,
        /// What it is.
        value: f64,
        /// On what.
        set: &'static str,
    },
    /// The pool of threads cannot be made.
    #[error("cannot start {threads} threads: {error}; lower --threads")]
    Threads {
        /// How many.
        threads: usize,
        /// Why.
        error: rayon::ThreadPoolBuildError,
    },
    /// It was asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// How a search is carried out.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder for the results.
    pub out: PathBuf,
    /// Threads. Results are reproduced for the same number.
    pub threads: usize,
    /// Name of the backend.
    pub backend: &'static str,
    /// Where it computes.
    pub device: Device,
    /// The command, for the report.
    pub command: String,
}

/// A search of a run, checked and ready.
pub struct Search {
    file: SearchFile,
    subject: Subject,
    options: Options,
}

impl Search {
    /// Opens the run in `from` for the search in `file`, which lies in the folder `base`.
    ///
    /// # Errors
    /// When the run cannot be measured, or none of its layers can change.
    pub fn new(file: SearchFile, base: &Path, from: &Path, options: Options) -> Result<Self, SearchError> {
        let right = "say in [task] what to measure it on";
        let subject = Subject::open(from, file.task.as_ref(), base, right, &options.device)?;
        let search = Self { file, subject, options };
        let plan = search.plan();
        let (candidates, excluded, blocked) = greedy::allowed(plan, &search.file.search.rules());
        if candidates.is_empty() {
            let mut why: Vec<String> =
                excluded.iter().map(|no| format!("layer {} to {}: {}", no.layer, no.to, no.why)).collect();
            if blocked {
                let (least, has) = (search.file.search.min_selecting.unwrap_or(1), plan.selecting().count());
                why.push(format!("search.min_selecting = {least}, and it has {has} selecting layers; set it lower"));
            } else if !plan.has_indexer() {
                why.push("none of its layers selects entries (full, reindex)".into());
            }
            return Err(SearchError::Nothing { run: search.run_name(), mix: plan.to_string(), why });
        }
        Ok(search)
    }

    /// The run's model.
    pub fn model_config(&self) -> &ModelConfig {
        self.subject.run.model_config()
    }

    fn plan(&self) -> &LayerPlan {
        &self.subject.run.model_config().layers
    }

    fn run_name(&self) -> String {
        self.subject.run.folder().display().to_string()
    }

    /// The run's model with another mix. A pool that nobody builds any more has no size.
    fn model(&self, plan: &LayerPlan) -> ModelConfig {
        let own = self.subject.run.model_config();
        ModelConfig { layers: plan.clone(), pool: own.pool.filter(|_| plan.has_pool()), ..own.clone() }
    }

    fn header(&self) -> log::Header {
        let mut file = self.file.clone();
        // A title changes no number.
        file.search.title = None;
        let parts = json!({
            "search": file.search,
            "task": self.subject.task_config,
            "model": self.subject.run.model_config(),
        });
        let digest = Sha256::digest(parts.to_string());
        let config = digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        let Options { backend, threads, .. } = self.options;
        let data = self.subject.task.data_digest().map(str::to_owned);
        log::Header::new(config, self.subject.weights.digest(), data, backend, threads)
    }

    /// What is kept low, and what the task is judged by.
    fn measures(&self) -> [MetricRecord; 2] {
        let metric = record::metric(&*self.subject.task);
        match self.file.search.measure {
            MeasureKind::Loss => [loss_record(), metric],
            MeasureKind::Metric => [metric, loss_record()],
        }
    }

    /// Searches to the end, or until `stop` is set, and writes the results.
    ///
    /// # Errors
    /// [`SearchError::Interrupted`] where it was asked to stop; when the folder holds something else, or files or device fail.
    /// What was measured before stays.
    pub fn run(&self, stop: &AtomicBool) -> Result<Found, SearchError> {
        const WHAT: &str = "search";
        let out = &self.options.out;
        if !log::path(out).exists() {
            folders::check_free(out, WHAT)?;
        }
        let _lock = folders::lock(out, WHAT)?;
        remove_partial(out);
        let header = self.header();
        let log = log::Log::open(out, &header)?;
        let mut measuring = Measuring::new(self, log, stop);
        measuring.say_start();
        let threads = self.options.threads;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|error| SearchError::Threads { threads, error })?;
        let ended = pool.install(|| measuring.search());
        measuring.progress.finish();
        let (rounds, ended) = ended?;
        let found = Found::new(self, &header, &mut measuring, rounds, ended)?;
        write_json(&out.join("search.json"), &found)?;
        write_atomic(&out.join("search.csv"), found.csv().as_bytes())?;
        Ok(found)
    }
}

/// The cross-entropy as a measure.
fn loss_record() -> MetricRecord {
    MetricRecord { name: "loss".into(), label: "loss".into(), higher_is_better: false }
}

/// A search under way.
struct Measuring<'a> {
    search: &'a Search,
    log: log::Log,
    stop: &'a AtomicBool,
    progress: Progress,
    measure: MetricRecord,
}

impl<'a> Measuring<'a> {
    fn new(search: &'a Search, log: log::Log, stop: &'a AtomicBool) -> Self {
        let [measure, _] = search.measures();
        let mut this = Self { search, log, stop, progress: Progress::new(0, 0), measure };
        let before: u64 =
            [Set::Calibration, Set::Evaluation].iter().map(|&set| this.log.count(set) as u64 * this.tokens(set)).sum();
        this.progress = Progress::new(before + this.left(search.plan()), before);
        this
    }

    fn say_start(&self) {
        let Options { backend, threads, out, .. } = &self.search.options;
        let known = self.log.count(Set::Calibration) + self.log.count(Set::Evaluation);
        if known > 0 {
            self.progress.say(&format!("{known} measurements are there and stay as they are"));
        }
        self.progress.say(&format!(
            "searching from `{}`, {threads} {}, on {backend}; results in {}",
            self.search.plan(),
            if *threads == 1 { "thread" } else { "threads" },
            out.display()
        ));
    }

    /// Tokens of a measurement.
    fn tokens(&self, set: Set) -> u64 {
        let sequences = match set {
            Set::Calibration => self.search.file.search.calibration.sequences,
            Set::Evaluation => self.search.subject.task.eval_sequences(),
        };
        (sequences as u64).saturating_mul(self.search.subject.task.seq_len() as u64)
    }

    /// The most tokens that are still to be measured where the search stands at `plan`.
    fn left(&self, plan: &LayerPlan) -> u64 {
        let steps = greedy::most_steps(plan, &self.search.file.search.rules()) as u64;
        let tried = (steps * (steps + 1) / 2).saturating_mul(self.tokens(Set::Calibration));
        tried.saturating_add(steps.saturating_mul(self.tokens(Set::Evaluation)))
    }

    fn search(&mut self) -> Result<(Vec<Round>, Stop), SearchError> {
        let start = self.search.plan().clone();
        for (set, name) in [(Set::Calibration, "calibration set"), (Set::Evaluation, "evaluation set")] {
            for measure in self.search.measures() {
                let value = self.value(set, &start, &measure.name)?;
                if !value.is_finite() {
                    let run = self.search.run_name();
                    return Err(SearchError::NotFinite { run, measure: measure.label, value, set: name });
                }
            }
        }
        let rules = self.search.file.search.rules();
        let this = std::cell::RefCell::new(self);
        greedy::descend(
            &start,
            &rules,
            |plan| this.borrow_mut().worth(plan),
            |plan| {
                let mut this = this.borrow_mut();
                this.values(Set::Evaluation, plan)?;
                let MetricRecord { name, label, .. } = this.measure.clone();
                let value = this.value(Set::Calibration, plan, &name)?;
                this.progress.say(&format!("{plan}: {label} {value:.4}"));
                this.progress.left(this.left(plan));
                Ok(())
            },
        )
    }

    /// What the mix is worth by its calibration.
    fn worth(&mut self, plan: &LayerPlan) -> Result<Worth, SearchError> {
        let name = self.measure.name.clone();
        let start = self.value(Set::Calibration, self.search.plan(), &name)?;
        let value = self.value(Set::Calibration, plan, &name)?;
        let worsening = if self.measure.higher_is_better { start - value } else { value - start };
        let cost = self.cost(plan)?;
        let scored_entries = cost.scored_entries(self.search.file.search.decode_context);
        Ok(Worth { worsening, scored_entries, bytes_per_token: cost.bytes_per_token().total.to_f64() })
    }

    fn cost(&self, plan: &LayerPlan) -> Result<Cost, SearchError> {
        Ok(Cost::of(&self.search.model(plan))?)
    }

    fn value(&mut self, set: Set, plan: &LayerPlan, name: &str) -> Result<f64, SearchError> {
        Ok(self.values(set, plan)?.get(name).copied().unwrap_or(f64::NAN))
    }

    /// What is measured of a mix: read from the log, or measured and written there.
    fn values(&mut self, set: Set, plan: &LayerPlan) -> Result<BTreeMap<String, f64>, SearchError> {
        let mix = plan.to_string();
        if let Some(known) = self.log.get(set, &mix) {
            return Ok(known.clone());
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(SearchError::Interrupted);
        }
        let values = self.search.measured(set, plan)?;
        self.log.add(set, &mix, values.clone())?;
        self.progress.add(self.tokens(set));
        Ok(values)
    }
}

impl Search {
    /// Measures the run's weights in another mix.
    fn measured(&self, set: Set, plan: &LayerPlan) -> Result<BTreeMap<String, f64>, SearchError> {
        let (config, device) = (self.model(plan), &self.options.device);
        let model = self.subject.weights.model(&config, device)?;
        let task = &*self.subject.task;
        let cx = Context::new(&config, task.seq_len(), DType::F32, device);
        let Calibration { sequences, batch, seed } = self.file.search.calibration;
        Ok(match set {
            Set::Calibration => evaluate_on(&model, task, &cx, calibration(task, seed, sequences, batch), device)?,
            Set::Evaluation => evaluate(&model, task, &cx, batch, device)?,
        })
    }
}
