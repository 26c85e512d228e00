//! What one run is: task, model and training, as configurations say it.

use csa2_model::config::{ConfigError, FfnConfig, ModelConfig};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::indexers::IndexTraining;
use crate::tasks::{Task, TaskConfig};
use crate::trainable::Trainable;

/// One run, without its seed. Unknown keys are refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// What is learnt.
    pub task: TaskConfig,
    /// What learns it.
    pub model: ModelConfig,
    /// How.
    pub train: TrainConfig,
    /// Where its weights started, where that is another run: only in the record of a run, not in what is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartRecord>,
}

/// The run whose weights another one started from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartRecord {
    /// Its folder, as it was given or beside this run's.
    pub run: String,
    /// Steps that it had taken.
    pub step: u64,
    /// Hash of its configuration.
    pub config_hash: String,
}

impl RunConfig {
    /// The model's configuration with the task's vocabulary, checked.
    ///
    /// # Errors
    /// When the model's configuration is wrong, or names another vocabulary than the task's.
    pub fn model_for(&self, task: &dyn Task) -> Result<ModelConfig, RunConfigError> {
        let expected = task.vocab_size();
        if let Some(found) = self.model.vocab_size.filter(|&found| found != expected) {
            return Err(RunConfigError::Vocabulary { found, expected, task: task.kind() });
        }
        let model = ModelConfig { vocab_size: Some(expected), ..self.model.clone() };
        model.validate()?;
        if self.train.index.warmup > 0.0 && !model.layers.has_indexer() {
            return Err(refusal(
                "index.warmup",
                &self.train.index.warmup,
                "only indexers train in the warm-up, and the mix has none; set it to 0 for this mix",
            ));
        }
        self.check_pool_from(&model)?;
        self.check_trainable(&model)?;
        let experts = matches!(model.ffn, FfnConfig::Moe { .. });
        if let Some(speed) = self.train.expert_bias_speed.filter(|_| !experts) {
            return Err(RunConfigError::Train {
                key: "expert_bias_speed",
                value: format!("{speed:?}"),
                right: "the model has no experts to balance; remove it, or set `model.ffn.kind = \"moe\"`".into(),
            });
        }
        Ok(model)
    }

    fn check_pool_from(&self, model: &ModelConfig) -> Result<(), RunConfigError> {
        let Some(start) = self.train.pool_from else { return Ok(()) };
        let written = format!("{{ blocks = {}, until = {} }}", start.blocks, start.until);
        let refuse = |right: String| Err(RunConfigError::Train { key: "pool_from", value: written.clone(), right });
        let Some(pool) = model.pool else {
            return refuse("the model has no candidate pool that could shrink; remove it".into());
        };
        if start.blocks <= pool.blocks || start.blocks > 1 << 24 {
            return refuse(format!(
                "it must start with more blocks than the model's {} (and at most 2^24)",
                pool.blocks
            ));
        }
        if !(start.until > 0.0 && start.until <= 1.0) {
            return refuse("`until` is a share of the steps, above 0 and at most 1".into());
        }
        Ok(())
    }

    fn check_trainable(&self, model: &ModelConfig) -> Result<(), RunConfigError> {
        if self.train.trainable != Trainable::Indexers {
            return Ok(());
        }
        let right = match (model.layers.has_indexer(), self.train.index_loss > 0.0) {
            (false, _) => "the mix has no indexer, so nothing would train",
            (true, false) => "indexers learn from their loss alone; set `train.index_loss` above 0",
            (true, true) => return Ok(()),
        };
        Err(RunConfigError::Train { key: "trainable", value: "\"indexers\"".into(), right: right.into() })
    }

    /// Checks the training settings for sequences of `seq_len` tokens, alone and against the model.
    ///
    /// # Errors
    /// The first setting that cannot be, with what would be right.
    pub fn validate(&self, seq_len: usize) -> Result<(), RunConfigError> {
        self.train.validate(seq_len)?;
        if self.train.quantize_from > 0 && !self.model.quantization.any() {
            let right = "the model has no quantization to switch on; set model.quantization (main_kv, index or window), \
                         or leave quantize_from out";
            return Err(refusal("quantize_from", &self.train.quantize_from, right));
        }
        Ok(())
    }
}

fn refusal(key: &'static str, value: &dyn std::fmt::Debug, right: &str) -> RunConfigError {
    RunConfigError::Train { key, value: format!("{value:?}"), right: right.into() }
}

/// How a run trains. Unknown keys are refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Budget in training tokens (prompt and targets alike), used up to the last whole step.
    pub tokens: u64,
    /// Sequences in a step.
    pub batch: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Share of the steps over which the learning rate rises from 0 (default 0.05).
    #[serde(default = "warmup")]
    pub warmup: f64,
    /// Share of the peak at which the cosine ends (default 0.1).
    #[serde(default = "final_learning_rate")]
    pub final_learning_rate: f64,
    /// Decoupled weight decay of matrices; gains and sinks have none (default 0.01).
    #[serde(default = "weight_decay")]
    pub weight_decay: f64,
    /// Decay rates of `AdamW`'s two moments (default 0.9, 0.95).
    #[serde(default = "betas")]
    pub betas: [f64; 2],
    /// Largest norm of the gradient, for the trunk and for the indexers apart (default 1).
    #[serde(default = "clip")]
    pub clip: f64,
    /// Factor of the indexers' KL loss; 0 trains no indexer (default 1). The technical report states no indexer loss: this
    /// one is csa2's choice.
    #[serde(default = "index_loss")]
    pub index_loss: f64,
    /// Scope, teacher, schedule and warm-up of that loss.
    #[serde(default, skip_serializing_if = "IndexTraining::is_default")]
    pub index: IndexTraining,
    /// Share of the steps, at the start, in which every visible entry is attended while everything trains (default 0); after the
    /// indexers' warm-up, where there is one.
    #[serde(default)]
    pub dense: f64,
    /// How far a step moves the bias that balances the experts' load, only for models with experts (default 0.001; 0 balances
    /// nothing). There is no loss for the balance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_bias_speed: Option<f64>,
    /// Steps at the start that compute without the model's quantization, evaluations included; the steps after them, and the
    /// evaluation at the end, compute with it (default 0: all do). The number of all steps leaves it to the evaluation at
    /// the end.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub quantize_from: u64,
    /// What trains: `everything` (the default), `attention` (attention layers with their indexers) or `indexers`.
    #[serde(default, skip_serializing_if = "Trainable::is_default")]
    pub trainable: Trainable,
    /// A candidate pool that starts larger than the model's and shrinks to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_from: Option<PoolStart>,
    /// Steps between two lines on the training batches (default 10).
    #[serde(default = "log_every")]
    pub log_every: u64,
    /// Steps between two evaluations (default 50); the end is always evaluated.
    #[serde(default = "evaluate_every")]
    pub evaluate_every: u64,
    /// Steps between two checkpoints (default 100); the end always leaves one.
    #[serde(default = "checkpoint_every")]
    pub checkpoint_every: u64,
}

/// A run that is quantized throughout is recorded as it was before this could be chosen.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(steps: &u64) -> bool {
    *steps == 0
}
/// How a candidate pool shrinks in training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolStart {
    /// Blocks that the pool keeps in the first step, more than the model's.
    pub blocks: usize,
    /// Share of the steps after which it keeps as many as the model says; on a straight line until then.
    pub until: f64,
}

fn warmup() -> f64 {
    0.05
}
fn final_learning_rate() -> f64 {
    0.1
}
fn weight_decay() -> f64 {
    0.01
}
fn betas() -> [f64; 2] {
    [0.9, 0.95]
}
fn clip() -> f64 {
    1.0
}
fn index_loss() -> f64 {
    1.0
}
/// Speed of the experts' bias where none is set (DeepSeek-V3 report, section 4.2).
const EXPERT_BIAS_SPEED: f64 = 1e-3;

fn log_every() -> u64 {
    10
}
fn evaluate_every() -> u64 {
    50
}
fn checkpoint_every() -> u64 {
    100
}

/// A run that cannot be.
#[derive(Debug, Error)]
pub enum RunConfigError {
    /// A training setting that cannot be.
    #[error("`train.{key} = {value}`: {right}")]
    Train {
        /// The key.
        key: &'static str,
        /// The value found.
        value: String,
        /// What would be right.
        right: String,
    },
    /// The model's configuration is wrong.
    #[error("model: {0}")]
    Model(#[from] ConfigError),
    /// Model and task disagree.
    #[error(
        "`model.vocab_size = {found}`, but the task `{task}` has {expected} token ids; leave it out, the task sets it"
    )]
    Vocabulary {
        /// The value found.
        found: usize,
        /// The task's.
        expected: usize,
        /// The task.
        task: &'static str,
    },
}

impl TrainConfig {
    /// Steps that the budget pays for, with sequences of `seq_len` tokens.
    pub fn steps(&self, seq_len: usize) -> u64 {
        self.tokens / self.tokens_per_step(seq_len).max(1)
    }

    /// Tokens that a step trains on.
    pub fn tokens_per_step(&self, seq_len: usize) -> u64 {
        (self.batch as u64).saturating_mul(seq_len as u64)
    }

    /// How far a step moves the experts' biases.
    pub fn expert_bias_speed(&self) -> f64 {
        self.expert_bias_speed.unwrap_or(EXPERT_BIAS_SPEED)
    }

    /// Steps at the start in which every visible entry is attended, the indexers' warm-up included.
    pub fn dense_steps(&self, seq_len: usize) -> u64 {
        let steps = self.steps(seq_len);
        let dense = (self.dense * steps as f64).round() as u64;
        (self.index.warmup_steps(steps) + dense).min(steps)
    }

    /// Checks the settings for sequences of `seq_len` tokens.
    ///
    /// # Errors
    /// The first setting that cannot be, with what would be right.
    pub fn validate(&self, seq_len: usize) -> Result<(), RunConfigError> {
        let refuse = |key, value: &dyn std::fmt::Debug, right: &str| Err(refusal(key, value, right));
        if self.batch == 0 || self.batch > 1 << 20 {
            return refuse("batch", &self.batch, "a step needs 1 to 1048576 sequences");
        }
        let most = u64::from(i32::MAX.unsigned_abs());
        if self.tokens_per_step(seq_len) > most {
            let right = format!(
                "with sequences of {seq_len} tokens, {} fill the {most} tokens that a step can number",
                most / seq_len as u64
            );
            return refuse("batch", &self.batch, &right);
        }
        if self.steps(seq_len) == 0 {
            let need = self.tokens_per_step(seq_len);
            return refuse("tokens", &self.tokens, &format!("one step takes {need} tokens (batch x sequence length)"));
        }
        let steps = self.steps(seq_len);
        if self.quantize_from > steps {
            let right = format!("the run has {steps} steps; at {steps} only the evaluation at its end is quantized");
            return refuse("quantize_from", &self.quantize_from, &right);
        }
        let share = |x: f64| (0.0..=1.0).contains(&x);
        let shares =
            [("warmup", self.warmup), ("final_learning_rate", self.final_learning_rate), ("dense", self.dense)];
        for (key, value) in shares {
            if !share(value) {
                return refuse(key, &value, "a share lies between 0 and 1");
            }
        }
        if !(self.learning_rate > 0.0 && self.learning_rate <= 1e3) {
            return refuse("learning_rate", &self.learning_rate, "it must be above 0 (and not above 1000)");
        }
        if !(self.clip > 0.0 && self.clip.is_finite()) {
            return refuse(
                "clip",
                &self.clip,
                "the largest gradient norm must be above 0; a large number clips nothing",
            );
        }
        let speed = ("expert_bias_speed", self.expert_bias_speed());
        for (key, value) in [("weight_decay", self.weight_decay), ("index_loss", self.index_loss), speed] {
            if !(value >= 0.0 && value.is_finite()) {
                return refuse(key, &value, "it must be 0 or above");
            }
        }
        if let Err((key, value, right)) = self.index.check(self.index_loss, self.dense) {
            return Err(RunConfigError::Train { key, value, right });
        }
        if self.betas.iter().any(|beta| !(0.0..1.0).contains(&(*beta as f32))) {
            return refuse("betas", &self.betas, "both must be at least 0 and below 1");
        }
        for (key, value) in [
            ("log_every", self.log_every),
            ("evaluate_every", self.evaluate_every),
            ("checkpoint_every", self.checkpoint_every),
        ] {
            if value == 0 {
                return refuse(key, &value, "it is a number of steps, at least 1");
            }
        }
        Ok(())
    }

    /// Blocks that the pool keeps in step `step` (counted from 0) of `steps`, where that is not the model's `blocks`.
    pub fn pool_blocks_at(&self, blocks: usize, step: u64, steps: u64) -> Option<usize> {
        let start = self.pool_from?;
        let left = 1.0 - step as f64 / (start.until * steps as f64).max(1.0);
        let more = ((start.blocks - blocks) as f64 * left).ceil();
        (left > 0.0).then_some(blocks + more as usize)
    }

    /// Blocks that the model's pool of `blocks` kept in the last of `done` steps, of `steps` in all. At their end it keeps what the model says.
    pub fn pool_blocks_after(&self, blocks: usize, done: u64, steps: u64) -> usize {
        let last = done.checked_sub(1).filter(|_| done < steps);
        last.and_then(|step| self.pool_blocks_at(blocks, step, steps)).unwrap_or(blocks)
    }

    /// Learning rate of step `step` (counted from 0) of `steps`: linear warm-up, then a cosine. The indexers' warm-up may have
    /// its own.
    pub fn learning_rate_at(&self, step: u64, steps: u64) -> f64 {
        if let Some(rate) = self.index.warmup_rate.filter(|_| step < self.index.warmup_steps(steps)) {
            return rate;
        }
        let warmup = (self.warmup * steps as f64).round();
        let done = step as f64;
        if done < warmup {
            return self.learning_rate * (done + 1.0) / (warmup + 1.0);
        }
        let progress = (done - warmup) / (steps as f64 - warmup).max(1.0);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
        self.learning_rate * (self.final_learning_rate + (1.0 - self.final_learning_rate) * cosine)
    }
}

#[cfg(test)]
mod tests;
