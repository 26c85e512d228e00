//! What the queries of a trained run can and cannot do: every layer and head is measured on sampled queries of the evaluation set.
//!
//! `source` gives the passes of a whole model or of single layers, `seat` takes the numbers of one query out of a pass, `measures` says how
//! many dimensions it reaches and where its weights lie, `gaps` how far it is from a layer that makes more anew, `diversity` whether layers
//! that share an address do the same, and `record` is what comes of it. One sequence is held at a time; of every sequence only sums stay.

mod diversity;
mod error;
mod gaps;
mod layers;
mod measures;
mod record;
mod seat;
mod source;
mod sums;
mod twin;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::{DType, Device};
use csa2_model::attention::{Context, Shared};
use csa2_model::mix::Mode;
use csa2_train::files::remove_partial;
use csa2_train::recall::{MOST_PAIRS, pairs};
use csa2_train::runs::Run;
use csa2_train::tasks::TaskConfig;
use rayon::prelude::*;

use crate::ablation::progress::Progress;
use crate::folders;
use crate::geometry::GeometryError;
use crate::results::{write_atomic, write_json};

use self::layers::Layers;
use self::seat::{LayerView, Seat};
use self::source::{Glance, Source};
use self::sums::Sums;
use self::twin::Twin;

pub use error::ProbeError;
pub use layers::TOKENS;
pub use measures::{HEAD, LAYER};
pub use record::{Diversity, HeadRecord, LayerRecord, Mean, ProbeRecord, TwinRecord};

/// Sequences that are looked at where nothing else is said, or the whole set where that is smaller.
pub const SEQUENCES: usize = 32;
/// Queries of a sequence that are looked at where nothing else is said.
pub const QUERIES: usize = 8;

/// What is probed, and where.
#[derive(Debug, Clone)]
pub struct Options {
    /// The run's folder.
    pub run: PathBuf,
    /// A run whose layers are full where the run's reuse.
    pub twin: Option<PathBuf>,
    /// Another task than the run's, and the folder of its files.
    pub task: Option<(TaskConfig, PathBuf)>,
    /// Inputs of single layers.
    pub inputs: Option<PathBuf>,
    /// Tokens of a sequence whose inputs are drawn, for single layers.
    pub tokens: Option<usize>,
    /// Folder for the results.
    pub out: PathBuf,
    /// Sequences; none for the default of the kind of run, or all where there are fewer.
    pub sequences: Option<usize>,
    /// Queries of a sequence; none for the default of the kind of run.
    pub queries: Option<usize>,
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

/// How much of a source is looked at.
#[derive(Clone, Copy, Debug)]
struct Extent {
    sequences: usize,
    queries: usize,
    seed: u64,
}

/// Probes a run.
///
/// # Errors
/// As [`run`], but nothing is written.
pub fn measure(options: &Options, stop: &AtomicBool) -> Result<ProbeRecord, ProbeError> {
    let run = Run::open(&options.run).map_err(crate::subject::SubjectError::from)?;
    let source = match run.held_layers() {
        Some(_) => Source::Layers(Box::new(Layers::open(run, options)?)),
        None => Source::model(options)?,
    };
    let shown = options.run.display().to_string();
    let model = source.config();
    let reads = |mode: Mode| !matches!(mode, Mode::Swa | Mode::Dense);
    if !model.layers.layers().iter().any(|layer| source.has(layer.index) && reads(layer.mode)) {
        return Err(ProbeError::NoSelection { run: shown, mix: source.mix() });
    }
    let seq = source.tokens();
    let pairs = pairs(&model.layers, seq);
    if pairs > MOST_PAIRS {
        return Err(ProbeError::TooLong { run: shown, seq, pairs, right: source.shorter() });
    }
    let there = source.sequences();
    let most = there.as_ref().map_or(usize::MAX, |(there, _)| *there);
    let extent = Extent {
        sequences: options.sequences.unwrap_or(source.usual().0.min(most)),
        queries: options.queries.unwrap_or(source.usual().1),
        seed: options.seed,
    };
    if let Some((there, of)) = there.filter(|(there, _)| extent.sequences > *there) {
        return Err(ProbeError::TooMany { asked: extent.sequences, of, there });
    }
    let twin = options.twin.as_deref();
    let twin = twin.map(|folder| Twin::open(folder, model, |layer| source.has(layer), &options.device)).transpose()?;
    let sums = collect(&source, twin.as_ref(), extent, options, stop)?;
    record::record(&source, twin.as_ref(), &sums, extent, options)
}

fn collect(
    source: &Source,
    twin: Option<&Twin>,
    extent: Extent,
    options: &Options,
    stop: &AtomicBool,
) -> Result<Sums, ProbeError> {
    let seq = source.tokens();
    let twin_cx = twin.map(|twin| Context::new(&twin.config, seq, DType::F32, &options.device).with_trace(true));
    let progress = Progress::new((extent.sequences * seq) as u64, 0);
    let mut sums = Sums::default();
    for glance in source.glances(extent, &options.device) {
        let Glance { views, inputs, positions, right } = glance?;
        sums.answered(positions.len(), right);
        for (view, input) in views.iter().zip(inputs).filter(|(view, _)| view.selects()) {
            let twin_view = match (twin.and_then(|twin| twin.layer(view.layer)), &twin_cx) {
                (Some(attention), Some(cx)) => {
                    let made = attention.forward(input, &mut Shared::default(), cx);
                    let twin_config = twin.map_or_else(|| source.config(), |twin| &twin.config);
                    let trace = made.trace.as_ref().expect("the context asks for a trace");
                    Some(LayerView::new(attention, twin_config, trace, &made.output, &positions)?)
                }
                _ => None,
            };
            // Of a twin run whose layer is no twin, nothing is compared: another kind of twin would give numbers that mean something else.
            let compared = twin.is_none() || twin_view.is_some();
            for place in 0..positions.len() {
                if stop.load(Ordering::Relaxed) {
                    progress.finish();
                    return Err(ProbeError::Interrupted);
                }
                let seat = |place: usize| (view.seat(place), twin_view.as_ref().map(|twin| twin.seat(place)));
                let next = (place + 1) % positions.len();
                let elsewhere = (compared && next != place).then(|| seat(next));
                let (here, twin) = seat(place);
                one(view, &here, compared, twin.as_ref(), elsewhere.as_ref(), &mut sums).map_err(|error| {
                    ProbeError::Geometry {
                        run: options.run.display().to_string(),
                        layer: view.layer,
                        mode: view.mode,
                        error,
                    }
                })?;
            }
        }
        diversity::add(source.config(), &views, &mut sums);
        sums.end();
        progress.add(seq as u64);
    }
    progress.finish();
    Ok(sums)
}

/// What the twin of `seat` reads for `head`: the twin run's layer, or without such a run the layer itself at the address `fresh`.
fn target(seat: &Seat, twin: Option<&Seat>, head: usize, fresh: &[usize]) -> Result<Vec<f64>, GeometryError> {
    match twin {
        Some(twin) => Ok(twin.read(head, &twin.selected)?.output),
        None => Ok(seat.read(head, fresh)?.output),
    }
}

/// Everything that each head would attend to, and the K entries that attention itself would choose.
fn whole(view: &LayerView, seat: &Seat) -> Result<(Vec<Vec<f64>>, Vec<usize>), GeometryError> {
    let heads = (0..view.heads()).into_par_iter();
    let everything: Vec<Vec<f64>> = heads.map(|head| seat.everything(head)).collect::<Result<_, _>>()?;
    let fresh = seat.fresh(&everything);
    Ok((everything, fresh))
}

/// Measures one query of one layer, with its twin where it is `compared`; `elsewhere` is another query of the sequence, with its twin.
fn one(
    view: &LayerView,
    seat: &Seat,
    compared: bool,
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
    if let Some(twin) = twin
        && let Some([mean, smallest]) = gaps::cosines(&seat.points(&seat.selected)?, &twin.points(&seat.selected)?)?
    {
        sums.layer(view.layer, "tilt_cosine_mean", mean);
        sums.layer(view.layer, "tilt_cosine_smallest", smallest);
    }
    let targets = |head: usize| -> Result<_, GeometryError> {
        let here = compared.then(|| target(seat, twin, head, &fresh)).transpose()?;
        let other = elsewhere.map(|(other, twin)| target(other, twin.as_ref(), head, &fresh_elsewhere)).transpose()?;
        Ok((here, other))
    };
    let found: Vec<_> = everything
        .par_iter()
        .enumerate()
        .map(|(head, everything)| {
            let (here, other) = targets(head)?;
            Ok((
                measures::head(seat, head, everything)?,
                gaps::of_head(seat, head, twin, here.as_deref(), other.as_deref())?,
            ))
        })
        .collect::<Result<_, GeometryError>>()?;
    let mut together: BTreeMap<&'static str, (f64, usize)> = BTreeMap::new();
    for (head, (measured, gap)) in found.into_iter().enumerate() {
        let measured_values = HEAD.iter().zip(measured.values).map(|((name, _), value)| (*name, value));
        for (name, value) in measured_values.chain(gap.values()) {
            sums.head(view.layer, head, name, value);
            let (sum, count) = together.entry(name).or_default();
            *sum += value;
            *count += 1;
        }
        sums.spectrum(view.layer, head, &measured.spectrum);
        sums.undecided += gap.undecided;
    }
    for (name, (sum, count)) in together {
        sums.heads(view.layer, name, sum / count as f64);
    }
    Ok(())
}
