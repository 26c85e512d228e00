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
mod tests;
