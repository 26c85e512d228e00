//! Writing files so that a reader, or a crash at any moment, meets the old file or the new one and nothing between.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};
use thiserror::Error;

/// Why a file cannot be written or read. Every message names it.
#[derive(Debug, Error)]
pub enum FileError {
    /// The disk is full.
    #[error("{}: no space left on the disk; free some and run the same command again, nothing already written is lost", path.display())]
    NoSpace {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("{}: cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file's content is not what its name promises.
    #[error("{}: {message}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

impl FileError {
    /// Tells a full disk from other failures to write.
    pub fn writing(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path },
            _ => Self::Write { path, source },
        }
    }

    /// A failure to read.
    pub fn reading(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.to_path_buf(), source }
    }

    /// Wrong content.
    pub fn content(path: &Path, message: &impl ToString) -> Self {
        Self::Content { path: path.to_path_buf(), message: message.to_string() }
    }
}

/// Writes `bytes` under `path`: to a temporary name in the same folder, synced, renamed, and the folder synced.
///
/// # Errors
/// When the file cannot be written; what stood under `path` is then unchanged.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    try_write(path, bytes).map_err(|source| FileError::writing(path, source))
}

fn try_write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = temporary(parent)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    sync_folder(parent)
}

/// Writes a file that is too large for memory under `path`, a new name in a folder that nobody reads yet; `write` fills it and is
/// told `path` for its errors. It is synced at the end.
///
/// # Errors
/// When the file cannot be written, and what `write` fails with.
pub fn write_large<E: From<FileError>>(
    path: &Path,
    write: impl FnOnce(&Path, BufWriter<File>) -> Result<BufWriter<File>, E>,
) -> Result<(), E> {
    let writing = |source| FileError::writing(path, source);
    let out = write(path, BufWriter::with_capacity(1 << 20, File::create(path).map_err(writing)?))?;
    let file = out.into_inner().map_err(|error| writing(error.into_error()))?;
    Ok(file.sync_all().map_err(writing)?)
}

/// How the name of a file begins that is not yet whole.
pub const PARTIAL: &str = ".partial-";

/// A temporary file is private to its user by default; a result is as readable as any other new file.
#[cfg(unix)]
fn temporary(parent: &Path) -> io::Result<NamedTempFile> {
    use std::os::unix::fs::PermissionsExt;
    Builder::new().prefix(PARTIAL).permissions(Permissions::from_mode(0o666)).tempfile_in(parent)
}

#[cfg(not(unix))]
fn temporary(parent: &Path) -> io::Result<NamedTempFile> {
    Builder::new().prefix(PARTIAL).tempfile_in(parent)
}

/// Removes what killed writers left in `folder`. One that cannot be removed is only in the way.
pub fn remove_partial(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PARTIAL)) {
        let _ = fs::remove_file(entry.path());
    }
}

/// Makes a rename last through a power cut; only Unix can sync a folder.
#[cfg(unix)]
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
pub(crate) fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

/// Makes a folder and those above it.
///
/// # Errors
/// When it cannot be made.
pub fn make_folder(path: &Path) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(|source| FileError::writing(path, source))
}

/// Reads a whole file.
///
/// # Errors
/// When it cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(|source| FileError::reading(path, source))
}

/// Reads the first `most` bytes of a file, or all where there are no more.
///
/// # Errors
/// When it cannot be read.
pub fn read_start(path: &Path, most: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|source| FileError::reading(path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(read(&path).unwrap(), b"two");
        assert_eq!((read_start(&path, 2).unwrap(), read_start(&path, 9).unwrap()), (b"tw".to_vec(), b"two".to_vec()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        for name in [".partial-a1b2", "a.json", ".lock"] {
            fs::write(folder.path().join(name), b"x").unwrap();
        }
        remove_partial(folder.path());
        let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".lock", "a.json"]);
        remove_partial(Path::new("no-such-folder"));
    }

    #[test]
    fn errors_name_the_file() {
        let missing = Path::new("no-such-folder/a.json");
        assert!(
            write_atomic(missing, b"x")
                .unwrap_err()
                .to_string()
                .starts_with("no-such-folder/a.json: cannot be written")
        );
        assert!(read(missing).unwrap_err().to_string().starts_with("no-such-folder/a.json: cannot be read"));
        let full = FileError::writing(missing, io::ErrorKind::StorageFull.into());
        assert!(full.to_string().contains("no space left"), "{full}");
    }
}
