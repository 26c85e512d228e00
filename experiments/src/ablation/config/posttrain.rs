//! The configuration of a post-training: what changes in a run that is there, and how it trains on.
//!
//! ```toml
//! [posttrain]
//! name = "hsi-4x2"             # also the folder's
//! seeds = [0]
//!
//! [model]                      # what changes; the rest is the run's
//! layers = "swa full@2+pool reuse reindex"
//! pool = { blocks = 4, block_size = 2 }
//!
//! [train]                      # how; as in an ablation
//! tokens = 512_000
//! batch = 32
//! learning_rate = 3e-3
//! trainable = "attention"
//!
//! [[evaluation]]               # as in an ablation
//! ```
//!
//! `[task]` is needed only where the run has none (an imported one) or where the task changes.

use std::path::Path;

use csa2_model::cost::Cost;
use csa2_train::config::{RunConfig, TrainConfig};
use csa2_train::runs::Run;
use serde::Deserialize;
use toml::{Table, Value};

use super::stages::{self, EvaluationFile};
use super::{
    AblationConfig, AblationError, Section, TaskCache, Variant, check, decode_context, flatten, read_text, toml_error,
};

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PosttrainFile {
    posttrain: PosttrainSection,
    task: Option<Table>,
    #[serde(default)]
    model: Table,
    train: TrainConfig,
    #[serde(default)]
    evaluation: Vec<EvaluationFile>,
}

/// The table `[posttrain]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [posttrain]")]
struct PosttrainSection {
    name: String,
    title: Option<String>,
    question: Option<String>,
    seeds: Vec<u64>,
}

/// The one variant's name, which is also its folder's.
const NAME: &str = "post-trained";

/// Reads and checks `path` for the run in `folder`: an ablation of one variant that starts from that run.
///
/// # Errors
/// When the file or the run cannot be read, the models cannot have the same weights, or anything else in the file is wrong.
pub fn load(path: &Path, folder: &Path) -> Result<AblationConfig, AblationError> {
    let text = read_text(path)?;
    let file: PosttrainFile = toml::from_str(&text).map_err(|error| toml_error(path, &error))?;
    let refuse = |message: String| AblationError::Toml { path: path.to_path_buf(), message };
    check::name("posttrain.name", &file.posttrain.name).map_err(refuse)?;
    check::seeds("posttrain.seeds", &file.posttrain.seeds).map_err(refuse)?;
    stages::check_names(&[], &file.evaluation).map_err(refuse)?;
    let run = Run::open(folder).map_err(|error| refuse(format!("the run to start from: {error}")))?;
    let variant = resolve(path, folder, &file, &run).map_err(refuse)?;
    let section = Section {
        title: file.posttrain.title,
        question: file.posttrain.question,
        baseline: Some(NAME.into()),
        seeds: file.posttrain.seeds,
        decode_context: decode_context(),
        name: file.posttrain.name,
    };
    let evaluations = file.evaluation.into_iter().map(|evaluation| evaluation.name).collect();
    Ok(AblationConfig { section, variants: vec![variant], evaluations, path: path.to_path_buf() })
}

fn resolve(path: &Path, folder: &Path, file: &PosttrainFile, from: &Run) -> Result<Variant, String> {
    let task = match (&file.task, from.task()) {
        (Some(task), _) => {
            Value::Table(task.clone()).try_into().map_err(|error: toml::de::Error| super::with_key(&error))?
        }
        (None, Some(task)) => task.clone(),
        (None, None) => return Err("the run has no task (it was imported); say in [task] what it trains on".into()),
    };
    // Files that the run's task names lie beside the configuration that it was trained by; a task given here, beside this one.
    let built = TaskCache::default().get(&task, path.parent().unwrap_or(Path::new("."))).map_err(|e| e.to_string())?;
    let model = stages::changed(&file.model, from.model_config())?;
    let mut run = RunConfig { task, model, train: file.train.clone(), start: None };
    run.model = run.model_for(&*built).map_err(|error| error.to_string())?;
    check::buildable(&run.model, &*built)?;
    let cost = Cost::of(&run.model).map_err(|error| error.to_string())?;
    check::size(&run.model, &cost, built.seq_len())?;
    run.validate(built.seq_len()).map_err(|error| error.to_string())?;
    let head = built.auxiliary().map(|auxiliary| auxiliary.after_layer);
    if head != from.auxiliary().map(|auxiliary| auxiliary.after_layer) {
        return Err("the task has another auxiliary head than the run's; train on a task with the same".into());
    }
    let evaluations = file.evaluation.iter().map(|evaluation| {
        let model = stages::evaluated(evaluation, &run.model);
        model
            .map(|model| (evaluation.name.clone(), model))
            .map_err(|e| format!("evaluation {:?}: {e}", evaluation.name))
    });
    let evaluations = evaluations.collect::<Result<Vec<_>, String>>()?;
    let mut changes = Table::new();
    changes.insert("model".into(), Value::Table(file.model.clone()));
    let overrides = flatten(&changes).into_iter().filter(|(key, _)| key != "model.layers").collect();
    let state = from.state();
    let note = Some(format!("starts from {}, step {}", folder.display(), state.step));
    // The weights themselves: runs with other seeds have the same configuration and steps.
    let digest = from.weights_file_digest().map_err(|error| error.to_string())?;
    let start = Some((folder.to_path_buf(), format!("{} step {} weights {digest}", state.config_hash, state.step)));
    Ok(Variant { name: NAME.into(), note, overrides, run, task: built, from: None, start, evaluations, cost })
}
