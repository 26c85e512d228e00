//! Why a run's folder cannot be used.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::Origin;
use crate::checkpoints::StoreError;
use crate::files::FileError;

/// Why a run's folder cannot be used.
#[derive(Debug, Error)]
pub enum RunError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The folder is no run's.
    #[error("{}: {wrong}", folder.display())]
    NotARun {
        /// The folder.
        folder: PathBuf,
        /// What it is, and what would be right.
        wrong: String,
    },
    /// The run has no checkpoint.
    #[error("{}: has no checkpoint yet; train it to its first one", folder.display())]
    NoWeights {
        /// The run's folder.
        folder: PathBuf,
    },
    /// The configuration is wrong.
    #[error("{}: {message}", path.display())]
    Config {
        /// `config.toml`.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The run holds attention layers alone.
    #[error(
        "{}: holds nothing but the attention of {} (imported with --attention-only), so it has no whole model; \
         import the folder without --attention-only",
        folder.display(), numbers(layers)
    )]
    LayersAlone {
        /// The run's folder.
        folder: PathBuf,
        /// The layers that it holds.
        layers: Vec<usize>,
    },
    /// The run does not hold this attention layer.
    #[error(
        "{}: holds the attention of {}, not of layer {layer} (imported with --attention-only)",
        folder.display(), numbers(layers)
    )]
    OtherLayers {
        /// The run's folder.
        folder: PathBuf,
        /// The layer asked for.
        layer: usize,
        /// The layers that it holds.
        layers: Vec<usize>,
    },
    /// A weight is not a number.
    #[error("{}: {message}; a run that diverged has nothing to measure", path.display())]
    NotFinite {
        /// The file of the weights.
        path: PathBuf,
        /// The weight.
        message: String,
    },
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Store(StoreError),
    /// The weights of an imported run cannot be used.
    #[error("{error}\nThese weights cannot be used; import {from} again")]
    Imported {
        /// What is wrong; it names the file.
        error: Box<dyn std::error::Error + Send + Sync>,
        /// What was imported.
        from: String,
    },
}

fn numbers(layers: &[usize]) -> String {
    let list: Vec<String> = layers.iter().map(ToString::to_string).collect();
    format!("{} {}", if layers.len() == 1 { "layer" } else { "layers" }, list.join(", "))
}

impl RunError {
    /// A checkpoint that cannot be used, with a way out that fits where it comes from.
    pub(super) fn store(error: StoreError, origin: Option<&Origin>) -> Self {
        match (error, origin) {
            (StoreError::Damaged { error, .. }, Some(origin)) => Self::Imported { error, from: origin.from.clone() },
            (error, _) => Self::Store(error),
        }
    }

    /// Tells what a folder without a run's configuration seems to be.
    pub(super) fn not_a_run(folder: &Path) -> Self {
        let runs = |folder: &Path| {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let mut below: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
            below.sort();
            below
        };
        let has_run = |path: &PathBuf| path.join("config.toml").exists();
        let below = runs(folder);
        let deeper = below.iter().flat_map(|path| runs(path)).find(has_run);
        let wrong = match below.iter().find(|path| has_run(path)).cloned().or(deeper) {
            Some(run) => format!("holds runs, but is none; give one of them, such as {}", run.display()),
            None if !folder.exists() => "there is no such folder".into(),
            None if !folder.is_dir() => "is no folder; a run is a folder with config.toml and checkpoint/".into(),
            None if folder.join("config.json").exists() => {
                "is a Transformers folder, no run; `csa2 import` makes a run of it".into()
            }
            None => "is no run: it has no config.toml".into(),
        };
        Self::NotARun { folder: folder.to_path_buf(), wrong }
    }
}
