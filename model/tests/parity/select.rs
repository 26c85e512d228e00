//! Top-K and pools. Lists are compared exactly wherever scores are exact.

use std::collections::BTreeSet;

use burn::tensor::{DType, Int, Tensor};
use csa2_model::ops::{self, NO_ENTRY, PoolUse, SelectSpec, reference};

use super::cases;
use super::common::random::Source;
use super::common::{ints, numbers};
use super::driver::{Array, Case, Operator, Place, Results, Side, Tolerance};

/// A selection without a pool, one that builds a pool, and one that reads it (from other scores than it was built from).
#[derive(Clone, Copy, Debug)]
pub struct Select {
    pub batch: usize,
    pub seq: usize,
    pub heads: usize,
    pub dim: usize,
    pub ratio: usize,
    /// Position of the first query.
    pub start: usize,
    /// Entries that exist but are not complete, or not there: fewer than the tokens would give. Their keys are padding.
    pub missing: usize,
    pub topk: usize,
    pub blocks: usize,
    pub size: usize,
    pub scores: Scores,
    pub views: bool,
}

/// Which index scores come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// Whole numbers below 3: ties and zeros are many, and every backend computes the same ones.
    Whole,
    /// Multiples of 1/128, few of them equal, exact in f32 whatever the order of the sums.
    Dyadic,
    /// Any numbers. In f32 near ties may be decided either way.
    Normal,
    /// The first three, one after the other.
    All,
    /// Whole numbers, huge, exact in f32.
    Huge,
    /// All the same.
    Equal,
    /// Zeros of either sign, and whole numbers of either sign.
    Zeros,
    /// Whole numbers, but the second entry is infinitely good.
    Infinite,
    /// Whole numbers, but the scores of the fourth entry are not.
    NotANumber,
}

/// What scores are made of, on the host.
#[derive(Clone)]
struct Scored {
    q: Array<f64, 4>,
    keys: Array<f64, 3>,
    weights: Array<f64, 3>,
}

impl Scored {
    fn new(select: &Select, source: &mut Source) -> Self {
        let Select { batch, seq, heads, dim, missing, .. } = *select;
        let rows = (select.entries() + missing).max(1);
        let dims = ([batch, seq, heads, dim], [batch, rows, dim], [batch, seq, heads]);
        let mut whole = |largest: [i32; 3], units: [f64; 3]| Self {
            q: Array::whole(source, dims.0, largest[0], units[0]),
            keys: Array::whole(source, dims.1, largest[1], units[1]),
            weights: Array::whole(source, dims.2, largest[2], units[2]),
        };
        let mut scored = match select.scores {
            Scores::Normal => {
                let (q, keys) = (Array::normal(source, dims.0), Array::normal(source, dims.1));
                Self { q, keys, weights: Array::normal(source, dims.2) }
            }
            Scores::Whole | Scores::All | Scores::NotANumber => whole([1, 1, 2], [1.0; 3]),
            Scores::Dyadic => whole([7, 7, 15], [0.25, 0.25, 0.125]),
            Scores::Huge => whole([1, 1, 2], [2.0_f64.powi(40); 3]),
            Scores::Equal => {
                Self { q: Array::full(1.0, dims.0), keys: Array::full(0.5, dims.1), weights: Array::full(0.25, dims.2) }
            }
            Scores::Zeros => {
                let mut scored = whole([1, 2, 1], [1.0; 3]);
                scored.q = Array::full(1.0, dims.0);
                // Three of four keys give no score at all, every other one of these by a zero with a sign.
                for (at, key) in scored.keys.values.chunks_mut(dim).enumerate() {
                    if at % 4 > 0 {
                        key.fill([-0.0, -1.0][at % 2]);
                    }
                }
                scored
            }
            Scores::Infinite => {
                let mut scored = whole([1, 1, 2], [1.0; 3]);
                scored.q.values.iter_mut().for_each(|value| *value = value.abs() + 1.0);
                scored.weights.values.iter_mut().for_each(|value| *value = value.abs() + 1.0);
                scored
            }
        };
        let special = match select.scores {
            Scores::Infinite => Some((1, f64::INFINITY)),
            Scores::NotANumber => Some((3, f64::NAN)),
            _ => None,
        };
        if let Some((entry, value)) = special {
            for keys in scored.keys.values.chunks_mut(rows * dim) {
                keys[entry * dim..(entry + 1) * dim].fill(value);
            }
        }
        scored
    }

    /// Top-K, and the pool where one is built.
    fn select(&self, side: Side, pool: Option<&Array<i32, 3>>, spec: SelectSpec, place: &Place) -> [Vec<f64>; 2] {
        let (q, keys, weights) = (place.leaf(&self.q), place.leaf(&self.keys), place.leaf(&self.weights));
        let pool = pool.map(|pool| place.rows(pool));
        let found = match side {
            Side::Operator => ops::index_select(q, keys, weights, pool, spec),
            Side::Reference => reference::index_select(q, keys, weights, pool, spec).unwrap(),
        };
        let lists = |lists: Tensor<3, Int>, width: usize| {
            let [batch, seq, ..] = self.q.dims;
            assert_eq!(lists.dims(), [batch, seq, width]);
            ints(lists).into_iter().map(|index| index as f64).collect()
        };
        let blocks = match spec.pool {
            PoolUse::Build { blocks, .. } => blocks,
            PoolUse::None | PoolUse::Read { .. } => 0,
        };
        [lists(found.topk, spec.topk), found.pool.map_or(Vec::new(), |pool| lists(pool, blocks))]
    }

    /// The scores in f64, one row a query.
    fn scores(&self) -> Vec<Vec<f64>> {
        let place = Place::flex(DType::F64);
        let (q, keys, weights) = (place.constant(&self.q), place.constant(&self.keys), place.constant(&self.weights));
        let rows = self.keys.dims[1];
        numbers(reference::index_scores(q, keys, weights)).chunks(rows).map(<[f64]>::to_vec).collect()
    }
}

/// Inputs on the host: who builds a pool, who reads it, and the pool that is read.
pub struct Numbers {
    builder: Scored,
    reader: Scored,
    pool: Array<i32, 3>,
}

impl Select {
    fn entries(&self) -> usize {
        (self.start + self.seq) / self.ratio - self.missing
    }

    fn spec(&self, pool: PoolUse) -> SelectSpec {
        SelectSpec { ratio: self.ratio, start: self.start, entries: self.entries(), topk: self.topk, pool }
    }

    fn build(&self) -> PoolUse {
        PoolUse::Build { blocks: self.blocks, size: self.size }
    }

    /// Fails unless every list of `found` holds as good entries as there are: near ties may be decided either way.
    fn compare_scores(&self, what: &str, inputs: &Numbers, found: &Results, tolerance: f64) {
        let (builder, reader) = (inputs.builder.scores(), inputs.reader.scores());
        let largest = builder.iter().chain(&reader).flatten().fold(0.0_f64, |m, score| m.max(score.abs()));
        let near = tolerance * largest;
        for row in 0..self.batch * self.seq {
            let visible = seen(&self.spec(PoolUse::None), row % self.seq);
            let list = |which: usize, width: usize| {
                let list = &found[which].1[row * width..(row + 1) * width];
                list.iter().map(|&index| index as i32).collect::<Vec<_>>()
            };
            let all: Vec<usize> = (0..visible).collect();
            check_list(&format!("{what}: Top-K {row}"), &list(0, self.topk), &all, &builder[row], near);
            check_list(&format!("{what}: the builder's Top-K {row}"), &list(1, self.topk), &all, &builder[row], near);
            let kept = &inputs.pool.values[row * self.blocks..(row + 1) * self.blocks];
            let inside: Vec<usize> = all.iter().copied().filter(|j| kept.contains(&((j / self.size) as i32))).collect();
            check_list(&format!("{what}: the reader's Top-K {row}"), &list(3, self.topk), &inside, &reader[row], near);
            let mut blocks: Vec<f64> = builder[row][..visible]
                .chunks(self.size)
                .map(|block| block.iter().copied().fold(f64::NEG_INFINITY, f64::max))
                .collect();
            if let Some(newest) = blocks.last_mut() {
                *newest = f64::INFINITY;
            }
            let all: Vec<usize> = (0..blocks.len()).collect();
            check_list(&format!("{what}: pool {row}"), &list(2, self.blocks), &all, &blocks, near);
        }
    }
}

/// How many entries the query in row `row` sees, from the definition: those whose last token is not after it.
fn seen(spec: &SelectSpec, row: usize) -> usize {
    (0..spec.entries).filter(|entry| (entry + 1) * spec.ratio - 1 <= spec.start + row).count()
}

#[test]
fn an_entry_is_seen_once_its_last_token_has_passed() {
    for (ratio, start, entries) in [(1, 0, 40), (2, 0, 9), (4, 0, 40), (1, 7, 40), (2, 7, 12), (3, 20, 40), (4, 5, 0)] {
        let spec = SelectSpec { ratio, start, entries, topk: 1, pool: PoolUse::None };
        for row in 0..30 {
            assert_eq!(spec.visible(row), seen(&spec, row), "{spec:?} query {row}");
        }
    }
    let spec = SelectSpec { ratio: 4, start: 10, entries: 4, topk: 1, pool: PoolUse::None };
    assert_eq!([0, 1, 4, 5, 8].map(|row| spec.visible(row)), [2, 3, 3, 4, 4]);
}

/// Fails unless `list` holds the best of `candidates`, ascending and filled up, give or take `near` in the scores.
fn check_list(what: &str, list: &[i32], candidates: &[usize], scores: &[f64], near: f64) {
    let count = candidates.len().min(list.len());
    let (chosen, rest) = list.split_at(count);
    assert!(rest.iter().all(|&index| index == NO_ENTRY), "{what}: {list:?} of {candidates:?}");
    assert!(chosen.is_sorted_by(|a, b| a < b), "{what}: {list:?} ascends");
    assert!(chosen.iter().all(|&index| candidates.iter().any(|&j| j as i32 == index)), "{what}: {list:?}");
    let worst = chosen.iter().map(|&index| scores[index as usize]).fold(f64::INFINITY, f64::min);
    for &j in candidates.iter().filter(|&&j| !chosen.contains(&(j as i32))) {
        assert!(scores[j] <= worst + near, "{what}: {list:?} leaves out {j} of score {}", scores[j]);
    }
}

impl Operator for Select {
    const NAME: &'static str = "index_select";
    const REPEATS: u64 = 4;
    type Inputs = Numbers;

    fn table() -> &'static [Case<Self>] {
        cases::SELECT
    }

    fn variants(self) -> Vec<Self> {
        let scores = [Scores::Whole, Scores::Dyadic, Scores::Normal];
        if self.scores == Scores::All { scores.map(|scores| Self { scores, ..self }).to_vec() } else { vec![self] }
    }

    fn inputs(&self, source: &mut Source) -> Numbers {
        let (builder, reader) = (Scored::new(self, source), Scored::new(self, source));
        let [_, pool] = builder.select(Side::Reference, None, self.spec(self.build()), &Place::flex(DType::F64));
        let values = pool.into_iter().map(|block| block as i32).collect();
        Numbers { builder, reader, pool: Array { dims: [self.batch, self.seq, self.blocks], values } }
    }

    fn run(&self, side: Side, inputs: &Numbers, place: &Place) -> Results {
        let place = &place.with_views(self.views && matches!(side, Side::Operator));
        let [topk, _] = inputs.builder.select(side, None, self.spec(PoolUse::None), place);
        let [own, pool] = inputs.builder.select(side, None, self.spec(self.build()), place);
        assert_eq!(topk, own, "the builder's own Top-K is from the whole visible range");
        let read = self.spec(PoolUse::Read { size: self.size });
        let [inside, _] = inputs.reader.select(side, Some(&inputs.pool), read, place);
        vec![("Top-K", topk), ("the builder's Top-K", own), ("pool", pool), ("the reader's Top-K", inside)]
    }

    fn compare(&self, what: &str, inputs: &Numbers, found: &Results, expected: &Results, place: &Place) {
        if self.scores == Scores::Normal && place.dtype != DType::F64 {
            let (Tolerance::Each(tolerance) | Tolerance::Largest(tolerance)) = place.tolerance;
            return self.compare_scores(what, inputs, found, tolerance);
        }
        for ((name, found), (_, expected)) in found.iter().zip(expected) {
            assert_eq!(found.len(), expected.len(), "{what}: {name}");
            let width = expected.len() / (self.batch * self.seq);
            for (row, (found, expected)) in found.chunks(width).zip(expected.chunks(width)).enumerate() {
                let set = |list: &[f64]| list.iter().map(|&index| index as i32).collect::<BTreeSet<_>>();
                assert_eq!(set(found), set(expected), "{what}: {name} of query {row} as a set");
                assert_eq!(found, expected, "{what}: {name} of query {row} as a list");
            }
        }
    }
}
