//! Keys of parts that csa2 does not have.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::keys::{Keys, short};
use crate::config::{ConfigError, Part};

/// The parts that a configuration asks for, and how many draft layers it has.
pub(super) struct Unsupported {
    /// A key that asks for the part, with its value.
    pub(super) parts: BTreeMap<Part, String>,
    pub(super) draft_layers: usize,
}

impl Unsupported {
    /// Takes the keys of all such parts. Without a layer a part is not there, whatever its other keys say.
    pub(super) fn take(keys: &mut Keys) -> Result<Self, ConfigError> {
        let draft_layers = match keys.optional("num_nextn_predict_layers") {
            None => None,
            Some(_) => Some(keys.size("num_nextn_predict_layers")?),
        };
        let memory_layers = match keys.optional("engram_layer_ids") {
            None => None,
            Some(_) => Some(keys.sizes("engram_layer_ids")?),
        };
        let mut parts = BTreeMap::new();
        for (key, value) in keys.take_all(|key| Part::of_key(key).is_some()) {
            let absent = match Part::of_key(&key) {
                Some(Part::Draft) => draft_layers == Some(0),
                Some(Part::NgramMemory) => memory_layers.as_ref().is_some_and(Vec::is_empty),
                _ => value.is_null(),
            };
            if let Some(part) = Part::of_key(&key).filter(|_| !absent) {
                parts.insert(part, shown(&key, &value));
            }
        }
        // These say more than a size.
        if let Some(layers) = draft_layers.filter(|&layers| layers > 0) {
            parts.insert(Part::Draft, shown("num_nextn_predict_layers", &json!(layers)));
        }
        if let Some(layers) = memory_layers.filter(|layers| !layers.is_empty()) {
            parts.insert(Part::NgramMemory, shown("engram_layer_ids", &json!(layers)));
        }
        Ok(Self { parts, draft_layers: draft_layers.unwrap_or(0) })
    }

    /// Refuses a configuration that asks for any of them.
    pub(super) fn refuse(&self) -> Result<(), ConfigError> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let parts: Vec<String> = self.parts.iter().map(|(part, key)| format!("{} ({key})", part.describe())).collect();
        Err(ConfigError::HfUnsupported { parts: parts.join(", ") })
    }
}

fn shown(key: &str, value: &Value) -> String {
    format!("`{key}` = {}", short(value))
}
