//! What decoding keeps of the past: by layer and row, a window, entries with their index keys, and inputs whose group is not
//! complete.

mod memory;
mod shape;

use std::ops::Range;
use std::sync::Arc;

use csa2_model::config::ModelConfig;
use csa2_model::store::{CHUNK, Store};

pub(crate) use memory::{Finished, InStores, Selections};
pub use shape::LayerShape;

/// The past of one row in one layer.
#[derive(Clone, Debug)]
pub struct RowCache {
    /// Window latents: that of position `p` at `p % W`; of a window without a limit, at `p`.
    pub(crate) window: Store,
    /// Entries, where the layer makes any.
    pub(crate) main: Option<Store>,
    /// Index keys of the entries, where the layer makes them.
    pub(crate) keys: Option<Store>,
    /// Inputs `[r, d_model]` of the tokens whose group is incomplete, r < m.
    pub(crate) waiting: Vec<f32>,
}

/// The past of all rows of a batch in all layers. Rows have lengths of their own. A copy shares what has been stored so far.
#[derive(Clone, Debug)]
pub struct Caches {
    shapes: Arc<[LayerShape]>,
    /// `[layer][row]`.
    layers: Vec<Vec<RowCache>>,
    lengths: Vec<usize>,
}

/// Bytes held, by kind, over all layers and rows: those of stored vectors and of waiting inputs, exactly. The memory behind them
/// is [`Caches::allocated`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Windows of limited length.
    pub windows: u64,
    /// Main KV of `full` and `stale` layers.
    pub main_kv: u64,
    /// Index keys of `full` layers.
    pub index_keys: u64,
    /// Latents of `dense` layers.
    pub dense: u64,
    /// Inputs that wait for their group to be complete.
    pub waiting: u64,
}

impl Bytes {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.windows + self.per_token() + self.waiting
    }

    /// What grows with the context: all but windows and waiting inputs.
    pub fn per_token(&self) -> u64 {
        self.main_kv + self.index_keys + self.dense
    }
}

impl Caches {
    /// No past, for `rows` rows; packed as the model stores vectors, or in f32 where `quantize` is false.
    pub fn new(config: &ModelConfig, rows: usize, quantize: bool) -> Self {
        let shapes: Arc<[LayerShape]> = LayerShape::all(config, quantize).into();
        let layers = shapes.iter().map(|shape| (0..rows).map(|_| shape.row(0)).collect()).collect();
        Self { shapes, layers, lengths: vec![0; rows] }
    }

    /// Rows of tokens of the given lengths, everything zero, to be overwritten.
    pub(crate) fn zeros(config: &ModelConfig, lengths: &[usize], quantize: bool) -> Self {
        let shapes: Arc<[LayerShape]> = LayerShape::all(config, quantize).into();
        let layers = shapes.iter().map(|shape| lengths.iter().map(|&length| shape.row(length)).collect()).collect();
        Self { shapes, layers, lengths: lengths.to_vec() }
    }

    /// Bytes of everything that rows of these lengths keep, with windows or without.
    pub(crate) fn bytes_of(config: &ModelConfig, lengths: &[u64], quantize: bool, windows: bool) -> u128 {
        let shapes = LayerShape::all(config, quantize);
        let parts = |shape: &LayerShape, length| shape.parts_bytes(length, windows);
        let row = |length: &u64| shapes.iter().map(|shape| parts(shape, *length)).fold(0, u128::saturating_add);
        lengths.iter().map(row).fold(0, u128::saturating_add)
    }

    /// Tokens of every row.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// What each layer stores, first layer first.
    pub fn shapes(&self) -> &[LayerShape] {
        &self.shapes
    }

    /// Bytes held.
    pub fn bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        for (shape, rows) in self.shapes.iter().zip(&self.layers) {
            for row in rows {
                *(if shape.width.is_some() { &mut bytes.windows } else { &mut bytes.dense }) += row.window.bytes();
                bytes.main_kv += row.main.as_ref().map_or(0, Store::bytes);
                bytes.index_keys += row.keys.as_ref().map_or(0, Store::bytes);
                bytes.waiting += 4 * row.waiting.len() as u64;
            }
        }
        bytes
    }

    /// Memory held for it: stores grow in chunks, and index keys in panels.
    pub fn allocated(&self) -> u64 {
        let stores = self.layers.iter().flatten().flat_map(RowCache::stores).map(Store::allocated).sum::<u64>();
        stores + self.layers.iter().flatten().map(|row| 4 * row.waiting.capacity() as u64).sum::<u64>()
    }

    /// Memory held for it a second time on a GPU, where the network runs on one: stores are completed there as they are read, in steps of
    /// a quarter. Copies count what they share each for itself.
    pub fn device_bytes(&self) -> u64 {
        self.layers.iter().flatten().flat_map(RowCache::stores).map(Store::device_bytes).sum()
    }

    /// Chunks of memory that this shares with copies of it, and how many there are.
    pub fn shared_chunks(&self) -> (usize, usize) {
        let stores = || self.layers.iter().flatten().flat_map(RowCache::stores);
        (stores().map(Store::shared_chunks).sum(), stores().map(Store::chunk_count).sum())
    }

    /// Copies of the rows with these numbers, in this order; a number may stand more than once.
    #[must_use]
    pub(crate) fn rows(&self, rows: &[usize]) -> Self {
        let layers = self.layers.iter().map(|layer| rows.iter().map(|&row| layer[row].clone()).collect());
        let layers = layers.collect();
        Self { shapes: self.shapes.clone(), layers, lengths: rows.iter().map(|&row| self.lengths[row]).collect() }
    }

    /// Empties the windows of a row.
    pub(crate) fn clear_windows(&mut self, row: usize) {
        for (shape, rows) in self.shapes.iter().zip(&mut self.layers) {
            rows[row].window = shape.row(0).window;
        }
    }

    /// Appends `tokens` tokens to a row, their vectors made up of the numbers that `next` gives: for measurements of a context
    /// that no model has read.
    pub fn make_up(&mut self, row: usize, tokens: usize, mut next: impl FnMut() -> f32) {
        let end = self.lengths[row] + tokens;
        while self.lengths[row] < end {
            let start = self.lengths[row];
            let step = (end - start).min(CHUNK);
            let mut numbers = |count: usize| (0..count).map(|_| next()).collect::<Vec<f32>>();
            for (shape, rows) in self.shapes.iter().zip(&mut self.layers) {
                let cache = &mut rows[row];
                shape.append_window(&mut cache.window, start, &numbers(step * shape.window.0));
                let entries = shape.entries(start + step) - shape.entries(start);
                for store in cache.main.iter_mut().chain(&mut cache.keys) {
                    store.push(&numbers(entries * store.dim()));
                }
                cache.waiting = numbers(shape.waiting((start + step) as u64) as usize);
            }
            self.lengths[row] += step;
        }
    }

    /// The memory in which everything lies, in a fixed order, with windows or without.
    pub(crate) fn parts(&self, windows: bool) -> impl Iterator<Item = &[u8]> {
        self.layers.iter().flatten().flat_map(move |row| {
            let RowCache { window, main, keys, waiting } = row;
            let stores = windows.then_some(window).into_iter().chain(main).chain(keys);
            stores.flat_map(Store::parts).chain(std::iter::once(bytemuck::cast_slice(waiting)))
        })
    }

    /// As [`parts`](Self::parts), to be overwritten.
    pub(crate) fn parts_mut(&mut self, windows: bool) -> impl Iterator<Item = &mut [u8]> {
        self.layers.iter_mut().flatten().flat_map(move |row| {
            let RowCache { window, main, keys, waiting } = row;
            let stores = windows.then_some(window).into_iter().chain(main).chain(keys);
            stores.flat_map(Store::parts_mut).chain(std::iter::once(bytemuck::cast_slice_mut(waiting)))
        })
    }
}

impl RowCache {
    fn stores(&self) -> impl Iterator<Item = &Store> {
        std::iter::once(&self.window).chain(&self.main).chain(&self.keys)
    }
}

/// A bounded replay: windows of some layers begin at a position, as if nothing was before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replay {
    /// The layers from this one on.
    pub(crate) first_layer: usize,
    /// The position.
    pub(crate) since: usize,
    /// Whether the tokens have been read before: their entries are there, and nothing but windows is stored.
    pub(crate) keeps_entries: bool,
}

/// Tokens of one row in a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) row: usize,
    /// Their positions.
    pub(crate) positions: Range<usize>,
}

#[cfg(test)]
mod tests {
    use csa2_model::cost::Cost;

    use super::*;

    fn filled(config: &ModelConfig, tokens: usize) -> Caches {
        let mut caches = Caches::new(config, 1, true);
        let mut at = 0_u32;
        let mut next = move || {
            at += 1;
            ((at as f32 * 0.37).sin() * 43.0).fract()
        };
        // In two steps, which no group or window is a multiple of.
        caches.make_up(0, tokens / 3, &mut next);
        caches.make_up(0, tokens - tokens / 3, &mut next);
        assert_eq!(caches.lengths(), [tokens]);
        caches
    }

    #[test]
    fn the_released_model_keeps_890_bytes_per_token() {
        let config = ModelConfig::deepseek_v41_flash().unwrap();
        let cost = Cost::of(&config).unwrap();
        let (one, two) = (filled(&config, 300).bytes(), filled(&config, 400).bytes());
        assert_eq!(two.per_token() - one.per_token(), 890 * 100);
        assert_eq!(one.per_token(), 890 * 300);
        assert_eq!((one.main_kv, one.index_keys), (720 * 300, 170 * 300));
        assert_eq!(u128::from(one.windows), cost.window_bytes());
        assert_eq!(one.waiting + two.waiting, 0);
        // An odd token waits in each of the three layers of ratio 2.
        assert_eq!(filled(&config, 301).bytes().waiting, 3 * 5120 * 4);
    }

    #[test]
    fn every_format_keeps_what_its_cost_says() {
        for mix in ["swa full@2+pool reindex reuse", "dense full@4 stale@4", "full reuse dense"] {
            for quantization in ["", "main_kv = 'fp4'\nindex = 'fp4'\nwindow = 'fp8'", "main_kv = 'fp8'\nindex = 'fp8'"]
            {
                let pool = if mix.contains("pool") { "pool = { blocks = 2, block_size = 2 }\n" } else { "" };
                let config: ModelConfig = toml::from_str(&format!(
                    "layers = '{mix}'\nvocab_size = 11\nd_model = 16\nheads = 2\nhead_dim = 32\nrope_dim = 4\nwindow = 3\n\
                     topk = 2\nindex_heads = 2\nindex_dim = 32\n{pool}ffn = {{ kind = 'dense', width = 16 }}\n\
                     [quantization]\n{quantization}"
                ))
                .unwrap();
                let cost = Cost::of(&config).unwrap();
                let tokens = 2000;
                let caches = filled(&config, tokens);
                let bytes = caches.bytes();
                let each = cost.bytes_per_token().total;
                let expected = each.numerator() * tokens as u128 / each.denominator();
                assert_eq!(u128::from(bytes.per_token()), expected, "{mix}, {quantization}");
                assert_eq!(u128::from(bytes.windows), cost.window_bytes(), "{mix}, {quantization}");
                assert!(caches.allocated() >= bytes.total());
                let needed = Caches::bytes_of(&config, &[tokens as u64], true, true);
                let parts: usize = caches.parts(true).map(<[u8]>::len).sum();
                assert_eq!(needed, parts as u128);
            }
        }
    }
}
