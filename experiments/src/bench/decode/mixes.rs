//! The networks whose decoding is measured: the released layout in small, and what it is held against.

use std::sync::Arc;

use burn::tensor::Device;
use csa2_infer::{Limit, Options, Session};
use csa2_model::config::ModelConfig;
use csa2_model::init::initialize;
use csa2_model::model::Model;
use csa2_train::random;

use crate::bench::BenchError;

/// The released layout.
pub const RELEASED: &str = "released";
/// Every layer makes and searches entries of its own.
pub const FULL: &str = "full";
/// Windows without a limit.
pub const DENSE: &str = "dense";

/// Ten layers of the released pattern; the same with every layer `full`, at the ratio of the content that it reads there; and
/// windows without a limit.
const LAYERS: [(&str, &str, &str); 3] = [
    (RELEASED, "released layout", "swa*2 (full@2 reuse)*2 full@1+pool reuse reindex reuse"),
    (FULL, "full everywhere", "full@2*6 full@1*4"),
    (DENSE, "dense everywhere", "dense*10"),
];

/// Everything but the layers.
const BASE: &str = include_str!("base.toml");

/// The model of a configuration.
pub const OWN: &str = "own";

/// A model that is measured in place of the released layout in small.
#[derive(Clone, Debug, PartialEq)]
pub struct Own {
    /// What its file or its variant is called.
    pub name: String,
    /// The whole configuration, with its vocabulary.
    pub config: ModelConfig,
}

/// One network.
#[derive(Clone, Debug)]
pub struct Mix {
    /// By which it is known.
    pub key: &'static str,
    /// For people.
    pub name: String,
    /// Its layers, as a configuration names them.
    pub layers: String,
    /// The whole configuration.
    pub config: Arc<ModelConfig>,
}

/// All of them: the released layout first, or the model of `own` in its place.
///
/// # Errors
/// When what is made of the sizes of `own` cannot be; otherwise never, unless the configurations that come with the program are wrong.
pub fn all(own: Option<&Own>) -> Result<Vec<Mix>, BenchError> {
    if let Some(own) = own {
        return around(own);
    }
    let mixes = LAYERS.map(|(key, name, layers)| {
        let pool = if layers.contains("pool") { "pool = { blocks = 256, block_size = 8 }\n" } else { "" };
        let config = toml::from_str(&format!("layers = '{layers}'\n{pool}{BASE}"));
        let config = Arc::new(config.map_err(|error| BenchError::Decode(error.to_string()))?);
        Ok(Mix { key, name: name.into(), layers: layers.into(), config })
    });
    mixes.into_iter().collect()
}

/// The model, and as many layers of its sizes that are all full, at the ratio of the content that they read there or that is nearest, or
/// all dense; what it is already is left out, and full layers where it has none that read entries.
fn around(own: &Own) -> Result<Vec<Mix>, BenchError> {
    let layers = own.config.layers.layers();
    let mix = |key, name: &str, config: ModelConfig| Mix {
        key,
        name: name.into(),
        layers: config.layers.to_string(),
        config: Arc::new(config),
    };
    let mut mixes = vec![mix(OWN, &own.name, own.config.clone())];
    let ratio = |at: usize| {
        let behind = layers[at..].iter().chain(layers[..at].iter().rev());
        behind.map(|layer| layer.ratio).find(|ratio| *ratio > 0)
    };
    let full: Option<Vec<String>> =
        (0..layers.len()).map(|at| ratio(at).map(|ratio| format!("full@{ratio}"))).collect();
    let everywhere = [
        (FULL, "full everywhere", full.map(|layers| layers.join(" "))),
        (DENSE, "dense everywhere", Some(format!("dense*{}", layers.len()))),
    ];
    for (key, name, text) in everywhere {
        let Some(text) = text else { continue };
        let wrong = |error: &dyn std::fmt::Display| BenchError::Decode(format!("{}, {name}: {error}", own.name));
        let layers = text.parse().map_err(|error| wrong(&error))?;
        let config = ModelConfig { layers, pool: None, ..own.config.clone() };
        config.validate().map_err(|error| wrong(&error))?;
        if config.layers != own.config.layers {
            mixes.push(mix(key, name, config));
        }
    }
    Ok(mixes)
}

impl Mix {
    /// Token ids that there are.
    pub fn vocabulary(&self) -> usize {
        self.config.vocab_size.unwrap_or(1).max(1)
    }

    /// The sizes, in one line.
    pub fn sizes(&self) -> String {
        let c = &*self.config;
        let pool =
            c.pool.map_or(String::new(), |pool| format!(", a pool of {} blocks of {}", pool.blocks, pool.block_size));
        format!(
            "d_model {}, {} heads of {}, {} indexer heads of {}, Top-K {}, windows of {}{pool}; main KV {}, index {}, windows {}",
            c.d_model,
            c.heads,
            c.head_dim,
            c.index_heads,
            c.index_dim,
            c.topk,
            c.window,
            c.quantization.main_kv.name(),
            c.quantization.index.name(),
            c.quantization.window.name()
        )
    }

    /// A session of one row of up to `tokens` tokens, with random weights and no past.
    ///
    /// # Errors
    /// When its caches would not fit the memory.
    pub fn session(&self, tokens: usize, device: &Device) -> Result<Session, BenchError> {
        let wrong = |error: &dyn std::fmt::Display| BenchError::Decode(format!("{}: {error}", self.name));
        let model = Model::new(&self.config, None, device).map_err(|error| wrong(&error))?;
        let model = initialize(model, 0.0, |path| random::stream(0, random::INITIALISATION, path.len() as u64));
        let options = Options { memory: Limit::Free, ..Options::new(tokens) };
        Session::new(&model, &self.config, 1, options).map_err(|error| wrong(&error))
    }
}

/// Numbers between -1 and 1 that look random, to fill caches with.
pub fn numbers() -> impl FnMut() -> f32 {
    let mut state = 88_172_645_463_325_252_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use csa2_model::cost::Cost;
    use csa2_model::mix::Mode;

    use super::*;

    #[test]
    fn the_mixes_are_ten_layers_of_their_kind() {
        let mixes = all(None).unwrap();
        assert_eq!(mixes.iter().map(|mix| mix.key).collect::<Vec<_>>(), [RELEASED, FULL, DENSE]);
        let modes = |mix: &Mix| mix.config.layers.layers().iter().map(|layer| layer.mode).collect::<Vec<_>>();
        assert!(mixes.iter().all(|mix| modes(mix).len() == 10));
        assert!(modes(&mixes[1]).iter().all(|&mode| mode == Mode::Full));
        assert!(modes(&mixes[2]).iter().all(|&mode| mode == Mode::Dense));
        let bytes = |mix: &Mix| Cost::of(&mix.config).unwrap().bytes_per_token().total.to_f64();
        // An entry takes 64 + 8 bytes of main KV and 32 + 2 of index key, a window latent 128 + 4.
        let found: Vec<f64> = mixes.iter().map(bytes).collect();
        assert_eq!(found, [2.0 * 106.0, 3.0 * 106.0 + 4.0 * 106.0, 10.0 * 132.0]);
    }

    #[test]
    fn a_model_is_held_against_full_and_dense_layers_of_its_sizes() {
        let config = |layers: &str| ModelConfig {
            layers: layers.parse().unwrap(),
            vocab_size: Some(7),
            ..toml::from_str(&format!("layers = 'swa'\n{BASE}")).unwrap()
        };
        let layers = |layers: &str| {
            let mixes = all(Some(&Own { name: "mine".into(), config: config(layers) })).unwrap();
            mixes.into_iter().map(|mix| (mix.key, mix.layers)).collect::<Vec<_>>()
        };
        let text = |text: &str| text.to_owned();
        assert_eq!(
            layers("swa full@4 reuse full@2 reindex swa"),
            [
                (OWN, text("swa full@4 reuse full@2 reindex swa")),
                (FULL, text("full@4*3 full@2*3")),
                (DENSE, text("dense*6"))
            ]
        );
        assert_eq!(layers("full*2"), [(OWN, text("full*2")), (DENSE, text("dense*2"))]);
        assert_eq!(layers("swa dense"), [(OWN, text("swa dense")), (DENSE, text("dense*2"))]);
    }
}
