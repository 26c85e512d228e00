//! What a probe has found: `probe.json` and `probe.csv`.

use std::collections::BTreeMap;

use csa2_model::mix::{Mode, PlannedLayer};
use serde::Serialize;

use super::diversity::pairs;
use super::source::Source;
use super::sums::{Of, Sums, Values};
use super::twin::Twin;
use super::{Extent, Options, ProbeError};
use crate::report::csv_field;

/// Version of the file's form.
const SCHEMA: u32 = 3;

/// A mean over sequences, each of them the mean of its queries.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half the width of its 95% interval (Student's t over sequences); none for one sequence.
    pub half_width: Option<f64>,
    /// The least single value.
    pub least: f64,
    /// The largest single value.
    pub most: f64,
    /// Sequences with a value.
    pub sequences: usize,
    /// Single values.
    pub values: usize,
}

impl Mean {
    fn of(values: &Values) -> Option<Self> {
        let (estimate, (least, most)) = (values.estimate()?, values.range?);
        let (mean, half_width) = (estimate.mean, estimate.half_width);
        Some(Self { mean, half_width, least, most, sequences: estimate.n, values: values.count })
    }
}

/// Measures by name.
pub type Measures = BTreeMap<&'static str, Mean>;

/// One layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerRecord {
    /// Its number.
    pub layer: usize,
    /// Its mode.
    pub mode: Mode,
    /// Tokens of an entry.
    pub ratio: usize,
    /// The layer whose content it reads.
    pub content_from: Option<usize>,
    /// The layer whose address it reads.
    pub address_from: Option<usize>,
    /// Whether the twin run has a full layer here, so that the two are compared.
    pub has_twin: bool,
    /// Measures of the layer.
    pub measures: Measures,
    /// Means over its heads of their measures.
    pub over_heads: Measures,
    /// Its heads.
    pub heads: Vec<HeadRecord>,
}

/// One head of a layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeadRecord {
    /// Its number.
    pub head: usize,
    /// Measures of the head.
    pub measures: Measures,
    /// Eigenvalues of `Sigma_p` as shares of their sum, the largest first, mean over queries.
    pub spectrum: Vec<f64>,
}

/// Two layers with one address.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diversity {
    /// The earlier layer.
    pub first: usize,
    /// The later one.
    pub second: usize,
    /// `output_cosine` and `weights_apart`.
    pub measures: Measures,
}

/// The run that the probed one is compared with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TwinRecord {
    /// Its folder, as it was given.
    pub run: String,
    /// Steps that it had taken.
    pub step: u64,
    /// Its mix.
    pub mix: String,
}

/// What a probe has found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProbeRecord {
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
    /// Number formats that cached vectors are rounded to.
    pub quantization: csa2_model::config::QuantizationConfig,
    /// What attention averages.
    pub values: csa2_model::config::Values,
    /// Dimension d of a head.
    pub head_dim: usize,
    /// Window W.
    pub window: usize,
    /// Top-K.
    pub topk: usize,
    /// One line on the task.
    pub task: String,
    /// Sequences looked at.
    pub sequences: usize,
    /// Of how many; none where they are drawn.
    pub evaluation_sequences: Option<usize>,
    /// Queries of each, at most.
    pub queries_per_sequence: usize,
    /// By which they were drawn.
    pub seed: u64,
    /// Share of these queries in which the model's most likely token is the target; none for layers alone.
    pub accuracy: Option<f64>,
    /// The twin; none where it is the layer itself with a fresh address.
    pub twin: Option<TwinRecord>,
    /// The layers that read selected entries.
    pub layers: Vec<LayerRecord>,
    /// Layers with one address, each pair once.
    pub diversity: Vec<Diversity>,
    /// Questions about hulls and families that no certificate answered; they count nowhere.
    pub undecided: usize,
    /// The command.
    pub command: String,
    /// Where the network was computed.
    pub backend: String,
    /// By which csa2.
    pub version: String,
}

fn measures(sums: &Sums, of: Of) -> Measures {
    sums.values(of).filter_map(|(name, values)| Some((name, Mean::of(values)?))).collect()
}

pub(super) fn record(
    source: &Source,
    twin: Option<&Twin>,
    sums: &Sums,
    extent: Extent,
    options: &Options,
) -> Result<ProbeRecord, ProbeError> {
    let model = source.config();
    let reads = |layer: &PlannedLayer| source.has(layer.index) && !matches!(layer.mode, Mode::Swa | Mode::Dense);
    let layers = model.layers.layers().iter().filter(|layer| reads(layer)).map(|layer| LayerRecord {
        layer: layer.index,
        mode: layer.mode,
        ratio: layer.ratio,
        content_from: layer.content_from,
        address_from: layer.address_from,
        has_twin: twin.is_some_and(|twin| twin.layer(layer.index).is_some()),
        measures: measures(sums, Of::Layer(layer.index)),
        over_heads: measures(sums, Of::Heads(layer.index)),
        heads: (0..model.heads)
            .map(|head| HeadRecord {
                head,
                measures: measures(sums, Of::Head(layer.index, head)),
                spectrum: sums.mean_spectrum(layer.index, head),
            })
            .collect(),
    });
    let both = |(first, second): &(usize, usize)| source.has(*first) && source.has(*second);
    let diversity = pairs(model).into_iter().filter(both).map(|(first, second)| Diversity {
        first,
        second,
        measures: measures(sums, Of::Pair(first, second)),
    });
    Ok(ProbeRecord {
        schema: SCHEMA,
        run: options.run.display().to_string(),
        run_step: source.step(),
        weights_sha256: source.digest()?,
        mix: source.mix(),
        quantization: model.quantization,
        values: model.values,
        head_dim: model.head_dim,
        window: model.window,
        topk: model.topk,
        task: source.describe(),
        sequences: extent.sequences,
        evaluation_sequences: source.sequences().map(|(there, _)| there),
        queries_per_sequence: extent.queries,
        seed: extent.seed,
        accuracy: sums.accuracy(),
        twin: twin.map(|twin| TwinRecord {
            run: twin.folder.display().to_string(),
            step: twin.step,
            mix: twin.config.layers.to_string(),
        }),
        layers: layers.collect(),
        diversity: diversity.collect(),
        undecided: sums.undecided,
        command: options.command.clone(),
        backend: options.backend.into(),
        version: env!("CARGO_PKG_VERSION").into(),
    })
}

impl LayerRecord {
    /// Its name in tables, such as `2 full@2`.
    pub fn name(&self) -> String {
        let ratio = if self.ratio > 1 && matches!(self.mode, Mode::Full | Mode::Stale) {
            format!("@{}", self.ratio)
        } else {
            String::new()
        };
        format!("{} {}{ratio}", self.layer, self.mode)
    }

    /// A measure of the layer, or the mean over its heads of one of theirs.
    pub fn mean(&self, name: &str) -> Option<Mean> {
        self.measures.get(name).or_else(|| self.over_heads.get(name)).copied()
    }
}

impl ProbeRecord {
    /// One line a measure, with unrounded numbers. In the column `head` the mean over heads has `mean`, and a line of two layers the second
    /// of them, as in `with 3`.
    pub fn csv(&self) -> String {
        let mut out = String::from("layer,mode,head,measure,mean,interval_95_half_width,least,most,sequences,values\n");
        let mut line = |layer: usize, mode: String, head: String, name: &str, mean: &Mean| {
            let half = mean.half_width.map_or(String::new(), |half| half.to_string());
            let numbers = [mean.mean.to_string(), half, mean.least.to_string(), mean.most.to_string()].join(",");
            let line =
                format!("{layer},{},{head},{name},{numbers},{},{}\n", csv_field(&mode), mean.sequences, mean.values);
            out.push_str(&line);
        };
        for layer in &self.layers {
            for (name, mean) in &layer.measures {
                line(layer.layer, layer.mode.to_string(), String::new(), name, mean);
            }
            for (name, mean) in &layer.over_heads {
                line(layer.layer, layer.mode.to_string(), "mean".into(), name, mean);
            }
            for head in &layer.heads {
                for (name, mean) in &head.measures {
                    line(layer.layer, layer.mode.to_string(), head.head.to_string(), name, mean);
                }
            }
        }
        for pair in &self.diversity {
            for (name, mean) in &pair.measures {
                line(pair.first, String::new(), format!("with {}", pair.second), name, mean);
            }
        }
        out
    }
}
