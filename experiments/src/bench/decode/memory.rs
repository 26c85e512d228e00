//! How much the memory of a process grows with its caches, each measured in a process of its own: in this one, memory that
//! something else has left behind would be used again.

use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize, Serializer};

use super::mixes::{self, Mix};
use super::{Options, stopped, tokens};
use crate::bench::BenchError;
use crate::report::context_label;
use crate::say::say;

/// The command of the measuring process, behind `csa2 bench`.
pub const COMMAND: &str = "decode-memory";

/// Part of the context that is there before anything is measured: weights, threads and scratch memory, whose size does not
/// hang on the context once every thread has a part of it to search, are in use then.
const START: u64 = 8;

/// Tokens that are decoded before and after.
const DECODED: usize = 8;

/// Growth of one mix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Growth {
    /// By which the mix is known.
    pub mix: &'static str,
    /// The context that it has grown to.
    pub context: u64,
    /// The context that it has grown from.
    pub start: u64,
    /// How much, or why that is not known.
    #[serde(flatten, serialize_with = "figures")]
    pub figures: Result<Figures, String>,
}

/// Growth in bytes, and what there was before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Resident memory of the process at the start: program, weights, scratch memory, and the first caches.
    pub before: f64,
    /// Of what the caches hold.
    pub bytes: f64,
    /// Of the memory that was asked for to hold it.
    pub allocated: f64,
    /// Of the process's resident memory once the caches are filled.
    pub made_up: f64,
    /// Of the process's resident memory after tokens have been decoded as well.
    pub decoded: f64,
}

fn figures<S: Serializer>(figures: &Result<Figures, String>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Reason<'a> {
        reason: &'a str,
    }
    match figures {
        Ok(figures) => figures.serialize(serializer),
        Err(reason) => Reason { reason }.serialize(serializer),
    }
}

/// Starts this program again, with pages of ordinary size, to measure `mix` at the longest context.
///
/// # Errors
/// When the process fails, or it is time to stop.
pub fn measure(mix: &Mix, options: &Options) -> Result<Growth, BenchError> {
    stopped(options)?;
    let context = options.contexts.longest();
    let start = context.div_ceil(START);
    let growth = |figures| Growth { mix: mix.key, context, start, figures };
    if resident().is_none() {
        return Ok(growth(Err("this system has no /proc/self/smaps_rollup to read it from".into())));
    }
    say(&format!("{}: memory of {} tokens", mix.name, context_label(context)));
    let wrong = |error: &dyn std::fmt::Display| BenchError::Peak(error.to_string());
    let program = std::env::current_exe().map_err(|error| wrong(&error))?;
    let mut command = Command::new(program);
    command.args(["bench", COMMAND, mix.key, &context.to_string(), &start.to_string()]).args(&options.passed_on);
    // With pages of 2 MiB the system gives and takes more than is asked for, up to 4% of 100 MB either way.
    command.env("MIMALLOC_ALLOW_THP", "0");
    // What was freed before goes back at once: caches in it would grow nothing.
    command.env("MIMALLOC_PURGE_DELAY", "0");
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(|error| wrong(&error))?;
    stopped(options)?;
    if !output.status.success() {
        return Err(wrong(&format!("it ended with {}", output.status)));
    }
    Ok(growth(Ok(serde_json::from_slice(&output.stdout).map_err(|error| wrong(&error))?)))
}

/// What the measuring process does: it grows the caches of the mix known by `key` from `start` to `context` tokens.
///
/// # Errors
/// When there is no such mix, the session refuses, or the system does not tell.
pub fn figures_of(key: &str, context: u64, start: u64, options: &Options) -> Result<Figures, BenchError> {
    let all = mixes::all(options.own.as_ref())?;
    let mix = all.iter().find(|mix| mix.key == key).ok_or_else(|| BenchError::Decode(format!("no mix {key}")))?;
    let unknown = || BenchError::Peak("/proc/self/smaps_rollup cannot be read".into());
    let mut session = mix.session(context as usize + 2 * DECODED, &options.device)?;
    // Twice, so that memory which is needed only while vectors are made up or tokens decoded has been asked for after one another, too.
    for length in [start / 2, start] {
        tokens::make_up(&mut session, length, options)?;
        for _ in 0..DECODED {
            session.decode(&[0])?.try_into_data()?;
        }
    }
    let held = |session: &csa2_infer::Session| [session.bytes().total(), session.caches().allocated()];
    let (before, resident_before) = (held(&session), resident().ok_or_else(unknown)?);
    tokens::make_up(&mut session, context, options)?;
    let (after, made_up) = (held(&session), resident().ok_or_else(unknown)?);
    for _ in 0..DECODED {
        session.decode(&[0])?.try_into_data()?;
    }
    let decoded = resident().ok_or_else(unknown)?;
    let grown = |which: usize| after[which] as f64 - before[which] as f64;
    Ok(Figures {
        before: resident_before,
        bytes: grown(0),
        allocated: grown(1),
        made_up: made_up - resident_before,
        decoded: decoded - resident_before,
    })
}

/// Bytes of this process in memory, counted page by page: the quicker figures of Linux may be off by hundreds of kilobytes.
fn resident() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? * 1024.0)
}
