//! `csa2 plan`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use csa2_model::config::{ConfigError, ModelConfig};
use serde::Deserialize;

use super::Failure;
use crate::ablation::{AblationConfig, AblationError, read_text, toml_error};
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

/// A file that holds a model alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelFile {
    model: ModelConfig,
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

/// The models that a file holds, by name.
fn models(path: &Path, only: Option<&str>) -> Result<Vec<(String, ModelConfig)>, Failure> {
    let text = read_text(path)?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if path.extension().is_some_and(|extension| extension == "json") {
        let value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let model = ModelConfig::from_hf(&value).map_err(|error| format!("{}: {error}", path.display()))?;
        return Ok(vec![(name, model)]);
    }
    let table: toml::Table = toml::from_str(&text).map_err(|error| toml_error(path, &error))?;
    if !table.contains_key("ablation") {
        if let Some(variant) = only {
            return Err(format!("{}: holds one model, no variant \"{variant}\"", path.display()).into());
        }
        let file: ModelFile = toml::from_str(&text).map_err(|error| toml_error(path, &error))?;
        file.model
            .validate()
            .map_err(|error| AblationError::Toml { path: path.to_path_buf(), message: error.to_string() })?;
        return Ok(vec![(name, file.model)]);
    }
    let ablation = AblationConfig::load(path)?;
    let names: Vec<&str> = ablation.variants.iter().map(|variant| variant.name.as_str()).collect();
    if let Some(variant) = only.filter(|variant| !names.contains(variant)) {
        return Err(format!("{}: no variant \"{variant}\"; there are: {}", path.display(), names.join(", ")).into());
    }
    let chosen = ablation.variants.iter().filter(|variant| only.is_none_or(|name| variant.name == name));
    Ok(chosen.map(|variant| (variant.name.clone(), variant.run.model.clone())).collect())
}
