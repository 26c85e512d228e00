//! `csa2 conform`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Failure;
use crate::backend::Backend;
use crate::conform::{Place, Report, render_json, render_text, run as compare};

/// Arguments of `csa2 conform`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  csa2 conform model/tests/goldens\n  csa2 conform model/tests/goldens --only b_attn --only c_\n  csa2 conform model/tests/goldens --json\n\nThe exit code is 0 only if at least one case ran and none failed."
)]
pub struct Args {
    /// Folder of cases: pairs of NAME.safetensors and NAME.json
    folder: PathBuf,
    /// Only cases whose name begins with PREFIX (may be given several times)
    #[arg(long, value_name = "PREFIX", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    only: Vec<String>,
    /// Backend to compute on (see `csa2 backends`); what it cannot compute is left to the CPU or not run, and said so
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Compares and prints.
///
/// # Errors
/// When the folder cannot be read or holds no case, or the backend cannot be used.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let place = Place { backend: args.backend, device: args.backend.device()?, cpu: Backend::Flex.device()? };
    let bar = bar();
    let cases = compare(&args.folder, &args.only, &place, |done, of| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let (folder, hardware) = (args.folder.clone(), args.backend.hardware()?);
    let report = Report { folder, backend: args.backend, hardware, cases: cases? };
    if args.json {
        super::print(&format!("{}\n", serde_json::to_string_pretty(&render_json(&report))?))?;
    } else {
        super::print(&render_text(&report, super::terminal_width()))?;
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How far it is, on a terminal alone: a folder takes seconds.
fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
    let style = ProgressStyle::with_template("{bar:32} {pos} of {len} cases, {elapsed} gone, {eta} left");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
