//! Why a run cannot be probed.

use std::path::PathBuf;

use burn::tensor::TensorReadError;
use csa2_model::mix::Mode;
use csa2_train::files::FileError;
use csa2_train::recall::MOST_PAIRS;
use csa2_train::runs::{ReuseError, RunError};
use thiserror::Error;

use crate::folders::FolderError;
use crate::geometry::GeometryError;
use crate::results::ResultsError;
use crate::subject::SubjectError;

/// Why a run cannot be probed.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The run cannot be measured.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The twin cannot be used.
    #[error("--twin: {0}")]
    Twin(RunError),
    /// The twin has other shapes, or is no twin.
    #[error("--twin {twin}: {message}")]
    Unlike {
        /// The twin's folder.
        twin: String,
        /// What is unlike.
        message: String,
    },
    /// The folder for the results cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The model cannot be built.
    #[error(transparent)]
    Weights(#[from] ReuseError),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(#[from] TensorReadError),
    /// No layer selects.
    #[error(
        "{run}: no layer of the mix `{mix}` reads selected entries (full, reindex, reuse, stale), so there is no address and no content \
         to probe"
    )]
    NoSelection {
        /// The run's folder.
        run: String,
        /// Its mix.
        mix: String,
    },
    /// More sequences than there are.
    #[error("--sequences {asked}: {of} has {there}; ask for at most as many")]
    TooMany {
        /// Sequences asked for.
        asked: usize,
        /// Of what.
        of: String,
        /// Sequences there are.
        there: usize,
    },
    /// The sequences are too long.
    #[error(
        "{run}: sequences of {seq} tokens have {pairs} pairs of a token and an entry, and at most {MOST_PAIRS} are probed; give {right}"
    )]
    TooLong {
        /// The run's folder.
        run: String,
        /// Tokens of a sequence.
        seq: usize,
        /// Pairs.
        pairs: usize,
        /// How to shorten them.
        right: &'static str,
    },
    /// A held layer reads what is not there.
    #[error(
        "{run}: holds layer {layer} ({mode}), but not layer {source_layer}, whose {what} it reads; import the two together, as in \
         `--layers {source_layer},{layer} --attention-only`"
    )]
    Sourceless {
        /// The run's folder.
        run: String,
        /// The layer.
        layer: usize,
        /// Its mode.
        mode: Mode,
        /// The layer below that makes it.
        source_layer: usize,
        /// What it reads.
        what: &'static str,
    },
    /// An argument that is of no use for this run.
    #[error("{argument}: {why}")]
    Argument {
        /// The argument.
        argument: &'static str,
        /// Why not.
        why: String,
    },
    /// The inputs' file is not what it should be.
    #[error("--inputs {}: {message}", path.display())]
    Inputs {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// Numbers that geometry refuses.
    #[error("{run}: layer {layer} ({mode}): {error}; the weights are finite, so they are far too large")]
    Geometry {
        /// The run's folder.
        run: String,
        /// The layer.
        layer: usize,
        /// Its mode.
        mode: Mode,
        /// What is wrong.
        error: GeometryError,
    },
    /// It was asked to stop.
    #[error("interrupted")]
    Interrupted,
}
