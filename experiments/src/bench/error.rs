//! What keeps a measurement from being made.

use burn::backend::ExecutionError;
use burn::tensor::TensorReadError;
use csa2_infer::SessionError;
use thiserror::Error;

use crate::ablation::AblationError;
use crate::geometry::GeometryError;

/// Why something cannot be measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A size that cannot be.
    #[error("--{flag} {value}: {right}")]
    Size {
        /// The flag, without its dashes.
        flag: String,
        /// The value found.
        value: usize,
        /// What would be right.
        right: &'static str,
    },
    /// A shape larger than this machine.
    #[error("{shape}: its inputs, outputs and gradients alone take {need}, and {free}; make it smaller")]
    TooLarge {
        /// The shape.
        shape: String,
        /// Bytes needed, for people.
        need: String,
        /// What there is, for people.
        free: String,
    },
    /// A case that is not in the table.
    #[error("{operator} has no case \"{name}\"; there are: {there}")]
    Case {
        /// The operator.
        operator: &'static str,
        /// The name found.
        name: String,
        /// All names.
        there: String,
    },
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(#[from] ExecutionError),
    /// The device cannot be read.
    #[error("the device failed: {0}")]
    Read(#[from] TensorReadError),
    /// The training step's configuration is wrong.
    #[error(transparent)]
    Config(#[from] AblationError),
    /// The training step's model or task is wrong.
    #[error("{0}")]
    Step(String),
    /// A question of geometry that has no answer.
    #[error("geometry: {0}")]
    Geometry(#[from] GeometryError),
    /// An answer of geometry that is not what it must be.
    #[error("geometry: {0}")]
    Answer(String),
    /// Decoding cannot be measured.
    #[error("{0}")]
    Decode(String),
    /// A session refused.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Caches cannot be saved or loaded.
    #[error(transparent)]
    Caches(#[from] csa2_infer::FileError),
    /// It was time to stop.
    #[error("interrupted")]
    Interrupted,
    /// The process that measures memory failed.
    #[error("the process that measures memory: {0}")]
    Peak(String),
}
