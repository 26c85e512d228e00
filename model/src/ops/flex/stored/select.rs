//! Top-K and the candidate pool over stored keys. What one query searches is cut into parts of a fixed length, which threads
//! share: the best of the parts' best are the best, whatever the number of threads.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::super::best::Best;
use super::super::kl::add_rectified;
use super::super::products::{Listed, inner_products};
use super::super::simd::{dispatch, largest_of};
use super::panel::{PanelQuery, fetch_all};
use crate::ops::stored::{SelectInputs, Selected};
use crate::ops::{NAN_ROW, NO_ENTRY, PoolUse};
use crate::quant::Format;
use crate::store::{CHUNK, Chunk, PANEL, Store};

/// Entries that one task scores, at least.
const SEGMENT: usize = 16384;

/// Keys that are read at a time where they do not lie in panels.
const PIECE: usize = 128;

/// A query as it is scored.
struct Query<'a> {
    q: &'a [f32],
    weights: &'a [f32],
    /// Where keys lie in panels.
    panel: Option<PanelQuery>,
}

/// Working memory of one task.
struct Scratch {
    scores: Vec<f32>,
    vectors: Vec<f32>,
    products: Vec<f32>,
    counting: [u32; PIECE],
}

impl Scratch {
    /// Keys in panels need nothing but scores.
    fn new(heads: usize, dim: usize, panels: bool) -> Self {
        let pieces = if panels { 0 } else { PIECE };
        Self {
            scores: Vec::new(),
            vectors: vec![0.0; pieces * dim],
            products: vec![0.0; pieces * heads],
            counting: std::array::from_fn(|at| at as u32),
        }
    }
}

impl Query<'_> {
    /// Scores the keys `from..to` of a store; the scores are the last `to - from` numbers of the scratch's.
    #[inline(always)]
    fn score<'a, S: Simd>(&self, simd: S, keys: &Store, from: usize, to: usize, scratch: &'a mut Scratch) -> &'a [f32] {
        let Scratch { scores, vectors, products, counting } = scratch;
        // Panels are scored as a whole.
        let start = if self.panel.is_some() { from / PANEL * PANEL } else { from };
        let end = if self.panel.is_some() { to.next_multiple_of(PANEL) } else { to };
        scores.clear();
        scores.resize(end - start, 0.0);
        let (mut at, dim) = (start, keys.dim());
        while at < end {
            let (chunk, inside) = (&keys.chunks()[at / CHUNK], at % CHUNK);
            let step = (CHUNK - inside).min(end - at);
            let out = &mut scores[at - start..at - start + step];
            match (&self.panel, &**chunk) {
                (Some(query), Chunk::Packed { codes, scales }) => {
                    let part = |bytes: usize| inside * bytes..(inside + step) * bytes;
                    let group = Format::Fp4E8m0.group();
                    query.score(
                        &codes[part(dim / 2)],
                        &scales[inside * dim / group..(inside + step) * dim / group],
                        out,
                    );
                }
                (_, chunk) => {
                    for (piece, out) in out.chunks_mut(PIECE).enumerate() {
                        let first = inside + piece * PIECE;
                        let list = &counting[..out.len()];
                        let values = if let Chunk::Floats(values) = chunk {
                            &values[first * dim..(first + out.len()) * dim]
                        } else {
                            for (row, vector) in vectors.chunks_exact_mut(dim).take(out.len()).enumerate() {
                                chunk.read(keys.format(), first + row, vector);
                            }
                            &vectors[..out.len() * dim]
                        };
                        inner_products(simd, self.q, Listed { values, list, dim }, products, PIECE);
                        for (products, &weight) in products.chunks_exact(PIECE).zip(self.weights) {
                            add_rectified(simd, out, &products[..list.len()], weight);
                        }
                    }
                }
            }
            at += step;
        }
        &scores[from - start..to - start]
    }
}

/// Has the processor fetch the panels of some keys.
fn fetch(keys: &Store, (from, to): (usize, usize)) {
    let (dim, group) = (keys.dim(), Format::Fp4E8m0.group());
    for panel in from / PANEL..to.div_ceil(PANEL) {
        let (chunk, inside) = (&keys.chunks()[panel * PANEL / CHUNK], panel * PANEL % CHUNK);
        if let Chunk::Packed { codes, scales } = &**chunk {
            fetch_all(&codes[inside * dim / 2..(inside + PANEL) * dim / 2]);
            fetch_all(&scales[inside * dim / group..(inside + PANEL) * dim / group]);
        }
    }
}

/// What one task finds.
struct Found {
    best: Best<f32>,
    blocks: Best<f32>,
    /// A score was not a number.
    broken: bool,
    scored: u64,
}

/// A part of what one query searches: where a pool is read, blocks of it; elsewhere, entries.
struct Task<'a> {
    inputs: &'a SelectInputs<'a>,
    query: &'a Query<'a>,
    keys: &'a Store,
    visible: usize,
    /// Blocks of the pool, where one is read.
    pool: &'a [i32],
    /// The entries, elsewhere.
    from: usize,
    to: usize,
}

impl WithSimd for Task<'_> {
    type Output = Found;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Found {
        let &SelectInputs { heads, dim, spec, .. } = self.inputs;
        let blocks = if let PoolUse::Build { blocks, .. } = spec.pool { blocks } else { 0 };
        let (best, blocks) = (Best::new(spec.topk), Best::new(blocks));
        let mut found = Found { best, blocks, broken: false, scored: 0 };
        let mut scratch = Scratch::new(heads, dim, self.query.panel.is_some());
        if let PoolUse::Read { size } = spec.pool {
            let blocks = || self.pool.iter().filter_map(|&block| usize::try_from(block).ok());
            let range = |block: usize| {
                let to = (block + 1).saturating_mul(size).min(self.visible);
                (block.saturating_mul(size).min(to), to)
            };
            // Waiting for one block after the other would take longer than scoring them.
            if self.query.panel.is_some() {
                blocks().for_each(|block| fetch(self.keys, range(block)));
            }
            for block in blocks() {
                let (from, to) = range(block);
                let scores = self.query.score(simd, self.keys, from, to, &mut scratch);
                for (at, &score) in scores.iter().enumerate() {
                    found.broken |= score.is_nan();
                    found.best.offer(score, (from + at) as u32);
                }
                found.scored += (to - from) as u64;
            }
            return found;
        }
        let scores = self.query.score(simd, self.keys, self.from, self.to, &mut scratch);
        found.scored = scores.len() as u64;
        // A local value: a loop over a field is not turned into vector instructions.
        let mut broken = false;
        for score in scores {
            broken |= score.is_nan();
        }
        if broken {
            found.broken = true;
            return found;
        }
        found.best.offer_row(scores, self.from as u32);
        if let PoolUse::Build { size, .. } = spec.pool {
            let newest = self.visible.div_ceil(size).saturating_sub(1);
            for (block, scores) in scores.chunks(size).enumerate() {
                let block = self.from / size + block;
                if block == newest {
                    found.blocks.pin(block as u32);
                } else {
                    found.blocks.offer(largest_of(simd, scores, f32::NEG_INFINITY), block as u32);
                }
            }
        }
        found
    }
}

fn common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}

/// Entries of a part: whole panels, and whole blocks of a pool that is built.
fn segment(pool: PoolUse) -> usize {
    let unit = if let PoolUse::Build { size, .. } = pool { common_multiple(PANEL, size) } else { PANEL };
    unit.saturating_mul(SEGMENT.div_ceil(unit))
}

/// Searches for one query; its Top-K and, where one is built, its pool go to `topk` and `built`.
fn search(inputs: &SelectInputs<'_>, t: usize, topk: &mut [i32], built: &mut [i32]) -> u64 {
    let &SelectInputs { heads, dim, spec, .. } = inputs;
    let place = inputs.places[t];
    let keys = inputs.keys[place.row];
    let visible = place.visible(spec.ratio, keys.len());
    let (q, weights) = (&inputs.q[t * heads * dim..(t + 1) * heads * dim], &inputs.weights[t * heads..(t + 1) * heads]);
    let panel = (keys.format() == Some(Format::Fp4E8m0)).then(|| PanelQuery::new(q, weights));
    let query = Query { q, weights, panel };
    let width = inputs.pool.len() / inputs.places.len();
    let pool = &inputs.pool[t * width..(t + 1) * width];
    let length = segment(spec.pool);
    let parts = if matches!(spec.pool, PoolUse::Read { .. }) { 1 } else { visible.div_ceil(length) };
    let task = |part: usize| {
        let from = part * length;
        Task { inputs, query: &query, keys, visible, pool, from, to: from.saturating_add(length).min(visible) }
    };
    let found: Vec<Found> = (0..parts).into_par_iter().map(|part| dispatch(task(part))).collect();
    let scored = found.iter().map(|found| found.scored).sum();
    built.fill(NO_ENTRY);
    if found.iter().any(|found| found.broken) {
        topk.fill(NAN_ROW);
        return scored;
    }
    let joined = found.into_iter().reduce(|mut all, next| {
        all.best.join(next.best);
        all.blocks.join(next.blocks);
        all
    });
    match joined {
        None => topk.fill(NO_ENTRY),
        Some(mut all) => {
            all.best.write(topk);
            all.blocks.write(built);
        }
    }
    scored
}

/// See [`stored_select`](crate::ops::stored_select).
pub(in super::super::super) fn select(inputs: &SelectInputs<'_>) -> Selected {
    let spec = inputs.spec;
    let blocks = if let PoolUse::Build { blocks, .. } = spec.pool { blocks } else { 0 };
    let queries = inputs.places.len();
    let (mut topk, mut built) = (vec![NO_ENTRY; queries * spec.topk], vec![NO_ENTRY; queries * blocks]);
    // A part of no length is as good as another where no pool is built.
    let pools: Vec<&mut [i32]> = if blocks == 0 {
        (0..queries).map(|_| <&mut [i32]>::default()).collect()
    } else {
        built.chunks_exact_mut(blocks).collect()
    };
    let rows = topk.par_chunks_exact_mut(spec.topk).zip(pools).enumerate();
    let scored = rows.map(|(t, (topk, built))| search(inputs, t, topk, built)).sum();
    Selected { topk, built, scored }
}
