//! What a model would be and cost, before anything is trained: the picture behind `csa2 plan`.

mod dot;
mod json;
mod text;
pub mod units;

use csa2_model::config::{ConfigError, ModelConfig};
use csa2_model::cost::{Cost, DecodeFlops};

/// The context lengths for which decode work is shown, shortest first. K and M are binary: 4K is 4096 tokens.
pub const CONTEXTS: [u64; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// A model's plan and its costs, ready to be shown.
#[derive(Debug, Clone)]
pub struct PlanView {
    name: String,
    config: ModelConfig,
    cost: Cost,
    decode: Vec<DecodeFlops>,
}

impl PlanView {
    /// Prices the model.
    ///
    /// # Errors
    /// What [`Cost::of`] refuses: a configuration that does not fit together, or one without a vocabulary size.
    pub fn of(name: &str, config: &ModelConfig) -> Result<Self, ConfigError> {
        let cost = Cost::of(config)?;
        let decode = CONTEXTS.map(|context| cost.decode_flops(context)).to_vec();
        // A name may come from a file name, and a control character in it could move a terminal's cursor.
        let name = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        Ok(Self { name, config: config.clone(), cost, decode })
    }

    /// How much more a token costs at the longest context than at the shortest: weighted, and counted alike.
    fn growth(&self) -> Option<(f64, f64)> {
        let (first, last) = (self.decode.first()?, self.decode.last()?);
        Some((last.weighted() / first.weighted(), last.unweighted() / first.unweighted()))
    }
}

/// The plan as text of at most 90 columns.
///
/// # Errors
/// See [`PlanView::of`].
pub fn render_text(name: &str, config: &ModelConfig) -> Result<String, ConfigError> {
    Ok(text::render(&PlanView::of(name, config)?))
}

/// The plan for programs. Keys are stable; sizes are plain numbers, in parameters, bytes and operations.
///
/// # Errors
/// See [`PlanView::of`].
pub fn render_json(name: &str, config: &ModelConfig) -> Result<serde_json::Value, ConfigError> {
    Ok(json::render(&PlanView::of(name, config)?))
}

/// The graph of the layers in Graphviz's language, for example for `dot -Tsvg`.
///
/// # Errors
/// What [`ModelConfig::validate`] refuses.
pub fn render_dot(name: &str, config: &ModelConfig) -> Result<String, ConfigError> {
    config.validate()?;
    Ok(dot::render(name, config))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        model: ModelConfig,
    }

    fn read(text: &str) -> ModelConfig {
        toml::from_str::<File>(text).expect("the file is valid").model
    }

    const RELEASED: &str = include_str!("../../../configs/models/deepseek-v4.1-flash.toml");
    const SMALL: &str = include_str!("../../../configs/models/small.toml");

    #[test]
    fn the_files_of_named_models_are_the_presets() {
        assert_eq!(read(RELEASED), ModelConfig::deepseek_v41_flash().unwrap());
        assert_eq!(read(SMALL), ModelConfig::small().unwrap());
    }

    #[test]
    fn configurations_survive_toml() {
        for config in [read(RELEASED), read(SMALL)] {
            let text = toml::to_string(&config).unwrap();
            assert_eq!(toml::from_str::<ModelConfig>(&text).unwrap(), config);
        }
    }

    #[test]
    fn unknown_keys_and_broken_mixes_are_named() {
        let error = |from: &str, to: &str| {
            assert!(SMALL.contains(from));
            toml::from_str::<File>(&SMALL.replace(from, to)).err().expect("must be refused").to_string()
        };
        assert!(error("heads = 4\n", "head = 4\n").contains("unknown field `head`"));
        assert!(error("width = 128", "width = 128, depth = 2").contains("unknown field `depth`"));
        assert!(error("heads = 4\n", "heads = \"four\"\n").contains("invalid type"));
        let broken = error("swa full reuse*2", "swa fulll reuse*2");
        assert!(broken.contains("layer mix, column 5: unknown mode `fulll`"), "{broken}");
        assert!(broken.contains("\n    swa fulll reuse*2\n        ^\n"), "{broken}");
    }

    #[test]
    fn control_characters_of_a_name_are_not_shown() {
        let text = render_text("a\u{1b}[2Jb", &read(SMALL)).unwrap();
        assert!(text.starts_with("a [2Jb"));
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn what_cannot_be_priced_is_an_error_everywhere() {
        let config = ModelConfig { window: 0, ..read(SMALL) };
        assert!(render_text("x", &config).is_err());
        assert!(render_json("x", &config).is_err());
        assert!(render_dot("x", &config).is_err());
        let config = ModelConfig { vocab_size: None, ..read(SMALL) };
        assert!(render_text("x", &config).unwrap_err().to_string().starts_with("`vocab_size` is missing"));
        assert!(render_dot("x", &config).is_ok());
    }
}
