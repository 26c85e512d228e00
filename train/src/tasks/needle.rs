//! Needles in a haystack: a few facts at any depth of a long filler text, asked for at its end.
//!
//! A sequence is a haystack of filler tokens in which facts, a key and its value beside it, lie at random places; then come queries, each
//! a key, at which the network is to say the key's value:
//!
//! ```text
//! . . . . k3 v9 . . . . . . . . . . . . k1 v4 . . . . . . . . .   k1 k3 k3 k1
//!                          haystack                               queries      targets: v4 v9 v9 v4
//! ```
//!
//! Unlike `mqar` almost everything is filler, and results are told apart by the depth at which the fact lies: 0% is the
//! oldest token, 100% the last one before the queries.

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::batch::Row;
use super::shared::{Check, eval_range, made_eval_batch, made_train_batch, pair_places};
use super::{Auxiliary, Batch, Metric, Task, TaskError};
use crate::random;

const KIND: &str = "needle";

/// Depths are told apart in this many parts of equal length.
const DEPTHS: usize = 5;

/// Sizes of the `needle` task. Tokens are numbered keys first, then values, then fillers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NeedleConfig {
    /// Tokens before the queries, facts included (240).
    pub haystack: usize,
    /// Facts in a sequence (4).
    pub facts: usize,
    /// Keys to draw from (16).
    pub keys: usize,
    /// Values to draw from (16).
    pub values: usize,
    /// Filler symbols (32).
    pub fillers: usize,
    /// Queries at the end (16). The facts are asked in cycles: each once in a random order, then each once in another.
    pub queries: usize,
    /// Sequences in the evaluation set (256).
    pub eval_sequences: usize,
}

impl Default for NeedleConfig {
    fn default() -> Self {
        Self { haystack: 240, facts: 4, keys: 16, values: 16, fillers: 32, queries: 16, eval_sequences: 256 }
    }
}

impl NeedleConfig {
    /// Checks the sizes and builds the task; `_base_dir` is not needed.
    ///
    /// # Errors
    /// A size that is 0 or too large, or facts that do not fit.
    pub fn build(&self, _base_dir: &Path) -> Result<Needle, TaskError> {
        self.validate()?;
        let percent = 100 / DEPTHS;
        let tags = (0..DEPTHS).map(|part| format!("depth {}-{}%", part * percent, (part + 1) * percent)).collect();
        Ok(Needle { config: self.clone(), tags })
    }

    /// The same task in sequences of `tokens` tokens: [`haystack`](Self::haystack) changes, over which the facts spread.
    ///
    /// # Errors
    /// When facts and queries alone are longer.
    pub fn stretched(&self, tokens: usize) -> Result<Self, TaskError> {
        let haystack = Check(KIND).length(tokens, &[("queries", self.queries)], 2 * self.facts, "haystack")?;
        Ok(Self { haystack, ..self.clone() })
    }

    /// Tokens in each sequence.
    pub fn seq_len(&self) -> usize {
        self.haystack + self.queries
    }

    /// The key of the configuration that [`stretched`](Self::stretched) changes.
    pub fn length_key(&self) -> &'static str {
        "haystack"
    }

    /// The task has no auxiliary head.
    pub fn auxiliary(&self) -> Option<Auxiliary> {
        None
    }

    fn validate(&self) -> Result<(), TaskError> {
        let check = Check(KIND);
        check.size("haystack", self.haystack, 2)?;
        check.size("facts", self.facts, 1)?;
        check.size("keys", self.keys, 1)?;
        check.size("values", self.values, 1)?;
        check.size("fillers", self.fillers, 1)?;
        check.size("queries", self.queries, 1)?;
        check.size("eval_sequences", self.eval_sequences, 1)?;
        let Self { facts, keys, values, haystack, .. } = self;
        check.require(facts <= keys, "facts", || {
            format!("is {facts}, but there are only {keys} different keys; raise `keys`")
        })?;
        check.require(facts <= values, "facts", || {
            format!("is {facts}, but there are only {values} different values; raise `values`")
        })?;
        check.require(2 * facts <= *haystack, "haystack", || {
            let need = 2 * facts;
            format!("is {haystack}; {facts} facts of 2 tokens need at least {need}")
        })
    }
}

/// The `needle` task.
pub struct Needle {
    config: NeedleConfig,
    tags: Vec<String>,
}

impl Needle {
    fn row(&self, rng: &mut ChaCha8Rng) -> Row {
        let config = &self.config;
        let mut row = Row::blank(self.seq_len());
        let first_filler = config.keys + config.values;
        for token in &mut row.tokens {
            *token = (first_filler + random::below(rng, config.fillers)) as i32;
        }
        let keys = random::distinct(rng, config.keys, config.facts);
        let values = random::distinct(rng, config.values, config.facts);
        let places = pair_places(rng, config.haystack, config.facts);
        for ((key, value), place) in keys.iter().zip(&values).zip(&places) {
            row.tokens[*place] = *key as i32;
            row.tokens[place + 1] = (config.keys + value) as i32;
        }
        let order = random::cycles(rng, config.facts, config.queries);
        for (query, fact) in (config.haystack..).zip(order) {
            row.tokens[query] = keys[fact] as i32;
            row.targets[query] = (config.keys + values[fact]) as i32;
            row.tags[query] = (places[fact] * DEPTHS / config.haystack) as i32;
            row.distances[query] = (query - (places[fact] + 1)) as i32;
        }
        row
    }
}

impl Task for Needle {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn vocab_size(&self) -> usize {
        self.config.keys + self.config.values + self.config.fillers
    }

    fn seq_len(&self) -> usize {
        self.config.seq_len()
    }

    fn metric(&self) -> Metric {
        Metric::Accuracy
    }

    /// Depth of the fact in the haystack.
    fn tags(&self) -> &[String] {
        &self.tags
    }

    fn train_batch(&self, seed: u64, step: u64, rows: usize) -> Batch {
        made_train_batch(seed, step, rows, self.seq_len(), |rng| self.row(rng))
    }

    fn eval_sequences(&self) -> usize {
        self.config.eval_sequences
    }

    fn eval_batch(&self, index: usize, rows: usize) -> Batch {
        let sequences = eval_range(index, rows, self.eval_sequences());
        made_eval_batch(sequences, self.seq_len(), |rng| self.row(rng))
    }

    fn describe(&self) -> String {
        let config = &self.config;
        format!(
            "needles in a haystack: {} facts ({} keys, {} values) anywhere in {} tokens of filler, then {} queries; guessing gives \
             {:.3} among all values, {:.3} among those shown",
            config.facts,
            config.keys,
            config.values,
            config.haystack,
            config.queries,
            1.0 / config.values as f64,
            1.0 / config.facts as f64,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::NONE;
    use proptest::prelude::*;

    fn task(config: &NeedleConfig) -> Needle {
        config.build(Path::new("")).unwrap()
    }

    prop_compose! {
        fn any_config()(
            facts in 1..9_usize,
            fillers in 1..4_usize,
            [more_keys, more_values, spare, queries] in prop::array::uniform4(0..40_usize),
        ) -> NeedleConfig {
            NeedleConfig {
                haystack: 2 * facts + spare,
                facts,
                keys: facts + more_keys,
                values: facts + more_values,
                fillers,
                queries: queries + 1,
                eval_sequences: 3,
            }
        }
    }

    proptest! {
        /// A reader who looks for the one place of the key before the queries finds the target beside it, at the depth of the tag.
        #[test]
        fn every_query_can_be_answered(config in any_config(), seed: u64, step: u64) {
            let task = task(&config);
            for batch in [task.train_batch(seed, step, 3), task.eval_batch(0, 3)] {
                for row in 0..batch.rows {
                    let part = |of: &[i32]| of[row * batch.len..(row + 1) * batch.len].to_vec();
                    let (tokens, targets, tags) = (part(&batch.tokens), part(&batch.targets), part(&batch.tags));
                    let distances = part(&batch.distances);
                    let hay = &tokens[..config.haystack];
                    let keys = hay.iter().filter(|&&token| token < config.keys as i32).count();
                    let first_filler = (config.keys + config.values) as i32;
                    let rest = hay.iter().filter(|&&token| token >= first_filler).count();
                    prop_assert_eq!((keys, rest), (config.facts, config.haystack - 2 * config.facts));
                    prop_assert!(targets[..config.haystack].iter().chain(&tags[..config.haystack]).chain(&distances[..config.haystack]).all(|&n| n == NONE));
                    for query in config.haystack..batch.len {
                        let places: Vec<usize> = (0..config.haystack).filter(|&at| hay[at] == tokens[query]).collect();
                        prop_assert_eq!(places.len(), 1);
                        prop_assert_eq!(targets[query], hay[places[0] + 1]);
                        prop_assert_eq!(distances[query], (query - places[0] - 1) as i32);
                        let name = &task.tags()[tags[query] as usize];
                        let (low, high) = name.strip_prefix("depth ").unwrap().trim_end_matches('%').split_once('-').unwrap();
                        let depth = 100.0 * places[0] as f64 / config.haystack as f64;
                        prop_assert!((low.parse::<f64>().unwrap()..high.parse().unwrap()).contains(&depth), "{} {}", name, depth);
                    }
                }
            }
        }
    }

    #[test]
    fn facts_reach_every_depth_evenly() {
        let task = task(&NeedleConfig { facts: 1, queries: 1, ..NeedleConfig::default() });
        let tags = task.train_batch(0, 0, 5_000).tags;
        for depth in 0..5 {
            let share = tags.iter().filter(|&&tag| tag == depth).count();
            // 1000 expected, standard deviation 28.
            assert!((880..1120).contains(&share), "{depth}: {share}");
        }
    }

    #[test]
    fn other_lengths_change_the_haystack_alone() {
        let config = NeedleConfig::default();
        for tokens in [24, 256, 2048] {
            let stretched = config.stretched(tokens).unwrap();
            assert_eq!(task(&stretched).seq_len(), tokens);
            assert_eq!(NeedleConfig { haystack: config.haystack, ..stretched }, config);
        }
        let error = config.stretched(23).unwrap_err().to_string();
        assert_eq!(
            error,
            "task `needle`: sequences of 23 tokens cannot be: `queries` 16 stay as they are and `haystack` is at least 8, so there are at \
             least 24"
        );
    }

    #[test]
    fn sizes_that_cannot_be_are_named() {
        for (values, message) in [
            ("facts = 0", "`facts` is 0; it must be from 1"),
            ("queries = 0", "`queries` is 0; it must be from 1"),
            ("fillers = 0", "`fillers` is 0; it must be from 1"),
            ("eval_sequences = 0", "`eval_sequences` is 0"),
            ("haystack = 9223372036854775807", "it must be from 2 to 1048576"),
            ("keys = 3", "`facts` is 4, but there are only 3 different keys; raise `keys`"),
            ("values = 3", "`facts` is 4, but there are only 3 different values; raise `values`"),
            ("haystack = 7", "`haystack` is 7; 4 facts of 2 tokens need at least 8"),
        ] {
            let config: NeedleConfig = toml::from_str(values).unwrap();
            let error = config.build(Path::new("")).err().unwrap().to_string();
            assert!(error.contains("task `needle`: ") && error.contains(message), "{error}");
        }
    }
}
