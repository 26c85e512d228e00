//! What choosing addresses costs the layers that choose anew: entries scored for a query, counted, and the time that takes, measured.
//!
//! Only `reindex` layers are looked at. A `full` layer scores all that is visible, pool or not.

use burn::tensor::Device;
use csa2_model::config::ModelConfig;
use csa2_model::mix::{Mode, PlannedLayer};

use crate::bench::select::{Pool, Select, search_seconds};
use crate::bench::{BenchError, Effort};
use crate::results::{AblationRecord, PoolRecord, SearchRecord};

use super::{AblationConfig, TRAINED};

/// Index keys, in numbers, above which a search is not measured: half a gigabyte.
const MOST_NUMBERS: u64 = 1 << 27;

/// Entries that one layer scores for the newest of `tokens` tokens.
fn scored(model: &ModelConfig, layer: &PlannedLayer, tokens: u64) -> u64 {
    let visible = tokens / layer.ratio.max(1) as u64;
    let pool = model.pool.filter(|_| layer.pool_from.is_some());
    pool.map_or(visible, |pool| visible.min(pool.entries() as u64))
}

/// What the `reindex` layers of a model score: on average over a sequence of `seq` tokens, and with a context of `context` tokens. None
/// where there is no such layer.
pub fn count(model: &ModelConfig, seq: usize, context: u64) -> Option<SearchRecord> {
    let layers: Vec<&PlannedLayer> = model.layers.layers().iter().filter(|layer| layer.mode == Mode::Reindex).collect();
    if layers.is_empty() {
        return None;
    }
    let all = |tokens: u64| layers.iter().map(|layer| scored(model, layer, tokens)).sum::<u64>();
    let searches = layers.iter().any(|layer| layer.pool_from.is_some());
    Some(SearchRecord {
        pool: model
            .pool
            .filter(|_| searches)
            .map(|pool| PoolRecord { blocks: pool.blocks as u64, block_size: pool.block_size as u64 }),
        scored_entries: (1..=seq as u64).map(all).sum::<u64>() as f64 / seq.max(1) as f64,
        scored_entries_at_context: all(context),
        seconds_at_context: None,
    })
}

/// Measures how long the searches of one query take, with random keys, for every model of the record that searches.
///
/// # Errors
/// When the device fails.
pub fn measure(config: &AblationConfig, record: &mut AblationRecord, device: &Device) -> Result<(), BenchError> {
    let context = config.section.decode_context;
    let mut known: Vec<(Select, f64)> = Vec::new();
    for (variant, written) in config.variants.iter().zip(&mut record.variants) {
        for (name, search) in &mut written.searches {
            let named = variant.evaluations.iter().find(|(evaluation, _)| evaluation == name);
            let model = named.map_or(&variant.run.model, |(_, model)| model);
            let mut seconds = 0.0;
            let reindex = model.layers.layers().iter().filter(|layer| layer.mode == Mode::Reindex);
            for shape in reindex.map(|layer| shape(model, layer, context)) {
                let Some(shape) = shape else { break };
                let found = known.iter().find(|(other, _)| *other == shape).map(|(_, seconds)| *seconds);
                seconds += match found {
                    Some(seconds) => seconds,
                    None => search_seconds(&shape, device, Effort { repetitions: 9, seconds: 0.2 })?,
                };
                known.push((shape, seconds));
            }
            search.seconds_at_context = (seconds > 0.0).then_some(seconds);
        }
    }
    Ok(())
}

/// The search of one query in one layer; none where its keys would not fit.
fn shape(model: &ModelConfig, layer: &PlannedLayer, context: u64) -> Option<Select> {
    let visible = context / layer.ratio.max(1) as u64;
    let numbers = visible.saturating_mul(model.index_dim as u64);
    if visible == 0 || numbers > MOST_NUMBERS {
        return None;
    }
    let pool = model.pool.filter(|_| layer.pool_from.is_some());
    let blocks = |pool: csa2_model::config::PoolConfig| pool.blocks.min((visible as usize).div_ceil(pool.block_size));
    Some(Select {
        batch: 1,
        seq: 1,
        index_heads: model.index_heads,
        index_dim: model.index_dim,
        entries: visible as usize,
        topk: model.topk,
        ratio: 1,
        pool: pool.map(|pool| Pool { blocks: blocks(pool), size: pool.block_size }),
    })
}

/// The record of every model that a variant's weights are measured in, by name.
pub fn of_variant(variant: &super::Variant, context: u64) -> std::collections::BTreeMap<String, SearchRecord> {
    let trained = (TRAINED.to_string(), &variant.run.model);
    let others = variant.evaluations.iter().map(|(name, model)| (name.clone(), model));
    let seq = variant.task.seq_len();
    std::iter::once(trained)
        .chain(others)
        .filter_map(|(name, model)| Some((name, count(model, seq, context)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use csa2_model::config::PoolConfig;

    fn model(mix: &str, pool: Option<(usize, usize)>) -> ModelConfig {
        let pool = pool.map(|(blocks, block_size)| PoolConfig { blocks, block_size });
        ModelConfig { layers: mix.parse().unwrap(), pool, ..ModelConfig::small().unwrap() }
    }

    #[test]
    fn reindex_layers_score_what_is_visible_or_their_pool() {
        let whole = count(&model("full@2 reindex reuse reindex", None), 6, 100).unwrap();
        // Per layer 0 1 1 2 2 3 entries.
        assert!((whole.scored_entries - 2.0 * 9.0 / 6.0).abs() < 1e-12);
        assert_eq!((whole.scored_entries_at_context, whole.pool), (100, None));
        let pooled = count(&model("full@2+pool reindex reuse reindex", Some((2, 1))), 6, 100).unwrap();
        assert!((pooled.scored_entries - 2.0 * 8.0 / 6.0).abs() < 1e-12);
        assert_eq!(pooled.scored_entries_at_context, 4);
        assert_eq!(pooled.pool, Some(PoolRecord { blocks: 2, block_size: 1 }));
        // A pool in another block is none of its.
        let other = count(&model("full@2+pool reuse full@2 reindex", Some((2, 1))), 6, 100).unwrap();
        assert_eq!((other.scored_entries_at_context, other.pool), (50, None));
        assert_eq!(count(&model("full reuse", None), 6, 100), None);
    }

    #[test]
    fn a_pool_is_measured_and_what_cannot_fit_is_not() {
        let small = model("full@2+pool reindex", Some((4, 2)));
        let layer = &small.layers.layers()[1];
        let shape = shape(&small, layer, 64).unwrap();
        assert_eq!((shape.entries, shape.pool), (32, Some(Pool { blocks: 4, size: 2 })));
        let quick = Effort { repetitions: 1, seconds: 0.0 };
        assert!(search_seconds(&shape, &Device::flex(), quick).unwrap() > 0.0);
        assert_eq!(super::shape(&small, layer, u64::MAX), None);
        assert_eq!(super::shape(&small, layer, 1), None);
    }
}
