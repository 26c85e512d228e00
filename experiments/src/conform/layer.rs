//! One attention layer's intermediate values beside those that a case holds.

use burn::tensor::{Device, Tensor};
use csa2_model::attention::Trace;
use csa2_model::config::{ModelConfig, PoolConfig};
use csa2_model::mix::PlannedLayer;
use csa2_model::ops::reference;

use super::case::{Array, Case};
use super::check::{Check, HOST, ints, numbers};
use super::error::CaseError;
use super::tolerance::Tolerance;

/// What a layer made.
pub struct Made<'a> {
    /// The model that it belongs to.
    pub config: &'a ModelConfig,
    /// Its place there.
    pub layer: &'a PlannedLayer,
    /// Its intermediate values.
    pub trace: Trace,
    /// Its output `[B, S, d_model]`.
    pub output: Tensor<3>,
}

/// What the case holds of a layer.
pub struct Held<'a> {
    /// How the names of its tensors begin.
    pub prefix: &'a str,
    /// How far numbers may be off.
    pub tolerance: Tolerance,
    /// Whether every intermediate value must be there, or only the output and the indices.
    pub whole: bool,
    /// Where rows of indices may differ if their margin is within the tolerance (see `excused`): how the names of the layer
    /// that chose them begin.
    pub margins: Option<&'a str>,
}

/// Compares everything that the case holds of the layer. It may hold the first sequences of the batch alone.
///
/// # Errors
/// When the case lacks a value or has it in another shape, or the device fails.
pub fn compare(check: &mut Check, made: Made, held: &Held) -> Result<(), CaseError> {
    let name = |part: &str| format!("{}{part}", held.prefix);
    let [batch, seq] = held_rows(check.case, &name("output"), made.output.dims())?;
    let Made { config, layer, trace, output } = made;
    let Trace { qr, q, window, latent, content, index_query, topk, pool, readout, readout_back, lse } = trace;
    let mut numbers_of = Numbers { check, held, batch };
    numbers_of.compare("qr", qr)?;
    numbers_of.compare("q", q)?;
    numbers_of.compare("window_kv", window)?;
    numbers_of.compare("lse", lse)?;
    // The goldens name the read-out `o_rotated` while it still stands at its position, and `o` once it is turned back.
    numbers_of.compare("o_rotated", readout)?;
    numbers_of.compare("o", readout_back)?;
    numbers_of.compare("output", output)?;
    if let Some(asked) = &index_query {
        numbers_of.compare("indexer.q", asked.q.clone())?;
        numbers_of.compare("indexer.head_weights", asked.weights.clone())?;
    }
    let entries = content.as_ref().map_or(0, |content| content.entries);
    // Where no entry exists yet, there is a row of padding here and nothing in the case.
    if let Some(content) = content.filter(|content| content.entries > 0) {
        if let Some(latent) = latent {
            numbers_of.compare("compressor.latent", latent)?;
        }
        numbers_of.compare("compress_kv", content.main)?;
        if let (Some(asked), Some(keys)) = (index_query, content.index_keys) {
            numbers_of.compare("indexer.k", keys.clone())?;
            let scores = reference::index_scores(asked.q, keys, asked.weights).narrow(0, 0, batch);
            let scores = Scores::new(config, layer, numbers(scores)?, [batch, seq, entries]);
            let pool = pool.map(|pool| ints(pool.narrow(0, 0, batch))).transpose()?;
            compare_scores(check, &scores, pool.as_deref(), held)?;
        }
    }
    let topk = ints(topk.narrow(0, 0, batch))?;
    compare_indices(check, config, layer, &topk, [batch, seq, entries], held)
}

/// How many sequences of how many tokens the case holds, by one of its tensors.
///
/// # Errors
/// When the case has no such tensor, or it has more sequences or other tokens than were made.
pub fn held_rows(case: &Case, name: &str, [made, seq, _]: [usize; 3]) -> Result<[usize; 2], CaseError> {
    let found: [usize; 3] = case.dims(name)?;
    if found[0] <= made && found[1] == seq {
        return Ok([found[0], seq]);
    }
    let expected = format!("at most {made} sequences of {seq} tokens");
    Err(CaseError::Shape { name: name.into(), found: found.into(), expected })
}

struct Numbers<'a, 'b, 'c> {
    check: &'a mut Check<'c>,
    held: &'a Held<'b>,
    batch: usize,
}

impl Numbers<'_, '_, '_> {
    fn compare<const D: usize>(&mut self, part: &str, found: Tensor<D>) -> Result<(), CaseError> {
        let name = format!("{}{part}", self.held.prefix);
        if !self.held.whole && part != "output" && !self.check.case.has(&name) {
            return Ok(());
        }
        self.check.tensor(&name, found.narrow(0, 0, self.batch), self.held.tolerance)
    }
}

/// Index scores of every query and entry, -inf where the entry is not visible yet.
struct Scores {
    values: Vec<f64>,
    dims: [usize; 3],
    ratio: usize,
    topk: usize,
    /// The pool that this layer builds.
    builds: Option<PoolConfig>,
    /// The pool that this layer searches in.
    reads: Option<PoolConfig>,
}

impl Scores {
    fn new(config: &ModelConfig, layer: &PlannedLayer, values: Vec<f64>, dims: [usize; 3]) -> Self {
        let builds = config.pool.filter(|_| layer.builds_pool);
        let reads = config.pool.filter(|_| layer.pool_from.is_some());
        let mut scores = Self { values, dims, ratio: layer.ratio, topk: config.topk, builds, reads };
        let [_, seq, entries] = dims;
        for at in 0..scores.values.len() {
            let (query, entry) = (at / entries % seq, at % entries);
            if entry >= scores.visible(query) {
                scores.values[at] = f64::NEG_INFINITY;
            }
        }
        scores
    }

    fn visible(&self, query: usize) -> usize {
        ((query + 1) / self.ratio).min(self.dims[2])
    }

    /// Whether each entry lies inside the pool, given as blocks per query.
    fn inside(&self, blocks: &[i64], size: usize) -> Vec<bool> {
        let [batch, seq, entries] = self.dims;
        let rows = blocks.chunks((blocks.len() / (batch * seq)).max(1));
        rows.flat_map(|kept| (0..entries).map(|j| kept.contains(&((j / size) as i64)))).collect()
    }
}

/// Scores, margins and the pool.
fn compare_scores(check: &mut Check, scores: &Scores, pool: Option<&[i64]>, held: &Held) -> Result<(), CaseError> {
    let case = check.case;
    let name = |part: &str| format!("{}indexer.{part}", held.prefix);
    let wanted = |part: &str| held.whole || case.has(&name(part));
    let [batch, seq, _] = scores.dims;
    let mut searched = scores.values.clone();
    if wanted("score") {
        check.close(&name("score"), &searched, &case.floats(&name("score"), &scores.dims)?, held.tolerance);
    }
    let mut last = "score";
    if let (Some(read), Some(blocks)) = (scores.reads, pool) {
        let outside = scores.inside(blocks, read.block_size).into_iter().map(|inside| !inside);
        for (score, _) in searched.iter_mut().zip(outside).filter(|(_, outside)| *outside) {
            *score = f64::NEG_INFINITY;
        }
        last = "score_masked";
        if wanted(last) {
            check.close(&name(last), &searched, &case.floats(&name(last), &scores.dims)?, held.tolerance);
        }
    }
    if wanted("topk_margin") && case.has(&name(last)) {
        let margins = case.floats(&name("topk_margin"), &[batch, seq])?;
        let expected = case.floats(&name(last), &scores.dims)?;
        let next = |rows: &[f64]| -> Vec<(f64, f64)> {
            rows.chunks(scores.dims[2]).map(|row| around(row.iter().copied(), scores.topk)).collect()
        };
        compare_margin(check, &margins, &next(&searched), &next(&expected.values), held.tolerance);
    }
    let (Some(built), Some(blocks)) = (scores.builds, pool) else { return Ok(()) };
    if wanted("candidates") {
        let inside = scores.inside(blocks, built.block_size).into_iter().map(i64::from);
        let expected = case.mask(&name("candidates"), &scores.dims)?;
        // The goldens' mask is not cut to the visible range; entries beyond it are never selected.
        check.equal(&name("candidates"), &inside.collect::<Vec<_>>(), &expected);
    }
    if wanted("block_margin") && case.has(&name("score")) {
        let margins = case.floats(&name("block_margin"), &[batch, seq])?;
        let expected = case.floats(&name("score"), &scores.dims)?;
        let next = |rows: &[f64]| -> Vec<(f64, f64)> {
            let rows = rows.chunks(scores.dims[2]).enumerate();
            rows.map(|(row, scores_of)| around_blocks(scores_of, scores.visible(row % seq), built)).collect()
        };
        compare_margin(check, &margins, &next(&scores.values), &next(&expected.values), held.tolerance);
    }
    Ok(())
}

/// The last of the `kept` best numbers and the first one left out; -inf and -inf where nothing is left out.
pub fn around(scores: impl Iterator<Item = f64>, kept: usize) -> (f64, f64) {
    let mut finite: Vec<f64> = scores.filter(|score| score.is_finite()).collect();
    finite.sort_by(|a, b| b.total_cmp(a));
    match kept.checked_sub(1).and_then(|last| finite.get(last..=kept)) {
        Some(pair) => (pair[0], pair[1]),
        None => (f64::NEG_INFINITY, f64::NEG_INFINITY),
    }
}

/// The same of the blocks of a pool, by their largest scores; the newest visible one is kept in any case.
fn around_blocks(scores: &[f64], visible: usize, pool: PoolConfig) -> (f64, f64) {
    let newest = visible.checked_sub(1).map(|entry| entry / pool.block_size);
    let best = |block: &[f64]| block.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let blocks = scores.chunks(pool.block_size).enumerate().filter(|(block, _)| Some(*block) != newest);
    around(blocks.map(|(_, block)| best(block)), pool.blocks - 1)
}

/// Margins by the best score left out, which is what they say beside the last one kept: a margin itself is a difference of two
/// scores, and as far off as these.
fn compare_margin(
    check: &mut Check,
    margins: &Array,
    found: &[(f64, f64)],
    expected: &[(f64, f64)],
    tolerance: Tolerance,
) {
    let below = |(margin, (last, _)): (&f64, &(f64, f64))| match (margin.is_finite(), last.is_finite()) {
        (true, true) => last - margin,
        (true, false) => -margin,
        (false, _) => f64::NEG_INFINITY,
    };
    let values = margins.values.iter().zip(expected).map(below).collect();
    let left_out: Vec<f64> = found.iter().map(|(_, next)| *next).collect();
    check.close(&margins.name, &left_out, &Array { values, ..margins.clone() }, tolerance);
}

/// The entries that were read: window slots, then rows of the content behind an offset of S.
fn compare_indices(
    check: &mut Check,
    config: &ModelConfig,
    layer: &PlannedLayer,
    topk: &[i64],
    [batch, seq, entries]: [usize; 3],
    held: &Held,
) -> Result<(), CaseError> {
    let case = check.case;
    let name = format!("{}topk_idxs", held.prefix);
    let [_, _, width] = case.dims(&name)?;
    let window = config.window.min(seq);
    let selects = layer.content_from.is_some();
    let most = window + if selects { config.topk } else { 0 };
    if width < window || width > most {
        let expected = format!("from {window} to {most} indices a query");
        return Err(CaseError::Shape { name, found: vec![batch, seq, width], expected });
    }
    let listed = case.ints(&name, &[batch, seq, width], -1..(seq + entries) as i64)?;
    let near: Vec<i64> = listed.rows().flat_map(|row| row[..window].to_vec()).collect();
    let positions = reference::window_positions(seq, seq, config.window, &Device::flex());
    let expected = Array { name: name.clone(), dims: vec![batch, seq, window], values: near };
    let on = std::mem::replace(&mut check.on, HOST);
    check.equal(&format!("{name} (window)"), &ints(positions)?.repeat(batch), &expected);
    check.on = on;
    if !selects {
        return Ok(());
    }
    let offset = seq as i64;
    let far = listed.rows().flat_map(|row| {
        let selected = row[window..].iter().map(|&index| if index < 0 { -1 } else { index - offset });
        selected.chain(std::iter::repeat(-1)).take(config.topk)
    });
    let expected = Array { name, dims: vec![batch, seq, config.topk], values: far.collect() };
    let excused = match held.margins {
        Some(source) if entries > 0 => excused(check.case, source, held.tolerance, [batch, seq, entries])?,
        _ => vec![false; batch * seq],
    };
    check.equal_unless(&format!("{} (selected)", expected.name), topk, &expected, |row| excused[row]);
    Ok(())
}

/// Rows whose selection the case cannot settle: each score may be off by the tolerance, so that two of them change places only
/// where they lie no more than twice that apart, and the margin says how far the last one kept and the first one left out do.
fn excused(
    case: &Case,
    source: &str,
    tolerance: Tolerance,
    [batch, seq, entries]: [usize; 3],
) -> Result<Vec<bool>, CaseError> {
    let margins = case.floats(&format!("{source}indexer.topk_margin"), &[batch, seq])?;
    let scores = case.floats(&format!("{source}indexer.score"), &[batch, seq, entries])?;
    let largest =
        |row: &[f64]| row.iter().filter(|score| score.is_finite()).fold(1.0, |most: f64, s| s.abs().max(most));
    let rows = scores.rows().zip(&margins.values);
    Ok(rows.map(|(row, margin)| *margin <= 2.0 * tolerance.limit * largest(row)).collect())
}
