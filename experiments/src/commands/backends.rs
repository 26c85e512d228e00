//! `csa2 backends`.

use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::Failure;
use crate::backend::Backend;

/// Arguments of `csa2 backends`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  csa2 backends\n  csa2 backends --json")]
pub struct Args {
    /// Print JSON instead
    #[arg(long)]
    json: bool,
}

/// Lists the backends.
///
/// # Errors
/// When standard output is broken.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.json {
        super::print(&format!("{}\n", serde_json::to_string_pretty(&document())?))?;
        return Ok(ExitCode::SUCCESS);
    }
    for backend in Backend::value_variants() {
        super::print(&format!("{:6} {}\n", backend.name(), backend.describe()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Every backend with its name, whether this binary has it, and a line for people.
fn document() -> Value {
    let entry = |name: &str, compiled: bool, note: &str| json!({"name": name, "compiled": compiled, "note": note});
    let there = Backend::value_variants().iter().map(|backend| entry(backend.name(), true, backend.describe()));
    let missing = Backend::missing();
    let missing = missing.iter().map(|(name, how)| entry(name, false, how));
    json!({ "backends": there.chain(missing).collect::<Vec<_>>() })
}
