//! How indexers train: the table `[train.index]` beside the coefficient `train.index_loss`.

use csa2_model::attention::{IndexLoss, Scope, Teacher};
use serde::{Deserialize, Serialize};

/// Scope, teacher, schedule and warm-up of the indexers' loss. Unknown keys are refused.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexTraining {
    /// Entries over which indexer and teacher are compared: `topk` (the selected ones, the default), `pool`, `visible`.
    #[serde(default)]
    pub scope: Scope,
    /// Whose attention teaches: `own` (the default), `served` (every layer that reads the selection), `pool-served` (besides, a
    /// pool's builder is taught by the layers that search in the pool).
    #[serde(default)]
    pub teacher: Teacher,
    /// What `index_loss` becomes by the end, on a straight line (default: it stays).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_loss: Option<f64>,
    /// Share of the steps, at the start, in which every visible entry is attended and only indexers train (default 0).
    #[serde(default)]
    pub warmup: f64,
    /// Learning rate of the warm-up (default: the run's own at that step).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_rate: Option<f64>,
}

/// What counts in a step's loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossWeights {
    /// Whether the task counts: not while only indexers train.
    pub task: bool,
    /// Factor of the indexers' loss.
    pub index: f64,
}

impl IndexTraining {
    /// How the model makes the loss.
    pub fn kind(&self) -> IndexLoss {
        IndexLoss { scope: self.scope, teacher: self.teacher }
    }

    /// Whether this is what a configuration without the table has.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The first setting that cannot be, with what would be right; `loss` is `train.index_loss`, `dense` is `train.dense`.
    pub(crate) fn check(&self, loss: f64, dense: f64) -> Result<(), (&'static str, String, String)> {
        let refuse = |key, value: String, right: &str| Err((key, value, right.to_string()));
        if !(0.0..=1.0).contains(&self.warmup) {
            return refuse("index.warmup", format!("{:?}", self.warmup), "a share lies between 0 and 1");
        }
        if self.warmup + dense > 1.0 {
            let right = format!("with `train.dense = {dense:?}` that is more than all steps; together at most 1");
            return refuse("index.warmup", format!("{:?}", self.warmup), &right);
        }
        if self.warmup > 0.0 && loss == 0.0 {
            let right = "only indexers train in the warm-up, and `train.index_loss = 0` trains none; set one of them";
            return refuse("index.warmup", format!("{:?}", self.warmup), right);
        }
        if let Some(rate) = self.warmup_rate {
            if self.warmup == 0.0 {
                return refuse(
                    "index.warmup_rate",
                    format!("{rate:?}"),
                    "there is no warm-up; set `train.index.warmup`",
                );
            }
            if !(rate > 0.0 && rate <= 1e3) {
                let right = "it must be above 0 (and not above 1000)";
                return refuse("index.warmup_rate", format!("{rate:?}"), right);
            }
        }
        match self.final_loss {
            Some(end) if !(end >= 0.0 && end.is_finite()) => {
                refuse("index.final_loss", format!("{end:?}"), "it must be 0 or above")
            }
            _ => Ok(()),
        }
    }

    /// Steps of the warm-up, of `steps`.
    pub fn warmup_steps(&self, steps: u64) -> u64 {
        (self.warmup * steps as f64).round() as u64
    }

    /// What counts in step `step` (from 0) of `steps`, where the loss starts with the factor `loss`.
    pub fn weights_at(&self, loss: f64, step: u64, steps: u64) -> LossWeights {
        let done = step as f64 / steps.saturating_sub(1).max(1) as f64;
        let index = self.final_loss.map_or(loss, |end| loss + (end - loss) * done);
        LossWeights { task: step >= self.warmup_steps(steps), index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_indexers_count_in_the_warm_up() {
        let index = IndexTraining { warmup: 0.25, final_loss: Some(0.0), ..IndexTraining::default() };
        let counted: Vec<bool> = (0..8).map(|step| index.weights_at(2.0, step, 8).task).collect();
        assert_eq!(counted, [false, false, true, true, true, true, true, true]);
        assert_eq!((index.weights_at(2.0, 0, 8).index, index.weights_at(2.0, 7, 8).index), (2.0, 0.0));
        assert_eq!(IndexTraining::default().weights_at(2.0, 5, 8), LossWeights { task: true, index: 2.0 });
    }

    #[test]
    fn settings_that_cannot_be_are_refused_by_name() {
        let refused = |index: IndexTraining, loss, dense| {
            let (key, value, right) = index.check(loss, dense).unwrap_err();
            format!("{key} = {value}: {right}")
        };
        let warm = IndexTraining { warmup: 0.5, ..IndexTraining::default() };
        assert!(refused(IndexTraining { warmup: 1.5, ..warm }, 1.0, 0.0).starts_with("index.warmup = 1.5: a share"));
        assert!(refused(warm, 1.0, 0.6).contains("more than all steps"));
        assert!(refused(warm, 0.0, 0.0).contains("trains none"));
        let rate = |rate, warmup| IndexTraining { warmup_rate: Some(rate), warmup, ..warm };
        assert!(refused(rate(1e-3, 0.0), 1.0, 0.0).contains("there is no warm-up"));
        assert!(refused(rate(f64::NAN, 0.5), 1.0, 0.0).starts_with("index.warmup_rate = NaN"));
        let end = IndexTraining { final_loss: Some(-1.0), ..warm };
        assert!(refused(end, 1.0, 0.0).starts_with("index.final_loss = -1.0"));
        assert!(warm.check(1.0, 0.5).is_ok());
    }

    #[test]
    fn the_table_is_strict() {
        let read = toml::from_str::<IndexTraining>;
        let index = read("scope = 'visible'\nteacher = 'pool-served'").unwrap();
        assert_eq!(index.kind(), IndexLoss { scope: Scope::Visible, teacher: Teacher::PoolServed });
        assert!(read("teacher = 'both'").unwrap_err().to_string().contains("unknown variant `both`"));
        assert!(read("range = 'topk'").unwrap_err().to_string().contains("unknown field `range`"));
    }
}
