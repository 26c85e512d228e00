//! What can be wrong with a request, and with a cache on disk.

use std::io;
use std::path::{Path, PathBuf};

use burn::tensor::TensorReadError;
use thiserror::Error;

/// Why a session refuses. Nothing has been computed then, and the session is as it was before; but for
/// [`Unreadable`](Self::Unreadable), which ends it.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The model computes in another format than f32.
    #[error("the model's weights are {found}; decoding computes in f32: load them as f32")]
    Precision {
        /// The weights' format.
        found: String,
    },
    /// The configuration describes another model.
    #[error("the configuration is not the model's: {0}")]
    Configuration(String),
    /// A model whose key and value are two vectors.
    #[error(
        "the model has `values = \"unrotated\"`: its key and value are two vectors, and caches hold one for both; only models with \
         rotated values are decoded"
    )]
    Values,
    /// A session without rows.
    #[error("a session has at least one row")]
    NoRows,
    /// Lists for another number of rows.
    #[error("{given} prompts or tokens for {rows} rows: give one for each")]
    Rows {
        /// Lists given.
        given: usize,
        /// Rows of the session.
        rows: usize,
    },
    /// A row that the session does not have, or has been given twice.
    #[error("row {row} is given twice, or is not one of the {rows} rows (0 to {})", rows - 1)]
    Row {
        /// The row.
        row: usize,
        /// Rows of the session.
        rows: usize,
    },
    /// Nothing to read.
    #[error("row {row}: the prompt is empty; give at least one token")]
    Empty {
        /// The row.
        row: usize,
    },
    /// A token that the model does not have.
    #[error("row {row}, token {at}: {token} is not a token id of this model (0 to {})", vocabulary - 1)]
    Token {
        /// The row.
        row: usize,
        /// The token's place in what was given.
        at: usize,
        /// The token.
        token: i32,
        /// Token ids that there are.
        vocabulary: usize,
    },
    /// A sequence beyond the session's limit.
    #[error("row {row}: {tokens} tokens are more than the {limit} that this session is made for; raise its maximum")]
    TooLong {
        /// The row.
        row: usize,
        /// Tokens that the row would have.
        tokens: usize,
        /// Tokens that it may have.
        limit: usize,
    },
    /// Caches that do not fit.
    #[error(
        "caches for {rows} x {tokens} tokens need {needed} bytes, but there are {available}; \
         use fewer rows, a shorter maximum or smaller number formats"
    )]
    Memory {
        /// Rows of the session.
        rows: usize,
        /// Tokens of a row at most.
        tokens: usize,
        /// What the caches need when every row is full.
        needed: u128,
        /// What there is, or is allowed.
        available: u64,
    },
    /// A bounded replay that cannot be.
    #[error("bounded replay: {0}")]
    Replay(String),
    /// A row that was loaded without its windows.
    #[error("row {row} was loaded without its windows; make them first, of its last tokens (`rebuild_windows`)")]
    NoWindows {
        /// The row.
        row: usize,
    },
    /// Vectors that the kernels of a GPU do not hold.
    #[error(
        "`head_dim` is {found}: on a GPU vectors have at most {most} channels; decode on the processor (backend flex)"
    )]
    Channels {
        /// Channels of a vector.
        found: usize,
        /// Channels that there may be.
        most: usize,
    },
    /// The device failed in the middle of a pass. The caches are not whole, and the session refuses everything from here on.
    #[error(
        "the device cannot be read ({source}); what the session has kept is not whole: start a new one, or load a saved one"
    )]
    Unreadable {
        /// What the device says.
        source: TensorReadError,
    },
    /// A session that has ended as [`Unreadable`](Self::Unreadable) says.
    #[error("the session ended when its device could not be read: start a new one, or load a saved one")]
    Ended,
    /// It is not known how much memory there is.
    #[error("this system does not tell how much memory is free; give a limit in bytes")]
    MemoryUnknown,
}

/// Why a cache cannot be saved or loaded.
#[derive(Debug, Error)]
pub enum FileError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is not a cache, is cut short, or has been altered.
    #[error("{path}: not a whole cache file: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A cache file of another version.
    #[error("{path}: a cache file of version {found}; this program reads version {known}")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version that is read.
        known: u32,
    },
    /// A cache that another model has made, or the same one otherwise.
    #[error(
        "{path}: made with {what} ({found}), not with this one ({expected}); a cache can only be read by what made it"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// In the file.
        found: String,
        /// Here.
        expected: String,
    },
    /// The session that the cache would be part of is refused.
    #[error("{path}: {source}")]
    Session {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<SessionError>,
    },
}

impl FileError {
    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { path: path.into(), source }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.into(), what: what.into() }
    }
}
