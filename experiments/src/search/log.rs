//! `measured.jsonl`: what a search has measured, one line a mix, so that a killed one goes on where it was.
//!
//! The first line says what the measurements are of. A last line that a killed writer tore is cut off.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use csa2_train::files::{self, FileError};
use csa2_train::metrics::null_is_nan_map;
use serde::{Deserialize, Serialize};

use super::SearchError;

/// Version of the file's form.
const SCHEMA: u32 = 1;

/// What measurements are of: the first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    schema: u32,
    /// SHA-256 of the search's configuration, the model's and the task's.
    config: String,
    /// SHA-256 of the run's weights.
    weights: String,
    /// SHA-256 of the data that the task has read from files.
    data: Option<String>,
    backend: String,
    threads: usize,
}

impl Header {
    pub(super) fn new(config: String, weights: String, data: Option<String>, backend: &str, threads: usize) -> Self {
        Self { schema: SCHEMA, config, weights, data, backend: backend.into(), threads }
    }

    /// Hash of the configuration.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// Hash of the run's weights.
    pub fn weights(&self) -> &str {
        &self.weights
    }

    /// What differs, in words.
    fn changes(&self, new: &Self) -> Vec<String> {
        let short = |hash: &str| hash.chars().take(16).collect::<String>();
        let data = |header: &Self| header.data.as_deref().map_or("none".into(), short);
        let hash =
            |name: &str, old: String, new: String| (old != new).then(|| format!("{name} (hash {old}, now {new})"));
        let said = |name: &str, old: &str, new: &str| (old != new).then(|| format!("{name} (`{old}`, now `{new}`)"));
        let whole = [
            hash("the configuration", short(&self.config), short(&new.config)),
            hash("the run's weights", short(&self.weights), short(&new.weights)),
            hash("the task's data", data(self), data(new)),
            said("the backend", &self.backend, &new.backend),
            said("--threads", &self.threads.to_string(), &new.threads.to_string()),
        ];
        whole.into_iter().flatten().collect()
    }
}

/// The sequences that a mix was measured on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Set {
    /// Those by which changes are chosen.
    Calibration,
    /// The task's evaluation set, on which nothing is chosen.
    Evaluation,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    mix: String,
    set: Set,
    #[serde(deserialize_with = "null_is_nan_map")]
    values: BTreeMap<String, f64>,
}

/// The file, open for appending, and what stands in it.
pub struct Log {
    path: PathBuf,
    file: File,
    known: BTreeMap<(Set, String), BTreeMap<String, f64>>,
}

/// Where the measurements of the search in `out` lie.
pub fn path(out: &Path) -> PathBuf {
    out.join("measured.jsonl")
}

impl Log {
    /// Opens or begins the log in the folder `out`.
    ///
    /// # Errors
    /// When it is of another search, broken, or cannot be opened.
    pub fn open(out: &Path, header: &Header) -> Result<Self, SearchError> {
        let path = path(out);
        let bytes = if path.exists() { files::read(&path)? } else { Vec::new() };
        // What follows the last line break was being written when its writer was killed.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut lines = bytes[..whole].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).enumerate();
        let wrong = |line: usize, error: serde_json::Error| -> SearchError {
            let more = "remove the file to measure anew";
            FileError::content(&path, &format!("line {}: {error}; {more}", line + 1)).into()
        };
        let begun = lines.next();
        if let Some((number, first)) = begun {
            let found: Header = serde_json::from_slice(first).map_err(|error| wrong(number, error))?;
            let changes = found.changes(header);
            if !changes.is_empty() || found != *header {
                return Err(SearchError::Changed { path: out.to_path_buf(), changes });
            }
        }
        let mut known = BTreeMap::new();
        for (number, line) in lines {
            let Line { mix, set, values } = serde_json::from_slice(line).map_err(|error| wrong(number, error))?;
            known.insert((set, mix), values);
        }
        let open = || -> std::io::Result<File> {
            let file = OpenOptions::new().append(true).create(true).open(&path)?;
            file.set_len(whole as u64)?;
            Ok(file)
        };
        let file = open().map_err(|source| FileError::writing(&path, source))?;
        let mut log = Self { path, file, known };
        if begun.is_none() {
            log.write(header)?;
        }
        Ok(log)
    }

    /// What was measured of a mix.
    pub fn get(&self, set: Set, mix: &str) -> Option<&BTreeMap<String, f64>> {
        self.known.get(&(set, mix.to_string()))
    }

    /// How many measurements there are on a set.
    pub fn count(&self, set: Set) -> usize {
        self.known.keys().filter(|(of, _)| *of == set).count()
    }

    /// Writes a measurement down.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, set: Set, mix: &str, values: BTreeMap<String, f64>) -> Result<(), SearchError> {
        let line = Line { mix: mix.into(), set, values };
        self.write(&line)?;
        self.known.insert((set, line.mix), line.values);
        Ok(())
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), SearchError> {
        let mut text = serde_json::to_string(line).map_err(|error| FileError::content(&self.path, &error))?;
        text.push('\n');
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        Ok(written.map_err(|source| FileError::writing(&self.path, source))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(weights: &str) -> Header {
        Header::new("c".into(), weights.into(), None, "flex", 1)
    }

    fn values(loss: f64) -> BTreeMap<String, f64> {
        BTreeMap::from([("loss".to_string(), loss)])
    }

    #[test]
    fn a_file_torn_anywhere_is_taken_up() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::open(folder.path(), &header("w")).unwrap();
        for (mix, loss) in [("full", 0.1 + 0.2), ("full reuse", f64::NAN)] {
            log.add(Set::Calibration, mix, values(loss)).unwrap();
        }
        let whole = std::fs::read(path(folder.path())).unwrap();
        let ends: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] == b'\n').collect();
        for cut in 0..=whole.len() {
            std::fs::write(path(folder.path()), &whole[..cut]).unwrap();
            let log = Log::open(folder.path(), &header("w")).unwrap();
            let lines = ends.iter().filter(|&&end| end < cut).count();
            assert_eq!(log.count(Set::Calibration), lines.saturating_sub(1), "cut at {cut}");
            if lines > 1 {
                assert_eq!(log.get(Set::Calibration, "full"), Some(&values(0.1 + 0.2)));
            }
            assert_eq!(log.get(Set::Evaluation, "full"), None);
            drop(log);
            let left = std::fs::read(path(folder.path())).unwrap();
            let first = ends[0] + 1;
            assert_eq!(left, whole[..cut.max(first).min(ends[lines.max(1) - 1] + 1)], "cut at {cut}");
        }
        let log = Log::open(folder.path(), &header("w")).unwrap();
        assert!(log.get(Set::Calibration, "full reuse").unwrap()["loss"].is_nan());
    }

    #[test]
    fn measurements_of_something_else_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        Log::open(folder.path(), &header("w")).unwrap();
        let refused = |header: &Header| Log::open(folder.path(), header).err().unwrap().to_string();
        let message = refused(&header("v"));
        assert!(message.contains("the run's weights (hash w, now v)") && !message.contains("--threads"), "{message}");
        let message = refused(&Header { threads: 2, config: "d".into(), data: Some("e".into()), ..header("w") });
        for part in
            ["the configuration (hash c, now d)", "the task's data (hash none, now e)", "--threads (`1`, now `2`)"]
        {
            assert!(message.contains(part), "{message}");
        }
        std::fs::write(path(folder.path()), "{}\n").unwrap();
        assert!(refused(&header("w")).contains("measured.jsonl: line 1: missing field"), "{}", refused(&header("w")));
    }
}
