//! `csa2 bench decode`.

use std::path::PathBuf;

use super::{Common, Failure};
use crate::backend::Backend;
use crate::bench::BenchError;
use crate::bench::decode::{self, Contexts, Options, Own, Run, memory};
use crate::commands::models::models;
use crate::commands::{quoted, stop_on_interrupt, terminal_width};
use crate::folders;
use crate::report;
use crate::say::say;

/// What the folder of results is called where it cannot be used.
const WHAT: &str = "measurement of decoding";

/// The model.
#[derive(Debug, clap::Args)]
struct OwnFlags {
    /// A model (a file with a [model] table), an ablation, or a Hugging Face config.json to measure (default: the released layout in small)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The variant, where the file is an ablation
    #[arg(long, value_name = "NAME", requires = "config")]
    variant: Option<String>,
}

impl OwnFlags {
    fn model(&self) -> Result<Option<Own>, Failure> {
        let Some(path) = &self.config else { return Ok(None) };
        let mut found = models(path, self.variant.as_deref())?;
        if found.len() > 1 {
            let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
            return Err(format!(
                "{}: has several variants; give one by --variant: {}",
                path.display(),
                names.join(", ")
            )
            .into());
        }
        Ok(found.pop().map(|(name, config)| Own { name, config }))
    }

    /// The flags, as they were given.
    fn given(&self) -> Vec<String> {
        let config = self.config.iter().map(|path| format!("--config={}", path.display()));
        config.chain(self.variant.iter().map(|name| format!("--variant={name}"))).collect()
    }
}

/// Contexts and effort.
#[derive(Debug, clap::Args)]
pub(super) struct DecodeFlags {
    #[command(flatten)]
    own: OwnFlags,
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
    #[command(flatten)]
    own: OwnFlags,
}

fn command(flags: &DecodeFlags, tokens: usize, threads: usize) -> String {
    let out = flags.out.as_deref().map_or(String::new(), |out| format!(" --out {}", quoted(out)));
    let config = flags.own.config.as_deref().map_or(String::new(), |path| format!(" --config {}", quoted(path)));
    let variant =
        flags.own.variant.as_ref().map_or(String::new(), |name| format!(" --variant {}", quoted(name.as_ref())));
    format!("csa2 bench decode{config}{variant} --context {} --tokens {tokens} --threads {threads}{out}", flags.context)
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
    let own = flags.own.model()?;
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
    let passed_on = super::passed_on(common, threads).into_iter().chain(flags.own.given()).collect();
    let options =
        Options { own, contexts: flags.context.clone(), tokens, device: common.backend.device()?, stop, passed_on };
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
        own: flags.own.model()?,
        contexts: Contexts::default(),
        tokens: 1,
        device: common.backend.device()?,
        stop: std::sync::Arc::default(),
        passed_on: Vec::new(),
    };
    Ok(serde_json::to_string(&memory::figures_of(&flags.mix, flags.context, flags.start, &options)?)?)
}
