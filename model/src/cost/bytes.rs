//! What decoding keeps: bytes per token, which grow with the context, and windows, which do not.

use super::Ratio;
use crate::config::{ConfigError, ModelConfig, QuantFormat, QuantizationConfig};
use crate::mix::Mode;

/// Bytes that each further token adds, exactly. A layer of ratio m keeps 1/m entries per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BytesPerToken {
    /// Main KV of `full` and `stale` layers.
    pub main_kv: Ratio,
    /// Indexer keys of `full` layers.
    pub index_key: Ratio,
    /// Latents of `dense` layers, whose window has no limit.
    pub dense: Ratio,
    /// All of them together.
    pub total: Ratio,
}

impl BytesPerToken {
    pub(super) fn of(config: &ModelConfig) -> Result<Self, ConfigError> {
        let QuantizationConfig { main_kv, index, window } = config.quantization;
        let latent = vector_bytes(config.head_dim, main_kv, QuantizationConfig::latent_group(main_kv));
        let key = vector_bytes(config.index_dim, index, QuantizationConfig::index_group(index));
        let sum = |bytes: u128, counts: fn(Mode) -> bool| {
            let layers = config.layers.layers().iter().filter(|layer| counts(layer.mode));
            // A `dense` layer keeps every token; its ratio of 0 stands for no compression.
            let each = layers.map(|layer| Ratio::new(bytes, layer.ratio.max(1) as u128));
            add(each, config)
        };
        let main_kv = sum(latent, Mode::takes_ratio)?;
        let index_key = sum(key, |mode| mode == Mode::Full)?;
        let dense = sum(window_vector_bytes(config, window), |mode| mode == Mode::Dense)?;
        let total = add([main_kv, index_key, dense].into_iter().map(Some), config)?;
        Ok(Self { main_kv, index_key, dense, total })
    }
}

/// Bytes of all windows together: W latents per layer, `dense` layers left out.
pub(super) fn window_bytes(config: &ModelConfig) -> u128 {
    let windows = config.layers.len() - config.layers.count(Mode::Dense);
    let latent = window_vector_bytes(config, config.quantization.window);
    windows as u128 * config.window as u128 * latent
}

fn window_vector_bytes(config: &ModelConfig, format: QuantFormat) -> u128 {
    vector_bytes(config.head_dim, format, QuantizationConfig::latent_group(format))
}

/// Bytes of one stored vector: its codes, and a scale of one byte per group. Validation has checked that groups and pairs of
/// 4-bit codes divide the dimension.
fn vector_bytes(dim: usize, format: QuantFormat, group: usize) -> u128 {
    let bytes = match format {
        QuantFormat::None => 4 * dim,
        QuantFormat::Fp8 => dim + dim / group,
        QuantFormat::Fp4 => dim / 2 + dim / group,
    };
    bytes as u128
}

fn add(ratios: impl Iterator<Item = Option<Ratio>>, config: &ModelConfig) -> Result<Ratio, ConfigError> {
    let mut ratios = ratios;
    ratios.try_fold(Ratio::ZERO, |sum, next| next.and_then(|next| sum.checked_add(next))).ok_or_else(|| {
        ConfigError::Value {
            key: "layers",
            value: format!("\"{}\"", config.layers),
            wrong: "its compression ratios have no common multiple that can be counted".into(),
            right: "use fewer different ratios, best powers of two".into(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::Cost;
    use super::*;

    fn small(mix: &str) -> ModelConfig {
        ModelConfig { layers: mix.parse().unwrap(), ..ModelConfig::small().unwrap() }
    }

    fn bytes(config: &ModelConfig) -> BytesPerToken {
        *Cost::of(config).unwrap().bytes_per_token()
    }

    fn whole(bytes: u128) -> Ratio {
        Ratio::new(bytes, 1).unwrap()
    }

    #[test]
    fn released_layout_keeps_890_bytes_per_token() {
        let cost = Cost::of(&ModelConfig::deepseek_v41_flash().unwrap()).unwrap();
        let BytesPerToken { main_kv, index_key, dense, total } = *cost.bytes_per_token();
        assert_eq!((main_kv, index_key), (whole(720), whole(170)));
        assert_eq!((dense, total), (Ratio::ZERO, whole(890)));
        assert_eq!(cost.window_bytes(), 40 * 128 * (512 + 16));
    }

    #[test]
    fn unquantized_numbers_take_four_bytes() {
        let BytesPerToken { main_kv, index_key, .. } = bytes(&small("swa full@3 reuse reindex"));
        assert_eq!((main_kv, index_key), (Ratio::new(128, 3).unwrap(), Ratio::new(64, 3).unwrap()));
        assert_eq!(Cost::of(&small("swa full")).unwrap().window_bytes(), 2 * 8 * 128);
    }

    #[test]
    fn stale_owns_content_but_no_keys() {
        let (one, two) = (bytes(&small("full@2")), bytes(&small("full@2 stale@2")));
        assert_eq!(one.main_kv.checked_add(one.main_kv), Some(two.main_kv));
        assert_eq!(one.index_key, two.index_key);
    }

    #[test]
    fn dense_grows_with_every_token_and_has_no_window() {
        let mut config = small("dense*2 swa");
        assert_eq!((bytes(&config).dense, bytes(&config).total), (whole(256), whole(256)));
        assert_eq!(Cost::of(&config).unwrap().window_bytes(), 8 * 128);
        config.quantization.window = QuantFormat::Fp8;
        assert_eq!(bytes(&config).dense, whole(2 * 33));
    }

    #[test]
    fn ratios_without_a_countable_common_multiple() {
        let mix: Vec<String> = (60_000..60_040).map(|ratio| format!("full@{ratio}")).collect();
        let error = Cost::of(&small(&mix.join(" "))).unwrap_err().to_string();
        assert!(error.contains("no common multiple that can be counted"), "{error}");
    }
}
