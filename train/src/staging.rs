//! Folders that appear whole or not at all: filled beside their place under another name, then renamed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::files::{self, FileError, PARTIAL};

/// Why a folder cannot be made.
#[derive(Debug, Error)]
pub enum StagingError {
    /// A file cannot be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Something is in the place already.
    #[error("{}: {wrong}; give another --out", path.display())]
    Taken {
        /// The place.
        path: PathBuf,
        /// What is there.
        wrong: &'static str,
    },
}

/// A folder that is being filled. Dropped before [`finish`](Self::finish), it leaves nothing; what a killed process leaves, the
/// next one with the same place removes.
#[derive(Debug)]
pub struct Staging {
    place: PathBuf,
    folder: PathBuf,
    /// Locked while the folder is being filled.
    lock: Option<File>,
}

/// File whose lock says that a process fills the folder.
const LOCK: &str = ".lock";

impl Staging {
    /// Finds out whether a folder could lie at `place`, before there is anything to put there.
    ///
    /// # Errors
    /// When the place is taken.
    pub fn check(place: &Path) -> Result<(), StagingError> {
        check_free(place)
    }

    /// Begins a folder that will lie at `place`, where there must be nothing or an empty folder.
    ///
    /// # Errors
    /// When the place is taken, or the folder cannot be made.
    pub fn begin(place: &Path) -> Result<Self, StagingError> {
        let taken = |wrong| StagingError::Taken { path: place.to_path_buf(), wrong };
        check_free(place)?;
        let name = place.file_name().ok_or_else(|| taken("is no name for a new folder"))?;
        let folder = place.with_file_name(format!("{PARTIAL}{}", name.to_string_lossy()));
        files::make_folder(&folder)?;
        let path = folder.join(LOCK);
        let writing = |source| FileError::writing(&path, source);
        let lock = OpenOptions::new().append(true).create(true).open(&path).map_err(writing)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken("is being written by another csa2")),
            Err(TryLockError::Error(source)) => return Err(writing(source).into()),
        }
        let staging = Self { place: place.to_path_buf(), folder, lock: Some(lock) };
        staging.clear()?;
        Ok(staging)
    }

    /// The folder to fill.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Puts the folder in its place.
    ///
    /// # Errors
    /// When it cannot be put there; then it is removed.
    pub fn finish(mut self) -> Result<(), StagingError> {
        let writing = |source| FileError::writing(&self.place, source);
        check_free(&self.place)?;
        // Some systems do not open files that are to be removed or renamed.
        self.lock = None;
        fs::remove_file(self.folder.join(LOCK)).map_err(writing)?;
        files::sync_folder(&self.folder).map_err(writing)?;
        if self.place.exists() {
            fs::remove_dir(&self.place).map_err(writing)?;
        }
        fs::rename(&self.folder, &self.place).map_err(writing)?;
        let parent = self.place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(files::sync_folder(parent).map_err(writing)?)
    }

    /// Removes what a killed process left.
    fn clear(&self) -> Result<(), FileError> {
        let writing = |source| FileError::writing(&self.folder, source);
        for entry in fs::read_dir(&self.folder).map_err(writing)? {
            let entry = entry.map_err(writing)?;
            if entry.file_name() == LOCK {
                continue;
            }
            let folder = entry.file_type().map_err(writing)?.is_dir();
            let removed = if folder { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
            removed.map_err(writing)?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After `finish` the folder has gone to its place; one that cannot be removed is only in the way.
        self.lock = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Refuses a place with anything in it.
fn check_free(place: &Path) -> Result<(), StagingError> {
    let taken = |wrong| Err(StagingError::Taken { path: place.to_path_buf(), wrong });
    match fs::metadata(place) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(FileError::reading(place, source).into()),
        Ok(found) if !found.is_dir() => return taken("is no folder"),
        Ok(_) => {}
    }
    let mut entries = fs::read_dir(place).map_err(|source| FileError::reading(place, source))?;
    if entries.next().is_some() { taken("is not empty") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn fill(place: &Path) -> Staging {
        let staging = Staging::begin(place).unwrap();
        fs::write(staging.folder().join("a"), b"x").unwrap();
        staging
    }

    #[test]
    fn a_folder_appears_whole() {
        let lab = tempfile::tempdir().unwrap();
        for there in [false, true] {
            let place = lab.path().join(format!("out-{there}"));
            if there {
                fs::create_dir(&place).unwrap();
            }
            let staging = fill(&place);
            assert_eq!(place.exists(), there);
            staging.finish().unwrap();
            assert_eq!(names(&place), ["a"]);
        }
        assert_eq!(names(lab.path()), ["out-false", "out-true"]);
    }

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let lab = tempfile::tempdir().unwrap();
        drop(fill(&lab.path().join("out")));
        assert_eq!(names(lab.path()), [""; 0]);
        // A killed process leaves a folder that nobody locks.
        let left = lab.path().join(".partial-out");
        fs::create_dir_all(left.join("checkpoint/deep")).unwrap();
        fs::write(left.join("old"), b"x").unwrap();
        fill(&lab.path().join("out")).finish().unwrap();
        assert_eq!(names(&lab.path().join("out")), ["a"]);
    }

    #[test]
    fn places_that_are_taken() {
        let lab = tempfile::tempdir().unwrap();
        fs::write(lab.path().join("file"), b"x").unwrap();
        let refused = |place: &Path| Staging::begin(place).unwrap_err().to_string();
        assert!(refused(&lab.path().join("file")).ends_with("file: is no folder; give another --out"));
        assert!(refused(lab.path()).ends_with(": is not empty; give another --out"));
        assert!(refused(&lab.path().join("file/below")).contains("file/below: "));
        let place = lab.path().join("out");
        let first = fill(&place);
        assert!(refused(&place).ends_with("out: is being written by another csa2; give another --out"));
        // Somebody else was quicker.
        fs::create_dir(&place).unwrap();
        fs::write(place.join("theirs"), b"x").unwrap();
        assert!(first.finish().unwrap_err().to_string().ends_with("out: is not empty; give another --out"));
        assert_eq!(names(lab.path()), ["file", "out"]);
    }
}
