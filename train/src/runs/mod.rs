//! A run's folder as later commands read it, however its weights came about.
//!
//! ```text
//! RUN/config.toml     [task], [model] and [train] of a run that was trained; [model] and [origin] of one that was imported
//! RUN/checkpoint/     state.json and the weights that it names
//! ```

mod error;
mod export;
mod import;
mod origin;
mod weights;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use csa2_model::attention::Attention;
use csa2_model::checkpoint::{self, Archive, Options, Selection, Weight, attention_prefix};
use csa2_model::config::ModelConfig;
use csa2_model::cost::Cost;
use csa2_model::model::{self, BuildError, Model};
use sha2::{Digest, Sha256};

use crate::checkpoints::{State, Store, StoreError, model_hash};
use crate::config::RunConfig;
use crate::files;
use crate::tasks::{Auxiliary, TaskConfig};

pub use error::RunError;
pub use export::{ExportError, Exported, export};
pub use import::{ImportError, ImportOptions, Imported, import};
pub use origin::{ImportedConfig, Origin, OriginKind};
pub use weights::{ReuseError, RunWeights};

/// A run on disk.
#[derive(Debug)]
pub struct Run {
    folder: PathBuf,
    model: ModelConfig,
    /// The task that it was trained on.
    task: Option<TaskConfig>,
    /// Where its weights come from, where they were not trained here.
    origin: Option<Origin>,
    state: State,
}

impl Run {
    /// Reads the configuration and what the last checkpoint says.
    ///
    /// # Errors
    /// When the folder holds no run, none with weights yet, or a damaged one.
    pub fn open(folder: &Path) -> Result<Self, RunError> {
        let path = folder.join("config.toml");
        if !path.exists() {
            return Err(RunError::not_a_run(folder));
        }
        let content = |message: String| RunError::Config { path: path.clone(), message };
        let text = String::from_utf8(files::read(&path)?).map_err(|error| content(format!("is no text: {error}")))?;
        let wrong = |error: toml::de::Error| content(error.to_string().trim_end().to_string());
        let table: toml::Table = toml::from_str(&text).map_err(wrong)?;
        let (mut model, task, origin, train) = if table.contains_key("origin") {
            let ImportedConfig { model, origin } = toml::from_str(&text).map_err(wrong)?;
            (model, None, Some(origin), None)
        } else {
            let RunConfig { task, model, train, .. } = toml::from_str(&text).map_err(wrong)?;
            (model, Some(task), None, Some(train))
        };
        model.validate().map_err(|error| content(format!("model: {error}")))?;
        let state = Store::new(folder).state().map_err(|error| RunError::store(error, origin.as_ref()))?;
        let state = state.ok_or_else(|| RunError::NoWeights { folder: folder.to_path_buf() })?;
        let hash = model_hash(&model);
        if let Some(trained) = state.model_hash.as_ref().filter(|trained| **trained != hash) {
            return Err(content(format!(
                "its [model] is another (hash {hash}) than the one of the checkpoint (hash {trained}), so the file was changed; put it back. \
                 To measure the weights with another candidate pool, use `csa2 eval --pool`"
            )));
        }
        // While a pool shrinks, the weights are those of a model with the pool of the last step.
        if let (Some(pool), Some(task), Some(train)) = (&mut model.pool, &task, &train) {
            pool.blocks = train.pool_blocks_after(pool.blocks, state.step, train.steps(task.seq_len()));
        }
        Ok(Self { folder: folder.to_path_buf(), model, task, origin, state })
    }

    /// The run's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The model's configuration. Of a run that is not finished and whose candidate pool shrinks, with the pool of its last step.
    pub fn model_config(&self) -> &ModelConfig {
        &self.model
    }

    /// The task that it was trained on; none where it was not trained here.
    pub fn task(&self) -> Option<&TaskConfig> {
        self.task.as_ref()
    }

    /// The auxiliary head that its task trained.
    pub fn auxiliary(&self) -> Option<Auxiliary> {
        self.task.as_ref().and_then(TaskConfig::auxiliary)
    }

    /// Where the weights come from, where they were not trained here.
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// The layers whose attention is all that the run holds; none where it holds a whole model.
    pub fn held_layers(&self) -> Option<&[usize]> {
        self.origin.as_ref()?.attention_layers.as_deref()
    }

    /// SHA-256 of the file of weights, in hexadecimal.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn weights_file_digest(&self) -> Result<String, RunError> {
        let path = self.weights_path();
        let mut hash = Sha256::new();
        let failed = |source| self.damaged(files::FileError::reading(&path, source));
        let mut file = std::fs::File::open(&path).map_err(failed)?;
        let mut part = vec![0; 1 << 20];
        loop {
            match file.read(&mut part).map_err(failed)? {
                0 => break,
                count => hash.update(&part[..count]),
            }
        }
        Ok(hash.finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")))
    }

    /// What the last checkpoint says.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The whole model with its weights.
    ///
    /// # Errors
    /// When the run holds single layers alone, or its weights cannot be read or do not fit.
    pub fn load(&self, device: &Device) -> Result<Model, RunError> {
        if let Some(layers) = self.held_layers() {
            return Err(RunError::LayersAlone { folder: self.folder.clone(), layers: layers.to_vec() });
        }
        self.check_size()?;
        let model = Model::new(&self.model, self.auxiliary().map(|auxiliary| auxiliary.after_layer), device);
        let model = model.map_err(|error| self.build(&error))?;
        Store::new(&self.folder)
            .load_model(&self.state, model)
            .map_err(|error| RunError::store(error, self.origin.as_ref()))
    }

    /// One attention layer with its weights; nothing else is read.
    ///
    /// # Errors
    /// When the run does not hold that layer, or its weights cannot be read or do not fit.
    pub fn attention(&self, layer: usize, device: &Device) -> Result<Attention, RunError> {
        if let Some(layers) = self.held_layers().filter(|layers| !layers.contains(&layer)) {
            return Err(RunError::OtherLayers { folder: self.folder.clone(), layer, layers: layers.to_vec() });
        }
        model::check(&self.model, None).map_err(|error| self.build(&error))?;
        let archive = Archive::open_single(&self.weights_path()).map_err(|error| self.damaged(error))?;
        let selection = Selection::attention(&archive, &self.model, &[layer], Options::default());
        let selection = selection.map_err(|error| self.damaged(error))?;
        let prefix = attention_prefix(layer);
        let mut weights = BTreeMap::new();
        for (place, spec) in selection.specs().enumerate() {
            let values = selection.decode(place).map_err(|error| self.damaged(error))?;
            let name = spec.name.strip_prefix(&prefix).unwrap_or(&spec.name);
            weights.insert(name.to_string(), Weight { dims: spec.shape.clone(), values });
        }
        let planned = &self.model.layers.layers()[layer];
        let name = self.weights_path().display().to_string();
        checkpoint::load(Attention::new(&self.model, planned, device), weights, &name)
            .map_err(|error| self.damaged(error))
    }

    fn weights_path(&self) -> PathBuf {
        Store::new(&self.folder).weights_path(&self.state)
    }

    /// Finds a configuration that is far too large for its weights before a model of that size is built.
    fn check_size(&self) -> Result<(), RunError> {
        let parameters = match Cost::of(&self.model) {
            Ok(cost) => cost.parameters().total(),
            Err(error) => return Err(self.build(&error.into())),
        };
        let path = self.weights_path();
        let found =
            std::fs::metadata(&path).map_err(|source| self.damaged(files::FileError::reading(&path, source)))?;
        if u128::from(found.len()) >= 4 * parameters {
            return Ok(());
        }
        let message = format!(
            "has {} bytes, but the {parameters} numbers of the model that config.toml describes take 4 each; if that file was changed, put it back",
            found.len()
        );
        Err(self.damaged(files::FileError::content(&path, &message)))
    }

    fn build(&self, error: &BuildError) -> RunError {
        RunError::Config { path: self.folder.join("config.toml"), message: format!("model: {error}") }
    }

    fn damaged(&self, error: impl std::error::Error + Send + Sync + 'static) -> RunError {
        let error = StoreError::Damaged { error: Box::new(error), run: self.folder.clone() };
        RunError::store(error, self.origin.as_ref())
    }
}
