//! `csa2 bench decode`.

use std::path::PathBuf;

use super::{Common, Failure};
use crate::backend::Backend;
use crate::bench::BenchError;
use crate::bench::decode::{self, Contexts, Options, Run, memory};
use crate::commands::{quoted, stop_on_interrupt, terminal_width};
use crate::folders;
use crate::report;
use crate::say::say;

/// What the folder of results is called where it cannot be used.
const WHAT: &str = "measurement of decoding";

/// Contexts and effort.
#[derive(Debug, clap::Args)]
pub(super) struct DecodeFlags {
    /// Tokens of context: a range, doubled from the first to the last, or a list such as 16K,512K; K is 1024, M is 1024 K
    #[arg(long, value_name = "LENGTHS", default_value = "4K..512K")]
    context: Contexts,
    /// Tokens timed at each context (default: 100, or 2 with --quick)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tokens: Option<u32>,
    /// An empty or new folder for report.html, decode.csv and decode.json
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What the process that measures memory is asked.
#[derive(Debug, clap::Args)]
pub(super) struct MemoryFlags {
    /// The mix
    mix: String,
    /// Tokens at the end
    context: u64,
    /// Tokens at the beginning
    start: u64,
}

fn command(flags: &DecodeFlags, tokens: usize, threads: usize) -> String {
    let out = flags.out.as_deref().map_or(String::new(), |out| format!(" --out {}", quoted(out)));
    format!("csa2 bench decode --context {} --tokens {tokens} --threads {threads}{out}", flags.context)
}

/// Only the processor has done what a layer was asked for when it returns.
pub(super) fn on_processor(backend: Backend) -> Result<(), Failure> {
    if backend == Backend::Flex {
        return Ok(());
    }
    let name = backend.name();
    Err(format!("--backend {name}: only the processor has done what a layer was asked for when it returns, so only there layers can be timed; leave it out, or give flex").into())
}

/// Measures, writes what is to be kept, and gives the text to print; none where it was interrupted.
///
/// # Errors
/// When the folder cannot be used, the caches do not fit the memory, or something fails meanwhile.
pub(super) fn text(flags: &DecodeFlags, common: &Common, threads: usize) -> Result<Option<String>, Failure> {
    on_processor(common.backend)?;
    let stop = stop_on_interrupt("stopping: nothing is written")?;
    let _lock = match &flags.out {
        Some(out) => {
            folders::check_free(out, WHAT)?;
            Some(folders::lock(out, WHAT)?)
        }
        None => None,
    };
    let tokens = flags.tokens.map_or(if common.quick { 2 } else { 100 }, |tokens| tokens as usize);
    let run = Run {
        program: concat!("csa2 ", env!("CARGO_PKG_VERSION")),
        command: command(flags, tokens, threads),
        backend: common.backend.name(),
        device: common.backend.hardware()?,
        threads,
        release: !cfg!(debug_assertions),
    };
    let options = Options {
        contexts: flags.context.clone(),
        tokens,
        device: common.backend.device()?,
        stop,
        passed_on: super::passed_on(common, threads).into(),
    };
    let found = match decode::run(run, &options) {
        Err(BenchError::Interrupted) => {
            say("interrupted; nothing was written");
            return Ok(None);
        }
        ended => ended?,
    };
    if let Some(out) = &flags.out {
        report::write_decode(out, &found)?;
        say(&format!("report: {}", out.join("report.html").display()));
    }
    Ok(Some(if common.json {
        format!("{}\n", serde_json::to_string_pretty(&found)?)
    } else {
        report::decode_table(&found, terminal_width())
    }))
}

/// What the process that measures memory prints.
///
/// # Errors
/// When there is no such mix, or the caches do not fit the memory.
pub(super) fn memory(flags: &MemoryFlags, common: &Common) -> Result<String, Failure> {
    on_processor(common.backend)?;
    let options = Options {
        contexts: Contexts::default(),
        tokens: 1,
        device: common.backend.device()?,
        stop: std::sync::Arc::default(),
        passed_on: Vec::new(),
    };
    Ok(serde_json::to_string(&memory::figures_of(&flags.mix, flags.context, flags.start, &options)?)?)
}
