//! Checkpoints of a run: weights and optimizer state as safetensors, and a `state.json` that names them.
//!
//! `state.json` is replaced last and in one step, so that a killed writer leaves the previous checkpoint whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use csa2_model::checkpoint::{self, CheckpointError, Weight};
use csa2_model::config::ModelConfig;
use csa2_model::model::Model;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::config::TrainConfig;
use crate::files::{self, FileError};
use crate::optimizer::Optimizer;

const SCHEMA: u32 = 1;

/// Identifies a model's configuration: what weights were trained as, the candidate pool and number formats included.
pub fn model_hash(config: &ModelConfig) -> String {
    // Keys of a JSON value are sorted, so the text does not depend on the order of a file. A configuration has a JSON form.
    let text = serde_json::to_value(config).map(|value| value.to_string()).unwrap_or_default();
    Sha256::digest(text).iter().take(8).fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

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
    /// Hash of the model's configuration, candidate pool included ([`model_hash`]); checkpoints of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_hash: Option<String>,
    /// File of the weights.
    pub model: String,
    /// File of the optimizer's state; none where the weights were not trained here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<String>,
}

/// Why a checkpoint cannot be written or read.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A file cannot be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The weights cannot be brought into a file.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
    /// A checkpoint is there, but cannot be used.
    #[error("{error}\nThis checkpoint cannot be used; remove {} to train this run from its start", run.display())]
    Damaged {
        /// What is wrong; it names the file.
        error: Box<dyn std::error::Error + Send + Sync>,
        /// The run's folder.
        run: PathBuf,
    },
}

/// The checkpoint folder of a run.
#[derive(Clone, Debug)]
pub struct Store {
    run: PathBuf,
    folder: PathBuf,
}

impl Store {
    /// The checkpoints of the run in `run`.
    pub fn new(run: &Path) -> Self {
        Self { run: run.to_path_buf(), folder: run.join("checkpoint") }
    }

    fn damaged(&self, error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError::Damaged { error: Box::new(error), run: self.run.clone() }
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
        let bytes = files::read(&path).map_err(|error| self.damaged(error))?;
        let wrong = |message: String| self.damaged(FileError::content(&path, &message));
        let state: State = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        if state.schema != SCHEMA {
            return Err(wrong(format!("is a checkpoint of form {}, this version reads form {SCHEMA}", state.schema)));
        }
        // The names are told by the step, so a file of another step or place was not meant.
        let (model, optimizer) = names(state.step);
        let found = state.optimizer.as_ref().unwrap_or(&optimizer);
        if (&state.model, found) != (&model, &optimizer) {
            let (first, step) = (&state.model, state.step);
            return Err(wrong(format!("names {first} and {found}, where step {step} has {model} and {optimizer}")));
        }
        Ok(Some(state))
    }

    /// Refuses a state that a run of `steps` steps cannot have left.
    ///
    /// # Errors
    /// When the state is of a later step.
    pub fn check_step(&self, state: &State, steps: u64) -> Result<(), StoreError> {
        if state.step <= steps {
            return Ok(());
        }
        let message = format!("is of step {}, but the whole run has {steps} steps", state.step);
        Err(self.damaged(FileError::content(&self.state_path(), &message)))
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
        config: &ModelConfig,
    ) -> Result<(), StoreError> {
        files::make_folder(&self.folder)?;
        let ((model_file, optimizer_file), config_hash) = (names(step), config_hash.into());
        let weights = checkpoint::encode(&checkpoint::weights(model)?)?;
        files::write_atomic(&self.folder.join(&model_file), &weights)?;
        files::write_atomic(&self.folder.join(&optimizer_file), &checkpoint::encode(&optimizer.state()?)?)?;
        let (model, optimizer) = (model_file, Some(optimizer_file));
        let model_hash = Some(model_hash(config));
        let state = State { schema: SCHEMA, step, metrics_bytes, seconds, config_hash, model_hash, model, optimizer };
        self.save_state(&state)?;
        self.remove_others(&state);
        Ok(())
    }

    /// Writes a first checkpoint, of weights that were not trained here: `write` fills their file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save_weights<E: From<FileError>>(
        &self,
        config_hash: &str,
        config: &ModelConfig,
        write: impl FnOnce(&Path, BufWriter<File>) -> Result<BufWriter<File>, E>,
    ) -> Result<(), E> {
        files::make_folder(&self.folder)?;
        let (model, _) = names(0);
        files::write_large(&self.folder.join(&model), write)?;
        let config_hash = config_hash.into();
        let (model_hash, optimizer) = (Some(model_hash(config)), None);
        let (step, metrics_bytes, seconds) = (0, 0, 0.0);
        let state = State { schema: SCHEMA, step, metrics_bytes, seconds, config_hash, model_hash, model, optimizer };
        Ok(self.save_state(&state)?)
    }

    fn save_state(&self, state: &State) -> Result<(), FileError> {
        let path = self.state_path();
        let text = serde_json::to_vec_pretty(state).map_err(|error| FileError::content(&path, &error))?;
        files::write_atomic(&path, &text)
    }

    /// Files of earlier checkpoints are only in the way; one that cannot be removed does no harm.
    fn remove_others(&self, state: &State) {
        files::remove_partial(&self.folder);
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let named = name == state.model || Some(&name) == state.optimizer.as_ref();
            if name.ends_with(".safetensors") && !named {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// The file of the weights that `state` names.
    pub fn weights_path(&self, state: &State) -> PathBuf {
        self.folder.join(&state.model)
    }

    /// The weights that `state` names, set into `model`.
    ///
    /// # Errors
    /// When they cannot be read or do not fit.
    pub fn load_model(&self, state: &State, model: Model) -> Result<Model, StoreError> {
        let (weights, name) = self.read(&state.model)?;
        checkpoint::load(model, weights, &name).map_err(|error| self.damaged(error))
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
        let none = || self.damaged(FileError::content(&self.state_path(), &"names no state of an optimizer"));
        let (arrays, name) = self.read(state.optimizer.as_ref().ok_or_else(none)?)?;
        Optimizer::new(config).restore(arrays, &name, device).map_err(|error| self.damaged(error))
    }

    /// The arrays in a file of the checkpoint, and the file's name for messages.
    fn read(&self, file: &str) -> Result<(BTreeMap<String, Weight>, String), StoreError> {
        let path = self.folder.join(file);
        let name = path.display().to_string();
        let bytes = files::read(&path).map_err(|error| self.damaged(error))?;
        Ok((checkpoint::decode(&bytes, &name).map_err(|error| self.damaged(error))?, name))
    }
}

/// The files of the checkpoint of step `step`: weights and optimizer.
fn names(step: u64) -> (String, String) {
    (format!("model-{step:08}.safetensors"), format!("optimizer-{step:08}.safetensors"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(change: impl FnOnce(&mut State)) -> State {
        let (model, optimizer) = names(20);
        let (config_hash, optimizer) = ("abc".into(), Some(optimizer));
        let (step, metrics_bytes, seconds, model_hash) = (20, 7, 1.5, None);
        let mut state =
            State { schema: SCHEMA, step, metrics_bytes, seconds, config_hash, model_hash, model, optimizer };
        change(&mut state);
        state
    }

    /// What reading `text` as a run's `state.json` gives.
    fn read(text: &[u8]) -> Result<Option<State>, String> {
        let run = tempfile::tempdir().unwrap();
        let store = Store::new(run.path());
        fs::create_dir(&store.folder).unwrap();
        fs::write(store.state_path(), text).unwrap();
        store.state().map_err(|error| error.to_string().replace(&run.path().display().to_string(), "RUN"))
    }

    #[test]
    fn a_state_is_read_back_and_none_is_none() {
        let run = tempfile::tempdir().unwrap();
        assert!(Store::new(run.path()).state().unwrap().is_none());
        let whole = state(|_| ());
        assert_eq!(read(&serde_json::to_vec(&whole).unwrap()), Ok(Some(whole)));
    }

    #[test]
    fn a_damaged_state_is_named_with_a_way_out() {
        let message = |state: &State| read(&serde_json::to_vec(state).unwrap()).unwrap_err();
        let way_out = "\nThis checkpoint cannot be used; remove RUN to train this run from its start";
        for (found, start) in [
            (read(b"garbage").unwrap_err(), "RUN/checkpoint/state.json: expected value at line 1"),
            (read(b"").unwrap_err(), "RUN/checkpoint/state.json: EOF"),
            (message(&state(|s| s.schema = 9)), "RUN/checkpoint/state.json: is a checkpoint of form 9"),
            (message(&state(|s| s.step = 21)), "RUN/checkpoint/state.json: names model-00000020.safetensors and"),
            (
                message(&state(|s| s.model = "../../../secret".into())),
                "RUN/checkpoint/state.json: names ../../../secret",
            ),
        ] {
            assert!(found.starts_with(start) && found.ends_with(way_out), "{found}");
        }
    }

    #[test]
    fn a_step_beyond_the_end_is_refused() {
        let store = Store::new(Path::new("run"));
        assert!(store.check_step(&state(|_| ()), 20).is_ok());
        let message = store.check_step(&state(|_| ()), 19).unwrap_err().to_string();
        assert!(message.contains("is of step 20, but the whole run has 19 steps"), "{message}");
    }
}
