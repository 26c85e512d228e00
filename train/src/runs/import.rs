//! From a folder in Hugging Face's form to a run.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufWriter;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use csa2_model::checkpoint::{
    Amount, Archive, CheckpointError, FileWriter, Naming, Options, Selection, Shards, Skipped, attention_prefix,
    read_limited,
};
use csa2_model::config::{ConfigError, HfConfig, ModelConfig, Part, QuantizationConfig};
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{ImportedConfig, Origin, OriginKind};
use crate::checkpoints::Store;
use crate::files::{FileError, write_atomic};
use crate::staging::{Staging, StagingError};

/// The longest `config.json`, in bytes.
const LONGEST_CONFIG: u64 = 10_000_000;

/// What is imported.
#[derive(Clone, Copy, Debug)]
pub struct ImportOptions<'a> {
    /// Whether parts that csa2 does not have are left out instead of refused.
    pub skip_unsupported: bool,
    /// The layers whose attention is taken and nothing else; none for the whole model.
    pub attention_layers: Option<&'a [usize]>,
    /// The number formats of cached vectors, where `config.json` does not say them.
    pub formats: Option<QuantizationConfig>,
}

/// What was imported.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The model.
    pub model: ModelConfig,
    /// How the folder names its tensors.
    pub naming: Naming,
    /// How many files it has.
    pub shards: Shards,
    /// How much was stored in which way.
    pub storage: BTreeMap<String, Amount>,
    /// Tensors that were left out.
    pub skipped: BTreeMap<Part, Skipped>,
    /// Parts that `config.json` asks for and that were left out, each with a key that does.
    pub unsupported: BTreeMap<Part, String>,
    /// Whether `config.json` says how cached vectors are quantized.
    pub says_quantization: bool,
    /// Tensors taken.
    pub tensors: usize,
    /// Bytes written for them.
    pub bytes: u64,
}

/// Why a folder cannot be imported.
#[derive(Debug, Error)]
pub enum ImportError {
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The run's folder cannot be made.
    #[error(transparent)]
    Staging(#[from] StagingError),
    /// The weights cannot be read or do not fit.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
    /// `config.json` cannot be used.
    #[error("{}: {message}", path.display())]
    Config {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A layer is asked for twice.
    #[error("layer {0} is asked for twice")]
    Twice(usize),
    /// It was asked to stop; nothing is left of it.
    #[error("interrupted; nothing was written")]
    Interrupted,
}

/// Makes the run `out` of the folder `from`. `progress` is told the bytes written and those to be written in all; when `stop` is
/// set, the import ends.
///
/// # Errors
/// When anything of the folder is missing, left over or does not fit; then nothing is written.
pub fn import(
    from: &Path,
    out: &Path,
    options: ImportOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Imported, ImportError> {
    let path = from.join("config.json");
    if from.is_dir() && !path.exists() {
        let message = "there is no such file; a folder in Hugging Face's form has one beside its weights".into();
        return Err(ImportError::Config { path, message });
    }
    let text = read_limited(&path, LONGEST_CONFIG)?;
    let wrong = |message: String| ImportError::Config { path: path.clone(), message };
    let value: Value = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    let hf = HfConfig::read(&value, options.skip_unsupported).map_err(|error: ConfigError| wrong(error.to_string()))?;
    let mut hf = hf;
    if let Some(formats) = options.formats {
        if hf.says_quantization && formats != hf.model.quantization {
            let message = "says other formats of cached vectors than are asked for; leave the argument away".to_owned();
            return Err(wrong(message));
        }
        hf.model.quantization = formats;
        hf.model.validate().map_err(|error| wrong(format!("with these formats of cached vectors: {error}")))?;
    }
    let layers = options.attention_layers.map(|layers| sorted(layers, &hf.model)).transpose()?;
    Staging::check(out)?;
    let reading = Options { block: hf.weight_block, skip_unsupported: options.skip_unsupported };
    let archive = match &layers {
        None => Archive::open(from)?,
        Some(layers) => {
            let prefixes: Vec<String> = layers.iter().map(|&layer| attention_prefix(layer)).collect();
            Archive::open_part(from, |name| prefixes.iter().any(|prefix| name.starts_with(prefix)))?
        }
    };
    let selection = match &layers {
        None => Selection::whole(&archive, &hf.model, reading)?,
        Some(layers) => Selection::attention(&archive, &hf.model, layers, reading)?,
    };
    let left_out: BTreeSet<Part> = selection.skipped().keys().chain(hf.unsupported.keys()).copied().collect();
    let config = ImportedConfig {
        model: hf.model,
        origin: Origin {
            kind: OriginKind::Imported,
            from: from.display().to_string(),
            config_sha256: hexadecimal(&Sha256::digest(&text)),
            tensors: selection.specs().count(),
            left_out: left_out.into_iter().map(|part| part.describe().to_string()).collect(),
            attention_layers: layers,
        },
    };
    let staging = Staging::begin(out)?;
    let text = write_config(staging.folder(), &config)?;
    let bytes = numbers(&selection) * 4;
    let hash = hexadecimal(&Sha256::digest(&text)[..8]);
    Store::new(staging.folder())
        .save_weights(&hash, &config.model, |path, out| write_weights(path, out, &selection, bytes, stop, progress))?;
    staging.finish()?;
    Ok(Imported {
        model: config.model,
        naming: archive.naming(),
        shards: archive.shards(),
        storage: selection.storage().clone(),
        skipped: selection.skipped().clone(),
        unsupported: hf.unsupported,
        says_quantization: hf.says_quantization,
        tensors: config.origin.tensors,
        bytes,
    })
}

/// The layers in order, each once and in the model.
fn sorted(layers: &[usize], model: &ModelConfig) -> Result<Vec<usize>, ImportError> {
    let mut sorted = layers.to_vec();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(ImportError::Twice(pair[0]));
    }
    match sorted.last() {
        Some(&layer) if layer >= model.layers.len() => {
            Err(CheckpointError::NoLayer { layer, layers: model.layers.len() }.into())
        }
        _ => Ok(sorted),
    }
}

fn write_config(folder: &Path, config: &ImportedConfig) -> Result<String, FileError> {
    let path = folder.join("config.toml");
    let text = toml::to_string(config).map_err(|error| FileError::content(&path, &error))?;
    let head = "# A model that was made elsewhere; see [origin].\n\n";
    write_atomic(&path, format!("{head}{text}").as_bytes())?;
    Ok(text)
}

fn numbers(selection: &Selection) -> u64 {
    selection.specs().map(|spec| spec.shape.iter().map(|&size| size as u64).product::<u64>()).sum()
}

/// Decodes and writes one tensor after the other.
fn write_weights(
    path: &Path,
    out: BufWriter<std::fs::File>,
    selection: &Selection,
    total: u64,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BufWriter<std::fs::File>, ImportError> {
    let writing = |source| FileError::writing(path, source);
    let tensors = selection.specs().map(|spec| (spec.name.as_str(), spec.shape.as_slice()));
    let mut writer = FileWriter::start(out, &[], tensors).map_err(writing)?;
    let mut written = 0;
    for place in 0..selection.specs().count() {
        if stop.load(Ordering::Relaxed) {
            return Err(ImportError::Interrupted);
        }
        let values = selection.decode(place)?;
        writer.put(&values).map_err(writing)?;
        written += 4 * values.len() as u64;
        progress(written, total);
    }
    Ok(writer.finish().map_err(writing)?)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
