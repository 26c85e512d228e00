//! `model.safetensors.index.json`: which tensor lies in which file of a folder.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path};

use serde::Deserialize;

use super::{INDEX, SINGLE};
use crate::checkpoint::CheckpointError;
use crate::checkpoint::header::{Entry, Unique, from_json};

/// The longest index, in bytes; the released one has 10 million.
const LONGEST: u64 = 200_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    /// Sizes, for those who load; the files tell them.
    #[serde(default, rename = "metadata")]
    _metadata: serde::de::IgnoredAny,
    weight_map: Unique<String>,
}

/// The files by stored name of the tensor; none where the folder has no index.
///
/// # Errors
/// When the index cannot be read or names files outside the folder, or when it is not clear which files are meant.
pub fn read(folder: &Path) -> Result<Option<BTreeMap<String, String>>, CheckpointError> {
    let folder_of = std::fs::metadata(folder).map_err(|error| CheckpointError::reading(folder, error))?;
    if !folder_of.is_dir() {
        return Err(CheckpointError::content(
            folder,
            "is no folder; a checkpoint is a folder with config.json and weights",
        ));
    }
    let (path, single) = (folder.join(INDEX), folder.join(SINGLE).exists());
    if !path.exists() {
        let nothing = format!("holds no weights: neither {SINGLE} nor {INDEX} is there");
        return if single { Ok(None) } else { Err(CheckpointError::content(folder, nothing)) };
    }
    let bytes = read_limited(&path, LONGEST)?;
    let Index { weight_map: Unique(map), .. } =
        from_json(&bytes).map_err(|message| CheckpointError::content(&path, message))?;
    for (name, file) in &map {
        let mut parts = Path::new(file).components();
        let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        if !plain || file.contains(['/', '\\']) {
            let message = format!("{name} is said to be in {file:?}, which is no plain name of a file in this folder");
            return Err(CheckpointError::content(&path, message));
        }
    }
    if single && !map.values().any(|file| file == SINGLE) {
        let message = format!("there is also {SINGLE}, which it does not name; remove the one that is not meant");
        return Err(CheckpointError::content(&path, message));
    }
    Ok(Some(map))
}

/// Holds what `file` has against what the index says of it.
///
/// # Errors
/// The first tensor that only one of them names.
pub fn check(index: &BTreeMap<String, String>, file: &str, entries: &BTreeMap<String, Entry>) -> Result<(), String> {
    let lacking = index.iter().find(|(name, at)| *at == file && !entries.contains_key(*name));
    if let Some((name, _)) = lacking {
        return Err(format!("has no tensor {name}, which {INDEX} says is there"));
    }
    match entries.keys().find(|name| index.get(*name).is_none_or(|at| at != file)) {
        Some(name) => Err(format!("has a tensor {name}, which {INDEX} does not say")),
        None => Ok(()),
    }
}

/// The message about a file that is not there.
pub fn missing(index: &BTreeMap<String, String>, file: &str) -> String {
    let mut held = index.iter().filter(|(_, at)| *at == file).map(|(name, _)| name.as_str());
    let (first, more) = (held.next().unwrap_or_default(), held.count());
    let others = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{first}{others} should be in {file}, which is not in this folder")
}

/// Reads a whole file of at most `longest` bytes.
///
/// # Errors
/// When it cannot be read, is no file or is longer.
pub fn read_limited(path: &Path, longest: u64) -> Result<Vec<u8>, CheckpointError> {
    let reading = |error| CheckpointError::reading(path, error);
    if !std::fs::metadata(path).map_err(reading)?.is_file() {
        return Err(CheckpointError::content(path, "is no file"));
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(reading)?.take(longest + 1).read_to_end(&mut bytes).map_err(reading)?;
    if bytes.len() as u64 > longest {
        return Err(CheckpointError::content(path, format!("is longer than {longest} bytes, the most that is read")));
    }
    Ok(bytes)
}
