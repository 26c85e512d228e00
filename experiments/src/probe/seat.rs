//! What one layer did with one sequence, in plain numbers, and what a single query of it reads.

use burn::tensor::{DType, Int, Tensor, TensorReadError};
use csa2_model::attention::{Attention, Trace};
use csa2_model::mix::Mode;

use crate::geometry::{Entries, GeometryError, ReadOut};

/// One layer's pass over one sequence of S tokens.
pub struct LayerView {
    /// The layer's number.
    pub layer: usize,
    /// Its mode.
    pub mode: Mode,
    /// Tokens that an entry stands for; 0 where the layer reads none.
    pub ratio: usize,
    heads: usize,
    width: usize,
    /// Tokens in a window; all for `dense`.
    window: usize,
    scale: f64,
    sinks: Vec<f64>,
    /// Rotated queries `[S, H, d]`.
    q: Vec<f64>,
    /// Window latents `[S, d]`.
    near: Vec<f64>,
    /// Entries of the content `[N, d]`.
    main: Vec<f64>,
    /// Selected entries `[S, K]`.
    topk: Vec<i32>,
    /// What the operator read `[S, H, d]`, before it is turned back.
    readout: Vec<f64>,
    /// What attention gave to the residual stream `[S, d_model]`.
    output: Vec<f64>,
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f64>, TensorReadError> {
    Ok(tensor.cast(DType::F32).try_into_data()?.iter::<f32>().map(f64::from).collect())
}

fn integers(tensor: Tensor<3, Int>) -> Result<Vec<i32>, TensorReadError> {
    Ok(tensor.try_into_data()?.convert::<i32>().iter().collect())
}

impl LayerView {
    /// From the trace of a pass over a single sequence, and what attention gave `[1, S, d_model]`.
    ///
    /// # Errors
    /// When the device cannot be read.
    pub fn new(attention: &Attention, trace: &Trace, output: Tensor<3>) -> Result<Self, TensorReadError> {
        let [_, seq, heads, width] = trace.q.dims();
        let content = trace.content.as_ref();
        let entries = content.map_or(0, |content| content.entries);
        let main = match content {
            Some(content) if entries > 0 => numbers(content.main.clone().narrow(1, 0, entries))?,
            _ => Vec::new(),
        };
        Ok(Self {
            layer: attention.layer(),
            mode: attention.mode(),
            ratio: if content.is_some() { attention.ratio() } else { 0 },
            heads,
            width,
            window: if attention.mode() == Mode::Dense { seq } else { attention.window() },
            scale: attention.scale(),
            sinks: numbers(attention.sinks())?,
            q: numbers(trace.q.clone())?,
            near: numbers(trace.window.clone())?,
            main,
            topk: integers(trace.topk.clone())?,
            readout: numbers(trace.readout.clone())?,
            output: numbers(output)?,
        })
    }

    /// Attention heads H.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// What attention gave at `position`, `[d_model]`.
    pub fn output_at(&self, position: usize) -> &[f64] {
        let width = self.output.len() * self.width / self.near.len();
        &self.output[position * width..(position + 1) * width]
    }

    /// Whether the layer reads selected entries.
    pub fn selects(&self) -> bool {
        self.ratio > 0
    }

    /// What the query at `position` reads.
    pub fn seat(&self, position: usize) -> Seat<'_> {
        let seq = self.near.len() / self.width;
        let slots = self.topk.len() / seq;
        let entries = self.main.len() / self.width;
        let listed = self.topk[position * slots..(position + 1) * slots].iter();
        let visible = (position + 1).checked_div(self.ratio).unwrap_or(0).min(entries);
        // An entry that is listed twice is read twice, which no selection does; padding is below 0.
        let selected =
            listed.filter_map(|&entry| usize::try_from(entry).ok()).filter(|&entry| entry < visible).collect();
        Seat { view: self, position, first: (position + 1).saturating_sub(self.window), selected, visible, slots }
    }
}

/// One query of one layer.
pub struct Seat<'a> {
    view: &'a LayerView,
    /// The token that asks.
    pub position: usize,
    /// The first token of its window.
    first: usize,
    /// The entries that it reads.
    pub selected: Vec<usize>,
    /// Entries that it could read.
    pub visible: usize,
    /// Entries that a selection holds: K.
    pub slots: usize,
}

/// Where the attention of one head would be if it read every visible entry; they sum to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Masses {
    /// On the window.
    pub window: f64,
    /// On the entries that it reads.
    pub selected: f64,
    /// On the sink.
    pub sink: f64,
    /// On the visible entries that it does not read.
    pub missed: f64,
}

impl Seat<'_> {
    fn row(rows: &[f64], width: usize, index: usize) -> &[f64] {
        &rows[index * width..(index + 1) * width]
    }

    fn near(&self) -> impl Iterator<Item = &[f64]> {
        (self.first..=self.position).map(|token| Self::row(&self.view.near, self.view.width, token))
    }

    fn entry(&self, index: usize) -> &[f64] {
        Self::row(&self.view.main, self.view.width, index)
    }

    /// The rotated query of `head`, `[d]`.
    pub fn query(&self, head: usize) -> &[f64] {
        Self::row(&self.view.q, self.view.width, self.position * self.view.heads + head)
    }

    /// What the operator read for `head`, `[d]`.
    pub fn output(&self, head: usize) -> &[f64] {
        Self::row(&self.view.readout, self.view.width, self.position * self.view.heads + head)
    }

    /// The points that it reads: the window's tokens, then the entries of `selected`.
    ///
    /// # Errors
    /// When a number is not finite.
    pub fn points(&self, selected: &[usize]) -> Result<Entries, GeometryError> {
        let values = self.near().chain(selected.iter().map(|&entry| self.entry(entry))).flatten().copied().collect();
        Entries::new(values, self.view.width)
    }

    /// The read-out of `head` over the window, the entries of `selected` and the sink.
    ///
    /// # Errors
    /// When a number is not finite.
    pub fn read_out(&self, head: usize, selected: &[usize]) -> Result<ReadOut, GeometryError> {
        ReadOut::new(self.points(selected)?, self.view.scale)?.with_sink(self.view.sinks[head])
    }

    /// Tokens in the window.
    pub fn near_count(&self) -> usize {
        self.position + 1 - self.first
    }

    /// Probabilities of `head` if it read every visible entry: window, entries, sink.
    ///
    /// # Errors
    /// When a number is not finite.
    pub fn everything(&self, head: usize) -> Result<Vec<f64>, GeometryError> {
        let all: Vec<usize> = (0..self.visible).collect();
        Ok(self.read_out(head, &all)?.read(self.query(head))?.p)
    }

    /// Where that attention is.
    pub fn masses(&self, everything: &[f64]) -> Masses {
        let near = self.near_count();
        let mut masses = Masses { window: everything[..near].iter().sum(), selected: 0.0, sink: 0.0, missed: 0.0 };
        masses.sink = everything.last().copied().unwrap_or(0.0);
        for (entry, mass) in everything[near..everything.len() - 1].iter().enumerate() {
            let side = if self.selected.contains(&entry) { &mut masses.selected } else { &mut masses.missed };
            *side += mass;
        }
        masses
    }

    /// The K entries that attention itself, summed over heads, would choose: an exact search with the layer's own queries. `everything` has
    /// one row per head; of equal masses the first.
    pub fn fresh(&self, everything: &[Vec<f64>]) -> Vec<usize> {
        let near = self.near_count();
        let mass = |entry: usize| everything.iter().map(|row| row[near + entry]).sum::<f64>();
        let masses: Vec<f64> = (0..self.visible).map(mass).collect();
        let mut entries: Vec<usize> = (0..self.visible).collect();
        entries.sort_by(|&a, &b| masses[b].total_cmp(&masses[a]).then(a.cmp(&b)));
        entries.truncate(self.slots);
        entries.sort_unstable();
        entries
    }
}
