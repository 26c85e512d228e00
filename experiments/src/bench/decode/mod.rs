//! What decoding a token costs in a whole model, at growing context: networks with random weights, and caches that are filled
//! with made-up vectors, so that no context has to be read first.
//!
//! The lower quartile stands for a time wherever one number does: on a machine that does other things as well, the median is
//! theirs.

mod contexts;
pub mod memory;
mod mixes;
mod rates;
mod ratios;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use serde::Serialize;

pub use contexts::Contexts;
pub use memory::Growth;
pub use mixes::{DENSE, FULL, OWN, Own, RELEASED};
pub use rates::{CacheFile, Prefill, Scoring};
pub use tokens::{Measured, Row};

use super::{BenchError, Ratio, timing};
use crate::say::say;
use mixes::Mix;

/// Version of the document's form.
const SCHEMA: u32 = 2;

/// What is measured, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The model that is measured; none for the released layout in small.
    pub own: Option<Own>,
    /// At which contexts.
    pub contexts: Contexts,
    /// Tokens that are timed at each.
    pub tokens: usize,
    /// Where the networks are; the processor.
    pub device: Device,
    /// Set when it is time to stop.
    pub stop: Arc<AtomicBool>,
    /// Flags of this process that those which measure memory share.
    pub passed_on: Vec<String>,
}

/// On what and how it was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Program and version.
    pub program: &'static str,
    /// The command, as far as it decides the numbers.
    pub command: String,
    /// The backend.
    pub backend: &'static str,
    /// What it runs on.
    pub device: String,
    /// Threads.
    pub threads: usize,
    /// Whether this is a release build.
    pub release: bool,
}

/// Seconds of something that was repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// A quarter of the repetitions was quicker.
    pub quartile: f64,
    /// Half of them were.
    pub median: f64,
}

impl Times {
    /// Of at least one repetition.
    fn of(seconds: &[f64]) -> Self {
        Self { quartile: timing::quantile(seconds, 0.25), median: timing::median(seconds) }
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// Version of the form.
    pub schema: u32,
    /// On what.
    pub run: Run,
    /// Tokens that were timed at each context.
    pub tokens: usize,
    /// Processes that wanted to run, on average over a minute, before and after; none where the system does not tell.
    pub load: [Option<f64>; 2],
    /// Contexts, ascending.
    pub contexts: Vec<u64>,
    /// Sizes of the networks, the same in all mixes.
    pub sizes: String,
    /// Every mix, the one that is asked about first.
    pub mixes: Vec<Measured>,
    /// Bytes per second that all threads together copy, before and after scoring was measured.
    pub copying: [f64; 2],
    /// How fast packed index keys are scored.
    pub scoring: Vec<Scoring>,
    /// How fast prompts are read.
    pub prefill: Vec<Prefill>,
    /// How fast caches of the longest context are saved, loaded and forked.
    pub file: CacheFile,
    /// How much memory the longest context takes.
    pub memory: Vec<Growth>,
    /// What follows from all that.
    pub ratios: Vec<Ratio>,
}

/// Fails when it is time to stop.
fn stopped(options: &Options) -> Result<(), BenchError> {
    if options.stop.load(Ordering::Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) }
}

/// Measures everything.
///
/// # Errors
/// When the caches of the longest context do not fit the memory, which is found out before anything is measured; when files,
/// device or the process that measures memory fail; or when it is time to stop.
pub fn run(run: Run, options: &Options) -> Result<Found, BenchError> {
    let all = mixes::all(options.own.as_ref())?;
    let most = options.contexts.longest() as usize + tokens::behind(options);
    for mix in &all {
        mix.session(most, &options.device)?;
    }
    let load = load();
    say("bandwidth: copying and scoring");
    let before = rates::copying(options)?;
    let scoring = rates::scoring(options)?;
    let copying = [before, rates::copying(options)?];
    let prefill = rates::prefill(&all[0], options)?;
    let (mut measured, mut file) = (Vec::new(), None);
    for mix in &all {
        let (rows, session) = tokens::measure(mix, options)?;
        measured.push(rows);
        // The first is the one that is asked about.
        if file.is_none() {
            file = Some(rates::file(&session, options)?);
        }
    }
    let memory = all.iter().map(|mix| memory::measure(mix, options)).collect::<Result<_, _>>()?;
    let mut found = Found {
        schema: SCHEMA,
        run,
        tokens: options.tokens,
        load: [load, self::load()],
        contexts: options.contexts.lengths().to_vec(),
        sizes: all.first().map_or(String::new(), Mix::sizes),
        mixes: measured,
        copying,
        scoring,
        prefill,
        file: file.ok_or_else(|| BenchError::Decode("there is nothing to measure".into()))?,
        memory,
        ratios: Vec::new(),
    };
    found.ratios = ratios::all(&found);
    Ok(found)
}

/// Processes that want to run, on average over the last minute.
fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Small measurements.
    pub fn options(contexts: &str, tokens: usize) -> Options {
        Options {
            own: None,
            contexts: contexts.parse().unwrap(),
            tokens,
            device: Device::flex(),
            stop: Arc::default(),
            passed_on: Vec::new(),
        }
    }

    /// Results in which every figure is another one.
    pub fn found() -> Found {
        let times = |at: f64| Times { quartile: at, median: 1.25 * at };
        let row = |context: u64, scale: f64, modes: &[(&'static str, f64)]| Row {
            context,
            repetitions: 7,
            token: times(scale * 1e-3),
            modes: modes.iter().map(|&(mode, share)| (mode, times(share * scale * 1e-3))).collect(),
            bytes: 200 * context,
            allocated: 220 * context,
            scored: 2 * context,
        };
        let released = [("swa", 0.1), ("full", 0.4), ("reuse", 0.3), ("reindex", 0.1)];
        let mix = |key, name: &str, layers: &str, grown: f64, modes: &[(&'static str, f64)]| Measured {
            key,
            name: name.to_owned(),
            layers: layers.to_owned(),
            rows: vec![row(1 << 14, 1.0, modes), row(1 << 19, grown, modes)],
        };
        let growth = |mix| Growth {
            mix,
            context: 1 << 19,
            start: 1 << 16,
            figures: Ok(memory::Figures {
                before: 4e7,
                bytes: 1e6,
                allocated: 1.01e6,
                made_up: 1.02e6,
                decoded: 1.03e6,
            }),
        };
        let scoring =
            |entries: u64, seconds| Scoring { heads: 4, entries, bytes: 34 * entries, seconds: times(seconds) };
        let mut found = Found {
            schema: SCHEMA,
            run: Run {
                program: "csa2 0",
                command: "csa2 bench decode --context 16K,512K".into(),
                backend: "flex",
                device: "a <processor>".into(),
                threads: 2,
                release: true,
            },
            tokens: 7,
            load: [Some(0.5), None],
            contexts: vec![1 << 14, 1 << 19],
            sizes: "d_model 128".into(),
            mixes: vec![
                mix(RELEASED, "released layout", "swa*2 full", 4.0, &released),
                mix(FULL, "full everywhere", "full*10", 20.0, &[("full", 0.9)]),
                mix(DENSE, "dense everywhere", "dense*10", 200.0, &[("dense", 0.95)]),
            ],
            copying: [16e9, 14e9],
            scoring: vec![scoring(1 << 14, 5e-5), scoring(1 << 19, 1.6e-3)],
            prefill: vec![Prefill { tokens: 2048, seconds: 0.5 }],
            file: CacheFile { bytes: 111_000_000, saved: times(0.1), loaded: times(0.2), forked: times(1e-5) },
            memory: vec![growth(RELEASED), growth(FULL), growth(DENSE)],
            ratios: Vec::new(),
        };
        found.ratios = ratios::all(&found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_before_anything_is_measured() {
        let options = testing::options("1K..1024M", 1);
        let run = testing::found().run;
        let message = self::run(run, &options).unwrap_err().to_string();
        assert!(message.starts_with("released layout: caches for 1 x 1073741"), "{message}");
        assert!(message.contains("need 22") && message.contains(" bytes, but there are "), "{message}");
    }

    #[test]
    fn it_stops_when_it_is_told_to() {
        let options = testing::options("64,128", 1);
        options.stop.store(true, Ordering::Relaxed);
        assert!(matches!(run(testing::found().run, &options), Err(BenchError::Interrupted)));
    }
}
