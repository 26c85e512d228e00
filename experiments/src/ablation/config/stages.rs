//! Variants that go on where another one ended, and models that are measured with a variant's weights besides its own.

use csa2_model::config::ModelConfig;
use csa2_model::mix::LayerPlan;
use serde::Deserialize;
use toml::{Table, Value};

use super::{VariantFile, merge};

/// One `[[evaluation]]`: how the weights are measured besides as they were trained.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[evaluation]]")]
pub(super) struct EvaluationFile {
    /// Its name, a column of the matrix.
    pub name: String,
    /// Another mix: with a candidate pool or without.
    pub layers: Option<String>,
    /// The pool's size.
    #[serde(default)]
    pub model: Table,
    /// The variants that it concerns (default: all).
    pub of: Option<Vec<String>>,
}

/// The keys of a model that can change while its weights stay: none of them has a weight of its own.
const FREE: [&str; 4] = ["layers", "pool", "topk", "quantization"];

/// Refuses two models that cannot have the same weights.
pub(super) fn same_weights(one: &ModelConfig, other: &ModelConfig) -> Result<(), String> {
    let modes = |plan: &LayerPlan| plan.layers().iter().map(|layer| (layer.mode, layer.ratio)).collect::<Vec<_>>();
    if modes(&one.layers) != modes(&other.layers) {
        return Err(format!(
            "the mixes `{}` and `{}` differ in more than their pools, so their weights are not the same",
            one.layers, other.layers
        ));
    }
    let free = ModelConfig {
        layers: one.layers.clone(),
        pool: one.pool,
        topk: one.topk,
        quantization: one.quantization,
        ..other.clone()
    };
    if free == *one { Ok(()) } else { Err(format!("only {} may differ, the weights stay the same", FREE.join(", "))) }
}

/// The model that an evaluation measures.
pub(super) fn evaluated(evaluation: &EvaluationFile, trained: &ModelConfig) -> Result<ModelConfig, String> {
    let mut changes = evaluation.model.clone();
    if let Some(layers) = &evaluation.layers {
        if changes.contains_key("layers") {
            return Err("has `layers` and `model.layers`; keep one".into());
        }
        changes.insert("layers".into(), Value::String(layers.clone()));
    }
    changed(&changes, trained)
}

/// A model with some keys changed, whose weights are those of `trained`.
///
/// # Errors
/// When a key is unknown, the model is wrong, or its weights would be others.
pub fn changed(changes: &Table, trained: &ModelConfig) -> Result<ModelConfig, String> {
    let mut whole = Table::try_from(trained).map_err(|error| error.to_string())?;
    if changes.contains_key("layers") && !changes.contains_key("pool") {
        // A mix without a pool has no size of one; one with a pool keeps the size that was trained, if there is one.
        let text = changes["layers"].as_str().unwrap_or_default();
        let plan: LayerPlan = text.parse().map_err(|error: csa2_model::mix::MixError| error.to_string())?;
        if !plan.has_pool() {
            whole.remove("pool");
        }
    }
    merge(&mut whole, changes.clone());
    let model: ModelConfig =
        Value::Table(whole).try_into().map_err(|error: toml::de::Error| super::with_key(&error))?;
    model.validate().map_err(|error| error.to_string())?;
    same_weights(trained, &model)?;
    Ok(model)
}

/// Checks what variants and evaluations name.
pub(super) fn check_names(variants: &[VariantFile], evaluations: &[EvaluationFile]) -> Result<(), String> {
    for (place, variant) in variants.iter().enumerate() {
        let Some(from) = &variant.from else { continue };
        if !variants[..place].iter().any(|earlier| earlier.name == *from) {
            return Err(format!(
                "variant \"{}\" starts from \"{from}\", which is no variant before it; name one that stands above it",
                variant.name
            ));
        }
    }
    for (place, evaluation) in evaluations.iter().enumerate() {
        let name = &evaluation.name;
        if name.is_empty() || name == TRAINED {
            return Err(format!("an evaluation's name is {name:?}; it must be another than \"\" and {TRAINED:?}"));
        }
        if evaluations[..place].iter().any(|earlier| earlier.name == *name) {
            return Err(format!("has two evaluations named {name:?}; rename one"));
        }
        for of in evaluation.of.iter().flatten() {
            if !variants.iter().any(|variant| variant.name == *of) {
                return Err(format!("evaluation {name:?} is of {of:?}, which is no variant"));
            }
        }
    }
    Ok(())
}

/// The column of the model as it was trained.
pub const TRAINED: &str = "as trained";
