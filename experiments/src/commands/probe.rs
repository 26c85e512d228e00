//! `csa2 probe`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Failure;
use crate::backend::Backend;
use crate::probe::{self, Options, ProbeError};
use crate::report;
use crate::say::say;

/// Arguments of `csa2 probe`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  csa2 probe \"runs/quickstart/full + reuse/seed-0\"\n  csa2 probe \"runs/quickstart/full + reuse/seed-0\" --twin \"runs/quickstart/all full/seed-0\"\n  csa2 probe runs/flash --tokens 2048\n\nFor every layer and head: how many dimensions its queries reach, where its weights lie, what it misses, and how far it is from a\nlayer that makes its content and address anew."
)]
pub struct Args {
    /// Folder of the run: one seed of a variant, or an imported model
    run: PathBuf,
    /// A run of the same shapes whose layers are full where this one's reuse (default: the layer itself with the address that an exact
    /// search with its own query gives)
    #[arg(long, value_name = "RUN")]
    twin: Option<PathBuf>,
    /// Folder for report.html, probe.csv and probe.json (default: RUN/probe)
    #[arg(long)]
    out: Option<PathBuf>,
    /// A file with a [task] table, for a run that has none or to probe on another; files that it names lie beside it (those of the run's
    /// own task lie in the folder from which csa2 is started)
    #[arg(long, value_name = "FILE")]
    task: Option<PathBuf>,
    /// For layers alone (imported with --attention-only): a safetensors file with what their attention is given, `layers.N.attn_input` in F32,
    /// `[tokens, d_model]` or `[sequences, tokens, d_model]` for every held layer (default: drawn numbers)
    #[arg(long, value_name = "FILE")]
    inputs: Option<PathBuf>,
    /// For layers alone: tokens of a sequence whose inputs are drawn (default: 2048)
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    tokens: Option<u32>,
    /// Sequences of the evaluation set (default: 32, or all where there are fewer; for layers alone 4)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    sequences: Option<u32>,
    /// Queries of a sequence, drawn among the positions with a target (default: 8); for layers alone in its second half (default: 2)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    queries: Option<u32>,
    /// Which sequences and queries are drawn
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Backend to compute on (see `csa2 backends`)
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// Print the results as one JSON document instead of tables
    #[arg(long)]
    json: bool,
}

/// The command as it was given, as far as it decides the numbers.
fn command(args: &Args) -> String {
    let twin = args.twin.as_ref().map(|twin| format!(" --twin {}", super::quoted(twin))).unwrap_or_default();
    let task = args.task.as_ref().map(|task| format!(" --task {}", super::quoted(task))).unwrap_or_default();
    let sequences = args.sequences.map(|count| format!(" --sequences {count}")).unwrap_or_default();
    let inputs = args.inputs.as_ref().map(|inputs| format!(" --inputs {}", super::quoted(inputs))).unwrap_or_default();
    let tokens = args.tokens.map(|count| format!(" --tokens {count}")).unwrap_or_default();
    let queries = args.queries.map(|count| format!(" --queries {count}")).unwrap_or_default();
    let (run, seed) = (super::quoted(&args.run), args.seed);
    format!("csa2 probe {run}{twin}{task}{inputs}{tokens}{sequences}{queries} --seed {seed}")
}

/// Probes and writes the report.
///
/// # Errors
/// When the run cannot be probed, or files or device fail.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let task = args.task.as_deref().map(super::task_file).transpose()?;
    let out = args.out.clone().unwrap_or_else(|| args.run.join("probe"));
    let options = Options {
        run: args.run.clone(),
        twin: args.twin.clone(),
        task,
        inputs: args.inputs.clone(),
        tokens: args.tokens.map(|count| count as usize),
        out: out.clone(),
        sequences: args.sequences.map(|count| count as usize),
        queries: args.queries.map(|count| count as usize),
        seed: args.seed,
        backend: args.backend.name(),
        device: args.backend.device()?,
        command: command(args),
    };
    super::holds(args.backend, csa2_train::runs::Run::open(&args.run)?.model_config())?;
    let stop = super::stop_on_interrupt("stopping: nothing is written")?;
    let record = match probe::run(&options, &stop) {
        Err(ProbeError::Interrupted) => {
            say("interrupted; nothing was written");
            return Ok(ExitCode::from(super::INTERRUPTED));
        }
        ended => ended?,
    };
    report::write_probe(&out, &record)?;
    if args.json {
        super::print(&format!("{}\n", serde_json::to_string_pretty(&record)?))?;
    } else {
        super::print(&report::probe_table(&record, super::terminal_width()))?;
    }
    say(&format!("\nreport: {}", out.join("report.html").display()));
    Ok(ExitCode::SUCCESS)
}
