//! Conformance: what csa2 computes beside golden cases, numbers that independent implementations of the published model made.
//!
//! A case is a pair of files, `NAME.safetensors` and `NAME.json`; how NAME begins tells the [`family`] of the case. Nothing of
//! a case is known here but the names of its tensors: sizes, sub-cases and the model's configuration come from the files.
//! Each family has a file in [`families`]; [`tolerance`] lists how far numbers may be off.

pub mod block;
pub mod case;
pub mod check;
pub mod error;
pub mod families;
pub mod family;
pub mod folder;
pub mod gradient;
mod json;
pub mod layer;
pub mod network;
pub mod sizes;
mod stored;
mod table;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod tolerance;

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use csa2_model::config::ModelConfig;

use self::case::Case;
use self::check::{Check, Comparison, NotRun};
use self::error::{CaseError, ConformError};
use self::family::Family;
use crate::backend::Backend;

pub use json::render as render_json;
pub use table::render as render_text;

/// Where cases are computed.
pub struct Place {
    /// The backend asked for.
    pub backend: Backend,
    /// Its device.
    pub device: Device,
    /// The device for f64, which GPUs do not have.
    pub cpu: Device,
}

impl Place {
    /// Runs what is left to the CPU whatever the backend.
    ///
    /// # Errors
    /// What `run` refuses.
    pub fn on_cpu<'a>(
        &self,
        check: &mut Check<'a>,
        run: impl FnOnce(&mut Check<'a>, &Device) -> Result<(), CaseError>,
    ) -> Result<(), CaseError> {
        let on = std::mem::replace(&mut check.on, Backend::Flex.name());
        let ran = run(check, &self.cpu);
        check.on = on;
        ran
    }

    /// Whether the backend can hold vectors of so many channels; where it cannot, the check says so.
    pub fn holds(&self, check: &mut Check, what: &str, channels: usize) -> bool {
        match self.backend.holds(&format!("{what}: {channels} channels"), channels) {
            Ok(()) => true,
            Err(error) => {
                check.leave_out(&format!("what needs {}", self.backend.name()), error.to_string());
                false
            }
        }
    }

    /// The same for every vector of a model.
    pub fn holds_model(&self, check: &mut Check, config: &ModelConfig) -> bool {
        self.holds(check, "head_dim", config.head_dim) && self.holds(check, "index_head_dim", config.index_dim)
    }
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every comparison passed.
    Passed,
    /// A comparison failed, or the case could not be compared.
    Failed,
    /// Nothing was compared, with a reason.
    NotRun,
}

impl Outcome {
    /// The name in tables and results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotRun => "not run",
        }
    }
}

/// One case, compared.
#[derive(Debug)]
pub struct Compared {
    /// The case.
    pub name: String,
    /// What was compared.
    pub comparisons: Vec<Comparison>,
    /// What was left out, and why.
    pub not_run: Vec<NotRun>,
    /// Tensors that no comparison looks at; empty where an error or a reason ended it before.
    pub unread: Vec<String>,
    /// Why it could not be compared to the end.
    pub error: Option<String>,
}

impl Compared {
    /// How it ended.
    pub fn outcome(&self) -> Outcome {
        if self.error.is_some() || self.comparisons.iter().any(|comparison| !comparison.passed()) {
            Outcome::Failed
        } else if !self.comparisons.is_empty() {
            Outcome::Passed
        } else if self.not_run.is_empty() {
            Outcome::Failed
        } else {
            Outcome::NotRun
        }
    }

    fn failed(name: &str, error: &CaseError) -> Self {
        let (comparisons, not_run, unread) = (Vec::new(), Vec::new(), Vec::new());
        Self { name: name.into(), comparisons, not_run, unread, error: Some(error.to_string()) }
    }
}

/// All cases of a folder.
#[derive(Debug)]
pub struct Report {
    /// The folder.
    pub folder: PathBuf,
    /// The backend.
    pub backend: Backend,
    /// What it computed on.
    pub hardware: String,
    /// The cases, in alphabetical order.
    pub cases: Vec<Compared>,
}

impl Report {
    /// How many cases ended so.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.cases.iter().filter(|case| case.outcome() == outcome).count()
    }

    /// Whether at least one case ran and none failed.
    pub fn passed(&self) -> bool {
        self.count(Outcome::Passed) > 0 && self.count(Outcome::Failed) == 0
    }
}

/// Compares the case `name` of `folder`.
pub fn compare(folder: &Path, name: &str, place: &Place) -> Compared {
    let Some(family) = Family::of(name) else {
        return Compared::failed(name, &CaseError::Unknown { there: Family::prefixes() });
    };
    let case = match Case::load(folder, name) {
        Ok(case) => case,
        Err(error) => return Compared::failed(name, &error),
    };
    let mut check = Check::new(&case, place.backend.name());
    let ran = family.fits(&case).and_then(|()| (family.run)(&mut check, place));
    let Check { comparisons, not_run, .. } = check;
    let unread = if ran.is_err() || comparisons.is_empty() { Vec::new() } else { case.unread() };
    Compared { name: name.into(), comparisons, not_run, unread, error: ran.err().map(|error| error.to_string()) }
}

/// Compares the cases of `folder` whose names begin with one of `only`; all where that is empty. `watch` is told how many of
/// how many are done.
///
/// # Errors
/// When the folder cannot be read or holds no such case.
pub fn run(
    folder: &Path,
    only: &[String],
    place: &Place,
    mut watch: impl FnMut(usize, usize),
) -> Result<Vec<Compared>, ConformError> {
    let names = folder::cases(folder, only)?;
    let mut cases = Vec::with_capacity(names.len());
    for name in &names {
        watch(cases.len(), names.len());
        cases.push(compare(folder, name, place));
    }
    watch(cases.len(), names.len());
    Ok(cases)
}
