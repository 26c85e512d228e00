//! The indexer's choice: scores of every visible entry, and the best K of them.

use burn::tensor::{Device, Int, Tensor};
use csa2_model::ops::{self, PoolUse, SelectSpec, Selection};

use super::{Bench, BenchError, Effort, Ratio, Row, Shape, Sizes, Subject, Work, inputs, timing};

/// A pool to search in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Blocks of every query's pool.
    pub blocks: usize,
    /// Entries in a block.
    pub size: usize,
}

/// Sizes of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Select {
    /// Sequences B.
    pub batch: usize,
    /// Queries S.
    pub seq: usize,
    /// Indexer heads `H_I`.
    pub index_heads: usize,
    /// Dimension `d_I` of an indexer head.
    pub index_dim: usize,
    /// Entries N.
    pub entries: usize,
    /// Selected entries K of a query.
    pub topk: usize,
    /// Compression ratio m.
    pub ratio: usize,
    /// The pool that is searched, as in a `reindex` layer; none for the whole visible range.
    pub pool: Option<Pool>,
}

/// The pool of the released model.
pub(super) const RELEASED_POOL: Pool = Pool { blocks: 2048, size: 8 };

/// A pool of a model for training on one machine.
const SMALL_POOL: Pool = Pool { blocks: 256, size: 8 };

/// Pairs of cases that differ in N alone: a pool should make N free.
const POOLED: [[&str; 2]; 2] = [["pool-8k", "pool-64k"], ["pool-32k", "pool-512k"]];

impl Shape for Select {
    const OPERATOR: &'static str = "select";

    fn cases() -> Vec<(&'static str, Self)> {
        let whole =
            Self { batch: 1, seq: 4096, index_heads: 8, index_dim: 64, entries: 4096, topk: 256, ratio: 1, pool: None };
        let pooled = |entries, pool| Self { seq: 1, entries, pool: Some(pool), ..whole };
        vec![
            ("whole", whole),
            ("pool-8k", pooled(8 << 10, SMALL_POOL)),
            ("pool-64k", pooled(64 << 10, SMALL_POOL)),
            ("pool-32k", pooled(32 << 10, RELEASED_POOL)),
            ("pool-512k", pooled(512 << 10, RELEASED_POOL)),
        ]
    }

    fn sizes(&self) -> Sizes {
        let mut sizes = vec![
            ("batch", self.batch),
            ("seq", self.seq),
            ("index-heads", self.index_heads),
            ("index-dim", self.index_dim),
            ("entries", self.entries),
            ("topk", self.topk),
            ("ratio", self.ratio),
        ];
        if let Some(Pool { blocks, size }) = self.pool {
            sizes.extend([("pool-blocks", blocks), ("pool-size", size)]);
        }
        sizes
    }

    fn numbers(&self) -> u128 {
        let [b, s, h, d, n, k] =
            [self.batch, self.seq, self.index_heads, self.index_dim, self.entries, self.topk].map(|size| size as u128);
        let pool = self.pool.map_or(0, |pool| pool.blocks as u128);
        b * s * (h * d + h + k + pool) + b * n * d
    }
}

impl Select {
    fn spec(&self) -> SelectSpec {
        let pool = self.pool.map_or(PoolUse::None, |pool| PoolUse::Read { size: pool.size });
        inputs::spec(self.seq, self.entries, self.ratio, self.topk, pool)
    }

    /// Pairs of a query and an entry that it searches, in one sequence.
    pub(super) fn pairs(&self) -> usize {
        let (spec, blocks) = (self.spec(), self.pool.map_or(0, |pool| pool.blocks));
        (0..self.seq).map(|t| inputs::searched(spec, blocks, t)).sum()
    }

    /// One multiply-add per visible entry (inside the pool, where there is one), indexer head and channel: `2 H_I d_I`
    /// operations a pair. Weighting, comparing and sorting are not counted.
    pub fn work(&self) -> Work {
        let (pairs, blocks) = (self.pairs(), self.pool.map_or(0, |pool| pool.blocks));
        let [b, s, h, d] = [self.batch, self.seq, self.index_heads, self.index_dim].map(|size| size as u128);
        let keys = b * self.entries.min(pairs) as u128 * d;
        Work {
            flops: b * 2 * h * d * pairs as u128,
            bytes: 4 * (b * s * (h * d + h + (blocks + self.topk) as u128) + keys),
        }
    }
}

/// The tensors of one selection.
pub(super) struct Inputs {
    q: Tensor<4>,
    keys: Tensor<3>,
    weights: Tensor<3>,
    pool: Option<Tensor<3, Int>>,
    spec: SelectSpec,
}

impl Inputs {
    pub(super) fn new(shape: &Select, device: &Device) -> Self {
        let &Select { batch, seq, index_heads, index_dim, entries, .. } = shape;
        let spec = shape.spec();
        Self {
            q: inputs::normal([batch, seq, index_heads, index_dim], device),
            keys: inputs::normal([batch, entries, index_dim], device),
            weights: inputs::normal([batch, seq, index_heads], device),
            pool: shape.pool.map(|pool| inputs::pool(batch, seq, pool.blocks, pool.size, spec, device)),
            spec,
        }
    }

    pub(super) fn run(&self) -> Selection {
        let (q, keys, weights) = (self.q.clone(), self.keys.clone(), self.weights.clone());
        ops::index_select(q, keys, weights, self.pool.clone(), self.spec)
    }
}

/// Median seconds of one selection.
///
/// # Errors
/// When the device fails.
pub fn search_seconds(shape: &Select, device: &Device, effort: Effort) -> Result<f64, BenchError> {
    let inputs = Inputs::new(shape, device);
    let (seconds, _) = timing::repeat(effort, device, || {
        let _selection = inputs.run();
        Ok(())
    })?;
    Ok(timing::median(&seconds))
}

/// Measures one case.
///
/// # Errors
/// When the device fails.
pub fn run(bench: &Bench, case: &str, shape: &Select) -> Result<Row, BenchError> {
    let inputs = Inputs::new(shape, &bench.device);
    let subject = Subject {
        operator: Select::OPERATOR,
        case: case.into(),
        pass: "forward",
        sizes: shape.sizes(),
        work: Some(shape.work()),
        tokens: None,
    };
    bench.time(subject, || {
        let _selection = inputs.run();
        Ok(())
    })
}

/// How much longer a search in a pool takes when there are many times as many entries outside it; 1 is the aim. One ratio for every
/// pair of cases of which both are among the `cases`; their two searches are timed in turn.
///
/// # Errors
/// When the device fails.
pub fn growth(bench: &Bench, cases: &[(String, Select)]) -> Result<Vec<Ratio>, BenchError> {
    let find = |name: &str| cases.iter().find(|(case, _)| case == name).map(|(_, shape)| shape);
    let mut ratios = Vec::new();
    for pair in POOLED {
        let [Some(few), Some(many)] = pair.map(find) else { continue };
        let inputs = [few, many].map(|shape| Inputs::new(shape, &bench.device));
        let run = |index: usize| {
            let inputs = &inputs[index];
            move || {
                let _selection = inputs.run();
            }
        };
        let [small, large] = timing::in_turn(bench.effort, &bench.device, run(0), run(1))?;
        let pool = many.pool.map_or(String::new(), |pool| format!("a pool of {}x{}", pool.blocks, pool.size));
        ratios.push(Ratio {
            what: format!(
                "select in {pool}, one query: time at N = {}K over time at N = {}K, in turn",
                many.entries >> 10,
                few.entries >> 10
            ),
            value: timing::median(&large) / timing::median(&small),
        });
    }
    Ok(ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_visible_entries_inside_the_pool_are_counted() {
        let shape = Select { seq: 4, index_heads: 3, index_dim: 5, entries: 4, topk: 2, ..Select::cases()[0].1 };
        assert_eq!(shape.work().flops, 2 * 3 * 5 * 10);
        assert_eq!(shape.work().bytes, 4 * (4 * (15 + 3 + 2) + 20));
        // One query over 11 entries: the newest block holds 3 of them, the other kept one 4.
        let pooled = Select { seq: 1, entries: 11, pool: Some(Pool { blocks: 2, size: 4 }), ..shape };
        assert_eq!(pooled.work().flops, 2 * 3 * 5 * 7);
        assert_eq!(pooled.work().bytes, 4 * (15 + 3 + 2 + 2 + 35));
    }

    #[test]
    fn a_pool_is_searched_and_nothing_else() {
        let shape =
            Select { seq: 1, entries: 64, topk: 6, pool: Some(Pool { blocks: 2, size: 4 }), ..Select::cases()[0].1 };
        let inputs = Inputs::new(&shape, &Device::flex());
        let read = |tensor: Tensor<3, Int>| tensor.into_data().convert::<i32>().try_to_vec::<i32>().unwrap();
        let blocks = read(inputs.pool.clone().unwrap());
        for entry in read(inputs.run().topk) {
            assert!(blocks.contains(&(entry / 4)), "{entry} in {blocks:?}");
        }
        let bench = Bench::new(Device::flex(), Effort { repetitions: 1, seconds: 0.0 });
        assert!(run(&bench, "tiny", &shape).unwrap().share().unwrap() > 0.0);
        let mut cases = vec![(POOLED[1][0].to_owned(), shape)];
        assert_eq!(growth(&bench, &cases).unwrap(), []);
        cases.push((POOLED[1][1].to_owned(), Select { entries: 128, ..shape }));
        let ratios = growth(&bench, &cases).unwrap();
        assert!(ratios.len() == 1 && ratios[0].value > 0.0 && ratios[0].what.contains("a pool of 2x4"), "{ratios:?}");
    }
}
