//! What a network is trained on: tasks behind one trait, and their configuration.
//!
//! A new task is one new file in this folder, its `mod` line, and one line in the list of kinds in
//! `config.rs`.

mod batch;
mod config;
pub mod mqar;
pub mod needle;
mod shared;
pub mod text;
pub mod twohop;

use serde::{Deserialize, Serialize};

use crate::corpus::CorpusError;

pub use batch::{Batch, NONE};
pub use config::TaskConfig;
pub use mqar::MqarConfig;
pub use needle::NeedleConfig;
pub use text::TextConfig;
pub use twohop::TwohopConfig;

/// How a task is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Share of targets that get the highest output.
    Accuracy,
    /// Mean cross-entropy of the targets in bits: nats / ln 2. One token is one byte.
    BitsPerByte,
}

impl Metric {
    /// Name in files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::BitsPerByte => "bits_per_byte",
        }
    }

    /// Whether a larger value is the better one.
    pub fn higher_is_better(self) -> bool {
        self == Self::Accuracy
    }
}

/// A second head that is trained on [`Batch::hint_targets`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Auxiliary {
    /// The head reads the residual stream after the layer of this index, counted from 0.
    pub after_layer: usize,
    /// Factor of its cross-entropy in the loss; above 0.
    pub weight: f64,
}

/// A source of training and evaluation sequences.
///
/// Both are functions of their arguments alone, so that a step can be prepared ahead or again after
/// a resume.
pub trait Task: Send + Sync {
    /// The `kind` of its configuration.
    fn kind(&self) -> &'static str;

    /// Tokens and targets are below this.
    fn vocab_size(&self) -> usize;

    /// Tokens in each sequence.
    fn seq_len(&self) -> usize;

    /// How the task is judged.
    fn metric(&self) -> Metric;

    /// The tag whose positions alone make up the headline metric; `None` when all targets count.
    fn metric_tag(&self) -> Option<&str> {
        None
    }

    /// Names of the groups of positions for which the metric is given apart. A position has at most
    /// one.
    fn tags(&self) -> &[String];

    /// The auxiliary head that the task needs, if any.
    fn auxiliary(&self) -> Option<Auxiliary> {
        None
    }

    /// The `rows` sequences of training step `step` in the run with seed `seed`. The first
    /// sequences do not depend on how many are asked for.
    fn train_batch(&self, seed: u64, step: u64, rows: usize) -> Batch;

    /// Sequences in the evaluation set.
    fn eval_sequences(&self) -> usize;

    /// Batches of `rows` sequences (at least 1) in the evaluation set; the last one may have fewer.
    fn eval_batches(&self, rows: usize) -> usize {
        self.eval_sequences().div_ceil(rows.max(1))
    }

    /// Batch `index` of the evaluation set, which is the same for every training seed and every
    /// `rows`. Beyond the last batch it has no rows.
    fn eval_batch(&self, index: usize, rows: usize) -> Batch;

    /// One line for reports: sizes and what guessing would reach.
    fn describe(&self) -> String;

    /// SHA-256 of the data the task has read from files, in hexadecimal; `None` when its
    /// configuration says all. Runs with other data are other runs.
    fn data_digest(&self) -> Option<&str> {
        None
    }
}

/// Why a task cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A value of the configuration that cannot be.
    #[error("task `{kind}`: `{field}` {problem}")]
    Field {
        /// Kind of the task.
        kind: &'static str,
        /// Key of the configuration.
        field: &'static str,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A length of sequences that the task cannot have.
    #[error("task `{kind}`: sequences of {tokens} tokens cannot be: {problem}")]
    Length {
        /// Kind of the task.
        kind: &'static str,
        /// Tokens of a sequence.
        tokens: usize,
        /// Why, and what would be right.
        problem: String,
    },
    /// The files of the `text` task cannot be used.
    #[error("task `text`: {0}")]
    Corpus(CorpusError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// One task of each kind, with 10 evaluation sequences.
    fn tasks() -> Vec<Box<dyn Task>> {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..30_000_u32).map(|n| (n * n % 251) as u8).collect();
        std::fs::write(folder.path().join("bytes"), bytes).unwrap();
        let mqar = MqarConfig { eval_sequences: 10, ..MqarConfig::default() };
        let twohop = TwohopConfig { eval_sequences: 10, ..TwohopConfig::default() };
        let needle = NeedleConfig { eval_sequences: 10, ..NeedleConfig::default() };
        let files = TextConfig::new(vec!["bytes".into()]);
        let text = TextConfig { document_bytes: 500, validation_share: 0.5, eval_sequences: 10, ..files };
        let configs =
            [TaskConfig::Mqar(mqar), TaskConfig::Needle(needle), TaskConfig::Twohop(twohop), TaskConfig::Text(text)];
        assert_eq!(configs.len(), TaskConfig::KINDS.len());
        configs.map(|config| config.build(folder.path()).unwrap()).into()
    }

    #[test]
    fn batches_depend_on_their_arguments_alone() {
        for (task, again) in tasks().iter().zip(tasks()) {
            let batch = task.train_batch(1, 5, 4);
            assert_eq!(task.train_batch(1, 5, 4), batch);
            assert_eq!(again.train_batch(1, 5, 4), batch);
            assert_eq!(task.train_batch(1, 5, 2).tokens, batch.tokens[..2 * batch.len]);
            assert_ne!(task.train_batch(1, 6, 4).tokens, batch.tokens);
            assert_ne!(task.train_batch(2, 5, 4).tokens, batch.tokens);
            assert_ne!(batch.tokens[..batch.len], batch.tokens[batch.len..2 * batch.len]);
        }
    }

    #[test]
    fn the_evaluation_set_does_not_depend_on_the_batch_size() {
        for task in tasks() {
            let all = task.eval_batch(0, 10);
            assert_eq!((all.rows, task.eval_batches(4), task.eval_batches(10)), (10, 3, 1));
            let parts: Vec<Batch> = (0..3).map(|index| task.eval_batch(index, 4)).collect();
            assert_eq!(parts.iter().map(|part| part.rows).collect::<Vec<_>>(), [4, 4, 2]);
            let joined = |of: fn(&Batch) -> &Vec<i32>| parts.iter().flat_map(of).copied().collect();
            let tokens: Vec<i32> = joined(|part| &part.tokens);
            let targets: Vec<i32> = joined(|part| &part.targets);
            let different: BTreeSet<&[i32]> = tokens.chunks(all.len).collect();
            assert_eq!(different.len(), 10);
            assert_eq!((tokens, targets), (all.tokens, all.targets));
            assert_eq!(task.eval_batch(3, 4).rows, 0);
            assert_eq!(task.eval_batch(usize::MAX, usize::MAX).rows, 0);
        }
    }

    #[test]
    fn batches_are_well_formed() {
        for task in tasks() {
            let has_hints = task.auxiliary().is_some();
            for batch in [task.train_batch(3, 0, 5), task.eval_batch(1, 5)] {
                let numbers = 5 * task.seq_len();
                assert_eq!((batch.rows, batch.len), (5, task.seq_len()));
                let lengths = [&batch.tokens, &batch.targets, &batch.tags, &batch.distances].map(Vec::len);
                assert_eq!(lengths, [numbers; 4]);
                assert_eq!(batch.hint_targets.map(|hints| hints.len()), has_hints.then_some(numbers));
                let below = |numbers: &[i32], least: i32, limit: usize| {
                    numbers.iter().all(|n| (least..limit as i32).contains(n))
                };
                assert!(below(&batch.tokens, 0, task.vocab_size()));
                assert!(below(&batch.targets, NONE, task.vocab_size()));
                assert!(below(&batch.tags, NONE, task.tags().len()));
                assert!(below(&batch.distances, NONE, task.seq_len()));
                let far = |(target, distance): (&i32, &i32)| {
                    (*target == NONE || task.kind() == "text") == (*distance == NONE)
                };
                assert!(
                    batch.targets.iter().zip(&batch.distances).all(far),
                    "every answer of a recall task has its distance"
                );
                let tagged = batch.targets.iter().zip(&batch.tags);
                assert!(tagged.into_iter().all(|(target, tag)| (*target == NONE) == (*tag == NONE)));
            }
        }
    }

    /// A change means that every run of these tasks gives other results than before.
    #[test]
    fn first_sequences_are_frozen() {
        let first = |task: &dyn Task| task.train_batch(1, 0, 1).tokens;
        let nowhere = Path::new("");
        let mqar = MqarConfig::default().build(nowhere).unwrap();
        assert_eq!(first(&mqar)[..12], [4, 28, 10, 23, 9, 24, 0, 25, 35, 39, 1, 19]);
        assert_eq!(first(&mqar)[24..30], [0, 10, 15, 9, 1, 4]);
        let twohop = TwohopConfig::default().build(nowhere).unwrap();
        assert_eq!(first(&twohop)[..8], [13, 19, 53, 53, 23, 45, 17, 41]);
        assert_eq!(first(&twohop)[48..54], [4, 28, 13, 15, 9, 25]);
    }
}
