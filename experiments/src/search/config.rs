//! The configuration of a layer search.
//!
//! ```toml
//! [search]
//! name = "quickstart-search"   # also the folder's
//! measure = "loss"             # what is kept low: "loss", the cross-entropy, or "metric", the task's own
//! full_to_reindex = true       # whether a `full` layer may become `reindex` besides `reuse`
//! calibration = { sequences = 512, batch = 32, seed = 0 }   # what mixes are measured on
//!
//! title = "..."                # a line for people (default: the name)
//! max_worsening = 0.05         # stop before the measure is worse by more than this (default: no limit)
//! min_selecting = 2            # stop before fewer `full` and `reindex` layers are left (default: 1)
//! decode_context = 65_536      # context at which scored entries are counted (default 65536)
//! ```
//!
//! A `[task]` is needed only where the run has none (an imported one) or where it is to be measured on another.

use std::path::Path;

use csa2_train::tasks::TaskConfig;
use serde::{Deserialize, Serialize};

use super::greedy::Rules;
use crate::ablation::config::check;
use crate::ablation::{AblationError, read_text, toml_error};

/// The file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchFile {
    /// The table `[search]`.
    pub search: SearchConfig,
    /// What mixes are measured on, where that is not the run's own task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskConfig>,
}

/// The table `[search]`. Unknown keys are refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [search]")]
pub struct SearchConfig {
    /// Name, which is also the folder's.
    pub name: String,
    /// One line for people (default: the name).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What is kept low.
    pub measure: MeasureKind,
    /// Whether a `full` layer may become a `reindex` layer, besides `reuse`.
    pub full_to_reindex: bool,
    /// What mixes are measured on.
    pub calibration: Calibration,
    /// The most that the measure may get worse against the run's own mix (default: no limit).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_worsening: Option<f64>,
    /// The fewest `full` and `reindex` layers that may be left (default: 1, the lowest `full`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_selecting: Option<usize>,
    /// Context length at which scored entries are counted (default 65536).
    #[serde(default = "decode_context")]
    pub decode_context: u64,
}

/// What a search keeps low (or high, where that is better).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MeasureKind {
    /// Mean cross-entropy of all targets, in nats.
    Loss,
    /// What the task is judged by, such as accuracy.
    Metric,
}

/// The sequences that mixes are measured on: training sequences of a random stream that no run is trained on. Unknown keys are
/// refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { sequences = 512, batch = 32, seed = 0 }")]
pub struct Calibration {
    /// How many.
    pub sequences: usize,
    /// How many at a time.
    pub batch: usize,
    /// Names the stream.
    pub seed: u64,
}

fn decode_context() -> u64 {
    65_536
}

/// More calibration sequences than this are surely a slip of the pen.
const MOST_SEQUENCES: usize = 1 << 24;

impl SearchFile {
    /// Reads and checks `path`.
    ///
    /// # Errors
    /// When the file cannot be read, or anything in it is wrong; the message says where.
    pub fn load(path: &Path) -> Result<Self, AblationError> {
        let text = read_text(path)?;
        let file: Self = toml::from_str(&text).map_err(|error| toml_error(path, &error))?;
        let refuse = |message: String| AblationError::Toml { path: path.to_path_buf(), message };
        file.search.check().map_err(refuse)?;
        Ok(file)
    }
}

impl SearchConfig {
    /// What the types cannot tell.
    fn check(&self) -> Result<(), String> {
        check::name("search.name", &self.name)?;
        let Calibration { sequences, batch, .. } = self.calibration;
        for (key, size) in [("sequences", sequences), ("batch", batch)] {
            if size == 0 || size > MOST_SEQUENCES {
                return Err(format!(
                    "search.calibration.{key} = {size}: set it to 1 or more, at most {MOST_SEQUENCES}"
                ));
            }
        }
        if let Some(most) = self.max_worsening.filter(|most| !(most.is_finite() && *most >= 0.0)) {
            return Err(format!(
                "search.max_worsening = {most}: it must be a finite number, 0 or more; leave it out for no limit"
            ));
        }
        if self.min_selecting == Some(0) {
            return Err(
                "search.min_selecting = 0: the lowest `full` always stays; set it to 1 or more, or leave it out".into(),
            );
        }
        if self.decode_context == 0 {
            return Err("search.decode_context = 0: it is a context length in tokens, at least 1".into());
        }
        Ok(())
    }

    /// What the search follows.
    pub fn rules(&self) -> Rules {
        let Self { full_to_reindex, max_worsening, min_selecting, .. } = *self;
        Rules { full_to_reindex, max_worsening, min_selecting }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "[search]\nname = \"a\"\nmeasure = \"loss\"\nfull_to_reindex = true\n\
                         calibration = { sequences = 4, batch = 2, seed = 0 }\n";

    fn load(text: &str) -> Result<SearchFile, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("search.toml");
        std::fs::write(&path, text).unwrap();
        SearchFile::load(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn what_decides_a_search_has_no_default() {
        assert_eq!(load(WHOLE).unwrap().search.decode_context, 65_536);
        for key in ["name", "measure", "full_to_reindex", "calibration"] {
            let without: Vec<&str> = WHOLE.lines().filter(|line| !line.starts_with(key)).collect();
            let message = load(&without.join("\n")).unwrap_err();
            assert!(message.contains(&format!("missing field `{key}`")), "{message}");
        }
        for key in ["sequences = 4, ", "batch = 2, ", ", seed = 0"] {
            let message = load(&WHOLE.replace(key, "")).unwrap_err();
            assert!(message.contains("missing field"), "{message}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (from, to, expected) in [
            ("measure", "measures", "unknown field `measures`"),
            ("\"loss\"", "\"accuracy\"", "unknown variant `accuracy`, expected `loss` or `metric`"),
            ("seed", "seeds", "unknown field `seeds`"),
            ("sequences = 4", "sequences = 0", "search.calibration.sequences = 0"),
            ("batch = 2", "batch = 0", "search.calibration.batch = 0"),
            ("\"a\"", "\"a/b\"", "search.name is \"a/b\""),
            ("name", "max_worsening = -0.5\nname", "search.max_worsening = -0.5"),
            ("name", "max_worsening = nan\nname", "search.max_worsening = NaN"),
            ("name", "min_selecting = 0\nname", "search.min_selecting = 0"),
            ("name", "decode_context = 0\nname", "search.decode_context = 0"),
            ("[search]", "[train]\n[search]", "unknown field `train`"),
            ("[search]", "[task]\nkind = \"none\"\n[search]", "unknown task kind `none`"),
        ] {
            assert!(WHOLE.contains(from));
            let message = load(&WHOLE.replacen(from, to, 1)).unwrap_err();
            assert!(message.contains(expected) && message.contains("search.toml"), "{expected}: {message}");
        }
    }
}
