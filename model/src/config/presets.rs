//! Models that are known by name.

use super::{
    ConfigError, FfnConfig, ModelConfig, PoolConfig, QuantFormat, QuantizationConfig, Residual, ScoreFunction, Values,
    YarnConfig, beta_fast, beta_slow, compress_rope_theta, norm_eps, rope_theta,
};

impl ModelConfig {
    /// DeepSeek-V4.1-Flash: the released 40 layers (technical report arXiv 2609.19969).
    ///
    /// Vocabulary, expert sizes and route scale are inferred: they reproduce the stated 552B parameters, 15.7B of them active.
    ///
    /// # Errors
    /// None in practice; the mix is parsed like any other.
    pub fn deepseek_v41_flash() -> Result<Self, ConfigError> {
        Ok(Self {
            layers: "swa*2 (full@2 reuse*5)*3 full+pool reuse*3 (reindex reuse*3)*4".parse()?,
            vocab_size: Some(129_280),
            d_model: 5120,
            heads: 64,
            head_dim: 512,
            rope_dim: 64,
            query_rank: Some(1280),
            output_groups: 8,
            output_rank: Some(1024),
            window: 128,
            topk: 512,
            index_heads: 32,
            index_dim: 128,
            pool: Some(PoolConfig { blocks: 2048, block_size: 8 }),
            rope_theta: rope_theta(),
            compress_rope_theta: compress_rope_theta(),
            yarn: Some(YarnConfig {
                factor: 16.0,
                original_length: 65_536,
                beta_fast: beta_fast(),
                beta_slow: beta_slow(),
            }),
            norm_eps: 1e-20,
            sink_init: 0.0,
            ffn: FfnConfig::Moe {
                experts: 384,
                active: 6,
                shared: 1,
                width: 2304,
                route_scale: 1.5,
                swiglu_limit: Some(10.0),
                score: ScoreFunction::default(),
            },
            residual: Residual::Hyper { streams: 4 },
            values: Values::Rotated,
            quantization: QuantizationConfig {
                main_kv: QuantFormat::Fp4,
                index: QuantFormat::Fp4,
                window: QuantFormat::Fp8,
            },
        })
    }

    /// The small model of the recall experiments: 4 layers, about 185 thousand parameters.
    ///
    /// # Errors
    /// None in practice; the mix is parsed like any other.
    pub fn small() -> Result<Self, ConfigError> {
        Ok(Self {
            layers: "swa full reuse*2".parse()?,
            vocab_size: Some(40),
            d_model: 64,
            heads: 4,
            head_dim: 32,
            rope_dim: 16,
            query_rank: None,
            output_groups: 1,
            output_rank: None,
            window: 8,
            topk: 8,
            index_heads: 4,
            index_dim: 16,
            pool: None,
            rope_theta: rope_theta(),
            compress_rope_theta: compress_rope_theta(),
            yarn: None,
            norm_eps: norm_eps(),
            sink_init: 0.0,
            ffn: FfnConfig::Dense { width: 128 },
            residual: Residual::Plain,
            values: Values::Rotated,
            quantization: QuantizationConfig::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid() {
        assert_eq!(ModelConfig::deepseek_v41_flash().unwrap().validate(), Ok(()));
        assert_eq!(ModelConfig::small().unwrap().validate(), Ok(()));
    }
}
