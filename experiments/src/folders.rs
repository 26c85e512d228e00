//! Folders of results: whether one may be used, and by one process at a time.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use csa2_train::files::{FileError, PARTIAL, make_folder};
use thiserror::Error;

/// File whose lock says that a process works in the folder.
const LOCK: &str = ".lock";

/// Why a folder cannot take results.
#[derive(Debug, Error)]
pub enum FolderError {
    /// The folder cannot be read or made.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another process works there.
    #[error("{}: another csa2 is running this {what}; wait for it or give another --out", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
        /// What is worked at, such as `ablation`.
        what: &'static str,
    },
    /// The folder holds something else.
    #[error("{}: is not empty and holds no {what}; give another --out", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// The folder holds what was found on other weights.
    #[error("{}: is the {what} of another run, or of the same run at another step; give another --out, or remove it", path.display())]
    OtherWeights {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The place is no folder.
    #[error("{}: is no folder; give another --out", path.display())]
    NoFolder {
        /// The place.
        path: PathBuf,
    },
}

/// Refuses to replace what was found on other weights: `json` says in `weights_sha256` of which it is, where it is there.
///
/// # Errors
/// When it is of other weights, or cannot be read.
pub fn check_weights(json: &Path, digest: &str, what: &'static str) -> Result<(), FolderError> {
    if !json.exists() {
        return Ok(());
    }
    let bytes = csa2_train::files::read(json)?;
    let found: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| FileError::content(json, &error))?;
    match found["weights_sha256"].as_str() {
        Some(found) if found == digest => Ok(()),
        _ => Err(FolderError::OtherWeights { path: json.to_path_buf(), what }),
    }
}

/// Refuses a place that holds something. What a writer leaves that is killed before its first whole file counts as nothing.
///
/// # Errors
/// When the place is no folder, or one that is not empty.
pub fn check_free(out: &Path, what: &'static str) -> Result<(), FolderError> {
    if !out.exists() {
        return Ok(());
    }
    if !out.is_dir() {
        return Err(FolderError::NoFolder { path: out.to_path_buf() });
    }
    let ours = |name: &str| name == LOCK || name.starts_with(PARTIAL);
    let mut entries = fs::read_dir(out).map_err(|source| FileError::reading(out, source))?.flatten();
    if entries.any(|entry| !ours(&entry.file_name().to_string_lossy())) {
        return Err(FolderError::Foreign { path: out.to_path_buf(), what });
    }
    Ok(())
}

/// Makes the folder and keeps other processes out while the result lives.
///
/// # Errors
/// When the folder cannot be made, or another process works there.
pub fn lock(out: &Path, what: &'static str) -> Result<File, FolderError> {
    make_folder(out)?;
    let path = out.join(LOCK);
    let lock =
        OpenOptions::new().append(true).create(true).open(&path).map_err(|source| FileError::writing(&path, source))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(FolderError::Busy { path: out.to_path_buf(), what }),
        Err(TryLockError::Error(source)) => Err(FileError::writing(&path, source).into()),
    }
}
