//! What a search found, as `search.json` and `search.csv` hold it.

use std::collections::BTreeMap;

use csa2_model::mix::LayerPlan;
use serde::Serialize;

use super::changes::Change;
use super::greedy::{Round, Stop, Worth};
use super::log::{Header, Set};
use super::{Calibration, Measuring, Search, SearchError};
use crate::report::csv_field;
use crate::results::MetricRecord;

/// Version of the file's form.
const SCHEMA: u32 = 1;

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// Version of the file's form.
    pub schema: u32,
    /// The search's name.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// The run's folder, as it was given.
    pub run: String,
    /// Steps that the run had taken.
    pub run_step: u64,
    /// SHA-256 of the run's weights.
    pub weights_sha256: String,
    /// SHA-256 of the configurations of search, model and task.
    pub config_sha256: String,
    /// One line on the task.
    pub task: String,
    /// What was kept low (or high).
    pub measure: MetricRecord,
    /// What was measured besides.
    pub other: MetricRecord,
    /// What changes were chosen by.
    pub calibration: Calibration,
    /// Sequences of the evaluation set.
    pub evaluation_sequences: usize,
    /// Whether a `full` layer might become `reindex`.
    pub full_to_reindex: bool,
    /// The limit on the measure.
    pub max_worsening: Option<f64>,
    /// The limit on selecting layers.
    pub min_selecting: Option<usize>,
    /// Context at which scored entries are counted.
    pub decode_context: u64,
    /// The run's own mix, and the mix after every change that was taken.
    pub path: Vec<Point>,
    /// All that was tried.
    pub rounds: Vec<Round>,
    /// Why the search ended.
    pub stop: Stop,
    /// The command.
    pub command: String,
    /// Where it was computed.
    pub backend: String,
    /// By how many threads.
    pub threads: usize,
    /// By which csa2.
    pub version: String,
}

/// A mix on the way down.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Changes so far.
    pub step: usize,
    /// The last one, such as `layer 3: full to reuse`.
    pub change: Option<String>,
    /// The mix, ready to be pasted.
    pub mix: String,
    /// Layers that select.
    pub selecting: usize,
    /// Entries that indexers score to decode a token at `decode_context`.
    pub scored_entries: f64,
    /// Bytes that each token adds to what decoding keeps.
    pub bytes_per_token: f64,
    /// How much worse the measure is than that of the run's own mix, on the calibration set.
    pub worsening: f64,
    /// Values on the calibration set.
    pub calibration: BTreeMap<String, f64>,
    /// Values on the evaluation set, by which nothing was chosen.
    pub evaluation: BTreeMap<String, f64>,
}

impl Found {
    pub(super) fn new(
        search: &Search,
        header: &Header,
        measuring: &mut Measuring,
        rounds: Vec<Round>,
        stop: Stop,
    ) -> Result<Self, SearchError> {
        let config = &search.file.search;
        let [measure, other] = search.measures();
        let mut path = vec![point(0, None, search.plan(), measuring)?];
        for round in &rounds {
            let Some(tried) = round.taken.map(|taken| &round.tried[taken]) else { continue };
            let change = format!("layer {}: {} to {}", tried.change.layer, tried.change.from, tried.change.to);
            path.push(point(path.len(), Some(change), &tried.change.plan, measuring)?);
        }
        Ok(Self {
            schema: SCHEMA,
            name: config.name.clone(),
            title: config.title.clone().unwrap_or_else(|| config.name.clone()),
            run: search.run_name(),
            run_step: search.subject.run.state().step,
            weights_sha256: header.weights().into(),
            config_sha256: header.config().into(),
            task: search.subject.task.describe(),
            measure,
            other,
            calibration: config.calibration,
            evaluation_sequences: search.subject.task.eval_sequences(),
            full_to_reindex: config.full_to_reindex,
            max_worsening: config.max_worsening,
            min_selecting: config.min_selecting,
            decode_context: config.decode_context,
            path,
            rounds,
            stop,
            command: search.options.command.clone(),
            backend: search.options.backend.into(),
            threads: search.options.threads,
            version: env!("CARGO_PKG_VERSION").into(),
        })
    }

    /// One line a measured mix: the run's own, then every candidate of every round.
    pub fn csv(&self) -> String {
        let names = [&self.measure.name, &self.other.name];
        let titles = names.map(|name| csv_field(&format!("evaluation {name}"))).join(",");
        let mut lines =
            vec![format!("round,layer,from,to,mix,taken,worsening,scored_entries,bytes_per_token,{titles}")];
        let evaluated = |mix: &str| {
            let point = self.path.iter().find(|point| point.mix == mix);
            let value = |name: &String| point.and_then(|point| point.evaluation.get(name)).map(f64::to_string);
            names.map(|name| value(name).unwrap_or_default()).join(",")
        };
        lines.extend(self.path.iter().take(1).map(|start| {
            let Point { mix, scored_entries, bytes_per_token, .. } = start;
            format!("0,,,,{},true,0,{scored_entries},{bytes_per_token},{}", csv_field(mix), evaluated(mix))
        }));
        for (number, round) in self.rounds.iter().enumerate() {
            lines.extend(round.tried.iter().enumerate().map(|(place, tried)| {
                let Worth { worsening, scored_entries, bytes_per_token } = tried.worth;
                let Change { layer, from, to, plan } = &tried.change;
                let (mix, taken, number) = (plan.to_string(), round.taken == Some(place), number + 1);
                let values = if taken { evaluated(&mix) } else { ",".into() };
                let mix = csv_field(&mix);
                format!(
                    "{number},{layer},{from},{to},{mix},{taken},{worsening},{scored_entries},{bytes_per_token},{values}"
                )
            }));
        }
        lines.join("\n") + "\n"
    }

    /// Why the search ended, in words.
    pub fn ending(&self) -> String {
        match self.stop {
            Stop::NothingLeft => "No change is left.".into(),
            Stop::MinSelecting => {
                let least = self.min_selecting.unwrap_or(1);
                format!("Every further change would leave fewer than min_selecting = {least} selecting layers.")
            }
            Stop::MaxWorsening => {
                let most = self.max_worsening.unwrap_or(f64::INFINITY);
                format!(
                    "Every further change makes the {} worse by more than max_worsening = {most}.",
                    self.measure.label
                )
            }
            Stop::NotFinite => format!("No further change has a {} that is a number.", self.measure.label),
        }
    }

    /// Changes of the run's own mix that were no candidates, and why.
    pub fn excluded(&self) -> Vec<String> {
        let first = self.rounds.iter().take(1).flat_map(|round| &round.excluded);
        first.map(|no| format!("layer {}: {} to {}: {}", no.layer, no.from, no.to, no.why)).collect()
    }
}

fn point(
    step: usize,
    change: Option<String>,
    plan: &LayerPlan,
    measuring: &mut Measuring,
) -> Result<Point, SearchError> {
    let worth = measuring.worth(plan)?;
    Ok(Point {
        step,
        change,
        mix: plan.to_string(),
        selecting: plan.selecting().count(),
        scored_entries: worth.scored_entries,
        bytes_per_token: worth.bytes_per_token,
        worsening: worth.worsening,
        calibration: measuring.values(Set::Calibration, plan)?,
        evaluation: measuring.values(Set::Evaluation, plan)?,
    })
}
