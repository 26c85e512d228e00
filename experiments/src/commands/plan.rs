//! `csa2 plan`.

use std::path::PathBuf;
use std::process::ExitCode;

use csa2_model::config::ConfigError;

use super::Failure;
use super::models::models;
use crate::plan::{render_dot, render_json, render_text};

/// Arguments of `csa2 plan`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  csa2 plan configs/models/deepseek-v4.1-flash.toml\n  csa2 plan configs/quickstart.toml --variant \"windows only\"\n  csa2 plan configs/models/small.toml --dot | dot -Tsvg > plan.svg"
)]
pub struct Args {
    /// A model (a file with a [model] table), an ablation, or a Hugging Face config.json
    config: PathBuf,
    /// Only this variant of an ablation
    #[arg(long)]
    variant: Option<String>,
    /// Print the graph in Graphviz's language instead
    #[arg(long, conflicts_with = "json")]
    dot: bool,
    /// Print JSON instead
    #[arg(long)]
    json: bool,
}

/// Prints the plan.
///
/// # Errors
/// When the configuration cannot be read or is wrong.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let models = models(&args.config, args.variant.as_deref())?;
    let at =
        |name: &str, error: ConfigError| -> Failure { format!("{}: {name}: {error}", args.config.display()).into() };
    if args.json {
        let plans: Result<Vec<_>, Failure> =
            models.iter().map(|(name, model)| render_json(name, model).map_err(|e| at(name, e))).collect();
        super::print(&format!("{}\n", serde_json::to_string_pretty(&plans?)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let render = if args.dot { render_dot } else { render_text };
    for (number, (name, model)) in models.iter().enumerate() {
        let text = render(name, model).map_err(|error| at(name, error))?;
        super::print(&format!("{}{}\n", if number > 0 { "\n" } else { "" }, text.trim_end()))?;
    }
    Ok(ExitCode::SUCCESS)
}
