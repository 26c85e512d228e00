//! `csa2 posttrain`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Failure;
use super::ablate::{Flags, carry_out};
use crate::ablation::load_posttraining;

/// Arguments of `csa2 posttrain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  csa2 posttrain configs/posttrain/pool.toml --from runs/hsi/base/seed-0\n\nWeights stay those of the run at first; a candidate pool, Top-K and quantization may change. Like an ablation, it can be stopped at any time and goes on when run again."
)]
pub struct Args {
    /// What changes and how it trains
    config: PathBuf,
    /// Folder of the run to start from: one seed of a variant, or an imported model
    #[arg(long, value_name = "RUN")]
    from: PathBuf,
    #[command(flatten)]
    flags: Flags,
}

/// Trains the run further and writes its report.
///
/// # Errors
/// When the configuration or the run is wrong, or files or device fail.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = load_posttraining(&args.config, &args.from)?;
    let command = format!("csa2 posttrain {} --from {}", args.config.display(), args.from.display());
    carry_out(&config, &args.flags, command)
}
