//! A tiny ablation for tests: two variants that train in a fraction of a second.

use std::path::{Path, PathBuf};

use super::AblationConfig;

/// 20 steps of 8 sequences of 14 tokens.
pub const TINY: &str = include_str!("../../tests/tiny.toml");

/// [`TINY`] with `from` replaced by `to`.
pub fn edited(from: &str, to: &str) -> String {
    assert!(TINY.contains(from), "nothing to replace: {from}");
    TINY.replace(from, to)
}

/// Writes a configuration into `folder`.
pub fn write(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("tiny.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// Reads a configuration in a folder of its own; the message comes without the folder's name.
pub fn load(text: &str) -> Result<AblationConfig, String> {
    let folder = tempfile::tempdir().unwrap();
    let shown = format!("{}/", folder.path().display());
    AblationConfig::load(&write(folder.path(), text)).map_err(|error| error.to_string().replace(&shown, ""))
}
