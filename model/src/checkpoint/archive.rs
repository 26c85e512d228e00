//! The tensors of one safetensors file, or of a folder of them, looked at in place.

mod index;
mod naming;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::Dtype;

use super::CheckpointError;
use super::header::{self, Entry};

pub use index::read_limited;
pub use naming::Naming;

/// The one file of a folder that is not split.
pub const SINGLE: &str = "model.safetensors";

/// The list of which tensor lies in which file of a folder.
pub const INDEX: &str = "model.safetensors.index.json";

/// Tensors by name. Files are mapped, not read: a tensor's bytes come from the disk when they are looked at.
pub struct Archive {
    path: PathBuf,
    files: Vec<Mapped>,
    naming: Naming,
    /// By official name.
    tensors: BTreeMap<String, Place>,
    shards: Shards,
}

/// A mapped file.
struct Mapped {
    map: Mmap,
    bytes: u64,
}

/// Where a tensor lies.
struct Place {
    file: usize,
    entry: Entry,
    /// Its name in the file, where that is another.
    stored: Option<String>,
}

/// How many files a folder has, and how many of them were opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    /// Files opened.
    pub opened: usize,
    /// Files that the index names.
    pub all: usize,
}

/// A tensor as it is stored.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// How a number is stored.
    pub dtype: Dtype,
    /// Size of each axis.
    pub shape: &'a [usize],
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Archive {
    /// Opens a folder: `model.safetensors`, or the files that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// When files cannot be read or are not whole, when index and files disagree, or when names of both kinds are mixed.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        Self::open_part(folder, |_| true)
    }

    /// As [`open`](Self::open), but of a folder with an index only the files that hold a tensor whose official name is
    /// `wanted`; the others need not be there.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_part(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Self, CheckpointError> {
        let listed = index::read(folder)?;
        let Some(index) = listed else { return Self::open_file(&folder.join(SINGLE), folder) };
        let naming = Naming::of(index.keys().map(String::as_str)).map_err(|m| content(folder, INDEX, m))?;
        let needed: std::collections::BTreeSet<&String> =
            index.iter().filter(|(name, _)| wanted(&naming.official(name))).map(|(_, file)| file).collect();
        let all = index.values().collect::<std::collections::BTreeSet<_>>().len();
        let mut archive = Self::empty(folder, naming, Shards { opened: needed.len(), all });
        for file in needed {
            let path = folder.join(file);
            if !path.exists() {
                return Err(content(folder, INDEX, index::missing(&index, file)));
            }
            let entries = archive.map(&path)?;
            index::check(&index, file, &entries).map_err(|message| CheckpointError::content(&path, message))?;
            archive.add(&path, entries)?;
        }
        Ok(archive)
    }

    /// Opens one file.
    ///
    /// # Errors
    /// When it cannot be read or is not whole, or when names of both kinds are mixed.
    pub fn open_single(file: &Path) -> Result<Self, CheckpointError> {
        Self::open_file(file, file)
    }

    fn open_file(file: &Path, path: &Path) -> Result<Self, CheckpointError> {
        let mut archive = Self::empty(path, Naming::Official, Shards { opened: 1, all: 1 });
        let entries = archive.map(file)?;
        let naming = Naming::of(entries.keys().map(String::as_str));
        archive.naming = naming.map_err(|message| CheckpointError::content(file, message))?;
        archive.add(file, entries)?;
        Ok(archive)
    }

    fn empty(path: &Path, naming: Naming, shards: Shards) -> Self {
        Self { path: path.to_path_buf(), files: Vec::new(), naming, tensors: BTreeMap::new(), shards }
    }

    /// Maps a file and reads its header.
    fn map(&mut self, path: &Path) -> Result<BTreeMap<String, Entry>, CheckpointError> {
        let reading = |error| CheckpointError::reading(path, error);
        // Opening a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(reading)?.is_file() {
            return Err(CheckpointError::content(path, "is no file"));
        }
        let file = File::open(path).map_err(reading)?;
        // SAFETY: the map is only read. Whoever changes or shortens the file meanwhile changes the numbers that are read or
        // ends the process with a bus error; Rust's rules are kept by nobody writing to weights that are being read, as every
        // reader of mapped checkpoints assumes. Reading the file whole instead would take its size in memory, hundreds of
        // gigabytes for the released model.
        let map = unsafe { Mmap::map(&file) }.map_err(reading)?;
        let entries = header::parse(&map)
            .map_err(|error| CheckpointError::Format { source_name: path.display().to_string(), error })?;
        let bytes = map.len() as u64;
        self.files.push(Mapped { map, bytes });
        Ok(entries)
    }

    /// Takes up the tensors of the file mapped last.
    fn add(&mut self, path: &Path, entries: BTreeMap<String, Entry>) -> Result<(), CheckpointError> {
        let file = self.files.len() - 1;
        for (stored, entry) in entries {
            let official = self.naming.official(&stored).into_owned();
            let stored = (official != stored).then_some(stored);
            let place = Place { file, entry, stored };
            if let Some(other) = self.tensors.insert(official.clone(), place) {
                let one = other.stored.unwrap_or(official);
                return Err(CheckpointError::content(path, format!("{one} stands for a tensor that is there already")));
            }
        }
        Ok(())
    }

    /// The folder or file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the names are written.
    pub fn naming(&self) -> Naming {
        self.naming
    }

    /// How many files there are.
    pub fn shards(&self) -> Shards {
        self.shards
    }

    /// Bytes of the files that were opened.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The tensors' official names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor by its official name.
    pub fn get(&self, official: &str) -> Option<View<'_>> {
        let Place { file, entry, .. } = self.tensors.get(official)?;
        let bytes = &self.files[*file].map[entry.bytes.clone()];
        Some(View { dtype: entry.dtype, shape: &entry.shape, bytes })
    }

    /// A tensor's name as this folder writes it, also where it is not there.
    pub fn stored_name(&self, official: &str) -> String {
        let stored = self.tensors.get(official).and_then(|place| place.stored.clone());
        stored.unwrap_or_else(|| self.naming.stored(official))
    }
}

fn content(folder: &Path, file: &str, message: String) -> CheckpointError {
    CheckpointError::content(&folder.join(file), message)
}
