//! Sizes that a case's JSON names, held against its tensors before anything is built from them.

use std::collections::BTreeMap;

use csa2_model::checkpoint::Weight;
use csa2_model::config::{FfnConfig, ModelConfig, Residual};
use csa2_model::cost::Cost;
use csa2_model::mix::PlannedLayer;

use super::error::CaseError;

/// The most indices that a selection may list.
const MOST_INDICES: usize = 1 << 25;

/// Refuses selections that no machine here could hold.
///
/// # Errors
/// When the model would list too many entries or blocks for `batch` sequences of `seq` tokens.
pub fn check_rows(config: &ModelConfig, batch: usize, seq: usize) -> Result<(), CaseError> {
    let blocks = config.pool.map_or(0, |pool| pool.blocks);
    for (key, width) in [("index_topk", config.topk), ("candidate_topk_blocks", blocks)] {
        if batch.saturating_mul(seq).saturating_mul(width) > MOST_INDICES {
            let wrong = format!("is {width}: too many for {batch} x {seq} queries; at most {MOST_INDICES} in all");
            return Err(CaseError::key(format!("hf_text_config.{key}"), wrong));
        }
    }
    Ok(())
}

/// Refuses weights that are fewer than an attention layer of the model has.
///
/// # Errors
/// When there are too few.
pub fn check_attention(
    config: &ModelConfig,
    layer: &PlannedLayer,
    weights: &BTreeMap<String, Weight>,
) -> Result<(), CaseError> {
    let alone = ModelConfig { ffn: FfnConfig::Dense { width: 1 }, residual: Residual::Plain, ..config.clone() };
    check_layer(&alone, layer, weights)
}

/// Refuses weights that are fewer than a block of the model has.
///
/// # Errors
/// When there are too few.
pub fn check_layer(
    config: &ModelConfig,
    layer: &PlannedLayer,
    weights: &BTreeMap<String, Weight>,
) -> Result<(), CaseError> {
    // What every layer has, whatever its mode; without embedding and head, and without what normalises outside attention.
    let one = ModelConfig {
        layers: "swa".parse().map_err(csa2_model::config::ConfigError::from)?,
        pool: None,
        ..config.clone()
    };
    let parameters = *Cost::of(&one)?.parameters();
    let ModelConfig { query_rank, d_model, index_heads, index_dim, .. } = *config;
    let indexer = [query_rank.unwrap_or(d_model), index_heads, index_dim].map(|size| size as u128);
    let indexer = if layer.mode.has_indexer() { indexer.into_iter().product() } else { 0 };
    let least = parameters.total() - parameters.embedding - parameters.head - parameters.norms + indexer;
    // A plain block with a feed-forward part of width 1 stands for a lone attention layer.
    let least =
        if matches!(config.ffn, FfnConfig::Dense { width: 1 }) { least - parameters.feed_forward } else { least };
    enough("a layer of the model", least, weights)
}

/// Refuses weights that are fewer than the model has.
///
/// # Errors
/// When there are too few.
pub fn check_model(config: &ModelConfig, weights: &BTreeMap<String, Weight>) -> Result<(), CaseError> {
    enough("the model", Cost::of(config)?.parameters().total(), weights)
}

fn enough(whose: &str, least: u128, weights: &BTreeMap<String, Weight>) -> Result<(), CaseError> {
    let stored: u128 = weights.values().map(|weight| weight.values.len() as u128).sum();
    if stored >= least {
        return Ok(());
    }
    Err(CaseError::key("hf_text_config", format!("{whose} has {least} parameters, but {stored} are stored")))
}
