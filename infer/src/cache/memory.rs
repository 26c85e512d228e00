//! The caches as a [`Memory`] of one pass: the layers of the network store here what they make, and read what is stored.

use burn::tensor::{DType, Device, Int, Tensor, TensorData, TensorReadError};
use csa2_model::attention::{Ask, Content, IndexQuery, Memory};
use csa2_model::ops::{self, NO_ENTRY, Place, PoolUse, Selection, StoredSpec, StoredWindow};
use csa2_model::store::Store;

use super::{Caches, Piece, Replay};

/// What the layers with an indexer have chosen for every token of a pass `[1, T, K]`.
pub(crate) type Selections = Vec<Option<Tensor<3, Int>>>;

/// What a pass leaves besides its result: selections, and how many entries each layer has scored.
pub(crate) type Finished = (Selections, Vec<u64>);

/// One pass over pieces of rows, which lie one behind the other in the pass's list of tokens. Vectors come unrounded and are
/// rounded where they are stored.
pub(crate) struct InStores<'a> {
    caches: &'a mut Caches,
    pieces: &'a [Piece],
    /// Of every token.
    places: Vec<Place>,
    replay: Option<&'a Replay>,
    layer: usize,
    /// Window latents of the tokens at hand in the layer at hand, as numbers and as they are stored, by row.
    latents: Vec<f32>,
    new: Vec<Store>,
    selections: Selections,
    /// Entries that each layer has scored.
    scored: Vec<u64>,
    /// Why a tensor could not be read from its device, the first time. From then on layers are given zeros, and what is stored means
    /// nothing.
    failed: Option<TensorReadError>,
}

impl<'a> InStores<'a> {
    /// A pass over `pieces`, no two of the same row, each behind what its row has; or, where a replay says so, over tokens that the row
    /// has already.
    pub(crate) fn new(caches: &'a mut Caches, pieces: &'a [Piece], replay: Option<&'a Replay>) -> Self {
        let place = |piece: &'a Piece| piece.positions.clone().map(|position| Place { row: piece.row, position });
        let places = pieces.iter().flat_map(place).collect();
        let layers = caches.layers.len();
        let scored = vec![0; layers];
        Self {
            caches,
            pieces,
            places,
            replay,
            layer: 0,
            latents: Vec::new(),
            new: Vec::new(),
            selections: vec![None; layers],
            scored,
            failed: None,
        }
    }

    /// The tokens have gone through all layers: what was selected, and how many entries each layer has scored.
    ///
    /// # Errors
    /// When a tensor could not be read from its device. The caches are not whole then.
    pub(crate) fn finish(self) -> Result<Finished, TensorReadError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if !self.keeps_entries() {
            self.pieces.iter().for_each(|piece| self.caches.lengths[piece.row] = piece.positions.end);
        }
        Ok((self.selections, self.scored))
    }

    /// A tensor's numbers, on the host; zeros where the device cannot be read.
    fn floats(&mut self, tensor: Tensor<3>) -> Vec<f32> {
        let count = tensor.shape().num_elements();
        let read = tensor.try_into_data().map_err(TensorReadError::from);
        read.and_then(|data| Ok(data.try_into_vec::<f32>()?)).unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            vec![0.0; count]
        })
    }

    /// Whether the tokens' entries are there already.
    fn keeps_entries(&self) -> bool {
        self.replay.is_some_and(|replay| replay.keeps_entries)
    }

    /// The first position that windows of the layer at hand hold.
    fn since(&self) -> usize {
        self.replay.filter(|replay| self.layer >= replay.first_layer).map_or(0, |replay| replay.since)
    }

    /// The pieces, and which of the list's tokens are theirs.
    fn spans(&self) -> impl Iterator<Item = (&'a Piece, std::ops::Range<usize>)> + use<'a> {
        self.pieces.iter().scan(0, |at, piece| {
            let span = *at..*at + piece.positions.len();
            *at = span.end;
            Some((piece, span))
        })
    }
}

fn tensor(values: Vec<f32>, width: usize, device: &Device) -> Tensor<3> {
    let rows = values.len() / width;
    Tensor::from_data(TensorData::new(values, [1, rows, width]), device)
}

/// A selection of no entries, for so many queries.
fn nothing(spec: StoredSpec, queries: usize, device: &Device) -> Selection {
    let none = |width| Tensor::full([1, queries, width], NO_ENTRY, device);
    let pool = if let PoolUse::Build { blocks, .. } = spec.pool { Some(none(blocks)) } else { None };
    Selection { topk: none(spec.topk), pool }
}

impl Memory for InStores<'_> {
    /// The layer whose entries these are.
    type Content = usize;

    fn enter(&mut self, layer: usize) {
        self.layer = layer;
    }

    fn groups(&mut self, x: Tensor<3>, ratio: usize) -> Option<Tensor<3>> {
        if self.keeps_entries() {
            return None;
        }
        if ratio == 1 {
            return Some(x);
        }
        let (width, device) = (x.dims()[2], x.device());
        let x = self.floats(x);
        let mut complete = Vec::new();
        for (piece, span) in self.spans() {
            let waiting = &mut self.caches.layers[self.layer][piece.row].waiting;
            let new = &x[span.start * width..span.end * width];
            let rows = (waiting.len() + new.len()) / width;
            if rows < ratio {
                waiting.extend_from_slice(new);
                continue;
            }
            // Of what is at hand, the last tokens wait.
            let (done, left) = new.split_at(new.len() - rows % ratio * width);
            complete.append(waiting);
            complete.extend_from_slice(done);
            waiting.extend_from_slice(left);
        }
        (!complete.is_empty()).then(|| tensor(complete, width, &device))
    }

    fn window(&mut self, latents: Tensor<3>, width: Option<usize>) {
        let latents = self.floats(latents);
        let shape = &self.caches.shapes[self.layer];
        assert_eq!(width, shape.width, "the caches are of this model");
        let (dim, format) = shape.window;
        self.new = self.caches.lengths.iter().map(|_| Store::new(dim, format)).collect();
        for (piece, span) in self.spans() {
            let latents = &latents[span.start * dim..span.end * dim];
            if width.is_some() {
                self.new[piece.row].push(latents);
            } else {
                self.caches.layers[self.layer][piece.row].window.push(latents);
            }
        }
        self.latents = latents;
    }

    fn content(&mut self, made: Option<Content>) -> Option<usize> {
        if let Some(Content { main, index_keys, .. }) = made {
            let (main, keys) = (self.floats(main), index_keys.map(|keys| self.floats(keys)));
            let shape = &self.caches.shapes[self.layer];
            let mut at = 0;
            for Piece { row, positions } in self.pieces {
                let end = at + shape.entries(positions.end) - shape.entries(positions.start);
                let cache = &mut self.caches.layers[self.layer][*row];
                for (store, vectors) in [(&mut cache.main, Some(&main)), (&mut cache.keys, keys.as_ref())] {
                    if let (Some(store), Some(vectors)) = (store, vectors) {
                        store.push(&vectors[at * store.dim()..end * store.dim()]);
                    }
                }
                at = end;
            }
        }
        Some(self.layer)
    }

    fn select(&mut self, asked: &IndexQuery, content: &usize, pool: Option<Tensor<3, Int>>, ask: Ask) -> Selection {
        let rows = self.caches.layers[*content].iter();
        let keys: Vec<&Store> = rows.map(|row| row.keys.as_ref().expect("a `full` layer has keys")).collect();
        let Ask { ratio, topk, pool: pool_use } = ask;
        let spec = StoredSpec { ratio, topk, pool: pool_use };
        let found = ops::stored_select(asked.q.clone(), asked.weights.clone(), pool, &keys, &self.places, spec);
        let (selection, scored) = found.unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            (nothing(spec, self.places.len(), &asked.q.device()), 0)
        });
        self.scored[self.layer] += scored;
        self.selections[self.layer] = Some(selection.topk.clone());
        selection
    }

    fn readout(
        &mut self,
        q: Tensor<4>,
        content: Option<&usize>,
        sink: Tensor<1>,
        topk: Tensor<3, Int>,
        scale: f64,
    ) -> (Tensor<4>, Tensor<3>) {
        let shape = self.caches.shapes[self.layer].clone();
        let rows = &self.caches.layers[self.layer];
        let since = self.since();
        let mut windows: Vec<StoredWindow<'_>> = (rows.iter().zip(&self.new))
            .map(|(row, new)| {
                let (past, start, width) = (&row.window, row.window.len(), shape.width);
                StoredWindow { past, new, start, width, since }
            })
            .collect();
        for piece in self.pieces.iter().filter(|_| shape.width.is_some()) {
            windows[piece.row].start = piece.positions.start;
        }
        let main: Option<Vec<&Store>> = content.map(|&layer| {
            let rows = self.caches.layers[layer].iter();
            rows.map(|row| row.main.as_ref().expect("content has main latents")).collect()
        });
        let entries = main.as_ref().map(|main| (topk, &main[..]));
        let (dims, device) = (q.dims(), q.device());
        let out = ops::stored_readout(q, sink, entries, &windows, &self.places, scale);
        drop(windows);
        let out = out.unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            let [batch, queries, heads, _] = dims;
            let options = (&device, DType::F32);
            (Tensor::zeros(dims, options), Tensor::zeros([batch, queries, heads], options))
        });
        if shape.width.is_some() {
            let dim = shape.window.0;
            for (piece, span) in self.spans() {
                let window = &mut self.caches.layers[self.layer][piece.row].window;
                let latents = &self.latents[span.start * dim..span.end * dim];
                shape.append_window(window, piece.positions.start, latents);
            }
        }
        out
    }
}
