//! `csa2 ablate`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Failure;
use crate::ablation::{self, AblationConfig, Ended, RunnerOptions};
use crate::backend::Backend;
use crate::report;

/// Arguments of `csa2 ablate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  csa2 ablate configs/quickstart.toml\n\nThe command may be stopped at any time (Ctrl-C, or even killed): run it again and it goes on where it was."
)]
pub struct Args {
    /// The ablation's configuration
    config: PathBuf,
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
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Backend to compute on (see `csa2 backends`)
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
}

/// Exit code of a process that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Runs the ablation and writes its report.
///
/// # Errors
/// When the configuration is wrong, or files or device fail.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = AblationConfig::load(&args.config)?;
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
        command: format!("csa2 ablate {}", args.config.display()),
    };
    let stop = stop_on_interrupt()?;
    match ablation::run(&config, &options, &stop)? {
        Ended::Interrupted => {
            eprintln!("interrupted; every run has a checkpoint, run the same command again to go on");
            Ok(ExitCode::from(INTERRUPTED))
        }
        Ended::Done { failed } => {
            let ablations = [report::load(&out)?];
            report::write(&out, &ablations)?;
            super::print(&format!("\n{}\n", report::terminal_table(&ablations, super::terminal_width()).trim_end()))?;
            eprintln!("\nreport: {}", out.join("report.html").display());
            if failed > 0 {
                return Err(format!(
                    "{failed} run{} failed; the report lists the reasons",
                    if failed == 1 { "" } else { "s" }
                )
                .into());
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The first Ctrl-C asks the runs to stop with a checkpoint, the second ends the process.
fn stop_on_interrupt() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    ctrlc::set_handler(move || {
        if asked.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(INTERRUPTED));
        }
        eprintln!("\nstopping: every run writes a checkpoint first (Ctrl-C again to leave at once)");
    })?;
    Ok(stop)
}
