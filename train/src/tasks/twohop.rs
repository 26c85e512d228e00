//! Two-hop recall: chains a -> b -> c of which the links are shown apart.
//!
//! A sequence shows the pairs (a, b) and (b, c) of `chains` chains, each pair on an even position
//! of the first `region` tokens (so that a pair is one compressed entry at ratio 2), then `gap`
//! filler tokens, then `queries` queries. A query a asks for c, which takes two look-ups at
//! different places; a query b asks for c, which takes one. Positions without a pair or query hold
//! fillers.
//!
//! Small networks learn the second hop only when they are told the first: an auxiliary head is to
//! say b at each two-hop query.

use std::path::Path;

use rand::{RngExt, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::batch::Row;
use super::shared::{Check, eval_range, made_eval_batch, made_train_batch};
use super::{Auxiliary, Batch, Metric, NONE, Task, TaskError};
use crate::random;

const KIND: &str = "twohop";
const TWO_HOP: i32 = 0;
const ONE_HOP: i32 = 1;

/// Sizes of the `twohop` task. Tokens are numbered: vocabulary a, then b, then c, then fillers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TwohopConfig {
    /// Symbols in each of the three vocabularies (16).
    pub symbols: usize,
    /// Chains in a sequence (6); each has two pairs.
    pub chains: usize,
    /// Filler symbols (8).
    pub fillers: usize,
    /// Tokens at the start among which the pairs lie (40).
    pub region: usize,
    /// Filler tokens between the region and the queries (8).
    pub gap: usize,
    /// Queries at the end (16). Chains are asked in cycles: each once in a random order, then each
    /// once in another.
    pub queries: usize,
    /// Probability that a query is a two-hop one (0.7); above 0, at most 1.
    pub two_hop_share: f64,
    /// Whether (b, c) always comes after (a, b) (false). It takes one shortcut away: where (b, c)
    /// comes first, c can be looked up while (a, b) is read, before any query. The mirrored one is
    /// left: a can be looked up while (b, c) is read.
    pub ordered: bool,
    /// The auxiliary head reads the residual stream after the layer of this index, from 0 (1: the
    /// second layer).
    pub hint_layer: usize,
    /// Factor of the auxiliary head's loss (1); 0 leaves the head out.
    pub hint_weight: f64,
    /// Sequences in the evaluation set (512).
    pub eval_sequences: usize,
}

impl Default for TwohopConfig {
    fn default() -> Self {
        Self {
            symbols: 16,
            chains: 6,
            fillers: 8,
            region: 40,
            gap: 8,
            queries: 16,
            two_hop_share: 0.7,
            ordered: false,
            hint_layer: 1,
            hint_weight: 1.0,
            eval_sequences: 512,
        }
    }
}

impl TwohopConfig {
    /// Checks the sizes and builds the task; `_base_dir` is not needed.
    ///
    /// # Errors
    /// A value out of its range, or chains that do not fit.
    pub fn build(&self, _base_dir: &Path) -> Result<Twohop, TaskError> {
        self.validate()?;
        let tags = ["two-hop", "one-hop"].map(String::from).to_vec();
        Ok(Twohop { config: self.clone(), tags })
    }

    /// The same task in sequences of `tokens` tokens: [`gap`](Self::gap) changes, so chains and queries stay what they are.
    ///
    /// # Errors
    /// When chains and queries alone are longer.
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

    /// The head that is to say the first hop, where it is trained.
    pub fn auxiliary(&self) -> Option<Auxiliary> {
        let (after_layer, weight) = (self.hint_layer, self.hint_weight);
        (weight > 0.0).then_some(Auxiliary { after_layer, weight })
    }

    fn validate(&self) -> Result<(), TaskError> {
        let check = Check(KIND);
        check.size("symbols", self.symbols, 1)?;
        check.size("chains", self.chains, 1)?;
        check.size("fillers", self.fillers, 1)?;
        check.size("region", self.region, 4)?;
        check.size("gap", self.gap, 0)?;
        check.size("queries", self.queries, 1)?;
        check.size("hint_layer", self.hint_layer, 0)?;
        check.size("eval_sequences", self.eval_sequences, 1)?;
        let Self { symbols, chains, region, .. } = self;
        check.require(chains <= symbols, "chains", || {
            format!("is {chains}, but there are only {symbols} different symbols; raise `symbols`")
        })?;
        check.require(2 * chains <= region / 2, "region", || {
            let need = 4 * chains;
            format!("is {region}; {chains} chains of two pairs of 2 tokens need at least {need}")
        })?;
        let share = self.two_hop_share;
        check.require(share > 0.0 && share <= 1.0, "two_hop_share", || {
            let instead = "for one-hop queries alone use `mqar`";
            format!("is {share}; it must be above 0 and at most 1 ({instead})")
        })?;
        let weight = self.hint_weight;
        check.require(weight.is_finite() && weight >= 0.0, "hint_weight", || {
            format!("is {weight}; it must be a finite number, 0 (no auxiliary head) or above")
        })
    }
}

/// The `twohop` task.
pub struct Twohop {
    config: TwohopConfig,
    tags: Vec<String>,
}

/// The three tokens of one chain.
struct Chain {
    a: i32,
    b: i32,
    c: i32,
}

impl Twohop {
    fn row(&self, rng: &mut ChaCha8Rng) -> Row {
        let config = &self.config;
        let mut row = Row::blank(self.seq_len());
        for token in &mut row.tokens {
            *token = (3 * config.symbols + random::below(rng, config.fillers)) as i32;
        }
        let chains = self.chains(rng);
        let answers = self.place(rng, &chains, &mut row.tokens);

        let mut hints = vec![NONE; row.tokens.len()];
        let order = random::cycles(rng, config.chains, config.queries);
        for (query, asked) in (config.region + config.gap..).zip(order) {
            let Chain { a, b, c } = chains[asked];
            row.targets[query] = c;
            row.distances[query] = (query - answers[asked]) as i32;
            if rng.random_bool(config.two_hop_share) {
                row.tokens[query] = a;
                row.tags[query] = TWO_HOP;
                hints[query] = b;
            } else {
                row.tokens[query] = b;
                row.tags[query] = ONE_HOP;
            }
        }
        row.hints = self.auxiliary().map(|_| hints);
        row
    }

    /// Chains that share no symbol.
    fn chains(&self, rng: &mut ChaCha8Rng) -> Vec<Chain> {
        let (symbols, count) = (self.config.symbols, self.config.chains);
        let [a, b, c] = [0, 1, 2].map(|vocabulary| {
            let numbers = random::distinct(rng, symbols, count).into_iter();
            numbers.map(move |number| (vocabulary * symbols + number) as i32)
        });
        let chains = a.zip(b).zip(c);
        chains.map(|((a, b), c)| Chain { a, b, c }).collect()
    }

    /// Writes both pairs of each chain on even positions of the region; where each chain's c lies.
    fn place(&self, rng: &mut ChaCha8Rng, chains: &[Chain], tokens: &mut [i32]) -> Vec<usize> {
        let mut slots = random::subset(rng, self.config.region / 2, 2 * chains.len());
        slots.shuffle(rng);
        let mut answers = Vec::with_capacity(chains.len());
        for (chain, slots) in chains.iter().zip(slots.chunks_exact_mut(2)) {
            if self.config.ordered {
                slots.sort_unstable();
            }
            let (first, second) = (2 * slots[0], 2 * slots[1]);
            tokens[first..first + 2].copy_from_slice(&[chain.a, chain.b]);
            tokens[second..second + 2].copy_from_slice(&[chain.b, chain.c]);
            answers.push(second + 1);
        }
        answers
    }
}

impl Task for Twohop {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn vocab_size(&self) -> usize {
        3 * self.config.symbols + self.config.fillers
    }

    fn seq_len(&self) -> usize {
        self.config.seq_len()
    }

    fn metric(&self) -> Metric {
        Metric::Accuracy
    }

    /// Two-hop queries: the one-hop ones ask for nothing that `mqar` does not.
    fn metric_tag(&self) -> Option<&str> {
        self.tags.first().map(String::as_str)
    }

    fn tags(&self) -> &[String] {
        &self.tags
    }

    fn auxiliary(&self) -> Option<Auxiliary> {
        self.config.auxiliary()
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
        let order = ["either link first", "first link first"][usize::from(config.ordered)];
        format!(
            "two-hop recall: {} tokens, {} chains (3 vocabularies of {}) in the first {}, {order}; \
             {} queries, a share of {} two-hop; guessing gives {:.3} among all answers, {:.3} \
             among those shown",
            self.seq_len(),
            config.chains,
            config.symbols,
            config.region,
            config.queries,
            config.two_hop_share,
            1.0 / config.symbols as f64,
            1.0 / config.chains as f64,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn task(config: &TwohopConfig) -> Twohop {
        config.build(Path::new("")).unwrap()
    }

    /// Follower and place of each first token of a pair in the region, as a reader finds them.
    fn links_shown(config: &TwohopConfig, tokens: &[i32]) -> BTreeMap<i32, (i32, usize)> {
        let mut links = BTreeMap::new();
        for place in (0..config.region - 1).step_by(2) {
            if tokens[place] < 2 * config.symbols as i32 {
                let link = (tokens[place + 1], place);
                assert!(links.insert(tokens[place], link).is_none(), "shown twice");
            } else {
                let fillers = 3 * config.symbols as i32;
                assert!(tokens[place] >= fillers && tokens[place + 1] >= fillers);
            }
        }
        links
    }

    fn check_batch(task: &Twohop, batch: &Batch) {
        let config = &task.config;
        let vocabulary = |token: i32| token / config.symbols as i32;
        let hints = batch.hint_targets.as_deref().unwrap();
        for row in 0..batch.rows {
            let tokens = &batch.tokens[row * batch.len..(row + 1) * batch.len];
            let links = links_shown(config, tokens);
            assert_eq!(links.len(), 2 * config.chains);
            for (token, (next, place)) in &links {
                assert_eq!(vocabulary(*next), vocabulary(*token) + 1);
                if config.ordered && vocabulary(*token) == 0 {
                    assert!(links[next].1 > *place, "(b, c) comes after (a, b)");
                }
            }
            for at in 0..batch.len {
                let flat = row * batch.len + at;
                let found = (batch.targets[flat], hints[flat], batch.tags[flat]);
                let distance = |b: i32| (at - links[&b].1 - 1) as i32;
                if at < config.region + config.gap {
                    assert_eq!(found, (NONE, NONE, NONE));
                    assert_eq!(batch.distances[flat], NONE);
                } else if vocabulary(tokens[at]) == 0 {
                    let b = links[&tokens[at]].0;
                    assert_eq!(found, (links[&b].0, b, TWO_HOP));
                    assert_eq!(batch.distances[flat], distance(b), "from the end of the chain");
                } else {
                    assert_eq!(vocabulary(tokens[at]), 1);
                    assert_eq!(found, (links[&tokens[at]].0, NONE, ONE_HOP));
                    assert_eq!(batch.distances[flat], distance(tokens[at]));
                }
            }
        }
    }

    prop_compose! {
        fn any_config()(
            chains in 1..6_usize,
            [more, spare, gap, queries] in prop::array::uniform4(0..20_usize),
            two_hop_share in 0.01..1.0,
            ordered: bool,
        ) -> TwohopConfig {
            TwohopConfig {
                symbols: chains + more,
                chains,
                region: 4 * chains + spare,
                gap,
                queries: queries + 1,
                two_hop_share,
                ordered,
                eval_sequences: 3,
                ..TwohopConfig::default()
            }
        }
    }

    proptest! {
        #[test]
        fn every_query_can_be_answered(config in any_config(), seed: u64, step: u64) {
            let task = task(&config);
            check_batch(&task, &task.train_batch(seed, step, 3));
            check_batch(&task, &task.eval_batch(0, 3));
        }
    }

    #[test]
    fn recipe_size() {
        let task = task(&TwohopConfig::default());
        assert_eq!((task.seq_len(), task.vocab_size()), (64, 56));
        let auxiliary = task.auxiliary().unwrap();
        assert_eq!((auxiliary.after_layer, auxiliary.weight.to_bits()), (1, 1_f64.to_bits()));
        assert_eq!(task.metric_tag(), Some("two-hop"));
        assert_eq!(task.tags()[TWO_HOP as usize], "two-hop");
        assert_eq!(task.tags()[ONE_HOP as usize], "one-hop");
        let tags = task.eval_batch(0, 512).tags;
        let share = |tag| tags.iter().filter(|t| **t == tag).count() as f64 / (512.0 * 16.0);
        // Standard deviation 0.005.
        assert!((share(TWO_HOP) - 0.7).abs() < 0.02 && (share(ONE_HOP) - 0.3).abs() < 0.02);
    }

    #[test]
    fn both_orders_of_the_links_occur_unless_ordered() {
        let config = TwohopConfig::default();
        let batch = task(&config).train_batch(0, 0, 50);
        let mut first_link_first = 0;
        for tokens in batch.tokens.chunks(batch.len) {
            let links = links_shown(&config, tokens);
            let of_a = links.iter().filter(|(token, _)| **token < 16);
            first_link_first += of_a.filter(|(_, (b, place))| links[b].1 > *place).count();
        }
        // 300 chains: 150 expected, standard deviation 9.
        assert!((110..190).contains(&first_link_first), "{first_link_first}");
    }

    #[test]
    fn weight_zero_leaves_the_head_out_and_nothing_else() {
        let with = task(&TwohopConfig::default());
        let without = task(&TwohopConfig { hint_weight: 0.0, ..TwohopConfig::default() });
        assert_eq!(without.auxiliary(), None);
        let (one, mut other) = (without.train_batch(3, 4, 2), with.train_batch(3, 4, 2));
        assert!(one.hint_targets.is_none() && other.hint_targets.take().is_some());
        assert_eq!(one, other);
    }

    #[test]
    fn other_lengths_change_the_gap_alone() {
        let config = TwohopConfig::default();
        for tokens in [56, 64, 512] {
            let stretched = config.stretched(tokens).unwrap();
            assert_eq!(task(&stretched).seq_len(), tokens);
            assert_eq!(TwohopConfig { gap: config.gap, ..stretched }, config);
        }
        let error = config.stretched(55).unwrap_err().to_string();
        assert!(error.contains("`region` 40 and `queries` 16 stay as they are, so there are at least 56"), "{error}");
    }

    #[test]
    fn values_that_cannot_be_are_named() {
        for (values, message) in [
            ("chains = 0", "`chains` is 0; it must be from 1"),
            ("symbols = 5", "`chains` is 6, but there are only 5"),
            ("region = 23", "`region` is 23; 6 chains of two pairs of 2 tokens need at least 24"),
            ("two_hop_share = 0", "`two_hop_share` is 0; it must be above 0"),
            ("two_hop_share = nan", "`two_hop_share` is NaN"),
            ("two_hop_share = 1.5", "`two_hop_share` is 1.5"),
            ("hint_weight = -1", "`hint_weight` is -1; it must be a finite number, 0"),
            ("hint_weight = inf", "`hint_weight` is inf"),
        ] {
            let config: TwohopConfig = toml::from_str(values).unwrap();
            let error = config.build(Path::new("")).err().unwrap().to_string();
            assert!(error.contains("task `twohop`: ") && error.contains(message), "{error}");
        }
        let tight: TwohopConfig = toml::from_str("region = 24").unwrap();
        assert!(tight.build(Path::new("")).is_ok());
    }
}
