//! Why layers cannot be compared.

use burn::tensor::TensorReadError;
use csa2_model::mix::Mode;
use csa2_train::files::FileError;
use csa2_train::recall::MOST_PAIRS;
use csa2_train::runs::ReuseError;
use thiserror::Error;

use crate::folders::FolderError;
use crate::results::ResultsError;
use crate::subject::SubjectError;

/// Why layers cannot be compared.
#[derive(Debug, Error)]
pub enum OverlapError {
    /// The run cannot be measured.
    #[error(transparent)]
    Subject(#[from] SubjectError),
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
    #[error("{run}: no layer of the mix `{mix}` selects entries (full, reindex), so there is nothing to compare")]
    NoSelection {
        /// The run's folder.
        run: String,
        /// Its mix.
        mix: String,
    },
    /// More sequences than there are.
    #[error("--sequences {asked}: the run's evaluation set has {there}; ask for at most as many")]
    TooMany {
        /// Sequences asked for.
        asked: usize,
        /// Sequences there are.
        there: usize,
    },
    /// The sequences are too long.
    #[error(
        "{run}: sequences of {seq} tokens have {pairs} pairs of a token and an entry, and at most {MOST_PAIRS} are compared; \
         give a task with shorter sequences by --task"
    )]
    TooLong {
        /// The run's folder.
        run: String,
        /// Tokens of a sequence.
        seq: usize,
        /// Pairs.
        pairs: usize,
    },
    /// An attention that is not a number.
    #[error(
        "{run}: the attention of layer {layer} ({mode}) is not finite on the evaluation set; its weights are, so they are far too large"
    )]
    NotFinite {
        /// The run's folder.
        run: String,
        /// The layer.
        layer: usize,
        /// Its mode.
        mode: Mode,
    },
    /// The pool of threads cannot be made.
    #[error("cannot start {threads} threads: {error}; lower --threads")]
    Threads {
        /// How many.
        threads: usize,
        /// Why.
        error: rayon::ThreadPoolBuildError,
    },
    /// It was asked to stop.
    #[error("interrupted")]
    Interrupted,
}
