//! `csa2 report`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Failure;
use crate::report;

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
    report::write(out, &ablations)?;
    super::print(&format!("{}\n", report::terminal_table(&ablations, super::terminal_width()).trim_end()))?;
    eprintln!("\nreport: {}", out.join("report.html").display());
    Ok(ExitCode::SUCCESS)
}
