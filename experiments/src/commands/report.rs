//! `csa2 report`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::Failure;
use crate::report;
use crate::say::say;

/// Arguments of `csa2 report`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  csa2 report runs/quickstart\n  csa2 report runs/layer-mix runs/text --out runs/joint"
)]
pub struct Args {
    /// Folders of ablations
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// Folder for report.html, table.md and table.csv (default: the ablation's own; needed to join several)
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print the results as one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

/// Rebuilds the report and prints the table.
///
/// # Errors
/// When results cannot be read or the report cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let out = match (&args.out, args.runs.as_slice()) {
        (Some(out), _) => out,
        (None, [one]) => one,
        (None, _) => return Err("several ablations need --out, a folder for the joint report".into()),
    };
    let ablations = args.runs.iter().map(|run| report::load(run)).collect::<Result<Vec<_>, _>>()?;
    csa2_train::files::make_folder(out)?;
    publish(out, &ablations, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the report into `out` and prints its table, or its JSON and nothing else.
///
/// # Errors
/// When the report cannot be written or printed.
pub fn publish(out: &Path, ablations: &[report::Ablation], json: bool) -> Result<(), Failure> {
    report::write(out, ablations)?;
    if json {
        super::print(&format!("{}\n", serde_json::to_string_pretty(&report::render_json(ablations))?))?;
    } else {
        super::print(&format!("{}\n", report::terminal_table(ablations, super::terminal_width()).trim_end()))?;
    }
    say(&format!("\nreport: {}", out.join("report.html").display()));
    Ok(())
}
