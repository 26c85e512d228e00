//! The configuration of an ablation: a base, and variants that each change some of it.
//!
//! ```toml
//! [ablation]
//! name = "quickstart"
//! baseline = "full"
//! seeds = [0, 1]
//!
//! [task]      # what is learnt
//! [model]     # what learns it
//! [train]     # how
//!
//! [[variant]]
//! name = "full"
//! layers = "full*4"            # short for model.layers
//!
//! [[variant]]
//! name = "few entries"
//! layers = "swa full reuse*2"
//! model.topk = 2               # any key of the base may be replaced
//!
//! [[variant]]
//! name = "with a pool"
//! from = "full"                # starts from that variant's weights, seed by seed; has a budget of its own
//! layers = "full+pool full*3"
//! model.pool = { blocks = 4, block_size = 2 }
//! train.tokens = 100_000
//!
//! [[evaluation]]               # measures every variant's weights in another model besides its own
//! name = "pool 4x2"
//! layers = "full+pool full*3"
//! model.pool = { blocks = 4, block_size = 2 }
//! ```

pub(crate) mod check;
mod posttrain;
mod stages;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csa2_model::config::{ConfigError, ModelConfig};
use csa2_model::cost::Cost;
use csa2_train::config::{RunConfig, RunConfigError};
use csa2_train::files::{self, FileError};
use csa2_train::tasks::{Task, TaskError};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use thiserror::Error;
use toml::{Table, Value};

pub use check::size as check_size;
pub use posttrain::load as load_posttraining;
use stages::EvaluationFile;
pub use stages::{TRAINED, changed as changed_model};

/// Why an ablation cannot be.
#[derive(Debug, Error)]
pub enum AblationError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not the TOML it should be.
    #[error("{}: {message}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the place.
        message: String,
    },
    /// A variant, or the base where there is none, is wrong.
    #[error("{}: {place}: {message}", path.display())]
    Variant {
        /// The file.
        path: PathBuf,
        /// `variant "name"`.
        place: String,
        /// What is wrong.
        message: String,
    },
}

/// The file, before bases and variants are put together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AblationFile {
    ablation: Section,
    task: Table,
    model: Table,
    train: Table,
    #[serde(default)]
    variant: Vec<VariantFile>,
    #[serde(default)]
    evaluation: Vec<EvaluationFile>,
}

/// The table `[ablation]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [ablation]")]
pub struct Section {
    /// Name, which is also the folder's.
    pub name: String,
    /// One line for people (default: the name).
    pub title: Option<String>,
    /// What the ablation asks.
    pub question: Option<String>,
    /// The variant that the others are compared with (default: the first).
    pub baseline: Option<String>,
    /// One run of every variant per seed.
    pub seeds: Vec<u64>,
    /// Context length at which the table counts the work of a decoded token (default 65536).
    #[serde(default = "decode_context")]
    pub decode_context: u64,
}

fn decode_context() -> u64 {
    65_536
}

/// One `[[variant]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[variant]]")]
struct VariantFile {
    name: String,
    note: Option<String>,
    from: Option<String>,
    layers: Option<String>,
    #[serde(default)]
    task: Table,
    #[serde(default)]
    model: Table,
    #[serde(default)]
    train: Table,
}

/// An ablation, resolved and checked.
pub struct AblationConfig {
    /// The table `[ablation]`, with defaults filled in.
    pub section: Section,
    /// The variants in the order of the file.
    pub variants: Vec<Variant>,
    /// Names of the further models that weights are measured in.
    pub evaluations: Vec<String>,
    /// The file.
    pub path: PathBuf,
}

/// One variant, resolved and checked.
pub struct Variant {
    /// Its name, which is also its folder's.
    pub name: String,
    /// A remark for the report.
    pub note: Option<String>,
    /// Flattened keys and values that differ from the base.
    pub overrides: BTreeMap<String, String>,
    /// Task, model (with the task's vocabulary) and training.
    pub run: RunConfig,
    /// The task, built.
    pub task: Arc<dyn Task>,
    /// The variant whose weights this one starts from.
    pub from: Option<String>,
    /// The run elsewhere whose weights this one starts from, and what identifies it.
    pub start: Option<(PathBuf, String)>,
    /// Further models that its weights are measured in.
    pub evaluations: Vec<(String, ModelConfig)>,
    /// What the model costs.
    pub cost: Cost,
}

impl Variant {
    /// Identifies everything that decides a run besides its seed: the resolved configuration, the data that the task read,
    /// backend and thread count, and where it starts from another variant, `start`, the hash of that.
    ///
    /// # Errors
    /// When the configuration has no JSON form.
    pub fn hash(&self, backend: &str, threads: usize, start: Option<&str>) -> Result<String, serde_json::Error> {
        let mut parts = serde_json::json!({
            "run": self.run,
            "data": self.task.data_digest(),
            "backend": backend,
            "threads": threads,
        });
        if let Some(start) = start {
            parts["from"] = start.into();
        }
        // Keys of a JSON object are sorted, so the text does not depend on the order of the file.
        let digest = Sha256::digest(serde_json::to_string(&parts)?);
        Ok(digest.iter().take(8).fold(String::new(), |text, byte| text + &format!("{byte:02x}")))
    }
}

impl AblationConfig {
    /// Reads and checks `path`. Files that a task names are looked for beside it.
    ///
    /// # Errors
    /// When the file cannot be read, or anything in it is wrong; the message says where.
    pub fn load(path: &Path) -> Result<Self, AblationError> {
        let text = read_text(path)?;
        let file: AblationFile = toml::from_str(&text).map_err(|error| toml_error(path, &error))?;
        check::section(path, &file)?;
        stages::check_names(&file.variant, &file.evaluation)
            .map_err(|message| AblationError::Toml { path: path.to_path_buf(), message })?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut tasks = TaskCache::default();
        let mut variants = Vec::new();
        for variant in &file.variant {
            let at = |message: String| AblationError::Variant {
                path: path.to_path_buf(),
                place: format!("variant \"{}\"", variant.name),
                message,
            };
            let resolved = resolve(&file, variant, folder, &mut tasks, &variants).map_err(at)?;
            variants.push(resolved);
        }
        check::metric(path, &variants)?;
        let mut section = file.ablation;
        section.baseline = Some(section.baseline.unwrap_or_else(|| variants[0].name.clone()));
        let evaluations = file.evaluation.into_iter().map(|evaluation| evaluation.name).collect();
        Ok(Self { section, variants, evaluations, path: path.to_path_buf() })
    }

    /// The hashes of all variants, in their order.
    ///
    /// # Errors
    /// When a configuration has no JSON form.
    pub fn hashes(&self, backend: &str, threads: usize) -> Result<Vec<String>, serde_json::Error> {
        let mut hashes: Vec<String> = Vec::new();
        for variant in &self.variants {
            // A start stands before what starts from it.
            let start = self.variants.iter().zip(&hashes).find(|(v, _)| Some(&v.name) == variant.from.as_ref());
            let elsewhere = || variant.start.as_ref().map(|(_, identity)| identity.clone());
            let start = start.map(|(_, hash)| hash.clone()).or_else(elsewhere);
            hashes.push(variant.hash(backend, threads, start.as_deref())?);
        }
        Ok(hashes)
    }

    /// The variant that the others are compared with.
    pub fn baseline(&self) -> &str {
        self.section.baseline.as_deref().unwrap_or_default()
    }
}

/// Reads a configuration as text.
///
/// # Errors
/// When the file cannot be read or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, AblationError> {
    String::from_utf8(files::read(path)?).map_err(|error| AblationError::Toml {
        path: path.to_path_buf(),
        message: format!("is not UTF-8 text: {error}"),
    })
}

/// A parser's complaint with the file's name before it.
pub fn toml_error(path: &Path, error: &toml::de::Error) -> AblationError {
    AblationError::Toml { path: path.to_path_buf(), message: error.to_string().trim_end().to_string() }
}

/// Builds every task once, however many variants share it.
#[derive(Default)]
struct TaskCache(Vec<(csa2_train::tasks::TaskConfig, Arc<dyn Task>)>);

impl TaskCache {
    fn get(&mut self, config: &csa2_train::tasks::TaskConfig, folder: &Path) -> Result<Arc<dyn Task>, TaskError> {
        if let Some((_, task)) = self.0.iter().find(|(known, _)| known == config) {
            return Ok(task.clone());
        }
        let task: Arc<dyn Task> = Arc::from(config.build(folder)?);
        self.0.push((config.clone(), task.clone()));
        Ok(task)
    }
}

fn resolve(
    file: &AblationFile,
    variant: &VariantFile,
    folder: &Path,
    tasks: &mut TaskCache,
    before: &[Variant],
) -> Result<Variant, String> {
    if variant.layers.is_some() && variant.model.contains_key("layers") {
        return Err("has `layers` and `model.layers`; keep one".into());
    }
    if variant.train.contains_key("tokens") && variant.from.is_none() {
        return Err("replaces `train.tokens`; the budget is equal for all variants, set it in [train] \
                    (a variant that starts `from` another has one of its own)"
            .into());
    }
    let mut changes = Table::new();
    let mut model = variant.model.clone();
    model.extend(variant.layers.iter().map(|layers| ("layers".to_string(), Value::String(layers.clone()))));
    for (name, table) in [("task", &variant.task), ("model", &model), ("train", &variant.train)] {
        changes.insert(name.into(), Value::Table(table.clone()));
    }
    let mut whole = Table::new();
    for (name, table) in [("task", &file.task), ("model", &file.model), ("train", &file.train)] {
        whole.insert(name.into(), Value::Table(table.clone()));
    }
    if !file.model.contains_key("layers") && !model.contains_key("layers") {
        return Err(
            "has no `layers`, and neither has [model]; write the mix, such as layers = \"swa full reuse*2\"".into()
        );
    }
    let overrides = flatten(&changes).into_iter().filter(|(key, _)| key != "model.layers").collect();
    merge(&mut whole, changes);
    let mut run: RunConfig = Value::Table(whole).try_into().map_err(|error: toml::de::Error| with_key(&error))?;
    let task = tasks.get(&run.task, folder).map_err(|error| error.to_string())?;
    run.model = run.model_for(&*task).map_err(|error: RunConfigError| error.to_string())?;
    check::buildable(&run.model, &*task)?;
    let cost = Cost::of(&run.model).map_err(|error: ConfigError| error.to_string())?;
    check::size(&run.model, &cost, task.seq_len())?;
    run.validate(task.seq_len()).map_err(|error| error.to_string())?;
    if let Some(first) = before.iter().find(|earlier| Some(&earlier.name) == variant.from.as_ref()) {
        stages::same_weights(&first.run.model, &run.model)
            .map_err(|message| format!("starts from \"{}\": {message}", first.name))?;
        let heads = [&first.task, &task].map(|task| task.auxiliary().map(|auxiliary| auxiliary.after_layer));
        if heads[0] != heads[1] {
            return Err(format!("starts from \"{}\", whose task has another auxiliary head", first.name));
        }
    }
    let concerned = |e: &&EvaluationFile| e.of.as_ref().is_none_or(|of| of.contains(&variant.name));
    let evaluations = file.evaluation.iter().filter(concerned).map(|evaluation| {
        let model = stages::evaluated(evaluation, &run.model);
        model
            .map(|model| (evaluation.name.clone(), model))
            .map_err(|e| format!("evaluation {:?}: {e}", evaluation.name))
    });
    let evaluations = evaluations.collect::<Result<Vec<_>, String>>()?;
    let (name, note, from) = (variant.name.clone(), variant.note.clone(), variant.from.clone());
    Ok(Variant { name, note, overrides, run, task, from, start: None, evaluations, cost })
}

/// A merged table has no lines any more, but the parser ends its message with the key: that is told first.
fn with_key(error: &toml::de::Error) -> String {
    let message = error.to_string();
    match message.trim_end().rsplit_once("\nin `") {
        Some((wrong, key)) => format!("`{}`: {wrong}", key.trim_end_matches('`')),
        None => message.trim_end().to_string(),
    }
}

/// Replaces keys of `base`; tables are merged key by key, except that another `kind` replaces the whole table.
fn merge(base: &mut Table, changes: Table) {
    for (key, change) in changes {
        match (base.get_mut(&key), change) {
            (Some(Value::Table(old)), Value::Table(new)) if same_kind(old, &new) => merge(old, new),
            (_, change) => {
                base.insert(key, change);
            }
        }
    }
}

fn same_kind(old: &Table, new: &Table) -> bool {
    new.get("kind").is_none_or(|kind| old.get("kind") == Some(kind))
}

/// Keys joined by points, and values as TOML prints them.
fn flatten(table: &Table) -> BTreeMap<String, String> {
    let mut flat = BTreeMap::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                flat.extend(flatten(inner).into_iter().map(|(rest, value)| (format!("{key}.{rest}"), value)));
            }
            other => {
                flat.insert(key.clone(), other.to_string());
            }
        }
    }
    flat
}

#[cfg(test)]
mod tests;
