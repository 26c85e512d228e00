//! The models that a configuration file holds.

use std::path::Path;

use csa2_model::config::ModelConfig;
use serde::Deserialize;

use super::Failure;
use crate::ablation::{AblationConfig, AblationError, read_text, toml_error};

/// A file that holds a model alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelFile {
    model: ModelConfig,
}

/// The models that a file holds, by name: a model, the variants of an ablation (or the one of the name `only`), or a Hugging Face config.json.
///
/// # Errors
/// When the file cannot be read or is wrong, or has no such variant.
pub(super) fn models(path: &Path, only: Option<&str>) -> Result<Vec<(String, ModelConfig)>, Failure> {
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
