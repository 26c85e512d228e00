//! Checkpoints of a run: weights and optimizer state as safetensors, and a `state.json` that names them.
//!
//! `state.json` is replaced last and in one step, so that a killed writer leaves the previous checkpoint whole.

use std::fs;
use std::path::{Path, PathBuf};

use csa2_model::checkpoint::{self, CheckpointError};
use csa2_model::model::Model;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::TrainConfig;
use crate::files::{self, FileError};
use crate::optimizer::Optimizer;

const SCHEMA: u32 = 1;

/// `checkpoint/state.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Version of this file's form.
    schema: u32,
    /// Steps taken.
    pub step: u64,
    /// Length of `metrics.jsonl` at that step, in bytes.
    pub metrics_bytes: u64,
    /// Seconds spent training and evaluating so far.
    pub seconds: f64,
    /// Hash of the run's resolved configuration.
    pub config_hash: String,
    /// File of the weights.
    pub model: String,
    /// File of the optimizer's state.
    pub optimizer: String,
}

/// Why a checkpoint cannot be written or read.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A file cannot be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The weights do not fit.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
}

/// The checkpoint folder of a run.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The checkpoints of the run in `run`.
    pub fn new(run: &Path) -> Self {
        Self { folder: run.join("checkpoint") }
    }

    /// Where `state.json` is.
    pub fn state_path(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    /// What the last checkpoint says; none if there is none.
    ///
    /// # Errors
    /// When there is one that cannot be read.
    pub fn state(&self) -> Result<Option<State>, StoreError> {
        let path = self.state_path();
        if !path.exists() {
            return Ok(None);
        }
        let state: State =
            serde_json::from_slice(&files::read(&path)?).map_err(|error| FileError::content(&path, error))?;
        if state.schema != SCHEMA {
            let message = format!("is a checkpoint of form {}, this version reads form {SCHEMA}", state.schema);
            return Err(FileError::content(&path, message).into());
        }
        Ok(Some(state))
    }

    /// Writes a checkpoint and removes the one before.
    ///
    /// # Errors
    /// When it cannot be written; the one before is then still whole.
    pub fn save(
        &self,
        model: &Model,
        optimizer: &Optimizer,
        step: u64,
        metrics_bytes: u64,
        seconds: f64,
        config_hash: &str,
    ) -> Result<(), StoreError> {
        files::make_folder(&self.folder)?;
        let state = State {
            schema: SCHEMA,
            step,
            metrics_bytes,
            seconds,
            config_hash: config_hash.into(),
            model: format!("model-{step:08}.safetensors"),
            optimizer: format!("optimizer-{step:08}.safetensors"),
        };
        let weights = checkpoint::encode(&checkpoint::weights(model)?)?;
        files::write_atomic(&self.folder.join(&state.model), &weights)?;
        files::write_atomic(&self.folder.join(&state.optimizer), &checkpoint::encode(&optimizer.state()?)?)?;
        let path = self.state_path();
        let text = serde_json::to_vec_pretty(&state).map_err(|error| FileError::content(&path, error))?;
        files::write_atomic(&path, &text)?;
        self.remove_others(&state);
        Ok(())
    }

    /// Files of earlier checkpoints are only in the way; one that cannot be removed does no harm.
    fn remove_others(&self, state: &State) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.ends_with(".safetensors") && name != state.model && name != state.optimizer {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// The weights that `state` names, set into `model`.
    ///
    /// # Errors
    /// When they cannot be read or do not fit.
    pub fn load_model(&self, state: &State, model: Model) -> Result<Model, StoreError> {
        let path = self.folder.join(&state.model);
        let name = path.display().to_string();
        Ok(checkpoint::load(model, checkpoint::decode(&files::read(&path)?, &name)?, &name)?)
    }

    /// The optimizer with the state that `state` names.
    ///
    /// # Errors
    /// When it cannot be read or is incomplete.
    pub fn load_optimizer(
        &self,
        state: &State,
        config: &TrainConfig,
        device: &burn::tensor::Device,
    ) -> Result<Optimizer, StoreError> {
        let path = self.folder.join(&state.optimizer);
        let name = path.display().to_string();
        let arrays = checkpoint::decode(&files::read(&path)?, &name)?;
        Ok(Optimizer::new(config).restore(arrays, &name, device)?)
    }
}
