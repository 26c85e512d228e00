//! Rates beside the tokens': copying, scoring packed keys, reading prompts, caches on disk.

use std::hint::black_box;
use std::time::Instant;

use burn::tensor::{Tensor, TensorData};
use csa2_infer::Session;
use csa2_model::ops::{Place, PoolUse, StoredSpec, stored_select};
use csa2_model::quant::Format;
use csa2_model::store::{CHUNK, Store};
use serde::Serialize;

use super::mixes::{Mix, numbers};
use super::{Options, Times, stopped};
use crate::bench::BenchError;
use crate::say::say;

/// Bytes that are copied: more than the processor's caches hold.
const COPIED: usize = 128 << 20;

/// Repetitions of a rate.
const REPETITIONS: usize = 20;

/// Repetitions of what takes longer.
const FEW: usize = 5;

/// Tokens of the prompts that are read, where the longest context is not shorter.
const PROMPTS: [u64; 2] = [2 << 10, 16 << 10];

/// Heads of the indexer: those of the mixes first, which are measured at every context.
const HEADS: [usize; 4] = [4, 2, 8, 16];

/// How fast packed index keys are scored, by one query.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scoring {
    /// Heads of the indexer.
    pub heads: usize,
    /// Keys.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Seconds, choice of the Top-K included.
    pub seconds: Times,
}

impl Scoring {
    /// Bytes of keys per second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds.quartile
    }
}

/// How fast a prompt is read.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prefill {
    /// Its tokens.
    pub tokens: usize,
    /// Seconds.
    pub seconds: f64,
}

/// How fast caches are saved, loaded and forked.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CacheFile {
    /// Bytes of the file.
    pub bytes: u64,
    /// Seconds until it is on disk.
    pub saved: Times,
    /// Seconds until a session has it back, checksum included.
    pub loaded: Times,
    /// Seconds of a fork, which shares them.
    pub forked: Times,
}

/// Bytes per second that all threads together copy: bytes copied, each of which is read and written.
///
/// # Errors
/// When it is time to stop.
pub fn copying(options: &Options) -> Result<f64, BenchError> {
    let from = vec![1_u8; COPIED];
    let mut to = vec![0_u8; COPIED];
    let part = COPIED.div_ceil(rayon::current_num_threads());
    let mut seconds = Vec::new();
    for _ in 0..REPETITIONS {
        stopped(options)?;
        let start = Instant::now();
        rayon::scope(|scope| {
            for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                scope.spawn(|_| to.copy_from_slice(from));
            }
        });
        seconds.push(start.elapsed().as_secs_f64());
        black_box(&to);
    }
    Ok(COPIED as f64 / Times::of(&seconds).quartile)
}

/// Scores keys of 64 channels: as many as each context has tokens with the heads of the mixes, and those of the longest with
/// other numbers of heads.
///
/// # Errors
/// When it is time to stop.
pub fn scoring(options: &Options) -> Result<Vec<Scoring>, BenchError> {
    let mut keys = Store::new(64, Some(Format::Fp4E8m0));
    let (mut next, mut found) = (numbers(), Vec::new());
    for &context in options.contexts.lengths() {
        while keys.len() < context as usize {
            stopped(options)?;
            let step = CHUNK.min(context as usize - keys.len());
            keys.push(&(0..step * keys.dim()).map(|_| next()).collect::<Vec<f32>>());
        }
        found.push(score(&keys, HEADS[0], options)?);
    }
    for &heads in &HEADS[1..] {
        found.push(score(&keys, heads, options)?);
    }
    Ok(found)
}

fn score(keys: &Store, heads: usize, options: &Options) -> Result<Scoring, BenchError> {
    let mut next = numbers();
    let mut values = |dims: &[usize]| -> Vec<f32> { (0..dims.iter().product()).map(|_| next()).collect() };
    let (dims, weights) = ([1, 1, heads, keys.dim()], [1, 1, heads]);
    let q = Tensor::<4>::from_data(TensorData::new(values(&dims), dims), &options.device);
    let weights = Tensor::<3>::from_data(TensorData::new(values(&weights), weights), &options.device);
    let places = [Place { row: 0, position: keys.len() - 1 }];
    let spec = StoredSpec { ratio: 1, topk: 64, pool: PoolUse::None };
    let mut seconds = Vec::new();
    for _ in 0..REPETITIONS {
        stopped(options)?;
        let start = Instant::now();
        let found = stored_select(q.clone(), weights.clone(), None, &[keys], &places, spec);
        black_box(found.map_err(|error| BenchError::Decode(error.to_string()))?);
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(Scoring { heads, entries: keys.len() as u64, bytes: keys.bytes(), seconds: Times::of(&seconds) })
}

/// Reads prompts that are no longer than the longest context; one of that length where all others are longer.
///
/// # Errors
/// When the session refuses, or it is time to stop.
pub fn prefill(mix: &Mix, options: &Options) -> Result<Vec<Prefill>, BenchError> {
    let longest = options.contexts.longest();
    let mut lengths: Vec<u64> = PROMPTS.into_iter().filter(|&length| length <= longest).collect();
    if lengths.is_empty() {
        lengths.push(longest);
    }
    let read = |length: u64| {
        say(&format!("{}: a prompt of {length} tokens", mix.name));
        let length = length as usize;
        let mut session = mix.session(length, &options.device)?;
        let prompt: Vec<i32> = (0..length).map(|at| (at * at % mix.vocabulary().min(251)) as i32).collect();
        let start = Instant::now();
        for part in prompt.chunks(session.options().pass) {
            stopped(options)?;
            black_box(session.prefill(&[part.to_vec()])?.try_into_data()?);
        }
        Ok(Prefill { tokens: length, seconds: start.elapsed().as_secs_f64() })
    };
    lengths.into_iter().map(read).collect()
}

/// Saves, loads and forks a session's caches, in the folder for temporary files.
///
/// # Errors
/// When files fail, or it is time to stop.
pub fn file(session: &Session, options: &Options) -> Result<CacheFile, BenchError> {
    say("caches: saving, loading, forking");
    let folder = tempfile::tempdir().map_err(|error| BenchError::Decode(format!("a temporary folder: {error}")))?;
    let path = folder.path().join("caches");
    let [mut saved, mut loaded, mut forked] = [const { Vec::new() }; 3];
    let mut bytes = 0;
    for _ in 0..FEW {
        stopped(options)?;
        let start = Instant::now();
        session.save(&path)?;
        saved.push(start.elapsed().as_secs_f64());
        bytes = std::fs::metadata(&path).map_or(0, |about| about.len());
        let start = Instant::now();
        let back = Session::load(&path, session.model(), session.config(), session.options())?;
        loaded.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        black_box(back.fork());
        forked.push(start.elapsed().as_secs_f64());
    }
    Ok(CacheFile { bytes, saved: Times::of(&saved), loaded: Times::of(&loaded), forked: Times::of(&forked) })
}
