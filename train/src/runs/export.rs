//! From a run to a folder in Hugging Face's form, with Transformers' names.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use csa2_model::checkpoint::{self, CheckpointError, FileWriter, INDEX, Naming, SINGLE, Weight};
use csa2_model::config::{ConfigError, FfnConfig, ModelConfig};
use serde_json::json;
use thiserror::Error;

use super::{Run, RunError};
use crate::files::{FileError, write_atomic, write_large};
use crate::staging::{Staging, StagingError};

/// What was exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Files of weights.
    pub files: usize,
    /// Tensors in them.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Weights of the run that have no place there, because the logits do not need them.
    pub left_out: Vec<String>,
}

/// Why a run cannot be exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The folder cannot be made.
    #[error(transparent)]
    Staging(#[from] StagingError),
    /// The run cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The weights cannot be read from the device.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
    /// The model has no Hugging Face form.
    #[error("{}: model: {error}", path.display())]
    Form {
        /// The run's `config.toml`.
        path: std::path::PathBuf,
        /// What that form cannot say.
        error: ConfigError,
    },
    /// It was asked to stop; nothing is left of it.
    #[error("interrupted; nothing was written")]
    Interrupted,
}

/// Makes the folder `out` of a run. A file of weights takes at most `max_shard` bytes of tensors, but where a single one takes
/// more. `progress` is told the bytes written and those to be written in all; when `stop` is set, the export ends.
///
/// # Errors
/// When the model has no Hugging Face form, or files fail; then nothing is written.
pub fn export(
    run: &Run,
    device: &Device,
    out: &Path,
    max_shard: u64,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Exported, ExportError> {
    let config = run.model_config();
    let form = |error| ExportError::Form { path: run.folder().join("config.toml"), error };
    let description = config.to_hf_file().map_err(form)?;
    Staging::check(out)?;
    let mut weights = checkpoint::weights(&run.load(device)?)?;
    let left_out: Vec<String> = weights.keys().filter(|name| is_auxiliary(name)).cloned().collect();
    weights.retain(|name, _| !is_auxiliary(name));
    add_image_bias(&mut weights, config);
    let weights: BTreeMap<String, Weight> =
        weights.into_iter().map(|(name, weight)| (Naming::Transformers.stored(&name), weight)).collect();

    let staging = Staging::begin(out)?;
    let folder = staging.folder();
    let mut text = serde_json::to_vec_pretty(&description).map_err(|error| FileError::content(folder, &error))?;
    text.push(b'\n');
    write_atomic(&folder.join("config.json"), &text)?;
    let shards = shards(&weights, max_shard);
    let bytes = weights.values().map(size).sum();
    let mut written = 0;
    for (file, names) in &shards {
        write_large(&folder.join(file), |path, out| {
            let writing = |source| FileError::writing(path, source);
            let tensors = names.iter().map(|&name| (name, weights[name].dims.as_slice()));
            // Transformers asks for the format.
            let mut writer = FileWriter::start(out, &[("format", "pt")], tensors).map_err(writing)?;
            for &name in names {
                if stop.load(Ordering::Relaxed) {
                    return Err(ExportError::Interrupted);
                }
                writer.put(&weights[name].values).map_err(writing)?;
                written += size(&weights[name]);
                progress(written, bytes);
            }
            Ok(writer.finish().map_err(writing)?)
        })?;
    }
    if shards.len() > 1 {
        write_index(&folder.join(INDEX), &shards, bytes)?;
    }
    staging.finish()?;
    Ok(Exported { files: shards.len(), tensors: weights.len(), bytes, left_out })
}

/// Whether a weight belongs to the head that only training needs.
fn is_auxiliary(name: &str) -> bool {
    name.starts_with("hint.")
}

/// Transformers has a routing bias of image tokens in every layer; without images it is zero.
fn add_image_bias(weights: &mut BTreeMap<String, Weight>, config: &ModelConfig) {
    let FfnConfig::Moe { experts, .. } = config.ffn else { return };
    for layer in 0..config.layers.len() {
        let bias = Weight { dims: vec![experts], values: vec![0.0; experts] };
        weights.insert(format!("layers.{layer}.ffn.gate.bias_vl"), bias);
    }
}

fn size(weight: &Weight) -> u64 {
    4 * weight.values.len() as u64
}

/// Which file holds which tensors, in the order of their names.
fn shards(weights: &BTreeMap<String, Weight>, max_shard: u64) -> Vec<(String, Vec<&str>)> {
    let mut groups: Vec<(u64, Vec<&str>)> = Vec::new();
    for (name, weight) in weights {
        match groups.last_mut() {
            Some((bytes, group)) if *bytes + size(weight) <= max_shard => {
                *bytes += size(weight);
                group.push(name);
            }
            _ => groups.push((size(weight), vec![name])),
        }
    }
    let count = groups.len();
    let file =
        |at: usize| if count == 1 { SINGLE.into() } else { format!("model-{:05}-of-{count:05}.safetensors", at + 1) };
    groups.into_iter().enumerate().map(|(at, (_, group))| (file(at), group)).collect()
}

fn write_index(path: &Path, shards: &[(String, Vec<&str>)], bytes: u64) -> Result<(), FileError> {
    let held = shards.iter().flat_map(|(file, names)| names.iter().map(move |&name| (name, file.as_str())));
    let map: BTreeMap<&str, &str> = held.collect();
    let index = json!({"metadata": {"total_size": bytes}, "weight_map": map});
    let mut text = serde_json::to_vec_pretty(&index).map_err(|error| FileError::content(path, &error))?;
    text.push(b'\n');
    write_atomic(path, &text)
}
