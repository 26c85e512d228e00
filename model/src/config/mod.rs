//! What a model is, as a configuration says it: the layer mix and the sizes. Nothing here builds a tensor.

mod error;
mod hf;
mod parts;
mod presets;
mod quantization;
mod residual;
mod validate;
mod values;

use serde::{Deserialize, Serialize};

use crate::mix::LayerPlan;

pub use error::ConfigError;
pub use hf::HfConfig;
pub use parts::Part;
pub use quantization::{QuantFormat, QuantizationConfig};
pub use residual::Residual;
pub use values::Values;

/// A whole model. Unknown keys are refused; [`ModelConfig::validate`] checks how the values fit together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The layer mix, such as `swa full reuse*2`.
    pub layers: LayerPlan,
    /// Number of token ids; where it is left out, the task sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<usize>,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Attention heads H.
    pub heads: usize,
    /// Dimension d of a head, equal to that of a latent (key = value = latent).
    pub head_dim: usize,
    /// Rotary channels `d_r`: the last ones of a head.
    pub rope_dim: usize,
    /// Rank of the query's down-projection. Where it is left out, queries are projected straight from the layer's
    /// input, which then also feeds the indexer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_rank: Option<usize>,
    /// Groups of heads with an output matrix of their own (default 1).
    #[serde(default = "one")]
    pub output_groups: usize,
    /// Rank of the output projection, per group. Where it is left out, one matrix maps all heads to `d_model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_rank: Option<usize>,
    /// Window W: how many of the newest tokens every layer reads exactly, the token itself included.
    pub window: usize,
    /// Top-K: how many compressed entries an address selects.
    pub topk: usize,
    /// Indexer heads `H_I`.
    pub index_heads: usize,
    /// Dimension `d_I` of an indexer head.
    pub index_dim: usize,
    /// Size of the candidate pool; needed exactly where the mix has a `+pool`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolConfig>,
    /// Rotary base of `swa` and `dense` layers (default 10000).
    #[serde(default = "rope_theta")]
    pub rope_theta: f64,
    /// Rotary base of layers with compressed entries (default 160000).
    #[serde(default = "compress_rope_theta")]
    pub compress_rope_theta: f64,
    /// Stretching of the rotary frequencies of layers with compressed entries (default none).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yarn: Option<YarnConfig>,
    /// Added to the mean square in every `RMSNorm` (default 1e-6).
    #[serde(default = "norm_eps")]
    pub norm_eps: f64,
    /// Starting value of the sinks, in logits (default 0).
    #[serde(default)]
    pub sink_init: f64,
    /// The feed-forward part of every block.
    pub ffn: FfnConfig,
    /// How blocks are joined (default plain).
    #[serde(default)]
    pub residual: Residual,
    /// What attention averages (default rotated, as released).
    #[serde(default, skip_serializing_if = "Values::is_rotated")]
    pub values: Values,
    /// Number formats that training imitates and inference stores (default none).
    #[serde(default)]
    pub quantization: QuantizationConfig,
}

impl ModelConfig {
    /// Channels of the vectors that the operators work on, with the keys that decide them: `d` of the read-out (`d + d_r` where values are
    /// not rotated, for key and value), and `d_I` of the indexer.
    pub fn vectors(&self) -> [(&'static str, usize); 2] {
        let latent = match self.values {
            Values::Rotated => ("head_dim", self.head_dim),
            Values::Unrotated => ("head_dim + rope_dim", self.head_dim + self.rope_dim),
        };
        [latent, ("index_dim", self.index_dim)]
    }
}

/// The candidate pool of hierarchical sparse indexing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Blocks kept per query.
    pub blocks: usize,
    /// Compressed entries per block.
    pub block_size: usize,
}

impl PoolConfig {
    /// Entries that the pool holds at most; saturates where the product would overflow, which validation refuses.
    pub const fn entries(&self) -> usize {
        self.blocks.saturating_mul(self.block_size)
    }
}

/// `YaRN`: how the rotary frequencies of layers with compressed entries stretch beyond the training length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct YarnConfig {
    /// How many times longer than `original_length` the model shall reach.
    pub factor: f64,
    /// Length in tokens that the unstretched frequencies were trained on.
    pub original_length: usize,
    /// Rotations over the original length above which a frequency is kept (default 32).
    #[serde(default = "beta_fast")]
    pub beta_fast: f64,
    /// Rotations over the original length below which a frequency is divided by `factor` (default 1).
    #[serde(default = "beta_slow")]
    pub beta_slow: f64,
}

/// The feed-forward part of a block. Every expert is a `SwiGLU` of three matrices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "lowercase",
    deny_unknown_fields,
    expecting = r#"a table such as { kind = "dense", width = 128 } or { kind = "moe", … }"#
)]
pub enum FfnConfig {
    /// One `SwiGLU` for every token.
    Dense {
        /// Its inner width.
        width: usize,
    },
    /// A mixture of experts.
    Moe {
        /// Routed experts.
        experts: usize,
        /// Routed experts that a token passes through.
        active: usize,
        /// Experts that every token passes through; 0 for none.
        shared: usize,
        /// Inner width of one expert.
        width: usize,
        /// Factor on the routed experts' weights.
        route_scale: f64,
        /// Bound on the gated activations; none where it is left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        swiglu_limit: Option<f64>,
        /// From the gate's logits to scores (default `"sqrtsoftplus"`, the released model's).
        #[serde(default)]
        score: ScoreFunction,
    },
}

/// How a gate's logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScoreFunction {
    /// `sqrt(ln(1 + e^x))`.
    #[default]
    SqrtSoftplus,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// Over the experts.
    Softmax,
}

impl ScoreFunction {
    /// The function as a configuration writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SqrtSoftplus => "sqrtsoftplus",
            Self::Sigmoid => "sigmoid",
            Self::Softmax => "softmax",
        }
    }
}

const fn one() -> usize {
    1
}

const fn rope_theta() -> f64 {
    10_000.0
}

const fn compress_rope_theta() -> f64 {
    160_000.0
}

const fn norm_eps() -> f64 {
    1e-6
}

const fn beta_fast() -> f64 {
    32.0
}

const fn beta_slow() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::quant::Format;

    fn minimal() -> Value {
        json!({
            "layers": "swa full reuse*2", "d_model": 64, "heads": 4, "head_dim": 32, "rope_dim": 16,
            "window": 8, "topk": 8, "index_heads": 4, "index_dim": 16, "ffn": {"kind": "dense", "width": 128}
        })
    }

    fn read(change: impl FnOnce(&mut Value)) -> Result<ModelConfig, String> {
        let mut value = minimal();
        change(&mut value);
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults() {
        let config = read(|_| ()).unwrap();
        assert_eq!((config.vocab_size, config.query_rank, config.output_rank, config.pool), (None, None, None, None));
        assert_eq!((config.output_groups, config.residual, config.yarn), (1, Residual::Plain, None));
        assert_eq!((config.rope_theta, config.compress_rope_theta), (10_000.0, 160_000.0));
        assert_eq!((config.norm_eps, config.sink_init), (1e-6, 0.0));
        assert_eq!(config.quantization, QuantizationConfig::default());
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn formats_of_each_part() {
        use QuantFormat::{Fp4, Fp8, None as Off};
        let latent = [Off, Fp8, Fp4].map(QuantizationConfig::latent_format);
        let index = [Off, Fp8, Fp4].map(QuantizationConfig::index_format);
        assert_eq!(latent, [None, Some(Format::Fp8E8m0), Some(Format::Fp4E4m3)]);
        assert_eq!(index, [None, Some(Format::Fp8E8m0), Some(Format::Fp4E8m0)]);
        assert_eq!([Off, Fp8, Fp4].map(QuantizationConfig::latent_group), [1, 32, 16]);
        assert_eq!([Off, Fp8, Fp4].map(QuantizationConfig::index_group), [1, 32, 32]);
        let only = |part: &str| read(|v| v["quantization"] = json!({part: "fp4"})).unwrap().quantization;
        assert!(["main_kv", "index", "window"].into_iter().all(|part| only(part).any()));
        assert!(!QuantizationConfig::default().any() && !read(|_| ()).unwrap().quantization.any());
    }

    #[test]
    fn unknown_keys_are_refused_at_every_depth() {
        let refused = |change: fn(&mut Value)| read(change).unwrap_err();
        assert!(refused(|v| v["head"] = json!(4)).contains("unknown field `head`"));
        assert!(refused(|v| v["ffn"]["depth"] = json!(4)).contains("unknown field `depth`"));
        assert!(
            refused(|v| v["pool"] = json!({"blocks": 1, "block_size": 8, "size": 8})).contains("unknown field `size`")
        );
        assert!(refused(|v| v["quantization"] = json!({"kv": "fp4"})).contains("unknown field `kv`"));
        assert!(
            refused(|v| v["yarn"] = json!({"factor": 2.0, "original_length": 8, "beta": 1}))
                .contains("unknown field `beta`")
        );
        for residual in [json!({"hyper": {"streams": 4, "rate": 1}}), json!({"hyper": {}}), json!("hyperr"), json!(4)] {
            let error = read(|v| v["residual"] = residual).unwrap_err();
            assert!(error.contains(r#"`residual` is "plain", "hyper" or { hyper = { streams = … } }"#), "{error}");
        }
        assert_eq!(
            refused(|v| v["ffn"] = json!("moe")),
            r#"invalid type: string "moe", expected a table such as { kind = "dense", width = 128 } or { kind = "moe", … }"#
        );
        assert!(refused(|v| v["ffn"]["kind"] = json!("mlp")).contains("unknown variant `mlp`"));
        assert!(refused(|v| v["quantization"] = json!({"main_kv": "int4"})).contains("unknown variant `int4`"));
    }

    #[test]
    fn residuals_by_name_and_by_size() {
        let residual = |value: Value| read(|v| v["residual"] = value).unwrap().residual;
        assert_eq!(residual(json!("plain")), Residual::Plain);
        assert_eq!(residual(json!("hyper")), Residual::Hyper { streams: 4 });
        assert_eq!(residual(json!({"hyper": {"streams": 2}})), Residual::Hyper { streams: 2 });
    }

    #[test]
    fn a_broken_mix_is_reported_with_its_column() {
        let error = read(|v| v["layers"] = json!("swa fulll")).unwrap_err();
        assert!(error.contains("layer mix, column 5: unknown mode `fulll`"), "{error}");
    }

    #[test]
    fn serialization_comes_back() {
        for config in [read(|_| ()).unwrap(), ModelConfig::deepseek_v41_flash().unwrap(), ModelConfig::small().unwrap()]
        {
            let value = serde_json::to_value(&config).unwrap();
            assert_eq!(serde_json::from_value::<ModelConfig>(value).unwrap(), config);
        }
    }
}
