//! `csa2 backends`.

use std::process::ExitCode;

use clap::ValueEnum;

use super::Failure;
use crate::backend::Backend;

/// Arguments of `csa2 backends`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  csa2 backends")]
pub struct Args {}

/// Lists the backends.
///
/// # Errors
/// When standard output is broken.
pub fn run(_args: &Args) -> Result<ExitCode, Failure> {
    for backend in Backend::value_variants() {
        super::print(&format!("{:6} {}\n", backend.name(), backend.describe()))?;
    }
    Ok(ExitCode::SUCCESS)
}
