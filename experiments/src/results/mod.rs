//! What an ablation leaves on disk, and how it is read and written.
//!
//! ```text
//! runs/<ablation>/ablation.json                        AblationRecord: what was asked, of which variants, at what cost
//! runs/<ablation>/<variant>/seed-<n>/metrics.jsonl     one MetricLine a line, appended while the run trains
//! runs/<ablation>/<variant>/seed-<n>/summary.json      RunSummary, written once when the run ends
//! ```
//!
//! A number that is not finite is written as `null` (JSON has no NaN) and read back as NaN.

mod error;
mod read;
mod write;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};

pub use csa2_model::attention::Phase;
pub use csa2_train::files::write_atomic;
pub use csa2_train::metrics::{MetricLine, Split};
pub use error::ResultsError;
pub use read::{Metrics, read_ablation, read_metrics, read_summary};
pub use write::{metrics_text, write_json};

/// The version of the file formats in this module.
pub const SCHEMA: u32 = 1;

/// `ablation.json`: what was asked, and every variant with its cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AblationRecord {
    /// File format, [`SCHEMA`].
    pub schema: u32,
    /// Name of the ablation, as in its folder.
    pub name: String,
    /// One-line title for people.
    pub title: String,
    /// The question that the ablation asks, if it states one.
    pub question: Option<String>,
    /// One line that describes the task and its data. Ablations are comparable only where it is equal.
    pub task: String,
    /// Name of the variant that the others are compared with.
    pub baseline: String,
    /// The variants in the order of the config.
    pub variants: Vec<VariantRecord>,
    /// Seeds that each variant is trained with.
    pub seeds: Vec<u64>,
    /// Training tokens of each run, equal for all.
    pub budget_tokens: u64,
    /// What the variants are ranked by.
    pub metric: MetricRecord,
    /// Further models that weights are measured in, by name, in the order of the config.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<String>,
    /// The command that made the ablation, where it is known.
    #[serde(default)]
    pub command: Option<String>,
    /// Remarks for the reader of the report.
    pub notes: Vec<String>,
}

/// One variant of an ablation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantRecord {
    /// Name, as in its folder.
    pub name: String,
    /// The layer mix in its canonical printing.
    pub layers: String,
    /// A remark on the variant.
    pub note: Option<String>,
    /// Flattened configuration keys and values that differ from the base.
    pub overrides: BTreeMap<String, String>,
    /// Hash of the variant's resolved config. A run that carries another one is not counted. Each variant has its own,
    /// so that further variants and seeds can join an ablation that has results.
    pub config_hash: String,
    /// What the variant costs, computed from its plan.
    pub cost: CostRecord,
    /// What choosing addresses costs in the model that was trained (`as trained`) and in those that its weights were measured in, by
    /// name; only where there are such, and only of models whose layers choose anew.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub searches: BTreeMap<String, SearchRecord>,
}

/// What choosing addresses costs the `reindex` layers of one model, all together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchRecord {
    /// The candidate pool that they search in; none where they search in all visible entries.
    pub pool: Option<PoolRecord>,
    /// Entries scored for a query, mean over the queries of one of the task's sequences.
    pub scored_entries: f64,
    /// Entries scored for a query with [`CostRecord::decode_context`] tokens of context.
    pub scored_entries_at_context: u64,
    /// Seconds that the searches of such a query took, with random keys: the median of several; none where it was not measured.
    #[serde(default)]
    pub seconds_at_context: Option<f64>,
}

/// The size of a candidate pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolRecord {
    /// Blocks kept for a query.
    pub blocks: u64,
    /// Entries of a block.
    pub block_size: u64,
}

/// The cost of a variant, computed from its layer plan before any training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostRecord {
    /// Trainable parameters.
    pub parameters: u64,
    /// Cache bytes that grow with each token of context; 0 for a mix of windows alone.
    pub bytes_per_token: f64,
    /// Cache bytes of all windows together, the same at every context length.
    pub window_bytes: u64,
    /// Context length, in tokens, at which `decode_flops` is counted.
    pub decode_context: u64,
    /// Weighted floating-point operations to decode one token at `decode_context`.
    pub decode_flops: f64,
}

/// The metric that variants are ranked by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricRecord {
    /// Key in [`MetricLine::values`] and [`RunSummary::final_values`], such as `accuracy` or `bits_per_byte`.
    pub name: String,
    /// Name for people, such as `bits per byte`.
    pub label: String,
    /// The direction of the ranking.
    pub higher_is_better: bool,
}

/// `summary.json`: how a run ended. Absent while the run is unfinished.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSummary {
    /// File format, [`SCHEMA`].
    pub schema: u32,
    /// Name of the variant.
    pub variant: String,
    /// Seed of the run.
    pub seed: u64,
    /// Hash of the resolved config that it ran under; equal to [`VariantRecord::config_hash`].
    pub config_hash: String,
    /// Whether the run reached its end.
    pub status: Status,
    /// Why it failed.
    pub failure: Option<String>,
    /// Optimizer steps taken.
    pub steps: u64,
    /// Training tokens seen.
    pub tokens: u64,
    /// Validation values at the end.
    #[serde(deserialize_with = "csa2_train::metrics::null_is_nan_map")]
    pub final_values: BTreeMap<String, f64>,
    /// The same of the further models that the weights were measured in, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_is_nan_maps")]
    pub evaluations: BTreeMap<String, BTreeMap<String, f64>>,
    /// Wall-clock time of training and evaluation.
    #[serde(deserialize_with = "null_is_nan")]
    pub seconds: f64,
    /// Training speed.
    #[serde(deserialize_with = "null_is_nan")]
    pub tokens_per_second: f64,
    /// Backend that computed the run.
    pub backend: String,
    /// Threads that it used.
    pub threads: u64,
    /// Version of csa2.
    pub version: String,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It used its whole budget.
    Finished,
    /// It stopped early; [`RunSummary::failure`] says why.
    Failed,
}

/// Where the record of the ablation in `dir` lies.
pub fn ablation_path(dir: &Path) -> PathBuf {
    dir.join("ablation.json")
}

/// The folder of one run. Names are safe as folders where [`AblationRecord::check`] accepted them.
pub fn run_dir(dir: &Path, variant: &str, seed: u64) -> PathBuf {
    dir.join(variant).join(format!("seed-{seed}"))
}

/// Where the measurements of the run in `run_dir` lie.
pub fn metrics_path(run_dir: &Path) -> PathBuf {
    run_dir.join("metrics.jsonl")
}

/// Where the summary of the run in `run_dir` lies.
pub fn summary_path(run_dir: &Path) -> PathBuf {
    run_dir.join("summary.json")
}

impl AblationRecord {
    /// Checks what the types cannot: names that are safe as folders, no name or seed twice, a baseline that exists.
    ///
    /// # Errors
    /// A sentence that says what is wrong and what would be right.
    pub fn check(&self) -> Result<(), String> {
        check_name("ablation", &self.name)?;
        if self.variants.is_empty() {
            return Err("no variants: an ablation needs at least one".to_owned());
        }
        if self.seeds.is_empty() {
            return Err("no seeds: an ablation needs at least one".to_owned());
        }
        for (index, variant) in self.variants.iter().enumerate() {
            check_name("variant", &variant.name)?;
            if self.variants[..index].iter().any(|other| other.name == variant.name) {
                return Err(format!("variant `{}` is listed twice; names must differ", variant.name));
            }
        }
        for (index, seed) in self.seeds.iter().enumerate() {
            if self.seeds[..index].contains(seed) {
                return Err(format!("seed {seed} is listed twice; seeds must differ"));
            }
        }
        if self.variants.iter().all(|variant| variant.name != self.baseline) {
            let names: Vec<&str> = self.variants.iter().map(|variant| variant.name.as_str()).collect();
            return Err(format!("baseline `{}` is no variant; the variants are {}", self.baseline, names.join(", ")));
        }
        Ok(())
    }
}

/// Refuses names that would leave their folder or hide in it.
fn check_name(what: &str, name: &str) -> Result<(), String> {
    let bad = name.is_empty()
        || name.starts_with('.')
        || name.chars().any(|character| matches!(character, '/' | '\\' | ':') || character.is_control());
    if bad {
        return Err(format!(
            "{what} name {name:?} cannot be a folder: it must not be empty, start with a dot or hold / \\ : or control characters"
        ));
    }
    Ok(())
}

fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Values by name, by name; `null` is a number that is none.
fn null_is_nan_maps<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, BTreeMap<String, f64>>, D::Error> {
    let maps = BTreeMap::<String, BTreeMap<String, Option<f64>>>::deserialize(deserializer)?;
    let numbers = |map: BTreeMap<String, Option<f64>>| {
        map.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect()
    };
    Ok(maps.into_iter().map(|(name, map)| (name, numbers(map))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(names: &[&str], seeds: &[u64]) -> AblationRecord {
        let cost = CostRecord {
            parameters: 1,
            bytes_per_token: 0.0,
            window_bytes: 1,
            decode_context: 4096,
            decode_flops: 1.0,
        };
        AblationRecord {
            schema: SCHEMA,
            name: "mix".to_owned(),
            title: "Mix".to_owned(),
            question: None,
            task: "mqar".to_owned(),
            baseline: "a".to_owned(),
            variants: names
                .iter()
                .map(|name| VariantRecord {
                    name: (*name).to_owned(),
                    layers: "swa".to_owned(),
                    note: None,
                    overrides: BTreeMap::new(),
                    config_hash: "h".to_owned(),
                    cost: cost.clone(),
                    searches: BTreeMap::new(),
                })
                .collect(),
            seeds: seeds.to_vec(),
            budget_tokens: 1,
            metric: MetricRecord { name: "loss".to_owned(), label: "loss".to_owned(), higher_is_better: false },
            evaluations: Vec::new(),
            command: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn records_that_contradict_themselves_are_named() {
        assert_eq!(record(&["a", "b"], &[1, 2]).check(), Ok(()));
        let wrong: [(&[&str], &[u64], &str); 7] = [
            (&["b"], &[1], "baseline `a` is no variant"),
            (&["a", "a"], &[1], "listed twice"),
            (&["a"], &[1, 1], "seed 1 is listed twice"),
            (&["a", "../b"], &[1], "cannot be a folder"),
            (&["a", ""], &[1], "cannot be a folder"),
            (&["a"], &[], "no seeds"),
            (&[], &[1], "no variants"),
        ];
        for (names, seeds, expected) in wrong {
            let message = record(names, seeds).check().unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn numbers_that_are_not_finite_survive_as_nan() {
        let line = r#"{"step":1,"tokens":2,"split":"validation","phase":"sparse","values":{"loss":null,"lr":0.1}}"#;
        let read: MetricLine = serde_json::from_str(line).unwrap();
        assert!(read.values["loss"].is_nan());
        assert_eq!(serde_json::to_string(&read).unwrap(), line);
    }
}
