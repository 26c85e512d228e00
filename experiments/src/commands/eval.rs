//! `csa2 eval`.

use std::path::PathBuf;
use std::process::ExitCode;

use csa2_model::config::{ModelConfig, PoolConfig};
use csa2_model::cost::Cost;
use csa2_train::evaluate::{evaluate, measuring};
use csa2_train::runs::Run;
use csa2_train::tasks::TaskConfig;
use serde_json::json;
use toml::{Table, Value};

use super::Failure;
use super::transfer::lines;
use crate::ablation::{changed_model, check_size};
use crate::backend::Backend;
use crate::say::say;
use crate::subject::Subject;

/// Arguments of `csa2 eval`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  csa2 eval runs/quickstart/all\\ full/seed-0\n  csa2 eval runs/hsi/base/seed-0 --layers \"swa full@2+pool reuse reindex\" --pool 4x2 --pool-override"
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
    /// Sequences at a time
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Backend to compute on (see `csa2 backends`)
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// Print JSON instead
    #[arg(long)]
    json: bool,
}

/// Measures a run on the evaluation set of a task.
///
/// # Errors
/// When the run or the task cannot be read, they do not fit each other, the pool is another one without leave, or the device fails.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let device = args.backend.device()?;
    let given = args.task.as_deref().map(super::task_file).transpose()?;
    let (task, beside) = given.map_or((None, PathBuf::new()), |(task, folder)| (Some(task), folder));
    let base = args.data.clone().unwrap_or(beside);
    let subject = Subject::open(&args.run, task.as_ref(), &base, "give one by --task", &device)?;
    let Subject { run, weights, task, .. } = &subject;
    if args.data.is_some() && !matches!(subject.task_config, TaskConfig::Text(_)) {
        return Err(format!("--data: the task `{}` reads no files; leave it away", task.kind()).into());
    }
    let config = model(args, run)?;
    let trained = pool_of(run.model_config());
    let here = pool_of(&config);
    if trained != here && !args.pool_override {
        return Err(format!(
            "{}: its weights were trained with {trained}, and this would measure them with {here}; that is another model. Leave --layers \
             and --pool away, train it with that pool (`csa2 posttrain`), or say --pool-override: every result then says so",
            args.run.display()
        )
        .into());
    }
    if trained == here && args.pool_override {
        return Err("--pool-override: the pool is the one that the weights were trained with; leave it away".into());
    }
    check_size(&config, &Cost::of(&config)?, task.seq_len())?;
    super::holds(args.backend, &config)?;
    let model = weights.model(&config, &device)?;
    let context = measuring(&config, task.seq_len(), None, &device);
    let values = evaluate(&model, &**task, &context, usize::from(args.batch), &device)?;
    if let Some((name, value)) = values.iter().find(|(_, value)| !value.is_finite()) {
        return Err(format!("{}: `{name}` comes out as {value}; its weights are damaged", args.run.display()).into());
    }
    let mismatch = (trained != here).then(|| format!("weights trained with {trained}, measured with {here}"));
    if let Some(mismatch) = &mismatch {
        say(&format!("note: {mismatch} (--pool-override)"));
    }
    if args.json {
        let document = json!({
            "run": args.run.display().to_string(),
            "step": run.state().step,
            "layers": config.layers.to_string(),
            "pool": config.pool,
            "pool_mismatch": mismatch,
            "task": task.describe(),
            "values": values,
        });
        super::print(&format!("{}\n", serde_json::to_string_pretty(&document)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut groups = vec![
        ("run", vec![format!("{}, step {}", args.run.display(), run.state().step)]),
        ("model", vec![format!("{}, {here}", config.layers)]),
    ];
    groups.extend(mismatch.map(|mismatch| ("mismatch", vec![mismatch])));
    groups.push(("task", vec![task.describe()]));
    let width = values.keys().map(|name| name.chars().count()).max().unwrap_or(0);
    groups.push(("values", values.iter().map(|(name, value)| format!("{name:width$}  {value:.4}")).collect()));
    super::print(&lines(&groups))?;
    Ok(ExitCode::SUCCESS)
}

/// The model to be measured: the run's, its pool changed as the arguments say.
fn model(args: &Args, run: &Run) -> Result<ModelConfig, Failure> {
    let trained = run.model_config();
    if let (Some(_), None, false) = (args.pool, &args.layers, trained.layers.has_pool()) {
        return Err(format!(
            "--pool: no layer of `{}` builds a pool; say with --layers which one should, as in `full+pool`",
            trained.layers
        )
        .into());
    }
    let mut changes = Table::new();
    if let Some(layers) = &args.layers {
        changes.insert("layers".into(), Value::String(layers.clone()));
    }
    if let Some(pool) = args.pool {
        changes.insert("pool".into(), Value::try_from(pool)?);
    }
    Ok(changed_model(&changes, trained).map_err(|message| format!("--layers and --pool: {message}"))?)
}

/// The pool in words.
fn pool_of(config: &ModelConfig) -> String {
    match config.pool {
        None => "no candidate pool".into(),
        Some(pool) => {
            let builders =
                config.layers.layers().iter().filter(|layer| layer.builds_pool).map(|layer| layer.index.to_string());
            let layers: Vec<String> = builders.collect();
            format!("a candidate pool of {}x{} (layer {})", pool.blocks, pool.block_size, layers.join(", "))
        }
    }
}

/// `4x2`.
fn parse_pool(text: &str) -> Result<PoolConfig, String> {
    let number = |text: &str| text.parse::<usize>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let parts = text.split_once('x').and_then(|(blocks, size)| Some((number(blocks)?, number(size)?)));
    let (blocks, block_size) = parts.ok_or("a pool is blocks x entries, such as 4x2")?;
    Ok(PoolConfig { blocks, block_size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools() {
        assert_eq!(parse_pool("4x2"), Ok(PoolConfig { blocks: 4, block_size: 2 }));
        for wrong in ["", "4", "4x", "x2", "4x2x1", "4 x 2", "-4x2", "+4x2", "4X2", "99999999999999999999x1"] {
            assert!(parse_pool(wrong).is_err(), "{wrong}");
        }
    }
}
