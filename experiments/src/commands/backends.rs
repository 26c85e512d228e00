//! `csa2 backends`.

use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::Failure;
use crate::backend::{Backend, Missing};

/// Arguments of `csa2 backends`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  csa2 backends\n  csa2 backends --json")]
pub struct Args {
    /// Print JSON instead
    #[arg(long)]
    json: bool,
}

/// Lists the backends; those that are compiled in are tried out.
///
/// # Errors
/// When standard output is broken.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let entries: Vec<Entry> = Backend::value_variants()
        .iter()
        .map(|&backend| Entry::there(backend))
        .chain(Backend::missing().into_iter().map(Entry::missing))
        .collect();
    if args.json {
        let entries: Vec<Value> = entries.iter().map(Entry::json).collect();
        super::print(&format!("{}\n", serde_json::to_string_pretty(&json!({"backends": entries}))?))?;
    } else {
        super::print(&entries.iter().map(Entry::text).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is known of one backend.
struct Entry {
    name: &'static str,
    note: &'static str,
    compiled: bool,
    /// The adapter, where it was found.
    device: Option<String>,
    /// What would make it usable, where it is not.
    missing: Option<String>,
}

impl Entry {
    fn there(backend: Backend) -> Self {
        let (device, missing) = match backend.hardware() {
            Ok(hardware) => (Some(hardware), None),
            Err(error) => (None, Some(error.missing())),
        };
        Self { name: backend.name(), note: backend.describe(), compiled: true, device, missing }
    }

    fn missing(Missing { name, note, build, needs }: Missing) -> Self {
        Self { name, note, compiled: false, device: None, missing: Some(format!("{build}; {needs}")) }
    }

    /// `present` is null where only a build with the backend could tell.
    fn json(&self) -> Value {
        let present = self.compiled.then_some(self.device.is_some());
        json!({
            "name": self.name,
            "note": self.note,
            "compiled": self.compiled,
            "present": present,
            "device": self.device,
            "missing": self.missing,
        })
    }

    fn text(&self) -> String {
        let state = match (self.compiled, &self.device) {
            (true, Some(_)) => "compiled in, present",
            (true, None) => "compiled in, not present",
            (false, _) => "not compiled in",
        };
        let device = self.device.iter().map(|device| format!("       device: {device}\n"));
        let missing = self.missing.iter().map(|missing| format!("       to use it: {missing}\n"));
        let first = format!("{:6} {state}: {}\n", self.name, self.note);
        std::iter::once(first).chain(device).chain(missing).collect()
    }
}
