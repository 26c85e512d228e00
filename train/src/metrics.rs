//! What a run measures, one line of JSON each, in `metrics.jsonl`.
//!
//! Lines hold nothing that depends on time or machine load: the same configuration, seed, backend and thread count
//! give the same lines.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use csa2_model::attention::Phase;
use serde::{Deserialize, Deserializer, Serialize};

use crate::files::FileError;

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricLine {
    /// Optimizer steps taken.
    pub step: u64,
    /// Training tokens seen.
    pub tokens: u64,
    /// The data that the values come from.
    pub split: Split,
    /// How addresses were made at this step.
    pub phase: Phase,
    /// Values by name: `loss`, `accuracy`, `lr`; a slash adds a tag: `accuracy/distance 17-24`, `index_kl/layer 1`. Where the
    /// model has quantization, `quantized` is 1 if it was on and 0 if not; while a candidate pool shrinks, `pool_blocks` is how many blocks it kept.
    #[serde(deserialize_with = "null_is_nan_map")]
    pub values: BTreeMap<String, f64>,
}

/// JSON has no NaN: one is written as `null`, and read back by this.
///
/// # Errors
/// When the value is not a table of numbers and nulls.
pub fn null_is_nan_map<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let values = BTreeMap::<String, Option<f64>>::deserialize(deserializer)?;
    Ok(values.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect())
}

/// The data that a measurement comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// The batches being trained on.
    Train,
    /// Data that no training step sees.
    Validation,
}

/// Appends lines to `metrics.jsonl`.
pub struct MetricsFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl MetricsFile {
    /// Opens the file and cuts it to `length` bytes: what a killed run wrote after its last checkpoint is written again.
    ///
    /// # Errors
    /// When the file cannot be opened, or is shorter than the checkpoint says.
    pub fn open(path: PathBuf, length: u64) -> Result<Self, FileError> {
        let open = || -> std::io::Result<(File, u64)> {
            let file = OpenOptions::new().append(true).create(true).open(&path)?;
            let found = file.metadata()?.len();
            if found >= length {
                file.set_len(length)?;
            }
            Ok((file, found))
        };
        let (file, found) = open().map_err(|source| FileError::writing(&path, source))?;
        if found < length {
            let message = format!(
                "has {found} bytes, but the checkpoint beside it was made when it had {length}; it was cut or replaced: \
                 remove the run's folder to train it afresh"
            );
            return Err(FileError::content(&path, &message));
        }
        Ok(Self { path, file, length })
    }

    /// Appends one line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn append(&mut self, line: &MetricLine) -> Result<(), FileError> {
        let mut text = serde_json::to_string(line).map_err(|error| FileError::content(&self.path, &error))?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(|source| FileError::writing(&self.path, source))?;
        self.length += text.len() as u64;
        Ok(())
    }

    /// Makes what was written last through a power cut, and returns how many bytes that is.
    ///
    /// # Errors
    /// When the system cannot.
    pub fn sync(&mut self) -> Result<u64, FileError> {
        self.file.sync_all().map_err(|source| FileError::writing(&self.path, source))?;
        Ok(self.length)
    }

    /// Where the lines go.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: u64) -> MetricLine {
        let values = BTreeMap::from([("loss".to_string(), 0.1 + step as f64)]);
        MetricLine { step, tokens: step * 10, split: Split::Train, phase: Phase::Sparse, values }
    }

    #[test]
    fn lines_after_the_checkpoint_are_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = MetricsFile::open(path.clone(), 0).unwrap();
        file.append(&line(1)).unwrap();
        let length = file.sync().unwrap();
        file.append(&line(2)).unwrap();
        drop(file);
        let mut file = MetricsFile::open(path.clone(), length).unwrap();
        file.append(&line(3)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let steps: Vec<u64> = text.lines().map(|l| serde_json::from_str::<MetricLine>(l).unwrap().step).collect();
        assert_eq!(steps, [1, 3]);
        let error = MetricsFile::open(path, 1_000_000).err().unwrap().to_string();
        assert!(error.contains("was cut or replaced"), "{error}");
    }
}
