//! `csa2 export`.

use std::path::PathBuf;
use std::process::ExitCode;

use csa2_train::runs::{self, ExportError, Exported, Run};
use serde_json::json;

use super::Failure;
use super::transfer::{Progress, counted, lines, size};
use crate::backend::Backend;
use crate::say::say;

/// Arguments of `csa2 export`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  csa2 export runs/released-form/small/seed-0 --out models/small\n\nThe model must be one that this form can say: a mixture of experts, hyper-connections, and projections with a rank. `csa2 import` reads the folder back bit for bit."
)]
pub struct Args {
    /// Folder of the run: one seed of a variant, or an imported model
    run: PathBuf,
    /// Folder for config.json and the weights; it must not exist or be empty
    #[arg(long)]
    out: PathBuf,
    /// Largest file of weights, such as 5GB, 200MB or 2GiB; more become several files and an index
    #[arg(long, default_value = "5GB", value_parser = parse_size)]
    max_shard_size: u64,
    /// Print what was done as one JSON document
    #[arg(long)]
    json: bool,
}

/// Exports the run's last checkpoint and tells what was written.
///
/// # Errors
/// When the run cannot be read, its model has no such form, or the folder cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let stop = super::stop_on_interrupt("stopping: nothing is left of the folder")?;
    let run = Run::open(&args.run)?;
    let device = Backend::default().device()?;
    let mut progress = Progress::new();
    let exported = runs::export(&run, &device, &args.out, args.max_shard_size, &stop, &mut |written, all| {
        progress.at(written, all);
    });
    progress.finish();
    let Exported { files, tensors, bytes, left_out } = match exported {
        Err(ExportError::Interrupted) => {
            say(&ExportError::Interrupted.to_string());
            return Ok(ExitCode::from(super::INTERRUPTED));
        }
        other => other?,
    };
    let weights = match run.origin() {
        Some(origin) => format!("imported from {}", origin.from),
        None => format!("checkpoint of step {}", run.state().step),
    };
    if args.json {
        let document = json!({
            "folder": args.out.display().to_string(),
            "run": args.run.display().to_string(),
            "step": run.state().step,
            "layers": run.model_config().layers.to_string(),
            "files": files,
            "tensors": tensors,
            "bytes": bytes,
            "left_out": left_out,
        });
        super::print(&format!("{}\n", serde_json::to_string_pretty(&document)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let layers = &run.model_config().layers;
    let mut groups = vec![
        ("model", vec![format!("{}: {layers}", counted(layers.len(), "layer"))]),
        ("run", vec![format!("{}: {weights}", args.run.display())]),
    ];
    if !left_out.is_empty() {
        groups.push((
            "left out",
            vec![format!("{} (the task's auxiliary head, which no output needs)", left_out.join(", "))],
        ));
    }
    let written = format!("{}, {} as F32, in {}", counted(tensors, "tensor"), size(bytes), counted(files, "file"));
    groups.push(("folder", vec![format!("{}: {written}", args.out.display())]));
    super::print(&lines(&groups))?;
    Ok(ExitCode::SUCCESS)
}

/// Bytes with a decimal or binary unit.
fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let right = || "a size is a whole number and a unit, such as 5GB, 200MB or 2GiB".to_string();
    let unit = UNITS.into_iter().find_map(|(name, size)| Some((text.strip_suffix(name)?, size)));
    let (number, unit) = unit.ok_or_else(right)?;
    let digits = number.trim_end();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(right());
    }
    let size = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    match size {
        None => Err("it is more than can be counted".into()),
        Some(0) => Err("a file of 0 bytes holds nothing".into()),
        Some(size) => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, size) in
            [("5GB", 5_000_000_000), ("200MB", 200_000_000), ("2GiB", 2 << 30), ("7 KB", 7000), ("1B", 1)]
        {
            assert_eq!(parse_size(text), Ok(size));
        }
        for wrong in ["", "5", "GB", "-5GB", "+5GB", "5.5GB", "0GB", "5gb", "5 G B", "99999999999TB", "٥GB", "5XB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
