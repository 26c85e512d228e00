//! What the queries of a trained run can and cannot do: every layer and head is measured on sampled queries of the evaluation set.
//!
//! `seat` takes the numbers of one query out of a forward pass, `measures` says how many dimensions it reaches and where its weights lie, `gaps`
//! how far it is from a layer that makes more anew, `diversity` whether layers that share an address do the same, and `record` is what comes
//! of it. One sequence is held at a time; of every sequence only sums stay.

mod diversity;
mod gaps;
mod measures;
mod record;
mod seat;
mod sums;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::{DType, Device, TensorReadError};
use csa2_model::attention::{Attention, Context, Shared};
use csa2_model::config::ModelConfig;
use csa2_model::mix::Mode;
use csa2_model::model::ModelOutput;
use csa2_train::evaluate::{sample, tokens};
use csa2_train::files::{FileError, remove_partial};
use csa2_train::random;
use csa2_train::recall::{MOST_PAIRS, pairs};
use csa2_train::runs::{ReuseError, Run, RunError};
use csa2_train::tasks::{Batch, TaskConfig};
use thiserror::Error;

use crate::ablation::progress::Progress;
use crate::folders::{self, FolderError};
use crate::geometry::GeometryError;
use crate::results::{ResultsError, write_atomic, write_json};
use crate::subject::{Subject, SubjectError};

use self::gaps::HeadGap;
use self::seat::{LayerView, Seat};
use self::sums::Sums;

pub use measures::{HEAD, LAYER};
pub use record::{Diversity, HeadRecord, LayerRecord, Mean, ProbeRecord, TwinRecord};

/// Sequences that are looked at where nothing else is said, or the whole set where that is smaller.
pub const SEQUENCES: usize = 32;
/// Queries of a sequence that are looked at where nothing else is said.
pub const QUERIES: usize = 8;

/// Why a run cannot be probed.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The run cannot be measured.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The twin cannot be used.
    #[error("--twin: {0}")]
    Twin(RunError),
    /// The twin has other shapes, or is no twin.
    #[error("--twin {twin}: {message}")]
    Unlike {
        /// The twin's folder.
        twin: String,
        /// What is unlike.
        message: String,
    },
    /// The folder for the results cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The model cannot be built.
    #[error(transparent)]
    Weights(#[from] ReuseError),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(#[from] TensorReadError),
    /// No layer selects.
    #[error(
        "{run}: no layer of the mix `{mix}` reads selected entries (full, reindex, reuse, stale), so there is no address and no content \
         to probe"
    )]
    NoSelection {
        /// The run's folder.
        run: String,
        /// Its mix.
        mix: String,
    },
    /// More sequences than there are.
    #[error("--sequences {asked}: the run's evaluation set has {there}; ask for at most as many")]
    TooMany {
        /// Sequences asked for.
        asked: usize,
        /// Sequences there are.
        there: usize,
    },
    /// The sequences are too long.
    #[error(
        "{run}: sequences of {seq} tokens have {pairs} pairs of a token and an entry, and at most {MOST_PAIRS} are probed; give a task \
         with shorter sequences by --task"
    )]
    TooLong {
        /// The run's folder.
        run: String,
        /// Tokens of a sequence.
        seq: usize,
        /// Pairs.
        pairs: usize,
    },
    /// Numbers that geometry refuses.
    #[error("{run}: layer {layer} ({mode}): {error}; the weights are finite, so they are far too large")]
    Geometry {
        /// The run's folder.
        run: String,
        /// The layer.
        layer: usize,
        /// Its mode.
        mode: Mode,
        /// What is wrong.
        error: GeometryError,
    },
    /// It was asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// What is probed, and where.
#[derive(Debug, Clone)]
pub struct Options {
    /// The run's folder.
    pub run: PathBuf,
    /// A run whose layers are full where the run's reuse.
    pub twin: Option<PathBuf>,
    /// Another task than the run's, and the folder of its files.
    pub task: Option<(TaskConfig, PathBuf)>,
    /// Folder for the results.
    pub out: PathBuf,
    /// Sequences of the evaluation set; none for [`SEQUENCES`], or all where there are fewer.
    pub sequences: Option<usize>,
    /// Queries of a sequence, among the positions that have a target.
    pub queries: usize,
    /// Which sequences and queries.
    pub seed: u64,
    /// Name of the backend.
    pub backend: &'static str,
    /// Where the network computes.
    pub device: Device,
    /// The command, for the report.
    pub command: String,
}

/// Probes a run and writes `probe.json` and `probe.csv`.
///
/// # Errors
/// When the run or its twin cannot be probed, the folder for the results cannot be used, or it was asked to stop.
pub fn run(options: &Options, stop: &AtomicBool) -> Result<ProbeRecord, ProbeError> {
    const WHAT: &str = "probe";
    let out = &options.out;
    let json = out.join("probe.json");
    if !json.exists() {
        folders::check_free(out, WHAT)?;
    }
    let record = measure(options, stop)?;
    let _lock = folders::lock(out, WHAT)?;
    folders::check_weights(&json, &record.weights_sha256, WHAT)?;
    remove_partial(out);
    write_json(&json, &record)?;
    write_atomic(&out.join("probe.csv"), record.csv().as_bytes())?;
    Ok(record)
}

/// Probes a run.
///
/// # Errors
/// As [`run`], but nothing is written.
pub fn measure(options: &Options, stop: &AtomicBool) -> Result<ProbeRecord, ProbeError> {
    let Options { run, task, device, .. } = options;
    let (config, base) = task.as_ref().map_or((None, Path::new(".")), |(config, base)| (Some(config), base));
    let subject = Subject::open(run, config, base, "give one by --task", device)?;
    let shown = run.display().to_string();
    let model = subject.run.model_config();
    let reads = |mode: Mode| !matches!(mode, Mode::Swa | Mode::Dense);
    if !model.layers.layers().iter().any(|layer| reads(layer.mode)) {
        return Err(ProbeError::NoSelection { run: shown, mix: model.layers.to_string() });
    }
    let (seq, there) = (subject.task.seq_len(), subject.task.eval_sequences());
    let pairs = pairs(&model.layers, seq);
    if pairs > MOST_PAIRS {
        return Err(ProbeError::TooLong { run: shown, seq, pairs });
    }
    let sequences = options.sequences.unwrap_or(SEQUENCES.min(there));
    if sequences > there {
        return Err(ProbeError::TooMany { asked: sequences, there });
    }
    let twin = options.twin.as_deref().map(|folder| Twin::open(folder, model, device)).transpose()?;
    let sums = collect(&subject, twin.as_ref(), sequences, options, stop)?;
    Ok(record::record(&subject, twin.as_ref(), &sums, sequences, options))
}

/// A run whose layers are full where the probed run's reuse.
struct Twin {
    folder: PathBuf,
    step: u64,
    config: ModelConfig,
    /// Its layers by number, where they are `full` and the probed run's are not.
    layers: Vec<(usize, Attention)>,
}

impl Twin {
    fn open(folder: &Path, model: &ModelConfig, device: &Device) -> Result<Self, ProbeError> {
        let run = Run::open(folder).map_err(ProbeError::Twin)?;
        let config = run.model_config().clone();
        let twin = folder.display().to_string();
        let unlike = |message: String| ProbeError::Unlike { twin: twin.clone(), message };
        let sizes = |c: &ModelConfig| {
            [
                ("layers", c.layers.len()),
                ("d_model", c.d_model),
                ("heads", c.heads),
                ("head_dim", c.head_dim),
                ("rope_dim", c.rope_dim),
                ("window", c.window),
                ("topk", c.topk),
            ]
        };
        for ((key, own), (_, other)) in sizes(model).into_iter().zip(sizes(&config)) {
            if own != other {
                return Err(unlike(format!(
                    "its `{key}` is {other}, that of the probed run {own}; a twin has the same shapes"
                )));
            }
        }
        let theta = |c: &ModelConfig| (c.rope_theta.to_bits(), c.compress_rope_theta.to_bits());
        if theta(model) != theta(&config) || model.yarn != config.yarn {
            return Err(unlike("its rotary frequencies are others; a twin has the same".into()));
        }
        let mut layers = Vec::new();
        for (own, other) in model.layers.layers().iter().zip(config.layers.layers()) {
            let lacks = matches!(own.mode, Mode::Reuse | Mode::Reindex | Mode::Stale);
            if lacks && other.mode == Mode::Full && own.ratio == other.ratio {
                layers.push((own.index, run.attention(own.index, device).map_err(ProbeError::Twin)?));
            }
        }
        if layers.is_empty() {
            return Err(unlike(format!(
                "of its mix `{}` no layer is `full` with the same ratio where the probed run's `{}` reads what another layer made",
                config.layers, model.layers
            )));
        }
        Ok(Self { folder: folder.to_path_buf(), step: run.state().step, config, layers })
    }

    fn layer(&self, index: usize) -> Option<&Attention> {
        self.layers.iter().find(|(layer, _)| *layer == index).map(|(_, attention)| attention)
    }
}

/// Positions of a sequence with a target, `count` of them at most, drawn by `seed` and the number of the sequence.
fn positions(batch: &Batch, count: usize, seed: u64, number: u64) -> Vec<usize> {
    let asked: Vec<usize> = (0..batch.len).filter(|&at| batch.targets[at] >= 0).collect();
    let mut rng = random::stream(seed, random::SAMPLE, 1 + number);
    random::subset(&mut rng, asked.len(), count).into_iter().map(|place| asked[place]).collect()
}

fn collect(
    subject: &Subject,
    twin: Option<&Twin>,
    sequences: usize,
    options: &Options,
    stop: &AtomicBool,
) -> Result<Sums, ProbeError> {
    let (config, device): (&ModelConfig, _) = (subject.run.model_config(), &options.device);
    let task = &*subject.task;
    let model = subject.weights.model(config, device)?;
    let seq = task.seq_len();
    let mut cx = Context::new(config, seq, DType::F32, device);
    cx.trace = true;
    let twin_cx = twin.map(|twin| {
        let mut cx = Context::new(&twin.config, seq, DType::F32, device);
        cx.trace = true;
        cx
    });
    let progress = Progress::new((sequences * seq) as u64, 0);
    let mut sums = Sums::default();
    for (number, batch) in sample(task, options.seed, sequences, 1).enumerate() {
        if stop.load(Ordering::Relaxed) {
            progress.finish();
            return Err(ProbeError::Interrupted);
        }
        let positions = positions(&batch, options.queries, options.seed, number as u64);
        let output: ModelOutput = model.forward(tokens(&batch, device), &cx);
        let mut views = Vec::new();
        for (block, trace) in model.layers().iter().zip(&output.traces) {
            views.push(LayerView::new(block.attention(), &trace.attn, trace.attn_output.clone())?);
        }
        for (view, trace) in views.iter().zip(&output.traces).filter(|(view, _)| view.selects()) {
            let twin_view = match (twin.and_then(|twin| twin.layer(view.layer)), &twin_cx) {
                (Some(attention), Some(cx)) => {
                    let made = attention.forward(trace.attn_input.clone(), &mut Shared::default(), cx);
                    let twin_trace = made.trace.as_ref().expect("the context asks for a trace");
                    Some(LayerView::new(attention, twin_trace, made.output.clone())?)
                }
                _ => None,
            };
            for (place, &position) in positions.iter().enumerate() {
                let seat = view.seat(position);
                let twin = twin_view.as_ref().map(|twin| twin.seat(position));
                let next = positions[(place + 1) % positions.len()];
                let elsewhere =
                    (next != position).then(|| (view.seat(next), twin_view.as_ref().map(|twin| twin.seat(next))));
                one(view, &seat, twin.as_ref(), elsewhere.as_ref(), &mut sums).map_err(|error| {
                    ProbeError::Geometry {
                        run: options.run.display().to_string(),
                        layer: view.layer,
                        mode: view.mode,
                        error,
                    }
                })?;
            }
        }
        diversity::add(config, &views, &positions, &mut sums);
        sums.end();
        progress.add(seq as u64);
    }
    progress.finish();
    Ok(sums)
}

/// What the twin of `seat` reads for `head`: the twin run's layer, or where there is none the layer itself at the address `fresh`.
fn target(seat: &Seat, twin: Option<&Seat>, head: usize, fresh: &[usize]) -> Result<Vec<f64>, GeometryError> {
    match twin {
        Some(twin) => Ok(twin.read_out(head, &twin.selected)?.read(twin.query(head))?.o),
        None => Ok(seat.read_out(head, fresh)?.read(seat.query(head))?.o),
    }
}

/// Everything that each head would attend to, and the K entries that attention itself would choose.
fn whole(view: &LayerView, seat: &Seat) -> Result<(Vec<Vec<f64>>, Vec<usize>), GeometryError> {
    let everything: Vec<Vec<f64>> = (0..view.heads()).map(|head| seat.everything(head)).collect::<Result<_, _>>()?;
    let fresh = seat.fresh(&everything);
    Ok((everything, fresh))
}

/// Measures one query of one layer; `elsewhere` is another query of the sequence, with its twin.
fn one(
    view: &LayerView,
    seat: &Seat,
    twin: Option<&Seat>,
    elsewhere: Option<&(Seat, Option<Seat>)>,
    sums: &mut Sums,
) -> Result<(), GeometryError> {
    for ((name, _), value) in LAYER.iter().zip(measures::layer(seat)?) {
        sums.layer(view.layer, name, value);
    }
    let (everything, fresh) = whole(view, seat)?;
    let fresh_elsewhere = match elsewhere {
        Some((other, None)) => whole(view, other)?.1,
        _ => Vec::new(),
    };
    if let Some(overlap) = gaps::overlap(seat, &fresh) {
        sums.layer(view.layer, "overlap", overlap);
    }
    let same_points = match twin {
        Some(twin) => Some((seat.points(&seat.selected)?, twin.points(&seat.selected)?)),
        None => None,
    };
    if let Some((points, others)) = &same_points
        && let Some([mean, smallest]) = gaps::cosines(points, others)?
    {
        sums.layer(view.layer, "tilt_cosine_mean", mean);
        sums.layer(view.layer, "tilt_cosine_smallest", smallest);
    }
    for (head, everything) in everything.iter().enumerate() {
        let found = measures::head(seat, head, everything)?;
        for ((name, _), value) in HEAD.iter().zip(found.values) {
            sums.head(view.layer, head, name, value);
        }
        sums.spectrum(view.layer, head, &found.spectrum);
        let read_out = seat.read_out(head, &seat.selected)?;
        let own = read_out.read(seat.query(head))?.o;
        // What the network's own operator made of the same numbers, in 32 bits.
        sums.head(view.layer, head, "operator_difference", gaps::relative(&own, seat.output(head)));
        let target = self::target(seat, twin, head, &fresh)?;
        let mut gap: HeadGap = gaps::outputs(&read_out, &own, &target)?;
        if let Some(twin) = twin {
            // The twin's weights over the same tokens and entries.
            let w = twin.read_out(head, &seat.selected)?.read(twin.query(head))?.p;
            match gaps::repair(&read_out, &w)? {
                Some(kl) => gap.repair = Some(kl),
                None => gap.undecided += 1,
            }
        }
        for (name, value) in
            [("hull_distance", gap.distance), ("output_difference", gap.difference), ("repair_kl", gap.repair)]
        {
            if let Some(value) = value {
                sums.head(view.layer, head, name, value);
            }
        }
        if let Some(distance) = gap.distance {
            sums.head(view.layer, head, "outside_hull", f64::from(u8::from(distance > 0.0)));
        }
        sums.undecided += gap.undecided;
        if let Some((other, other_twin)) = elsewhere {
            let target = self::target(other, other_twin.as_ref(), head, &fresh_elsewhere)?;
            let gap = gaps::outputs(&read_out, &own, &target)?;
            if let Some(distance) = gap.distance {
                sums.head(view.layer, head, "hull_distance_elsewhere", distance);
            }
        }
    }
    Ok(())
}
