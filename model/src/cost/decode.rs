//! The work of decoding one token, against the length of its context.
//!
//! Matrix multiplications are counted; norms, rotations, softmax and the choice of the best entries are not.

use super::Parameters;
use crate::config::ModelConfig;
use crate::mix::{Mode, PlannedLayer};

/// The number format that a part computes in, and so its weight against BF16 work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// 16-bit: weight 1.
    Bf16,
    /// 8-bit: weight 1/2.
    Fp8,
    /// 4-bit: weight 1/4.
    Fp4,
}

impl Format {
    /// The format's usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "BF16",
            Self::Fp8 => "FP8",
            Self::Fp4 => "FP4",
        }
    }

    /// The weight of one multiply-add (report, Figure 2).
    pub const fn weight(self) -> f64 {
        match self {
            Self::Bf16 => 1.0,
            Self::Fp8 => 0.5,
            Self::Fp4 => 0.25,
        }
    }
}

/// Floating-point operations of one decoded token by part, two per multiply-add, before any weighting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeFlops {
    /// Tokens that the decoded one sees, itself included.
    pub context: u64,
    /// Every projection of attention and indexers, routers and hyper-connections.
    pub projections: f64,
    /// Feed-forward parts: the one, or the experts that the token passes through.
    pub experts: f64,
    /// Scores of indexers over compressed entries.
    pub index_scoring: f64,
    /// Logits and weighted sums over window and selected entries.
    pub readout: f64,
    /// Language-model head.
    pub head: f64,
}

impl DecodeFlops {
    pub(super) fn of(config: &ModelConfig, active: &Parameters, context: u64) -> Self {
        let projections = active.query
            + active.window_kv
            + active.compressor
            + active.indexer
            + active.output
            + active.router
            + active.hyper_connections;
        let layers = config.layers.layers();
        let scored = all_scored_entries(config, context);
        let read: f64 = layers.iter().map(|layer| read_entries(config, layer, context)).sum();
        let index_channels = config.index_heads as f64 * config.index_dim as f64;
        let channels = config.heads as f64 * config.head_dim as f64;
        Self {
            context,
            projections: 2.0 * projections as f64,
            experts: 2.0 * active.feed_forward as f64,
            index_scoring: 2.0 * scored * index_channels,
            // Once for the logits, once for the weighted sum.
            readout: 2.0 * 2.0 * read * channels,
            head: 2.0 * active.head as f64,
        }
    }

    /// Every part with its name, the format it counts as, and its operations.
    pub const fn parts(&self) -> [(&'static str, Format, f64); 5] {
        [
            ("projections", Format::Fp8, self.projections),
            ("experts", Format::Fp8, self.experts),
            ("index scoring", Format::Fp4, self.index_scoring),
            ("read-out", Format::Bf16, self.readout),
            ("head", Format::Bf16, self.head),
        ]
    }

    /// All operations, each weighted by the format of its part: the equivalent in BF16 operations.
    pub fn weighted(&self) -> f64 {
        self.parts().iter().map(|(_, format, flops)| format.weight() * flops).sum()
    }

    /// All operations, counted alike.
    pub fn unweighted(&self) -> f64 {
        self.parts().iter().map(|(_, _, flops)| flops).sum()
    }
}

/// Compressed entries that the newest token sees; none where the layer has no content.
fn visible_entries(layer: &PlannedLayer, context: u64) -> u64 {
    if layer.ratio == 0 { 0 } else { context / layer.ratio as u64 }
}

/// Entries that all indexers score.
pub(super) fn all_scored_entries(config: &ModelConfig, context: u64) -> f64 {
    config.layers.layers().iter().map(|layer| scored_entries(config, layer, context)).sum()
}

/// Entries that the layer's own indexer scores. The pool's builder scores all; a layer that searches in a pool, the pool.
fn scored_entries(config: &ModelConfig, layer: &PlannedLayer, context: u64) -> f64 {
    if !layer.mode.has_indexer() {
        return 0.0;
    }
    let visible = visible_entries(layer, context);
    match (layer.pool_from, config.pool) {
        (Some(_), Some(pool)) => visible.min(pool.entries() as u64) as f64,
        _ => visible as f64,
    }
}

/// Entries that the layer's read-out attends: its window and its selection, or everything for `dense`.
fn read_entries(config: &ModelConfig, layer: &PlannedLayer, context: u64) -> f64 {
    if layer.mode == Mode::Dense {
        return context as f64;
    }
    let window = context.min(config.window as u64);
    let selected = visible_entries(layer, context).min(config.topk as u64);
    (window + selected) as f64
}

#[cfg(test)]
mod tests {
    use super::super::Cost;
    use super::*;
    use crate::config::PoolConfig;

    fn flops(mix: &str, context: u64) -> DecodeFlops {
        let mut config = ModelConfig { layers: mix.parse().unwrap(), ..ModelConfig::small().unwrap() };
        config.pool = config.layers.has_pool().then_some(PoolConfig { blocks: 4, block_size: 4 });
        Cost::of(&config).unwrap().decode_flops(context)
    }

    /// Numbers that are whole and small enough to be exact.
    fn same(found: f64, expected: u64) {
        assert!((found - expected as f64).abs() < 0.5, "{found} is not {expected}");
    }

    /// Multiply-adds of one entry: 4 indexer heads of 16, and twice 4 heads of 32.
    const SCORE: u64 = 4 * 16;
    const READ: u64 = 2 * 4 * 32;

    #[test]
    fn released_layout_grows_by_about_a_quarter() {
        let cost = Cost::of(&ModelConfig::deepseek_v41_flash().unwrap()).unwrap();
        let growth = cost.decode_flops(1 << 20).weighted() / cost.decode_flops(4 << 10).weighted();
        assert!((growth - 1.28).abs() < 0.01, "{growth}");
    }

    #[test]
    fn full_scores_all_visible_entries() {
        same(flops("full", 1000).index_scoring, 2 * SCORE * 1000);
        same(flops("full@3", 1000).index_scoring, 2 * SCORE * 333);
        same(flops("full reindex", 1000).index_scoring, 2 * SCORE * 2000);
        same(flops("full reuse stale", 1000).index_scoring, 2 * SCORE * 1000);
    }

    #[test]
    fn a_pool_bounds_the_layers_that_search_in_it() {
        same(flops("full+pool reindex*2", 1000).index_scoring, 2 * SCORE * (1000 + 2 * 16));
        same(flops("full+pool reindex*2", 10).index_scoring, 2 * SCORE * 30);
        same(flops("full+pool full reindex", 1000).index_scoring, 2 * SCORE * 3000);
        let mut config =
            ModelConfig { layers: "full+pool reindex*2".parse().unwrap(), ..ModelConfig::small().unwrap() };
        config.pool = Some(PoolConfig { blocks: 4, block_size: 4 });
        same(Cost::of(&config).unwrap().scored_entries(1000), 1000 + 2 * 16);
    }

    #[test]
    fn readout_is_bounded_but_for_dense() {
        same(flops("swa", 1000).readout, 2 * READ * 8);
        same(flops("swa", 3).readout, 2 * READ * 3);
        same(flops("full reuse", 1000).readout, 2 * READ * 2 * (8 + 8));
        same(flops("full@4", 12).readout, 2 * READ * (8 + 3));
        same(flops("dense", 1000).readout, 2 * READ * 1000);
    }

    #[test]
    fn projections_and_head_do_not_depend_on_context() {
        let (short, long) = (flops("swa full reuse*2", 1), flops("swa full reuse*2", 1 << 30));
        assert_eq!(
            (short.projections.to_bits(), short.head.to_bits()),
            (long.projections.to_bits(), long.head.to_bits())
        );
        same(short.head, 2 * 64 * 40);
        same(short.experts, 2 * 4 * 3 * 64 * 128);
        // Query, window KV and output of four layers; one compressor and one indexer.
        let indexer = 32 * 16 + 64 * 4 * 16 + 64 * 4;
        same(short.projections, 2 * (4 * (64 * 128 + 64 * 32 + 128 * 64) + 64 * 32 + indexer));
    }

    #[test]
    fn weights_apply_per_part() {
        let flops =
            DecodeFlops { context: 1, projections: 1.0, experts: 10.0, index_scoring: 100.0, readout: 1e3, head: 1e4 };
        same(4.0 * flops.weighted(), 2 + 20 + 100 + 4000 + 40_000);
        same(flops.unweighted(), 11_111);
    }
}
