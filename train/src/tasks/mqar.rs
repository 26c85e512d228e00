//! Multi-query associative recall (Zoology, arXiv 2312.04927): one hop from key to value.
//!
//! A sequence shows key-value pairs at random places of its first `region` tokens, then `gap`
//! filler tokens, then `queries` keys. At each query the network is to say the key's value:
//!
//! ```text
//! . k3 v9 . . k1 v4 k7 v2 .   . . . .   k1 k3 k7 k3 k7 k1
//!           region              gap         queries         targets: v4 v9 v2 v9 v2 v4
//! ```
//!
//! As in Zoology, keys and values are drawn without repetition, so a network that has found the
//! values but not which is whose reaches 1 / `pairs`.
//!
//! Whether layers of windows alone can see a pair depends on the distance: `n` layers with window
//! `W` carry information over at most `n (W - 1)` tokens. The distances that occur are `gap + 1` up
//! to `region + gap + queries - 2`.

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::batch::Row;
use super::shared::{Buckets, Check, eval_range, made_eval_batch, made_train_batch, pair_places};
use super::{Auxiliary, Batch, Metric, Task, TaskError};
use crate::random;

const KIND: &str = "mqar";

/// Sizes of the `mqar` task. Tokens are numbered keys first, then values, then fillers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MqarConfig {
    /// Key-value pairs in a sequence (6).
    pub pairs: usize,
    /// Keys to draw from (16).
    pub keys: usize,
    /// Values to draw from (16).
    pub values: usize,
    /// Filler symbols (8).
    pub fillers: usize,
    /// Tokens at the start among which the pairs lie (16).
    pub region: usize,
    /// Filler tokens between the region and the queries (8).
    pub gap: usize,
    /// Queries at the end (24). The pairs are asked in cycles: each once in a random order, then
    /// each once in another. So every pair of a sequence counts alike and none is left out, which
    /// makes loss and accuracy less noisy than free draws would.
    pub queries: usize,
    /// Sequences in the evaluation set (512).
    pub eval_sequences: usize,
}

impl Default for MqarConfig {
    fn default() -> Self {
        Self { pairs: 6, keys: 16, values: 16, fillers: 8, region: 16, gap: 8, queries: 24, eval_sequences: 512 }
    }
}

impl MqarConfig {
    /// Checks the sizes and builds the task; `_base_dir` is not needed.
    ///
    /// # Errors
    /// A size that is 0 or too large, or pairs that do not fit.
    pub fn build(&self, _base_dir: &Path) -> Result<Mqar, TaskError> {
        self.validate()?;
        let last_query = self.region + self.gap + self.queries - 1;
        // From the value next to the gap to the first query, and from the value of a pair at the
        // very start to the last query.
        let distances = Buckets::new("distance", self.gap + 1, last_query - 1);
        Ok(Mqar { config: self.clone(), distances })
    }

    /// The same task in sequences of `tokens` tokens: [`gap`](Self::gap) changes, so pairs and queries stay what they are and
    /// all distances grow alike.
    ///
    /// # Errors
    /// When pairs and queries alone are longer.
    pub fn stretched(&self, tokens: usize) -> Result<Self, TaskError> {
        let gap = Check(KIND).length(tokens, &[("region", self.region), ("queries", self.queries)], 0, "gap")?;
        Ok(Self { gap, ..self.clone() })
    }

    /// Tokens in each sequence.
    pub fn seq_len(&self) -> usize {
        self.region + self.gap + self.queries
    }

    /// The key of the configuration that [`stretched`](Self::stretched) changes.
    pub fn length_key(&self) -> &'static str {
        "gap"
    }

    /// The task has no auxiliary head.
    pub fn auxiliary(&self) -> Option<Auxiliary> {
        None
    }

    fn validate(&self) -> Result<(), TaskError> {
        let check = Check(KIND);
        check.size("pairs", self.pairs, 1)?;
        check.size("keys", self.keys, 1)?;
        check.size("values", self.values, 1)?;
        check.size("fillers", self.fillers, 1)?;
        check.size("region", self.region, 2)?;
        check.size("gap", self.gap, 0)?;
        check.size("queries", self.queries, 1)?;
        check.size("eval_sequences", self.eval_sequences, 1)?;
        let Self { pairs, keys, values, region, .. } = self;
        check.require(pairs <= keys, "pairs", || {
            format!("is {pairs}, but there are only {keys} different keys; raise `keys`")
        })?;
        check.require(pairs <= values, "pairs", || {
            format!("is {pairs}, but there are only {values} different values; raise `values`")
        })?;
        check.require(2 * pairs <= *region, "region", || {
            let need = 2 * pairs;
            format!("is {region}; {pairs} pairs of 2 tokens need at least {need}")
        })
    }
}

/// The `mqar` task.
pub struct Mqar {
    config: MqarConfig,
    distances: Buckets,
}

impl Mqar {
    fn row(&self, rng: &mut ChaCha8Rng) -> Row {
        let config = &self.config;
        let mut row = Row::blank(self.seq_len());
        let first_filler = config.keys + config.values;
        for token in &mut row.tokens {
            *token = (first_filler + random::below(rng, config.fillers)) as i32;
        }
        let keys = random::distinct(rng, config.keys, config.pairs);
        let values = random::distinct(rng, config.values, config.pairs);
        let places = pair_places(rng, config.region, config.pairs);
        for ((key, value), place) in keys.iter().zip(&values).zip(&places) {
            row.tokens[*place] = *key as i32;
            row.tokens[place + 1] = (config.keys + value) as i32;
        }
        let order = random::cycles(rng, config.pairs, config.queries);
        for (query, pair) in (config.region + config.gap..).zip(order) {
            row.tokens[query] = keys[pair] as i32;
            row.targets[query] = (config.keys + values[pair]) as i32;
            let distance = query - (places[pair] + 1);
            row.tags[query] = self.distances.tag(distance);
            row.distances[query] = distance as i32;
        }
        row
    }
}

impl Task for Mqar {
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

    /// Distance from a pair's value to the query.
    fn tags(&self) -> &[String] {
        &self.distances.names
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
            "one-hop recall: {} tokens, {} pairs ({} keys, {} values) in the first {}, {} queries \
             {} to {} tokens after the value; guessing gives {:.3} among all values, {:.3} among \
             those shown",
            self.seq_len(),
            config.pairs,
            config.keys,
            config.values,
            config.region,
            config.queries,
            config.gap + 1,
            self.seq_len() - 2,
            1.0 / config.values as f64,
            1.0 / config.pairs as f64,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::NONE;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn task(config: &MqarConfig) -> Mqar {
        config.build(Path::new("")).unwrap()
    }

    /// What a reader of the sequence finds: value and place of the value by key. Fails where a key
    /// is shown twice.
    fn pairs_shown(config: &MqarConfig, tokens: &[i32]) -> BTreeMap<i32, (i32, usize)> {
        let (keys, fillers) = (config.keys as i32, (config.keys + config.values) as i32);
        let mut pairs = BTreeMap::new();
        for key in (0..config.region).filter(|place| tokens[*place] < keys) {
            let pair = (tokens[key + 1], key + 1);
            assert!(key + 1 < config.region && (keys..fillers).contains(&pair.0));
            assert!(pairs.insert(tokens[key], pair).is_none(), "key shown twice");
        }
        pairs
    }

    /// Lowest and highest number in a name such as "distance 9-16".
    fn bounds(name: &str) -> (usize, usize) {
        let (low, high) = name.strip_prefix("distance ").unwrap().split_once('-').unwrap();
        (low.parse().unwrap(), high.parse().unwrap())
    }

    fn check_batch(task: &Mqar, batch: &Batch) {
        let config = &task.config;
        for row in 0..batch.rows {
            let tokens = &batch.tokens[row * batch.len..(row + 1) * batch.len];
            let pairs = pairs_shown(config, tokens);
            let values: BTreeSet<i32> = pairs.values().map(|pair| pair.0).collect();
            assert_eq!((pairs.len(), values.len()), (config.pairs, config.pairs));
            for at in 0..batch.len {
                let flat = row * batch.len + at;
                let (target, tag, distance) = (batch.targets[flat], batch.tags[flat], batch.distances[flat]);
                if at < config.region + config.gap {
                    let value_or_filler = tokens[at] >= config.keys as i32;
                    assert!(at < config.region || value_or_filler, "no key in the gap");
                    assert_eq!((target, tag, distance), (NONE, NONE, NONE));
                    continue;
                }
                let (value, place) = pairs[&tokens[at]];
                assert_eq!((target, distance), (value, (at - place) as i32));
                let (low, high) = bounds(&task.tags()[tag as usize]);
                assert!((low..=high).contains(&(at - place)), "{low} {} {high}", at - place);
            }
        }
    }

    prop_compose! {
        fn any_config()(
            pairs in 1..9_usize,
            fillers in 1..4_usize,
            [more_keys, more_values, spare, queries] in prop::array::uniform4(0..20_usize),
            gap in 0..90_usize,
        ) -> MqarConfig {
            MqarConfig {
                pairs,
                keys: pairs + more_keys,
                values: pairs + more_values,
                fillers,
                region: 2 * pairs + spare,
                gap,
                queries: queries + 1,
                eval_sequences: 3,
            }
        }
    }

    proptest! {
        #[test]
        fn every_query_can_be_answered(config in any_config(), seed: u64, step: u64) {
            let task = task(&config);
            prop_assert!(task.tags().len() <= 8);
            let batch = task.train_batch(seed, step, 3);
            prop_assert_eq!(batch.rows * batch.len, batch.tokens.len());
            check_batch(&task, &batch);
            check_batch(&task, &task.eval_batch(0, 3));
        }
    }

    #[test]
    fn quickstart_size() {
        let task = task(&MqarConfig::default());
        assert_eq!((task.seq_len(), task.vocab_size()), (48, 40));
        assert_eq!(
            task.tags(),
            ["distance 9-16", "distance 17-24", "distance 25-32", "distance 33-40", "distance 41-46"]
        );
        assert_eq!(task.metric(), Metric::Accuracy);
        assert!(task.describe().contains("9 to 46 tokens"), "{}", task.describe());
    }

    #[test]
    fn other_lengths_change_the_gap_alone() {
        let config = MqarConfig::default();
        for tokens in [40, 48, 96, 1000] {
            let stretched = config.stretched(tokens).unwrap();
            assert_eq!(task(&stretched).seq_len(), tokens);
            assert_eq!(MqarConfig { gap: config.gap, ..stretched.clone() }, config);
            check_batch(&task(&stretched), &task(&stretched).eval_batch(0, 2));
        }
        let error = config.stretched(39).unwrap_err().to_string();
        assert_eq!(
            error,
            "task `mqar`: sequences of 39 tokens cannot be: `region` 16 and `queries` 24 stay as they are, so there are at least 40"
        );
    }

    #[test]
    fn sizes_that_cannot_be_are_named() {
        for (values, message) in [
            ("pairs = 0", "`pairs` is 0; it must be from 1"),
            ("queries = 0", "`queries` is 0; it must be from 1"),
            ("fillers = 0", "`fillers` is 0; it must be from 1"),
            ("eval_sequences = 0", "`eval_sequences` is 0"),
            ("gap = 9223372036854775807", "it must be from 0 to 1048576"),
            ("keys = 5", "`pairs` is 6, but there are only 5 different keys; raise `keys`"),
            ("values = 5", "`pairs` is 6, but there are only 5 different values; raise `values`"),
            ("region = 11", "`region` is 11; 6 pairs of 2 tokens need at least 12"),
        ] {
            let config: MqarConfig = toml::from_str(values).unwrap();
            let error = config.build(Path::new("")).err().unwrap().to_string();
            assert!(error.contains("task `mqar`: ") && error.contains(message), "{error}");
        }
    }
}
