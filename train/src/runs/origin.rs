//! `config.toml` of a run whose weights were made elsewhere.

use csa2_model::config::ModelConfig;
use serde::{Deserialize, Serialize};

/// The configuration of an imported run. Unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportedConfig {
    /// The model.
    pub model: ModelConfig,
    /// Where its weights come from.
    pub origin: Origin,
}

/// Where weights come from. Unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// How they came.
    pub kind: OriginKind,
    /// The folder, as it was given.
    pub from: String,
    /// SHA-256 of the folder's `config.json`, in hexadecimal.
    pub config_sha256: String,
    /// Tensors taken.
    pub tensors: usize,
    /// Parts of the folder's model that were left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// The layers whose attention was taken and nothing else; none where the whole model was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_layers: Option<Vec<usize>>,
}

/// How weights came into a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OriginKind {
    /// From a folder in Hugging Face's form.
    Imported,
}
