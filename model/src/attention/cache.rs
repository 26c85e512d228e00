//! What a sequence needs of its past to be continued: a plain cache, in unpacked numbers.

use burn::tensor::Tensor;

use super::Content;

/// The past of one layer.
#[derive(Clone, Debug, Default)]
pub struct LayerCache {
    /// The newest latents, rotated `[B, P, d]`, as many as a later query can read.
    window: Option<Tensor<3>>,
    /// Inputs of the tokens whose group is incomplete `[B, r, d_model]`, r < m; only where the layer compresses.
    waiting: Option<Tensor<3>>,
    /// The entries so far; only where the layer compresses and once there is one.
    content: Option<Content>,
}

/// The past of all layers of a model.
#[derive(Clone, Debug)]
pub struct Cache {
    /// First layer first.
    pub(crate) layers: Vec<LayerCache>,
    pub(crate) length: usize,
}

impl Cache {
    /// No past, for a model of `layers` layers.
    pub fn new(layers: usize) -> Self {
        Self { layers: vec![LayerCache::default(); layers], length: 0 }
    }

    /// Tokens so far.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Forgets the windows of the layers from `first` on: tokens that follow see one another, and entries, but nothing of what was
    /// in these windows. That is how a bounded replay begins.
    pub fn forget_windows(&mut self, first: usize) {
        self.layers.iter_mut().skip(first).for_each(|layer| layer.window = None);
    }
}

/// One after the other along the sequence.
fn joined(past: Option<Tensor<3>>, new: Tensor<3>) -> Tensor<3> {
    match past {
        Some(past) => Tensor::cat(vec![past, new], 1),
        None => new,
    }
}

/// All but the first `count` rows; none where nothing is left.
fn after(rows: &Tensor<3>, count: usize) -> Option<Tensor<3>> {
    let length = rows.dims()[1];
    (count < length).then(|| rows.clone().narrow(1, count, length - count))
}

impl LayerCache {
    /// Adds latents `[B, S, d]` and returns them with those before `[B, P, d]`. Of these, the `width - 1` newest are kept.
    pub(super) fn window(&mut self, new: Tensor<3>, width: usize) -> Tensor<3> {
        let all = joined(self.window.take(), new);
        self.window = after(&all, (all.dims()[1] + 1).saturating_sub(width));
        all
    }

    /// Adds inputs `[B, S, d_model]` and returns those of the groups of `ratio` tokens that are complete now; the others wait.
    /// None where that makes no entry. Where there is no entry at all, what waits: a compressor makes padding of that.
    pub(super) fn groups(&mut self, new: Tensor<3>, ratio: usize) -> Option<Tensor<3>> {
        let all = joined(self.waiting.take(), new);
        let length = all.dims()[1];
        let complete = length / ratio * ratio;
        self.waiting = after(&all, complete);
        match complete {
            0 => self.content.is_none().then_some(all),
            _ => Some(all.narrow(1, 0, complete)),
        }
    }

    /// Adds entries, if there are new ones, and returns all. Padding is not kept.
    pub(super) fn content(&mut self, new: Option<Content>) -> Option<Content> {
        if let Some(padding) = new.as_ref().filter(|new| new.entries == 0) {
            return Some(padding.clone());
        }
        self.content = match (self.content.take(), new) {
            (Some(past), Some(new)) => Some(Content {
                main: joined(Some(past.main), new.main),
                index_keys: new.index_keys.map(|keys| joined(past.index_keys, keys)),
                entries: past.entries + new.entries,
            }),
            (past, new) => past.or(new),
        };
        self.content.clone()
    }
}
