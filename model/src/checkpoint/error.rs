//! What can be wrong with weights on disk.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::header::HeaderError;
use crate::config::ConfigError;

/// Why weights cannot be written or read.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The file is not a safetensors file, or is cut short.
    #[error("{source_name}: not a whole safetensors file: {error}")]
    Format {
        /// Where the bytes came from.
        source_name: String,
        /// What is wrong with them.
        error: HeaderError,
    },
    /// Numbers that cannot be brought into a file.
    #[error("weight {name}: {count} numbers do not fill the shape {dims:?}")]
    Encode {
        /// Name of the weight.
        name: String,
        /// Its numbers.
        count: usize,
        /// Its shape.
        dims: Vec<usize>,
    },
    /// Tensors are missing, left over or of another shape or type.
    #[error("{source_name} does not fit this model:{}", list(problems))]
    Mismatch {
        /// Where the bytes came from.
        source_name: String,
        /// One line a tensor.
        problems: Vec<String>,
    },
    /// A weight could not be read from the device.
    #[error("weight {name} could not be read from the device: {error}")]
    Device {
        /// Official name of the weight.
        name: String,
        /// What the backend says.
        error: String,
    },
    /// A file cannot be read.
    #[error("{}: cannot be read: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// A file or folder that is not what a checkpoint has at its place.
    #[error("{}: {message}", path.display())]
    Content {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A layer that the model does not have.
    #[error("there is no layer {layer}: the model has {layers} layers (0 to {})", layers - 1)]
    NoLayer {
        /// The layer asked for.
        layer: usize,
        /// How many layers there are.
        layers: usize,
    },
    /// The configuration does not describe a network whose weights could be listed.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl CheckpointError {
    pub(super) fn content(path: &Path, message: impl Into<String>) -> Self {
        Self::Content { path: path.to_path_buf(), message: message.into() }
    }

    pub(super) fn reading(path: &Path, error: std::io::Error) -> Self {
        Self::Read { path: path.to_path_buf(), error }
    }
}

fn list(problems: &[String]) -> String {
    const SHOWN: usize = 20;
    let mut lines: Vec<String> = problems.iter().take(SHOWN).cloned().collect();
    if problems.len() > SHOWN {
        lines.push(format!("and {} more", problems.len() - SHOWN));
    }
    lines.into_iter().flat_map(|line| ["\n  ".to_string(), line]).collect()
}
