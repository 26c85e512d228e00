//! `csa2 eval`.

use std::path::PathBuf;
use std::process::ExitCode;

use csa2_model::config::PoolConfig;
use csa2_train::runs::Run;
use csa2_train::tasks::TaskConfig;

use super::transfer::lines;
use super::{Failure, quoted};
use crate::backend::Backend;
use crate::evaluation::switch::{Switch, parse_pool, pool_words};
use crate::evaluation::{self, Evaluation, EvaluationError, Options};
use crate::report;
use crate::say::say;

/// Sequences at a time where nothing else is said.
const BATCH: u16 = 32;

/// Arguments of `csa2 eval`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  csa2 eval runs/quickstart/all\\ full/seed-0\n  csa2 eval runs/hsi/base/seed-0 --layers \"swa full@2+pool reuse reindex\" --pool 4x2 --pool-override\n  csa2 eval \"runs/quickstart/full + reindex + reuse/seed-0\" --context 104,208 --switch pool=2x4 --pool-override\n  csa2 eval \"runs/quickstart/full + reuse/seed-0\" --replay 4 --replay 8\n\n\
Loss and accuracy in all, by position, by distance from the answer to the question and by the task's tags, as trained and with something\nswitched, \
on sequences of the task's own length and of others."
)]
pub struct Args {
    /// Folder of the run: one seed of a variant, or an imported model
    run: PathBuf,
    /// Measure on the [task] of this TOML file instead of the one that the run was trained on
    #[arg(long, value_name = "FILE")]
    task: Option<PathBuf>,
    /// Folder from which the files of a `text` task are looked for (default: that of --task, or else the current one)
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The run's mix with its candidate pool elsewhere, added or taken away: `+pool` is all that may differ
    #[arg(long, value_name = "MIX")]
    layers: Option<String>,
    /// Another size of the candidate pool, blocks x entries, such as 4x2
    #[arg(long, value_parser = parse_pool)]
    pool: Option<PoolConfig>,
    /// Measure with another pool than the weights were trained with; every result says so
    #[arg(long)]
    pool_override: bool,
    /// Further lengths of sequences in tokens, such as 96,192, besides the task's own
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = tokens)]
    context: Vec<usize>,
    /// Measure once more with something switched: quantization=off, =on or =fp4/fp4/fp8 (formats of main KV, index and window), pool=off or
    /// =4x2, replay=128 (as --replay). Each switch gives one further row beside the model as it was trained; may be given several times
    #[arg(long, value_name = "WHAT=HOW")]
    switch: Vec<Switch>,
    /// Measure once more with bounded replay: of every prompt only the last N tokens go through the decoder's layers
    #[arg(long, value_name = "N")]
    replay: Vec<usize>,
    /// Sequences of the evaluation set, always the same ones (default: all)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    sequences: Option<u32>,
    /// Folder for report.html, eval.csv and eval.json (default: RUN/eval)
    #[arg(long)]
    out: Option<PathBuf>,
    /// Sequences of the task's own length at a time; of longer ones fewer
    #[arg(long, default_value_t = BATCH, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Backend to compute on (see `csa2 backends`)
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// Print JSON instead
    #[arg(long)]
    json: bool,
}

/// A length of sequences.
fn tokens(text: &str) -> Result<usize, String> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let tokens = text.parse::<usize>().ok().filter(|tokens| plain && *tokens > 0);
    tokens.ok_or_else(|| "a length is a number of tokens, at least 1".to_string())
}

/// All that is switched, each by itself.
fn switches(args: &Args) -> Vec<Switch> {
    args.switch.iter().copied().chain(args.replay.iter().map(|&tokens| Switch::Replay(tokens))).collect()
}

/// The command as it was given, as far as it decides the numbers.
fn command(args: &Args) -> String {
    let mut parts = vec![format!("csa2 eval {}", quoted(&args.run))];
    parts.extend(args.task.as_ref().map(|task| format!("--task {}", quoted(task))));
    parts.extend(args.data.as_ref().map(|data| format!("--data {}", quoted(data))));
    parts.extend(args.layers.as_ref().map(|layers| format!("--layers \"{layers}\"")));
    parts.extend(args.pool.map(|pool| format!("--pool {}x{}", pool.blocks, pool.block_size)));
    parts.extend(args.pool_override.then(|| "--pool-override".to_string()));
    if !args.context.is_empty() {
        let lengths: Vec<String> = args.context.iter().map(usize::to_string).collect();
        parts.push(format!("--context {}", lengths.join(",")));
    }
    parts.extend(switches(args).iter().map(|switch| format!("--switch {switch}")));
    parts.extend(args.sequences.map(|count| format!("--sequences {count}")));
    parts.extend((args.batch != BATCH).then(|| format!("--batch {}", args.batch)));
    parts.join(" ")
}

/// Measures a run on the evaluation set of a task and writes the report.
///
/// # Errors
/// When the run or the task cannot be read, they do not fit each other, the pool is another one without leave, or files or device fail.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let device = args.backend.device()?;
    let given = args.task.as_deref().map(super::task_file).transpose()?;
    let (task, beside) = given.map_or((None, PathBuf::new()), |(task, folder)| (Some(task), folder));
    let opened = Run::open(&args.run)?;
    if let Some(kind) =
        task.as_ref().or(opened.task()).filter(|task| !matches!(task, TaskConfig::Text(_))).map(TaskConfig::kind)
        && args.data.is_some()
    {
        return Err(format!("--data: the task `{kind}` reads no files; leave it away").into());
    }
    super::holds(args.backend, opened.model_config())?;
    let out = args.out.clone().unwrap_or_else(|| args.run.join("eval"));
    let options = Options {
        run: args.run.clone(),
        task,
        base: args.data.clone().unwrap_or(beside),
        layers: args.layers.clone(),
        pool: args.pool,
        pool_override: args.pool_override,
        switches: switches(args),
        contexts: args.context.clone(),
        sequences: args.sequences.map(|count| count as usize),
        batch: usize::from(args.batch),
        out: out.clone(),
        backend: args.backend.name(),
        device,
        command: command(args),
    };
    let stop = super::stop_on_interrupt("stopping: nothing is written")?;
    let evaluation = match evaluation::run(&options, &stop) {
        Err(EvaluationError::Interrupted) => {
            say("interrupted; nothing was written");
            return Ok(ExitCode::from(super::INTERRUPTED));
        }
        ended => ended?,
    };
    report::write_evaluation(&out, &evaluation)?;
    for (setting, mismatch) in evaluation.mismatches() {
        say(&format!("note: {setting}: {mismatch}"));
    }
    if args.json {
        super::print(&format!("{}\n", serde_json::to_string_pretty(&evaluation)?))?;
    } else {
        super::print(&text(&evaluation)?)?;
    }
    say(&format!("\nreport: {}", out.join("report.html").display()));
    Ok(ExitCode::SUCCESS)
}

/// The run as it is on the task as it is, then the table of all settings and lengths.
fn text(evaluation: &Evaluation) -> Result<String, Failure> {
    let Evaluation { run, step, layers, values, .. } = evaluation;
    let pool = pool_words(&layers.parse()?, evaluation.pool);
    let mut groups = vec![("run", vec![format!("{run}, step {step}")]), ("model", vec![format!("{layers}, {pool}")])];
    groups.extend(evaluation.pool_mismatch.clone().map(|mismatch| ("mismatch", vec![mismatch])));
    groups.push(("task", vec![evaluation.task.clone()]));
    let width = values.keys().map(|name| name.chars().count()).max().unwrap_or(0);
    groups.push(("values", values.iter().map(|(name, value)| format!("{name:width$}  {value:.4}")).collect()));
    Ok(format!("{}\n{}", lines(&groups), report::evaluation_table(evaluation, super::terminal_width())))
}
