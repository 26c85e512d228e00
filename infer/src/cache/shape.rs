//! What one layer stores of a row.

use csa2_model::config::{ModelConfig, QuantizationConfig};
use csa2_model::mix::Mode;
use csa2_model::quant::Format;
use csa2_model::store::Store;

use super::RowCache;

/// What one layer stores: channels and format of each kind of vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// Window latents.
    pub window: (usize, Option<Format>),
    /// Tokens of the window; none where it has no limit.
    pub width: Option<usize>,
    /// Main latents, where the layer makes any.
    pub main: Option<(usize, Option<Format>)>,
    /// Index keys, where the layer makes any.
    pub keys: Option<(usize, Option<Format>)>,
    /// Compression ratio of the entries that the layer makes; 0 where it makes none.
    pub ratio: usize,
    /// Channels of a compressor's input.
    pub d_model: usize,
}

impl LayerShape {
    /// Those of all layers; in f32 where `quantize` is false.
    pub fn all(config: &ModelConfig, quantize: bool) -> Vec<Self> {
        let QuantizationConfig { main_kv, index, window } = config.quantization;
        let format = |format: Option<Format>| format.filter(|_| quantize);
        let latent = (config.head_dim, format(QuantizationConfig::latent_format(main_kv)));
        let key = (config.index_dim, format(QuantizationConfig::index_format(index)));
        let window = (config.head_dim, format(QuantizationConfig::latent_format(window)));
        let layers = config.layers.layers().iter().map(|layer| {
            let own = matches!(layer.mode, Mode::Full | Mode::Stale);
            Self {
                window,
                width: (layer.mode != Mode::Dense).then_some(config.window),
                main: own.then_some(latent),
                keys: (layer.mode == Mode::Full).then_some(key),
                ratio: if own { layer.ratio } else { 0 },
                d_model: config.d_model,
            }
        });
        layers.collect()
    }

    /// Vectors that a row of `length` tokens has: of the window, and entries.
    fn counts(&self, length: u64) -> (u64, u64) {
        let window = self.width.map_or(length, |width| length.min(width as u64));
        (window, if self.ratio == 0 { 0 } else { length / self.ratio as u64 })
    }

    /// Entries that `length` tokens make.
    pub(super) fn entries(&self, length: usize) -> usize {
        self.counts(length as u64).1 as usize
    }

    /// Numbers that wait for their group to be complete.
    pub(super) fn waiting(&self, length: u64) -> u64 {
        if self.ratio > 1 { length % self.ratio as u64 * self.d_model as u64 } else { 0 }
    }

    /// The row of `length` tokens, everything zero.
    pub(super) fn row(&self, length: usize) -> RowCache {
        let (window, entries) = self.counts(length as u64);
        let store = |(dim, format), count: u64| Store::zeros(dim, format, count as usize);
        RowCache {
            window: store(self.window, window),
            main: self.main.map(|main| store(main, entries)),
            keys: self.keys.map(|keys| store(keys, entries)),
            waiting: vec![0.0; self.waiting(length as u64) as usize],
        }
    }

    /// Bytes of all parts of a row of `length` tokens, its window among them or not.
    pub(super) fn parts_bytes(&self, length: u64, with_window: bool) -> u128 {
        let (window, entries) = self.counts(length);
        let store = |(dim, format), count| Store::parts_bytes(dim, format, count).unwrap_or(u128::MAX);
        let stores = [with_window.then(|| store(self.window, window)), self.main.map(|main| store(main, entries))];
        let keys = self.keys.map(|keys| store(keys, entries));
        let waiting = 4 * u128::from(self.waiting(length));
        stores.into_iter().flatten().chain(keys).fold(waiting, u128::saturating_add)
    }

    /// Puts the latents of the positions from `start` on where a later query finds them.
    pub(super) fn append_window(&self, window: &mut Store, start: usize, latents: &[f32]) {
        let Some(width) = self.width else { return window.push(latents) };
        let dim = window.dim();
        let count = latents.len() / dim;
        // Where a replay left positions out, what nobody reads stands for them.
        let missing = start.min(width).saturating_sub(window.len());
        window.push(&vec![0.0; missing * dim]);
        for (i, latent) in latents.chunks_exact(dim).enumerate() {
            let position = start + i;
            if position < width {
                window.push(latent);
            } else if i + width >= count {
                window.replace(position % width, latent);
            }
        }
    }
}
