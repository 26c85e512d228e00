//! Results as JSON.

use std::path::Path;

use serde::Serialize;

use super::{MetricLine, ResultsError, write_atomic};

/// Writes `value` as indented JSON with [`write_atomic`].
///
/// # Errors
/// As [`write_atomic`]; [`ResultsError::Invalid`] where the value has no JSON form.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), ResultsError> {
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|error| ResultsError::Invalid { path: path.to_path_buf(), message: error.to_string() })?;
    bytes.push(b'\n');
    Ok(write_atomic(path, &bytes)?)
}

/// The text of `lines` in `metrics.jsonl`: one line of JSON each, every line ended by a newline.
///
/// # Errors
/// [`serde_json::Error`] where a line has no JSON form, which no [`MetricLine`] is known to cause.
pub fn metrics_text(lines: &[MetricLine]) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    for line in lines {
        text.push_str(&serde_json::to_string(line)?);
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Metrics, Phase, Split, read_metrics};

    #[test]
    fn a_file_is_replaced_whole_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.csv");
        write_atomic(&path, b"a much longer first text").unwrap();
        write_atomic(&path, b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_impossible_place_is_named_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("absent").join("table.csv");
        let message = write_atomic(&path, b"x").unwrap_err().to_string();
        assert!(message.contains("absent") && message.contains("cannot be written"), "{message}");
        // Renaming a file over a folder fails after the bytes were written.
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        assert!(write_atomic(&folder, b"x").is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn results_are_as_readable_as_other_files() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (ours, plain) = (dir.path().join("ours"), dir.path().join("plain"));
        write_atomic(&ours, b"x").unwrap();
        std::fs::write(&plain, b"x").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&plain));
    }

    #[test]
    fn measurements_read_back_to_the_last_bit() {
        let values = [("loss".to_owned(), 0.1 + 0.2), ("lr".to_owned(), 1.0 / 3.0)].into();
        let line = MetricLine { step: 3, tokens: 9, split: Split::Validation, phase: Phase::Sparse, values };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let text = metrics_text(&[line.clone(), line.clone()]).unwrap();
        write_atomic(&path, text.as_bytes()).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), Metrics { lines: vec![line.clone(), line], torn: false });
    }
}
