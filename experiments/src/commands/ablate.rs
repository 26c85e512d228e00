//! `csa2 ablate`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::Failure;
use crate::ablation::{self, AblationConfig, Ended, RunnerOptions};
use crate::backend::Backend;
use crate::report;
use crate::say::say;

/// Arguments of `csa2 ablate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  csa2 ablate configs/quickstart.toml\n\nThe command may be stopped at any time (Ctrl-C, or even killed): run it again and it goes on where it was."
)]
pub struct Args {
    /// The ablation's configuration
    config: PathBuf,
    #[command(flatten)]
    flags: Flags,
}

/// How runs are carried out.
#[derive(Debug, clap::Args)]
pub(super) struct Flags {
    /// Folder for the results (default: runs/<name of the ablation>)
    #[arg(long)]
    out: Option<PathBuf>,
    /// Start anew; results that are there are moved aside
    #[arg(long)]
    fresh: bool,
    /// Runs at a time (default: processor cores / threads)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Threads of one run; the same number gives the same results, bit for bit
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Backend to compute on (see `csa2 backends`)
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// Print the results as one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the ablation and writes its report.
///
/// # Errors
/// When the configuration is wrong, or files or device fail.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = AblationConfig::load(&args.config)?;
    carry_out(&config, &args.flags, format!("csa2 ablate {}", args.config.display()))
}

/// Carries out an ablation, whichever `command` asked for it, and writes its report.
///
/// # Errors
/// When files or device fail, or a run has no result.
pub(super) fn carry_out(config: &AblationConfig, args: &Flags, command: String) -> Result<ExitCode, Failure> {
    for variant in &config.variants {
        let model = &variant.run.model;
        for (key, channels) in model.vectors() {
            args.backend.holds(&format!("variant {:?}: `model.{key} = {channels}`", variant.name), channels)?;
        }
    }
    config.variants.iter().filter_map(ablation::pointless_pool).for_each(|remark| say(&format!("note: {remark}")));
    let out = args.out.clone().unwrap_or_else(|| Path::new("runs").join(&config.section.name));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = usize::from(args.threads);
    let options = RunnerOptions {
        out: out.clone(),
        fresh: args.fresh,
        jobs: args.jobs.map_or((cores / threads).max(1), usize::from),
        threads,
        backend: args.backend.name(),
        device: args.backend.device()?,
        command,
    };
    let stop = super::stop_on_interrupt("stopping: every run writes a checkpoint first")?;
    match ablation::run(config, &options, &stop)? {
        Ended::Interrupted => {
            say("interrupted; every run that had begun has a checkpoint, run the same command again to go on");
            Ok(ExitCode::from(super::INTERRUPTED))
        }
        Ended::Done => {
            let ablations = [report::load(&out)?];
            say("");
            super::report::publish(&out, &ablations, args.json)?;
            // A run that reached its end may still have no value that counts.
            match ablations[0].without_result() {
                0 => Ok(ExitCode::SUCCESS),
                1 => Err("1 run has no result; the report gives the reason".into()),
                many => Err(format!("{many} runs have no result; the report gives the reasons").into()),
            }
        }
    }
}
