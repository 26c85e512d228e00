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

/// One network.
#[derive(Clone, Debug)]
pub struct Mix {
    /// By which it is known.
    pub key: &'static str,
    /// For people.
    pub name: &'static str,
    /// Its layers, as a configuration names them.
    pub layers: &'static str,
    /// The whole configuration.
    pub config: Arc<ModelConfig>,
}

/// All of them, the released layout first.
///
/// # Errors
/// Never, unless the configurations that come with the program are wrong.
pub fn all() -> Result<Vec<Mix>, BenchError> {
    let mixes = LAYERS.map(|(key, name, layers)| {
        let pool = if layers.contains("pool") { "pool = { blocks = 256, block_size = 8 }\n" } else { "" };
        let config = toml::from_str(&format!("layers = '{layers}'\n{pool}{BASE}"));
        let config = Arc::new(config.map_err(|error| BenchError::Decode(error.to_string()))?);
        Ok(Mix { key, name, layers, config })
    });
    mixes.into_iter().collect()
}

impl Mix {
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
        let mixes = all().unwrap();
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
}
