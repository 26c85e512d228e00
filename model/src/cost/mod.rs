//! What a model costs, from its configuration alone: parameters, bytes per token, decode work against context.
//!
//! Nothing here builds a tensor, so a mix can be priced before anything is trained.

mod bytes;
mod decode;
mod parameters;
mod ratio;

use crate::config::{ConfigError, ModelConfig};

pub use bytes::BytesPerToken;
pub use decode::{DecodeFlops, Format};
pub use parameters::Parameters;
pub use ratio::Ratio;

/// The cost of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    config: ModelConfig,
    parameters: Parameters,
    active: Parameters,
    bytes: BytesPerToken,
    window_bytes: u128,
}

impl Cost {
    /// Counts what the configuration describes.
    ///
    /// # Errors
    /// What [`ModelConfig::validate`] refuses; a vocabulary size that is not set; so many different ratios that
    /// the bytes per token have no common denominator that can be counted.
    pub fn of(config: &ModelConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let vocab_size = config.vocab_size.ok_or_else(|| ConfigError::Missing {
            key: "vocab_size",
            wrong: "embedding and head cannot be counted without it".into(),
            right: "set vocab_size, or take it from the task".into(),
        })?;
        Ok(Self {
            config: config.clone(),
            parameters: Parameters::all(config, vocab_size),
            active: Parameters::active(config, vocab_size),
            bytes: BytesPerToken::of(config)?,
            window_bytes: bytes::window_bytes(config),
        })
    }

    /// Every parameter, by part.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The parameters that one token passes through, by part: all but the experts that it is not routed to and the
    /// embedding, of which it only looks up one row.
    pub fn active_parameters(&self) -> &Parameters {
        &self.active
    }

    /// Bytes that each further token adds to what decoding keeps, by kind.
    pub fn bytes_per_token(&self) -> &BytesPerToken {
        &self.bytes
    }

    /// Bytes of all layers' windows together: fixed, whatever the length. `dense` layers have no such bound and count in
    /// [`Cost::bytes_per_token`].
    pub fn window_bytes(&self) -> u128 {
        self.window_bytes
    }

    /// The work of decoding one token that sees `context` tokens, itself included.
    pub fn decode_flops(&self, context: u64) -> DecodeFlops {
        DecodeFlops::of(&self.config, &self.active, context)
    }

    /// Entries that all indexers together score to decode one token that sees `context` tokens, itself included.
    pub fn scored_entries(&self, context: u64) -> f64 {
        decode::all_scored_entries(&self.config, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vocabulary_size_must_be_known() {
        let mut config = ModelConfig::small().unwrap();
        config.vocab_size = None;
        assert_eq!(
            Cost::of(&config).unwrap_err().to_string(),
            "`vocab_size` is missing: embedding and head cannot be counted without it; \
             set vocab_size, or take it from the task"
        );
    }

    #[test]
    fn a_configuration_that_is_refused_has_no_cost() {
        let mut config = ModelConfig::small().unwrap();
        config.window = 0;
        assert!(Cost::of(&config).unwrap_err().to_string().starts_with("`window = 0`"));
    }

    #[test]
    fn the_largest_sizes_that_are_accepted_do_not_overflow() {
        let mut config = ModelConfig::small().unwrap();
        config.layers = "swa*2000 full stale reuse*2000".parse().unwrap();
        config.d_model = 1 << 24;
        config.heads = 1 << 10;
        config.head_dim = 1 << 14;
        config.window = 1 << 24;
        config.vocab_size = Some(1 << 24);
        let cost = Cost::of(&config).unwrap();
        assert!(cost.parameters().total() > 1 << 60);
        assert!(cost.decode_flops(u64::MAX).unweighted().is_finite());
    }
}
