//! How many parameters a model has, and how many of them a token passes through.

use crate::config::{FfnConfig, ModelConfig, Residual};
use crate::mix::{Mode, PlannedLayer};

/// Parameters by part, summed over the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parameters {
    /// Token embedding.
    pub embedding: u128,
    /// Query projections.
    pub query: u128,
    /// Window KV projections.
    pub window_kv: u128,
    /// Compressors' projections and gates.
    pub compressor: u128,
    /// Indexers' query, key and head-weight projections.
    pub indexer: u128,
    /// Sinks, one per head.
    pub sink: u128,
    /// Output projections.
    pub output: u128,
    /// Feed-forward parts: the one, or routed and shared experts.
    pub feed_forward: u128,
    /// Routers of mixtures of experts.
    pub router: u128,
    /// Hyper-connections.
    pub hyper_connections: u128,
    /// Scales of every `RMSNorm`.
    pub norms: u128,
    /// Language-model head.
    pub head: u128,
}

impl Parameters {
    /// Every parameter.
    pub(super) fn all(config: &ModelConfig, vocab_size: usize) -> Self {
        let mut sum = Self {
            embedding: product(&[vocab_size, config.d_model]),
            head: product(&[vocab_size, config.d_model]),
            norms: product(&[config.d_model]),
            ..Self::default()
        };
        for layer in config.layers.layers() {
            sum.add_attention(config, layer);
            sum.add_feed_forward(config);
            sum.add_hyper_connections(config);
        }
        sum
    }

    /// The parameters that one token passes through.
    pub(super) fn active(config: &ModelConfig, vocab_size: usize) -> Self {
        let mut config = config.clone();
        let router = Self::all(&config, vocab_size).router;
        if let FfnConfig::Moe { experts, active, .. } = &mut config.ffn {
            *experts = *active;
        }
        // The router weighs every expert, also those that it does not choose.
        Self { embedding: 0, router, ..Self::all(&config, vocab_size) }
    }

    /// All parts together.
    pub fn total(&self) -> u128 {
        self.parts().iter().map(|(_, count)| count).sum()
    }

    /// Every part with its name, in the order of the forward pass.
    pub fn parts(&self) -> [(&'static str, u128); 12] {
        [
            ("embedding", self.embedding),
            ("query", self.query),
            ("window KV", self.window_kv),
            ("compressor", self.compressor),
            ("indexer", self.indexer),
            ("sink", self.sink),
            ("output", self.output),
            ("feed-forward", self.feed_forward),
            ("router", self.router),
            ("hyper-connections", self.hyper_connections),
            ("norms", self.norms),
            ("head", self.head),
        ]
    }

    /// One attention layer (report 2.2, 2.3). A `reuse` layer has exactly what an `swa` layer has.
    fn add_attention(&mut self, config: &ModelConfig, layer: &PlannedLayer) {
        let ModelConfig { d_model, heads, head_dim, index_heads, index_dim, .. } = *config;
        let query_input = config.query_rank.unwrap_or(d_model);
        self.query += product(&[query_input, heads, head_dim]);
        if let Some(rank) = config.query_rank {
            self.query += product(&[d_model, rank]);
            self.norms += product(&[rank]);
        }
        self.window_kv += product(&[d_model, head_dim]);
        self.sink += product(&[heads]);
        // Block diagonal: each group maps heads / groups * head_dim numbers to its own rank.
        self.output += product(&[config.output_rank.unwrap_or(d_model), heads, head_dim]);
        if let Some(rank) = config.output_rank {
            self.output += product(&[config.output_groups, rank, d_model]);
        }
        // Before attention and before the feed-forward part; and the window latent's.
        self.norms += product(&[2, d_model]) + product(&[head_dim]);
        if layer.mode.takes_ratio() {
            let matrices = if layer.ratio > 1 { 2 } else { 1 };
            self.compressor += product(&[matrices, d_model, head_dim]);
            self.norms += product(&[head_dim]);
        }
        if layer.mode.has_indexer() {
            self.indexer += product(&[query_input, index_heads, index_dim]) + product(&[d_model, index_heads]);
        }
        if layer.mode == Mode::Full {
            self.indexer += product(&[head_dim, index_dim]);
            self.norms += product(&[index_dim]);
        }
    }

    fn add_feed_forward(&mut self, config: &ModelConfig) {
        match config.ffn {
            FfnConfig::Dense { width } => {
                self.feed_forward += product(&[3, width, config.d_model]);
            }
            FfnConfig::Moe { experts, shared, width, .. } => {
                let expert = product(&[3, width, config.d_model]);
                self.feed_forward += expert * (experts as u128 + shared as u128);
                // One row and one bias per expert.
                self.router += product(&[experts, config.d_model]) + experts as u128;
            }
        }
    }

    /// Around attention and around the feed-forward part: a matrix from all streams to the weights of reading, writing
    /// and mixing (n + n + n * n numbers), their bias, and three scales.
    fn add_hyper_connections(&mut self, config: &ModelConfig) {
        if let Residual::Hyper { streams } = config.residual {
            let weights = product(&[streams, streams + 2]);
            self.hyper_connections += 2 * (weights * product(&[streams, config.d_model]) + weights + 3);
        }
    }
}

/// A product of sizes, each of which validation keeps at or below 2^24.
fn product(sizes: &[usize]) -> u128 {
    sizes.iter().map(|size| *size as u128).product()
}

#[cfg(test)]
mod tests {
    use super::super::Cost;
    use super::*;
    use crate::config::PoolConfig;
    use crate::config::ScoreFunction;

    /// The 10-layer model of the golden tensors, of the released pattern at small sizes.
    fn golden() -> ModelConfig {
        ModelConfig {
            layers: "swa*2 full@2 reuse*2 full+pool (reuse reindex)*2".parse().unwrap(),
            vocab_size: Some(96),
            d_model: 32,
            heads: 4,
            head_dim: 32,
            rope_dim: 8,
            query_rank: Some(16),
            output_groups: 2,
            output_rank: Some(8),
            index_heads: 4,
            index_dim: 16,
            pool: Some(PoolConfig { blocks: 3, block_size: 4 }),
            ffn: FfnConfig::Moe {
                experts: 4,
                active: 2,
                shared: 1,
                width: 16,
                route_scale: 1.5,
                swiglu_limit: Some(10.0),
                score: ScoreFunction::default(),
            },
            residual: Residual::Hyper { streams: 4 },
            ..ModelConfig::small().unwrap()
        }
    }

    #[test]
    fn parts_add_up_to_the_sizes_of_a_real_checkpoint() {
        let cost = Cost::of(&golden()).unwrap();
        let expected = Parameters {
            embedding: 3072,
            query: 25_600,
            window_kv: 10_240,
            compressor: 3072,
            indexer: 5632,
            sink: 40,
            output: 15_360,
            feed_forward: 76_800,
            router: 1320,
            hyper_connections: 61_980,
            norms: 1248,
            head: 3072,
        };
        assert_eq!(*cost.parameters(), expected);
        assert_eq!(cost.parameters().total(), 207_436);
    }

    #[test]
    fn active_leaves_out_unused_experts_and_the_embedding() {
        let cost = Cost::of(&golden()).unwrap();
        let all = *cost.parameters();
        let expected = Parameters { embedding: 0, feed_forward: all.feed_forward * 3 / 5, ..all };
        assert_eq!(*cost.active_parameters(), expected);
    }

    #[test]
    fn released_totals() {
        let cost = Cost::of(&ModelConfig::deepseek_v41_flash().unwrap()).unwrap();
        let billions = |count: u128| count as f64 / 1e9;
        let total = billions(cost.parameters().total());
        assert!((total - 552.0).abs() < 0.5, "{total}");
        // The stated 15.7 billion are met when routers, hyper-connections and norms are left out.
        let active = *cost.active_parameters();
        let small = active.router + active.hyper_connections + active.norms;
        assert!((billions(active.total()) - 15.82).abs() < 0.01, "{active:?}");
        assert!((billions(active.total() - small) - 15.7).abs() < 0.01, "{active:?}");
    }

    #[test]
    fn small_model_has_about_185_thousand() {
        let total = Cost::of(&ModelConfig::small().unwrap()).unwrap().parameters().total();
        assert!((184_000..186_000).contains(&total), "{total}");
    }

    #[test]
    fn a_reuse_layer_costs_what_a_window_layer_costs() {
        let total = |mix: &str| {
            let config = ModelConfig { layers: mix.parse().unwrap(), ..ModelConfig::small().unwrap() };
            Cost::of(&config).unwrap().parameters().total()
        };
        assert_eq!(total("full reuse*3"), total("full swa*3"));
        assert_eq!(total("full dense"), total("full swa"));
        // The key projection and its norm are all that a `full` has beyond `stale` and `reindex` together.
        let (swa, full) = (total("full swa") - total("full"), total("full*2") - total("full"));
        let (reindex, stale) = (total("full reindex") - total("full"), total("full stale") - total("full"));
        assert_eq!(full - swa, (reindex - swa) + (stale - swa) + 32 * 16 + 16);
    }
}
