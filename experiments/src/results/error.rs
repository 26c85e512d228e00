//! What can go wrong with results on disk.

use std::io;
use std::path::PathBuf;

use csa2_train::files::FileError;
use thiserror::Error;

use super::SCHEMA;

/// What can go wrong with results on disk. Every message names the file.
#[derive(Debug, Error)]
pub enum ResultsError {
    /// A file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what its name promises.
    #[error("{}, line {line}: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A file was written by another version of the format.
    #[error(
        "{}: file format {found}, but this csa2 reads format {SCHEMA}; read it with the csa2 that wrote it, or run the ablation again",
        path.display()
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// The format it states.
        found: u64,
    },
    /// A record contradicts itself.
    #[error("{}: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
}
