//! `csa2 overlap`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Failure;
use crate::backend::Backend;
use crate::overlap::{self, Options, OverlapError};
use crate::report;
use crate::say::say;

/// Arguments of `csa2 overlap`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  csa2 overlap \"runs/quickstart/all full/seed-0\"\n\nFor every pair of layers that select entries: how much their selections have in common, and how much of the one's attention\nlies on what the other selects."
)]
pub struct Args {
    /// Folder of the run: one seed of a variant, or an imported model
    run: PathBuf,
    /// Folder for report.html, overlap.csv and overlap.json (default: RUN/overlap)
    #[arg(long)]
    out: Option<PathBuf>,
    /// A file with a [task] table, for a run that has none or to compare on another; files that it names lie beside it (those of
    /// the run's own task lie in the folder from which csa2 is started)
    #[arg(long, value_name = "FILE")]
    task: Option<PathBuf>,
    /// Sequences of the evaluation set (default: 128, or all where there are fewer)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    sequences: Option<u32>,
    /// Sequences at a time
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Which sequences are drawn where not all are looked at
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Backend to compute on (see `csa2 backends`)
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// Print the results as one JSON document instead of tables
    #[arg(long)]
    json: bool,
}

/// The command as it was given, as far as it decides the numbers.
fn command(args: &Args) -> String {
    let mut words = vec!["csa2 overlap".to_string(), super::quoted(&args.run)];
    if let Some(task) = &args.task {
        words.extend(["--task".to_string(), super::quoted(task)]);
    }
    if let Some(sequences) = args.sequences {
        words.push(format!("--sequences {sequences}"));
    }
    if args.seed != 0 {
        words.push(format!("--seed {}", args.seed));
    }
    words.join(" ")
}

/// Compares and writes the report.
///
/// # Errors
/// When the run cannot be compared, or files or device fail.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let task = args.task.as_deref().map(super::task_file);
    let out = args.out.clone().unwrap_or_else(|| args.run.join("overlap"));
    let options = Options {
        run: args.run.clone(),
        task: task.transpose()?,
        out: out.clone(),
        sequences: args.sequences.map(|count| count as usize),
        batch: args.batch as usize,
        seed: args.seed,
        threads: usize::from(args.threads),
        backend: args.backend.name(),
        device: args.backend.device()?,
        command: command(args),
    };
    super::holds(args.backend, csa2_train::runs::Run::open(&args.run)?.model_config())?;
    let stop = super::stop_on_interrupt("stopping: nothing is written")?;
    let overlap = match overlap::run(&options, &stop) {
        Err(OverlapError::Interrupted) => {
            say("interrupted; nothing was written");
            return Ok(ExitCode::from(super::INTERRUPTED));
        }
        ended => ended?,
    };
    report::write_overlap(&out, &overlap)?;
    if args.json {
        super::print(&format!("{}\n", serde_json::to_string_pretty(&overlap)?))?;
    } else {
        super::print(&report::overlap_table(&overlap, super::terminal_width()))?;
    }
    say(&format!("\nreport: {}", out.join("report.html").display()));
    Ok(ExitCode::SUCCESS)
}
