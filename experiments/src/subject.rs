//! A run that is there and is to be measured: its model, its weights, and a task to measure it on.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use csa2_model::cost::Cost;
use csa2_train::runs::{Run, RunError, RunWeights};
use csa2_train::tasks::{Task, TaskConfig, TaskError};
use thiserror::Error;

use crate::ablation::check_size;

/// A run, its weights and a task.
pub struct Subject {
    /// The run.
    pub run: Run,
    /// Its weights.
    pub weights: RunWeights,
    /// What it is measured on.
    pub task: Box<dyn Task>,
    /// The task's configuration.
    pub task_config: TaskConfig,
}

/// Why a run cannot be measured.
#[derive(Debug, Error)]
pub enum SubjectError {
    /// The run cannot be used.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The run has no task.
    #[error("{run}: has no task (it was imported), so there is nothing to measure it on; {right}")]
    NoTask {
        /// The run's folder.
        run: String,
        /// How to give one.
        right: &'static str,
    },
    /// The task cannot be built.
    #[error(transparent)]
    Task(TaskError),
    /// The task's files cannot be used.
    #[error("{error}\n(Files with relative names are looked for below {})", base.display())]
    Files {
        /// What is wrong.
        error: TaskError,
        /// Where files are looked for.
        base: PathBuf,
    },
    /// The task does not fit the run.
    #[error("{run}: {message}")]
    Unfit {
        /// The run's folder.
        run: String,
        /// What does not fit.
        message: String,
    },
}

impl Subject {
    /// Opens the run in `folder`. It is measured on `task`, or where that is none on the run's own; relative files lie in
    /// `base`. `right` says how to give a task.
    ///
    /// # Errors
    /// When run or task cannot be used or do not fit, or a weight is not finite.
    pub fn open(
        folder: &Path,
        task: Option<&TaskConfig>,
        base: &Path,
        right: &'static str,
        device: &Device,
    ) -> Result<Self, SubjectError> {
        let run = Run::open(folder)?;
        let shown = folder.display().to_string();
        let Some(task_config) = task.or(run.task()).cloned() else {
            return Err(SubjectError::NoTask { run: shown, right });
        };
        let task = build_task(&task_config, base)?;
        let unfit = |message: String| SubjectError::Unfit { run: shown.clone(), message };
        let vocabulary = run.model_config().vocab_size.unwrap_or(0);
        if task.vocab_size() != vocabulary {
            return Err(unfit(format!(
                "its model has {vocabulary} token ids, the task {}; measure it on a task with as many",
                task.vocab_size()
            )));
        }
        let size = Cost::of(run.model_config()).map_err(|error| error.to_string());
        size.and_then(|cost| check_size(run.model_config(), &cost, task.seq_len())).map_err(unfit)?;
        let weights = run.weights(device)?;
        Ok(Self { run, weights, task, task_config })
    }
}

/// Builds a task whose relative files lie in `base`.
///
/// # Errors
/// When its configuration or its files cannot be used.
pub fn build_task(config: &TaskConfig, base: &Path) -> Result<Box<dyn Task>, SubjectError> {
    let base = if base.as_os_str().is_empty() { Path::new(".") } else { base };
    config.build(base).map_err(|error| match error {
        TaskError::Field { .. } | TaskError::Length { .. } => SubjectError::Task(error),
        TaskError::Corpus(_) => SubjectError::Files { error, base: base.to_path_buf() },
    })
}

#[cfg(test)]
pub mod testing;
