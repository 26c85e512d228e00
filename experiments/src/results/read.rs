//! Reading results, and telling a line that a killed writer tore from a broken file.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::{AblationRecord, MetricLine, ResultsError, RunSummary, SCHEMA};

/// The measurements of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics {
    /// The lines in the order of the file.
    pub lines: Vec<MetricLine>,
    /// The writer was killed inside its last line, which is left out.
    pub torn: bool,
}

/// Reads and checks the record of an ablation, which lies at [`super::ablation_path`].
///
/// # Errors
/// [`ResultsError`] with the path: no such file, another file format, an unknown or missing field, or a record that
/// contradicts itself.
pub fn read_ablation(path: &Path) -> Result<AblationRecord, ResultsError> {
    let record: AblationRecord = parse_with_schema(path, &read_bytes(path)?)?;
    record.check().map_err(|message| ResultsError::Invalid { path: path.to_path_buf(), message })?;
    Ok(record)
}

/// Reads the summary of a run; an unfinished run has none.
///
/// # Errors
/// [`ResultsError`] with the path: no such file, another file format, an unknown or missing field.
pub fn read_summary(path: &Path) -> Result<RunSummary, ResultsError> {
    parse_with_schema(path, &read_bytes(path)?)
}

/// Reads the measurements of a run; none while there is no file. A last line that a killed writer tore is left out.
///
/// # Errors
/// [`ResultsError`] with the path, and the line where one is broken that cannot be a torn last line.
pub fn read_metrics(path: &Path) -> Result<Metrics, ResultsError> {
    let bytes = match read_bytes(path) {
        Err(error) if is_absent(&error) => return Ok(Metrics::default()),
        other => other?,
    };
    let rows: Vec<(usize, &[u8])> = bytes
        .split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, row)| !row.trim_ascii().is_empty())
        .map(|(index, row)| (index + 1, row))
        .collect();
    let mut metrics = Metrics::default();
    for (place, (line, row)) in rows.iter().enumerate() {
        match serde_json::from_slice(row) {
            Ok(parsed) => metrics.lines.push(parsed),
            // A torn line is not JSON. Whole JSON that does not fit was written so, and stays an error.
            Err(error) if place + 1 == rows.len() && error.classify() != Category::Data => {
                metrics.torn = true;
            }
            Err(error) => return Err(parse_error(path, *line, &error)),
        }
    }
    Ok(metrics)
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, ResultsError> {
    std::fs::read(path).map_err(|source| ResultsError::Read { path: path.to_path_buf(), source })
}

fn is_absent(error: &ResultsError) -> bool {
    matches!(error, ResultsError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

#[derive(Deserialize)]
struct SchemaOnly {
    schema: u64,
}

/// The format is looked at first: a file of another format fails for that reason, not for its first unknown field.
fn parse_with_schema<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, ResultsError> {
    if let Ok(SchemaOnly { schema }) = serde_json::from_slice(bytes)
        && schema != u64::from(SCHEMA)
    {
        return Err(ResultsError::Schema { path: path.to_path_buf(), found: schema });
    }
    serde_json::from_slice(bytes).map_err(|error| parse_error(path, error.line(), &error))
}

fn parse_error(path: &Path, line: usize, error: &serde_json::Error) -> ResultsError {
    // serde_json counts lines inside the text it was given; the caller knows the line of the file.
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default().to_owned();
    ResultsError::Parse { path: PathBuf::from(path), line, message: format!("{message} (column {})", error.column()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"step":1,"tokens":2,"split":"train","phase":"dense","values":{"loss":1.5}}"#;

    fn metrics_of(text: &[u8]) -> Result<Metrics, ResultsError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        std::fs::write(&path, text).unwrap();
        read_metrics(&path)
    }

    #[test]
    fn a_line_torn_anywhere_is_left_out() {
        for cut in 1..GOOD.len() {
            let text = format!("{GOOD}\n{}", &GOOD[..cut]);
            let metrics = metrics_of(text.as_bytes()).unwrap();
            assert_eq!((metrics.lines.len(), metrics.torn), (1, true), "cut at {cut}");
        }
        // A crash of the machine can leave zero bytes, or half of a character.
        for tail in [&b"\0\0\0\0"[..], b"{\"step\":1,\"values\":{\"\xc3"] {
            let text = [GOOD.as_bytes(), b"\n", tail].concat();
            assert!(metrics_of(&text).unwrap().torn);
        }
    }

    #[test]
    fn a_whole_last_line_counts_with_and_without_its_newline() {
        for end in ["", "\n", "\n\n"] {
            let metrics = metrics_of(format!("{GOOD}\n{GOOD}{end}").as_bytes()).unwrap();
            assert_eq!((metrics.lines.len(), metrics.torn), (2, false));
        }
    }

    #[test]
    fn a_broken_line_elsewhere_names_file_and_line() {
        let message = metrics_of(format!("{GOOD}\n{{\"step\":\n{GOOD}\n").as_bytes()).unwrap_err().to_string();
        assert!(message.contains("metrics.jsonl, line 2:"), "{message}");
        let unknown = GOOD.replace("tokens", "token");
        let message = metrics_of(format!("{GOOD}\n{unknown}\n").as_bytes()).unwrap_err().to_string();
        assert!(message.contains("line 2: unknown field `token`"), "{message}");
    }

    #[test]
    fn only_measurements_may_be_absent() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_metrics(&dir.path().join("metrics.jsonl")).unwrap(), Metrics::default());
        let message = read_ablation(&dir.path().join("ablation.json")).unwrap_err().to_string();
        assert!(message.contains("ablation.json: cannot be read"), "{message}");
        assert!(read_summary(&dir.path().join("summary.json")).is_err());
    }

    #[test]
    fn another_file_format_is_told_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("summary.json");
        std::fs::write(&path, r#"{"schema":2,"new_field":true}"#).unwrap();
        let message = read_summary(&path).unwrap_err().to_string();
        assert!(message.contains("file format 2, but this csa2 reads format 1"), "{message}");
    }
}
