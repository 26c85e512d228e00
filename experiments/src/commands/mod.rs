//! The command line, one file a command.

mod ablate;
mod backends;
mod bench;
mod conform;
mod eval;
mod export;
mod figure;
mod generate;
mod import;
mod models;
mod overlap;
mod plan;
mod posttrain;
mod probe;
mod report;
mod search;
mod transfer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Parser, Subcommand};
use csa2_train::tasks::TaskConfig;
use serde::Deserialize;

use crate::ablation::{read_text, toml_error};
use crate::say::say;

/// Layer-mix ablations of Compressed Sparse Attention 2.
#[derive(Debug, Parser)]
#[command(name = "csa2", version, about, long_about = LONG, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const LONG: &str = "Layer-mix ablations of Compressed Sparse Attention 2 (CSA2): write a mix of layers in one line of TOML, train \
several mixes on the same budget, and read which one wins and at what cost.\n\n\
Example:\n  csa2 ablate configs/quickstart.toml";

#[derive(Debug, Subcommand)]
enum Command {
    /// Train every variant of an ablation with every seed, then rank them in a report
    Ablate(ablate::Args),
    /// Train a run further with a candidate pool, quantization or some parts frozen, as a run of its own
    Posttrain(posttrain::Args),
    /// Measure a run on the evaluation set of its task, or of another
    Eval(eval::Args),
    /// Find the layers of a run that can go without content or address of their own, without training
    Search(search::Args),
    /// Compare what the layers of a run select
    Overlap(overlap::Args),
    /// Continue a prompt from caches, token by token
    Generate(generate::Args),
    /// Measure what the queries of a run can and cannot reach
    Probe(probe::Args),
    /// Draw the worked examples of the mathematics
    Figure(figure::Args),
    /// Show what a mix is and costs, before anything is trained
    Plan(plan::Args),
    /// Rebuild the report of an ablation, or join several
    Report(report::Args),
    /// Measure operators, a training step and decoding against the backend's own matrix product
    Bench(bench::Args),
    /// Make a run of a checkpoint in Hugging Face's form
    Import(import::Args),
    /// Write a run's model as a checkpoint in Hugging Face's form
    Export(export::Args),
    /// Compare csa2 with golden cases of the published model
    Conform(conform::Args),
    /// List the backends: compiled in, present, and what is missing to use the rest
    Backends(backends::Args),
}

/// What a command says when it cannot go on.
pub type Failure = Box<dyn std::error::Error>;

/// Runs the command line and says how it ended.
pub fn main(cli: &Cli) -> ExitCode {
    let ended = match &cli.command {
        Command::Ablate(args) => ablate::run(args),
        Command::Posttrain(args) => posttrain::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Search(args) => search::run(args),
        Command::Overlap(args) => overlap::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Probe(args) => probe::run(args),
        Command::Figure(args) => figure::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Report(args) => report::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Import(args) => import::run(args),
        Command::Export(args) => export::run(args),
        Command::Conform(args) => conform::run(args),
        Command::Backends(args) => backends::run(args),
    };
    ended.unwrap_or_else(|error| {
        say(&format!("error: {error}"));
        ExitCode::FAILURE
    })
}

/// Reads a file with a [task] table; the folder is that in which the files that it names lie.
fn task_file(path: &Path) -> Result<(TaskConfig, PathBuf), Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TaskFile {
        task: TaskConfig,
    }
    let file: TaskFile = toml::from_str(&read_text(path)?).map_err(|error| toml_error(path, &error))?;
    Ok((file.task, path.parent().unwrap_or(Path::new(".")).to_path_buf()))
}

/// Exit code of a process that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// The first Ctrl-C sets what is returned and says `what` happens now, the second ends the process.
fn stop_on_interrupt(what: &'static str) -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    ctrlc::set_handler(move || {
        if asked.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(INTERRUPTED));
        }
        say(&format!("\n{what} (Ctrl-C again to leave at once)"));
    })?;
    Ok(stop)
}

/// Prints to standard output; a reader that has gone away (`csa2 plan … | head`) is no error.
fn print(text: &str) -> Result<(), Failure> {
    use std::io::{ErrorKind, Write};
    match std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("standard output: {error}").into()),
        _ => Ok(()),
    }
}

/// A path as a shell takes it: in quotes where it holds more than plain characters.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=,@".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Refuses vectors of a run's model that the backend's operators cannot hold.
fn holds(backend: crate::backend::Backend, model: &csa2_model::config::ModelConfig) -> Result<(), Failure> {
    for (key, channels) in model.vectors() {
        backend.holds(&format!("the run's `model.{key} = {channels}`"), channels)?;
    }
    Ok(())
}

/// Width of the terminal in columns, or what a page holds where there is none.
fn terminal_width() -> u16 {
    console::Term::stdout().size_checked().map_or(120, |(_, columns)| columns)
}
