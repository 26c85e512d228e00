//! A run's weights in models of other mixes: what a layer still has stays, what its new mode lacks is left out.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::Device;
use csa2_model::checkpoint::{self, CheckpointError, Weight, attention_tensors};
use csa2_model::config::ModelConfig;
use csa2_model::model::{BuildError, Model};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{Run, RunError};

/// The weights of a run, all of them finite.
#[derive(Clone, Debug)]
pub struct RunWeights {
    weights: BTreeMap<String, Weight>,
    model: ModelConfig,
    /// The layer behind which the auxiliary head reads.
    hint: Option<usize>,
    /// The file, for messages.
    name: String,
}

/// Why a model cannot have a run's weights.
#[derive(Debug, Error)]
pub enum ReuseError {
    /// The model cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// What the layers hold cannot be told.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model needs weights that the run does not have; nothing is made up for them.
    #[error("the mix `{mix}` needs weights that the run of `{run}` does not have: {}", missing.join(", "))]
    Missing {
        /// The mix asked for.
        mix: String,
        /// The run's.
        run: String,
        /// Names of weights.
        missing: Vec<String>,
    },
    /// The models differ in more than modes.
    #[error("the mix `{mix}` has {layers} layers, that of the run has {run}")]
    Layers {
        /// The mix asked for.
        mix: String,
        /// Its layers.
        layers: usize,
        /// The run's layers.
        run: usize,
    },
}

impl Run {
    /// All weights, read through the whole model.
    ///
    /// # Errors
    /// As [`load`](Self::load), or when a weight holds a number that is not finite.
    pub fn weights(&self, device: &Device) -> Result<RunWeights, RunError> {
        let model = self.load(device)?;
        let weights = checkpoint::weights(&model).map_err(|error| self.damaged(error))?;
        let path = self.weights_path();
        for (name, weight) in &weights {
            if let Some(at) = weight.values.iter().position(|value| !value.is_finite()) {
                let (value, count) = (weight.values[at], weight.values.len());
                let more = format!("weight `{name}`, number {} of {count}, is {value}; all must be finite", at + 1);
                return Err(RunError::NotFinite { path, message: more });
            }
        }
        let hint = self.auxiliary().map(|auxiliary| auxiliary.after_layer);
        Ok(RunWeights { weights, model: self.model.clone(), hint, name: path.display().to_string() })
    }
}

impl RunWeights {
    /// SHA-256 of all names, shapes and bits, in hexadecimal.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for (name, weight) in &self.weights {
            hash.update(name.as_bytes());
            for size in std::iter::once(weight.dims.len()).chain(weight.dims.iter().copied()) {
                hash.update((size as u64).to_le_bytes());
            }
            weight.values.iter().for_each(|value| hash.update(value.to_bits().to_le_bytes()));
        }
        hash.finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    /// The weights of `config`, a model that differs from the run's in its mix and what has no weights: those that its layers
    /// have keep the run's values, those that no layer has any more are left out.
    ///
    /// # Errors
    /// When `config` cannot be built, or has a weight that the run does not have.
    pub fn model(&self, config: &ModelConfig, device: &Device) -> Result<Model, ReuseError> {
        let dropped = self.dropped(config)?;
        let kept = self.weights.iter().filter(|(name, _)| !dropped.contains(*name));
        let kept: BTreeMap<String, Weight> = kept.map(|(name, weight)| (name.clone(), weight.clone())).collect();
        Ok(checkpoint::load(Model::new(config, self.hint, device)?, kept, &self.name)?)
    }

    /// Names of the run's weights that `config` has no place for.
    fn dropped(&self, config: &ModelConfig) -> Result<BTreeSet<String>, ReuseError> {
        let (mix, run) = (&config.layers, &self.model.layers);
        if mix.len() != run.len() {
            return Err(ReuseError::Layers { mix: mix.to_string(), layers: mix.len(), run: run.len() });
        }
        let (mut dropped, mut missing) = (BTreeSet::new(), Vec::new());
        for layer in 0..mix.len() {
            let names = |config: &ModelConfig| -> Result<BTreeSet<String>, CheckpointError> {
                Ok(attention_tensors(config, layer)?.into_iter().map(|spec| spec.name).collect())
            };
            let (old, new) = (names(&self.model)?, names(config)?);
            dropped.extend(old.difference(&new).cloned());
            missing.extend(new.difference(&old).cloned());
        }
        if missing.is_empty() {
            return Ok(dropped);
        }
        Err(ReuseError::Missing { mix: mix.to_string(), run: run.to_string(), missing })
    }
}
