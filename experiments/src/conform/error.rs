//! What can be wrong with a folder of golden cases, and with one case.

use std::path::PathBuf;

use burn::backend::ExecutionError;
use burn::tensor::TensorReadError;
use csa2_model::checkpoint::CheckpointError;
use csa2_model::config::ConfigError;
use csa2_model::model::BuildError;
use thiserror::Error;

use crate::geometry::GeometryError;

/// Why no case can be run.
#[derive(Debug, Error)]
pub enum ConformError {
    /// The folder cannot be listed.
    #[error("{}: {error}; give a folder with golden cases", folder.display())]
    Folder {
        /// The folder asked for.
        folder: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The folder holds no case.
    #[error("{}: no golden case there; a case is NAME.safetensors beside NAME.json", folder.display())]
    Empty {
        /// The folder asked for.
        folder: PathBuf,
    },
    /// A filter that leaves nothing.
    #[error("--only {prefix}: no case has a name that begins so; there are: {there}")]
    Only {
        /// The prefix asked for.
        prefix: String,
        /// The names of all cases.
        there: String,
    },
}

/// Why a case cannot be compared.
#[derive(Debug, Error)]
pub enum CaseError {
    /// A file that cannot be read.
    #[error("{file}: {error}")]
    File {
        /// Its name.
        file: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// A file that is not what its name says.
    #[error("{file}: {wrong}")]
    Format {
        /// Its name.
        file: String,
        /// What is wrong with it.
        wrong: String,
    },
    /// A tensor that the case should have.
    #[error("{name}: missing; {needed}")]
    Missing {
        /// The tensor.
        name: String,
        /// What it is needed as.
        needed: String,
    },
    /// A tensor of another type.
    #[error("{name}: stored as {found}, expected {expected}")]
    Type {
        /// The tensor.
        name: String,
        /// The type found.
        found: String,
        /// The type that would be right.
        expected: &'static str,
    },
    /// A tensor of another shape.
    #[error("{name}: has shape {found:?}, expected {expected}")]
    Shape {
        /// The tensor.
        name: String,
        /// The shape found.
        found: Vec<usize>,
        /// What would be right.
        expected: String,
    },
    /// A number that cannot be.
    #[error("{name}{place:?} is {found}; {right}")]
    Value {
        /// The tensor.
        name: String,
        /// Where in the tensor.
        place: Vec<usize>,
        /// The number.
        found: i64,
        /// What would be right.
        right: String,
    },
    /// A key of the JSON file.
    #[error("key `{key}` {wrong}")]
    Key {
        /// The key, with its path.
        key: String,
        /// What is wrong with it, and what would be right.
        wrong: String,
    },
    /// The model that the case names cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model that the case names cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The weights do not fit the model.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(#[from] ExecutionError),
    /// The device cannot be read.
    #[error("the device failed: {0}")]
    Read(#[from] TensorReadError),
    /// A question of geometry that has no answer.
    #[error("{what}: {error}")]
    Geometry {
        /// The tensor that it was asked of.
        what: String,
        /// Why.
        error: GeometryError,
    },
    /// A question of geometry that a solver left open.
    #[error("{what}: undecided: {reason}")]
    Undecided {
        /// The tensor that it was asked of, with the place.
        what: String,
        /// What was missing.
        reason: String,
    },
    /// A name that no family of cases has.
    #[error("no family of cases has a name like this; there are: {there}")]
    Unknown {
        /// The prefixes of all families.
        there: String,
    },
}

impl CaseError {
    /// A key that is wrong.
    pub fn key(key: impl Into<String>, wrong: impl Into<String>) -> Self {
        Self::Key { key: key.into(), wrong: wrong.into() }
    }

    /// What geometry says of the tensor `what`.
    pub fn geometry(what: impl Into<String>) -> impl FnOnce(GeometryError) -> Self {
        let what = what.into();
        move |error| Self::Geometry { what, error }
    }
}
