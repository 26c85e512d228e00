//! What one forward pass is told besides its input: position tables, and which phase of training it is in.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::{IndexLoss, RopeTable, rope_frequencies_in};
use crate::config::ModelConfig;
use crate::mix::Mode;
use crate::ops::{self, NO_ENTRY};
use crate::quant::Format;

/// How addresses are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Every visible entry is attended (an optional start of training).
    Dense,
    /// The indexer's Top-K entries are attended.
    Sparse,
}

/// Made once for a sequence length, used by every forward pass of that length.
#[derive(Clone, Debug)]
pub struct Context {
    /// How addresses are made.
    pub phase: Phase,
    /// How `full` and `reindex` layers make their indexer's loss, where they do.
    pub index_loss: Option<IndexLoss>,
    /// Blocks that a candidate pool keeps, where that is not what the configuration says: while a pool shrinks in training.
    pub pool_blocks: Option<usize>,
    /// Whether layers tell what their selections are worth.
    pub selections: bool,
    /// Whether layers keep their intermediate values.
    pub trace: bool,
    /// Whether vectors are rounded to the formats that the model's configuration stores them in.
    pub quantize: bool,
    start: usize,
    new_entries: BTreeMap<usize, usize>,
    base: RopeTable,
    compressed: RopeTable,
    entries: BTreeMap<usize, RopeTable>,
    visible: BTreeMap<usize, Tensor<3, Int>>,
    seen: BTreeMap<usize, Tensor<3, Int>>,
}

impl Context {
    /// For sequences of `seq` tokens, sparse, without indexer losses and traces, quantized where the model is.
    pub fn new(config: &ModelConfig, seq: usize, dtype: DType, device: &Device) -> Self {
        Self::continued(config, 0, seq, dtype, device)
    }

    /// As [`new`](Self::new), for the `seq` tokens behind the first `start` ones of a sequence.
    pub fn continued(config: &ModelConfig, start: usize, seq: usize, dtype: DType, device: &Device) -> Self {
        let piece = start..start + seq;
        let mut cx = Self::scattered(config, std::slice::from_ref(&piece), dtype, device);
        cx.start = start;
        cx.seen = cx.new_entries.keys().map(|&m| (m, all_seen(start, seq, m, device))).collect();
        cx.visible = cx.new_entries.keys().map(|&m| (m, all_visible(start, seq, m, device))).collect();
        cx
    }

    /// For one list of tokens that is made of pieces of several sequences, each from one position of its sequence to another.
    /// Only for a [`Memory`](super::Memory) that knows where the pieces lie, without losses and measurements.
    pub fn scattered(config: &ModelConfig, pieces: &[Range<usize>], dtype: DType, device: &Device) -> Self {
        let frequencies = |theta, yarn| rope_frequencies_in(dtype, config.rope_dim, theta, yarn);
        let base = frequencies(config.rope_theta, None);
        let compressed = frequencies(config.compress_rope_theta, config.yarn.as_ref());
        let table = |frequencies: &[f64], stride: usize| {
            let rows = pieces.iter().flat_map(|piece| piece.start / stride..piece.end / stride);
            RopeTable::of_rows(frequencies, rows, stride, dtype, device)
        };
        let own = |mode| matches!(mode, Mode::Full | Mode::Stale);
        let ratios = config.layers.layers().iter().filter(|layer| own(layer.mode)).map(|layer| layer.ratio);
        let count = |m: usize| pieces.iter().map(|piece| piece.end / m - piece.start / m).sum();
        let new_entries: BTreeMap<usize, usize> = ratios.map(|m| (m, count(m))).collect();
        Self {
            phase: Phase::Sparse,
            index_loss: None,
            pool_blocks: None,
            selections: false,
            trace: false,
            quantize: true,
            start: 0,
            base: table(&base, 1),
            compressed: table(&compressed, 1),
            entries: new_entries.keys().map(|&m| (m, table(&compressed, m))).collect(),
            new_entries,
            visible: BTreeMap::new(),
            seen: BTreeMap::new(),
        }
    }

    /// The same context in another phase.
    #[must_use]
    pub fn with_phase(mut self, phase: Phase) -> Self {
        self.phase = phase;
        self
    }

    /// The same context with indexer losses computed or not: over the selected entries, taught by the layer's own attention.
    #[must_use]
    pub fn with_index_loss(self, index_loss: bool) -> Self {
        self.with_lessons(index_loss.then(IndexLoss::default))
    }

    /// The same context with indexer losses made in this way, or not at all.
    #[must_use]
    pub fn with_lessons(mut self, index_loss: Option<IndexLoss>) -> Self {
        self.index_loss = index_loss;
        self
    }

    /// The same context with candidate pools of so many blocks instead of the configured number.
    #[must_use]
    pub fn with_pool_blocks(mut self, blocks: Option<usize>) -> Self {
        self.pool_blocks = blocks;
        self
    }

    /// The same context with measurements of what selections are worth, or without.
    #[must_use]
    pub fn with_selections(mut self, selections: bool) -> Self {
        self.selections = selections;
        self
    }

    /// The same context with intermediate values kept or not.
    #[must_use]
    pub fn with_trace(mut self, trace: bool) -> Self {
        self.trace = trace;
        self
    }

    /// Tokens before the first of this pass.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Entries of ratio `ratio` that this pass makes.
    ///
    /// # Panics
    /// When the model that this context was made for has no content of that ratio.
    pub fn new_entries(&self, ratio: usize) -> usize {
        self.new_entries[&ratio]
    }

    /// The same context with a quantized model's formats imitated or not.
    #[must_use]
    pub fn with_quantization(mut self, quantize: bool) -> Self {
        self.quantize = quantize;
        self
    }

    /// What is read back of vectors that are stored in `format`: `x` itself where that is none, or while the formats are not
    /// imitated.
    pub(super) fn stored<const D: usize>(&self, x: Tensor<D>, format: Option<Format>) -> Tensor<D> {
        match format {
            Some(format) if self.quantize => ops::fake_quantize(x, format),
            _ => x,
        }
    }

    /// The table of token positions for a layer of ratio `ratio` (0: no compressed entries).
    pub fn tokens(&self, ratio: usize) -> &RopeTable {
        if ratio == 0 { &self.base } else { &self.compressed }
    }

    /// The table of the positions `0, m, 2 m, ...` of the entries that this pass makes, for content of ratio `ratio`.
    ///
    /// # Panics
    /// When the model that this context was made for has no content of that ratio.
    pub fn entries(&self, ratio: usize) -> &RopeTable {
        &self.entries[&ratio]
    }

    /// Every visible entry of every query, `[1, S, max(N, 1)]`, for content of ratio `ratio`.
    ///
    /// # Panics
    /// When the model that this context was made for has no content of that ratio.
    pub fn visible(&self, ratio: usize) -> Tensor<3, Int> {
        self.visible[&ratio].clone()
    }

    /// How many entries every query sees, `[1, S, 1]`, of content of ratio `ratio`.
    ///
    /// # Panics
    /// When the model that this context was made for has no content of that ratio.
    pub(super) fn seen(&self, ratio: usize) -> Tensor<3, Int> {
        self.seen[&ratio].clone()
    }
}

/// How many entries each query sees, `[1, S, 1]`.
fn all_seen(start: usize, seq: usize, ratio: usize, device: &Device) -> Tensor<3, Int> {
    let seen = (start..start + seq).map(|t| ((t + 1) / ratio) as i32).collect::<Vec<i32>>();
    Tensor::from_data(TensorData::new(seen, [1, seq, 1]), device)
}

/// Entry `j` is visible to the query at `t` when its last token has been passed: `j < floor((t + 1) / m)`.
fn all_visible(start: usize, seq: usize, ratio: usize, device: &Device) -> Tensor<3, Int> {
    let entries = ((start + seq) / ratio).max(1);
    let rows = (start..start + seq).flat_map(|t| {
        let visible = (t + 1) / ratio;
        (0..entries).map(move |j| if j < visible { j as i32 } else { NO_ENTRY })
    });
    Tensor::from_data(TensorData::new(rows.collect::<Vec<i32>>(), [1, seq, entries]), device)
}
