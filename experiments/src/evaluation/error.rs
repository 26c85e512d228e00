//! Why a run cannot be evaluated.

use burn::tensor::TensorReadError;
use csa2_train::files::FileError;
use csa2_train::runs::ReuseError;
use thiserror::Error;

use super::memory::size;
use super::switch::Switch;
use crate::folders::FolderError;
use crate::results::ResultsError;
use crate::subject::SubjectError;

/// Why a run cannot be evaluated.
#[derive(Debug, Error)]
pub enum EvaluationError {
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
    /// A model that these weights do not have.
    #[error("--layers and --pool: {0}")]
    Model(String),
    /// A pool's size without a pool.
    #[error("--pool: no layer of `{mix}` builds a pool; say with --layers which one should, as in `full+pool`")]
    NoPool {
        /// The run's mix.
        mix: String,
    },
    /// Another pool than in training, without leave.
    #[error(
        "{run}: its weights were trained with {trained}, and this would measure them with {here}{by}; that is another model. Leave {flags} away, train it with that pool (`csa2 posttrain`), or say \
         --pool-override: every result then says so"
    )]
    OtherPool {
        /// The run's folder.
        run: String,
        /// The pool in training, in words.
        trained: String,
        /// The pool here, in words.
        here: String,
        /// The switch, where it is one.
        by: String,
        /// What asks for it.
        flags: &'static str,
    },
    /// Leave for another pool where there is none.
    #[error("--pool-override: the pool is the one that the weights were trained with; leave it away")]
    IdleOverride,
    /// A switch that cannot be.
    #[error("--switch {switch}: {message}")]
    Switch {
        /// The switch.
        switch: Switch,
        /// Why.
        message: String,
    },
    /// A context length that cannot be.
    #[error("--context {tokens}: {message}")]
    Context {
        /// Tokens of a sequence.
        tokens: usize,
        /// Why.
        message: String,
    },
    /// A size beyond what csa2 measures.
    #[error("{run}: {message}")]
    Size {
        /// The run's folder.
        run: String,
        /// What is too large.
        message: String,
    },
    /// More sequences than there are.
    #[error(
        "--sequences {asked}: with sequences of {tokens} tokens the evaluation set has {there}; ask for at most as many"
    )]
    TooMany {
        /// Sequences asked for.
        asked: usize,
        /// Tokens of a sequence.
        tokens: usize,
        /// Sequences there are.
        there: usize,
    },
    /// It would not fit the memory.
    #[error(
        "sequences of {tokens} tokens, {rows} at a time, would need about {needed} bytes ({}), but {free} are free ({}); take shorter ones \
         by --context, or fewer at a time by --batch",
        size(*.needed),
        size(*.free)
    )]
    Memory {
        /// Tokens of a sequence.
        tokens: usize,
        /// Sequences at a time.
        rows: usize,
        /// Bytes needed.
        needed: u128,
        /// Bytes free.
        free: u128,
    },
    /// A value that is not a number.
    #[error("{run}: `{name}` comes out as {value}; its weights are damaged")]
    NotFinite {
        /// The run's folder.
        run: String,
        /// The value's name.
        name: String,
        /// The value.
        value: f64,
    },
    /// It was asked to stop.
    #[error("interrupted")]
    Interrupted,
}
