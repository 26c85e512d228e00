//! What one layer did with one sequence, in plain numbers, and what a single query of it reads.

use burn::tensor::{DType, Int, Tensor, TensorReadError};
use csa2_model::attention::{Attention, Trace, rope_frequencies_in};
use csa2_model::config::ModelConfig;
use csa2_model::mix::Mode;

use super::ProbeError;
use crate::geometry::{Entries, GeometryError, ReadOut, Rope, Rotated, RotatedMap, rotated_map};

/// One layer's pass over one sequence of S tokens, of which P are looked at.
pub struct LayerView {
    /// The layer's number.
    pub layer: usize,
    /// Its mode.
    pub mode: Mode,
    /// Tokens that an entry stands for; 0 where the layer reads none.
    pub ratio: usize,
    heads: usize,
    /// Channels of a key: d.
    width: usize,
    /// Channels of a stored vector: d, or `d + d_r` where values are not rotated.
    stored: usize,
    /// The rotation of the layer.
    rope: Rope,
    /// The tokens that are looked at, ascending.
    positions: Vec<usize>,
    /// Tokens in a window; all for `dense`.
    window: usize,
    scale: f64,
    sinks: Vec<f64>,
    /// Rotated queries `[P, H, stored]`.
    q: Vec<f64>,
    /// Window latents `[S, stored]`.
    near: Vec<f64>,
    /// Entries of the content `[N, stored]`.
    main: Vec<f64>,
    /// Selected entries `[P, K]`.
    topk: Vec<i32>,
    /// What the operator read `[P, H, stored]`, before it is turned back.
    readout: Vec<f64>,
    /// What attention gave to the residual stream `[P, d_model]`.
    output: Vec<f64>,
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f64>, TensorReadError> {
    Ok(tensor.cast(DType::F32).try_into_data()?.iter::<f32>().map(f64::from).collect())
}

/// The rows of these positions along the sequence.
fn picked<const D: usize>(tensor: &Tensor<D>, positions: &[usize]) -> Tensor<D> {
    Tensor::cat(positions.iter().map(|&at| tensor.clone().narrow(1, at, 1)).collect(), 1)
}

fn picked_integers(tensor: &Tensor<3, Int>, positions: &[usize]) -> Tensor<3, Int> {
    Tensor::cat(positions.iter().map(|&at| tensor.clone().narrow(1, at, 1)).collect(), 1)
}

fn integers(tensor: Tensor<3, Int>) -> Result<Vec<i32>, TensorReadError> {
    Ok(tensor.try_into_data()?.convert::<i32>().iter().collect())
}

impl LayerView {
    /// From the trace of a pass over a single sequence, and what attention gave `[1, S, d_model]`, to be looked at in these positions, of
    /// which there is at least one.
    ///
    /// # Errors
    /// When the device cannot be read, or a rotary frequency is not finite.
    pub fn new(
        attention: &Attention,
        config: &ModelConfig,
        trace: &Trace,
        output: &Tensor<3>,
        positions: &[usize],
    ) -> Result<Self, ProbeError> {
        let [_, seq, heads, stored] = trace.q.dims();
        let content = trace.content.as_ref();
        let entries = content.map_or(0, |content| content.entries);
        // As in a context for f32, whose tables turned these vectors.
        let frequencies = if attention.ratio() == 0 {
            rope_frequencies_in(DType::F32, config.rope_dim, config.rope_theta, None)
        } else {
            rope_frequencies_in(DType::F32, config.rope_dim, config.compress_rope_theta, config.yarn.as_ref())
        };
        let rope = Rope::new(frequencies).map_err(|error| ProbeError::Argument {
            argument: "the run's rotary frequencies",
            why: format!("{error}; `yarn.factor` or `rope_theta` is out of all proportion"),
        })?;
        let main = match content {
            Some(content) if entries > 0 => numbers(content.main.clone().narrow(1, 0, entries))?,
            _ => Vec::new(),
        };
        Ok(Self {
            layer: attention.layer(),
            mode: attention.mode(),
            ratio: if content.is_some() { attention.ratio() } else { 0 },
            heads,
            width: config.head_dim,
            stored,
            rope,
            positions: positions.to_vec(),
            window: if attention.mode() == Mode::Dense { seq } else { attention.window() },
            scale: attention.scale(),
            sinks: numbers(attention.sinks())?,
            q: numbers(picked(&trace.q, positions))?,
            near: numbers(trace.window.clone())?,
            main,
            topk: integers(picked_integers(&trace.topk, positions))?,
            readout: numbers(picked(&trace.readout, positions))?,
            output: numbers(picked(output, positions))?,
        })
    }

    /// Attention heads H.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// What attention gave at the position of this place among those looked at, `[d_model]`.
    pub fn output_at(&self, place: usize) -> &[f64] {
        let width = self.output.len() / self.positions.len();
        &self.output[place * width..(place + 1) * width]
    }

    /// How many positions are looked at: P.
    pub fn places(&self) -> usize {
        self.positions.len()
    }

    fn unrotated(&self) -> bool {
        self.stored > self.width
    }

    /// The value in a stored vector, `[d]`: the key, or its channels as they were before the rotation.
    fn value(&self, vector: &[f64]) -> Vec<f64> {
        let (key, plain) = vector.split_at(self.width);
        [&key[..self.width - plain.len()], plain].concat()
    }

    /// Whether the layer reads selected entries.
    pub fn selects(&self) -> bool {
        self.ratio > 0
    }

    /// What the query in this place among the positions reads.
    pub fn seat(&self, place: usize) -> Seat<'_> {
        let position = self.positions[place];
        let slots = self.topk.len() / self.positions.len();
        let entries = self.main.len() / self.stored;
        let listed = self.topk[place * slots..(place + 1) * slots].iter();
        let visible = (position + 1).checked_div(self.ratio).unwrap_or(0).min(entries);
        // An entry that is listed twice is read twice, which no selection does; padding is below 0.
        let selected =
            listed.filter_map(|&entry| usize::try_from(entry).ok()).filter(|&entry| entry < visible).collect();
        Seat {
            view: self,
            place,
            position,
            first: (position + 1).saturating_sub(self.window),
            selected,
            visible,
            slots,
        }
    }
}

/// One query of one layer.
pub struct Seat<'a> {
    view: &'a LayerView,
    place: usize,
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

/// What one head reads.
pub struct Read {
    /// The family over the keys, with the sink.
    pub family: ReadOut,
    /// Its weights: window, entries, sink.
    pub weights: Vec<f64>,
    /// The values that are averaged, the sink's among them at the origin.
    pub values: Entries,
    /// Their mean `[d]`.
    pub output: Vec<f64>,
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

    /// The stored vectors that it reads: the window's tokens, then the entries of `selected`.
    fn vectors(&self, selected: &[usize]) -> impl Iterator<Item = &[f64]> {
        let near = (self.first..=self.position).map(|token| Self::row(&self.view.near, self.view.stored, token));
        near.chain(selected.iter().map(|&entry| Self::row(&self.view.main, self.view.stored, entry)))
    }

    /// The rotated query of `head`, `[d]`.
    pub fn query(&self, head: usize) -> &[f64] {
        &Self::row(&self.view.q, self.view.stored, self.place * self.view.heads + head)[..self.view.width]
    }

    /// What the operator read for `head`, `[d]`.
    pub fn output(&self, head: usize) -> Vec<f64> {
        self.view.value(Self::row(&self.view.readout, self.view.stored, self.place * self.view.heads + head))
    }

    /// The keys that it reads: the window's tokens, then the entries of `selected`. They are the values, too, where these are rotated.
    ///
    /// # Errors
    /// When a number is not finite.
    pub fn points(&self, selected: &[usize]) -> Result<Entries, GeometryError> {
        let keys = self.vectors(selected).flat_map(|vector| &vector[..self.view.width]).copied().collect();
        Entries::new(keys, self.view.width)
    }

    /// What `head` reads at the entries of `selected`.
    ///
    /// # Errors
    /// When a number is not finite.
    pub fn read(&self, head: usize, selected: &[usize]) -> Result<Read, GeometryError> {
        let read_out = self.read_out(head, selected)?;
        let reading = read_out.read(self.query(head))?;
        if !self.view.unrotated() {
            let values = read_out.points().clone();
            return Ok(Read { family: read_out, weights: reading.p, values, output: reading.o });
        }
        let values = self.vectors(selected).flat_map(|vector| self.view.value(vector)).collect();
        let averaged = ReadOut::new(Entries::new(values, self.view.width)?, self.view.scale)?.with_sink(0.0)?;
        let output = averaged.mean(&reading.p)?;
        Ok(Read { family: read_out, weights: reading.p, values: averaged.points().clone(), output })
    }

    /// The derivative of what `head` reads by its query, as the layer does it, and as it would be if keys were rotated and values were
    /// not.
    ///
    /// # Errors
    /// When a number is not finite.
    pub fn maps(&self, head: usize) -> Result<[RotatedMap; 2], GeometryError> {
        let view = self.view;
        let near = (self.first..=self.position).map(|token| token as f64);
        let places: Vec<f64> = near.chain(self.selected.iter().map(|&entry| (entry * view.ratio) as f64)).collect();
        let back = |(vector, place): (&[f64], &f64)| view.rope.rotate(&vector[..view.width], -place);
        let plain: Vec<Vec<f64>> = self.vectors(&self.selected).zip(&places).map(back).collect::<Result<_, _>>()?;
        let read_out = ReadOut::new(Entries::from_rows(&plain)?, view.scale)?.with_sink(view.sinks[head])?;
        let at = self.position as f64;
        let query = view.rope.rotate(self.query(head), -at)?;
        let unrotated = rotated_map(&read_out, &view.rope, &places, &query, at, Rotated::Keys)?;
        if view.unrotated() {
            return Ok([unrotated.clone(), unrotated]);
        }
        Ok([rotated_map(&read_out, &view.rope, &places, &query, at, Rotated::KeysAndValuesAndBack)?, unrotated])
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
