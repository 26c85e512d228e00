//! What an evaluation finds, as its files hold it.

use std::collections::BTreeMap;

use csa2_model::config::{PoolConfig, QuantizationConfig};
use csa2_train::tasks::Metric;
use serde::Serialize;

use crate::report::csv_field;

/// A mean over targets with half of its 95% interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Mean {
    /// Over all targets of all sequences.
    pub mean: f64,
    /// Half the width of the 95% interval over sequences; none for one sequence.
    pub half_width: Option<f64>,
}

/// What some targets came to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measure {
    /// How many they are.
    pub targets: usize,
    /// Sequences that have one.
    pub sequences: usize,
    /// Cross-entropy in nats.
    pub loss: Mean,
    /// The task's metric.
    pub metric: Mean,
}

/// The targets at neighbouring positions, or with neighbouring distances.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Part {
    /// The first of them.
    pub from: usize,
    /// The last of them.
    pub to: usize,
    /// What they came to.
    #[serde(flatten)]
    pub measure: Measure,
}

impl Part {
    /// Its middle.
    pub fn middle(&self) -> f64 {
        f64::midpoint(self.from as f64, self.to as f64)
    }

    /// `8` or `8–15`.
    pub fn name(&self) -> String {
        if self.from == self.to { self.from.to_string() } else { format!("{}–{}", self.from, self.to) }
    }
}

/// The targets with one of the task's tags.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TagPart {
    /// The tag.
    pub name: String,
    /// What they came to.
    #[serde(flatten)]
    pub measure: Measure,
}

/// One setting at one context length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The setting: as trained, or what was switched.
    pub setting: String,
    /// The mix.
    pub layers: String,
    /// The size of candidate pools, where there are any.
    pub pool: Option<PoolConfig>,
    /// Number formats.
    pub quantization: QuantizationConfig,
    /// In words, that the weights were trained with another candidate pool.
    pub pool_mismatch: Option<String>,
    /// In words, that the weights were trained with other number formats.
    pub quantization_mismatch: Option<String>,
    /// In words, that prompts went through the decoder with their ends alone.
    pub replay: Option<String>,
    /// Tokens of a sequence.
    pub context: usize,
    /// Sequences measured.
    pub sequences: usize,
    /// One line on the task.
    pub task: String,
    /// Every value that training measures too, by name.
    pub values: BTreeMap<String, f64>,
    /// Over all targets; none where there is none.
    pub all: Option<Measure>,
    /// The metric less that of the first setting, sequence by sequence; none in the first setting.
    pub difference: Option<Mean>,
    /// By tag.
    pub tags: Vec<TagPart>,
    /// By position in the sequence.
    pub positions: Vec<Part>,
    /// By distance from the answer to the question.
    pub distances: Vec<Part>,
}

impl Row {
    /// The targets by which the task is judged: those of a tag, or all.
    pub fn headline(&self, tag: Option<&str>) -> Option<Measure> {
        match tag {
            None => self.all,
            Some(tag) => self.tags.iter().find(|part| part.name == tag).map(|part| part.measure),
        }
    }

    /// The setting with a mark where the weights were trained otherwise.
    pub fn label(&self) -> String {
        let foreign = self.mismatch().is_some();
        format!("{}{}", self.setting, if foreign { " †" } else { "" })
    }

    /// What the weights were trained with otherwise, in words.
    pub fn mismatch(&self) -> Option<String> {
        let parts: Vec<&str> = [&self.pool_mismatch, &self.quantization_mismatch, &self.replay]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// The evaluation of a run. The first keys tell of the run measured on the task as it is, without a switch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// Version of the file's form.
    pub schema: u32,
    /// The run's folder, as it was given.
    pub run: String,
    /// Steps that it had taken.
    pub step: u64,
    /// SHA-256 of its weights.
    pub weights_sha256: String,
    /// The mix.
    pub layers: String,
    /// The size of candidate pools, where there are any.
    pub pool: Option<PoolConfig>,
    /// In words, that the weights were trained with another candidate pool.
    pub pool_mismatch: Option<String>,
    /// One line on the task.
    pub task: String,
    /// Every value that training measures too, by name.
    pub values: BTreeMap<String, f64>,
    /// How the task is judged.
    pub metric: Metric,
    /// The tag whose targets alone the task is judged by.
    pub metric_tag: Option<String>,
    /// Tokens of a sequence in training; none where the run was imported.
    pub training_context: Option<usize>,
    /// The key of the task that other lengths change.
    pub length_key: String,
    /// Every setting at every context length, the lengths ascending.
    pub rows: Vec<Row>,
    /// The command.
    pub command: String,
    /// Where it was computed.
    pub backend: String,
    /// By which csa2.
    pub version: String,
}

impl Evaluation {
    /// What the task is judged by, for people.
    pub fn metric_label(&self) -> String {
        let name = match self.metric {
            Metric::Accuracy => "accuracy",
            Metric::BitsPerByte => "bits per byte",
        };
        self.metric_tag.as_ref().map_or(name.to_string(), |tag| format!("{name}, {tag}"))
    }

    /// Context lengths, ascending.
    pub fn contexts(&self) -> Vec<usize> {
        let mut contexts: Vec<usize> = self.rows.iter().map(|row| row.context).collect();
        contexts.sort_unstable();
        contexts.dedup();
        contexts
    }

    /// Settings in order, with their marks.
    pub fn settings(&self) -> Vec<String> {
        let mut settings: Vec<String> = Vec::new();
        for row in &self.rows {
            if !settings.contains(&row.label()) {
                settings.push(row.label());
            }
        }
        settings
    }

    /// Every setting that the weights were not trained with, with what differs.
    pub fn mismatches(&self) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        for (label, mismatch) in self.rows.iter().filter_map(|row| Some((row.label(), row.mismatch()?))) {
            // What a replay leaves out depends on the length.
            if !found.contains(&(label.clone(), mismatch.clone())) {
                found.push((label, mismatch));
            }
        }
        found
    }

    /// One line a setting, context length and group of targets, with unrounded numbers.
    pub fn csv(&self) -> String {
        let mut out = format!(
            "setting,trained_otherwise,context,training_context,by,group,from,to,loss,loss_interval_95_half_width,{0},{0}_interval_95_half_width,targets,sequences\n",
            self.metric.name()
        );
        let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        for row in &self.rows {
            let mut line = |by: &str, group: &str, range: Option<(usize, usize)>, measure: &Measure| {
                let ends =
                    range.map_or([String::new(), String::new()], |(from, to)| [from.to_string(), to.to_string()]);
                let fields = [
                    csv_field(&row.setting),
                    csv_field(&row.mismatch().unwrap_or_default()),
                    row.context.to_string(),
                    self.training_context.map_or(String::new(), |tokens| tokens.to_string()),
                    by.into(),
                    csv_field(group),
                    ends.join(","),
                    measure.loss.mean.to_string(),
                    number(measure.loss.half_width),
                    measure.metric.mean.to_string(),
                    number(measure.metric.half_width),
                    measure.targets.to_string(),
                    measure.sequences.to_string(),
                ];
                out += &(fields.join(",") + "\n");
            };
            row.all.iter().for_each(|measure| line("all", "", None, measure));
            row.tags.iter().for_each(|part| line("tag", &part.name, None, &part.measure));
            row.positions.iter().for_each(|part| line("position", "", Some((part.from, part.to)), &part.measure));
            row.distances.iter().for_each(|part| line("distance", "", Some((part.from, part.to)), &part.measure));
            if let Some(difference) = row.difference {
                let fields = [
                    csv_field(&row.setting),
                    csv_field(&row.mismatch().unwrap_or_default()),
                    row.context.to_string(),
                    self.training_context.map_or(String::new(), |tokens| tokens.to_string()),
                    "difference,,,,,".into(),
                    difference.mean.to_string(),
                    number(difference.half_width),
                    String::new(),
                    row.sequences.to_string(),
                ];
                out += &(fields.join(",") + "\n");
            }
        }
        out
    }
}
