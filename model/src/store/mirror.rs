//! Stored vectors a second time, on a device whose kernels read them.
//!
//! The store in the host's memory remains the one that is written, saved and copied; its mirror is brought up to date when it is asked
//! for, with the vectors that were stored since. It lies in 32-bit words, in blocks of [`PANEL`] vectors: the codes of all of them, as
//! they lie in a chunk, then their scales. Without a format, the bits of the numbers.

use std::fmt::{Debug, Formatter};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::{CHUNK, Chunk, PANEL, Store};
use crate::quant::Format;

/// Blocks of a chunk, and of the steps in which a mirror of more than one chunk grows.
const CHUNK_BLOCKS: usize = CHUNK / PANEL;

/// Changes that are kept apart; beyond that many, what lies between them counts as changed too.
const APART: usize = 8;

/// Words of a block of vectors of `dim` channels.
fn block_words(dim: usize, format: Option<Format>) -> usize {
    PANEL * super::vector_bytes(dim, format) / 4
}

/// Where a store's mirror is, if it has one. A copy begins with the same mirror; the device copies it when either of the two is
/// written to.
#[derive(Default)]
pub(super) struct Slot(Mutex<Option<Box<Mirror>>>);

impl Debug for Slot {
    /// Without the vectors, which are on a device.
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Clone for Slot {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.lock().clone()))
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Option<Box<Mirror>>> {
        // While a mirror is being written it is not in its slot.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another vector is at `row` than there was.
    pub(super) fn changed(&mut self, row: usize) {
        if let Some(mirror) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner) {
            mirror.note(row);
        }
    }

    /// Everything may be different.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Bytes of the mirror.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().as_ref().map_or(0, |mirror| 4 * mirror.words.shape().num_elements() as u64)
    }

    /// The vectors of `store`, whose slot this is, on `device`.
    #[cfg_attr(not(feature = "cube"), allow(dead_code, reason = "asked for where there are kernels"))]
    pub(super) fn words(&self, store: &Store, device: &Device) -> Tensor<2, Int> {
        let mut slot = self.lock();
        let mut mirror = match slot.take() {
            Some(mirror) if mirror.words.device() == *device => mirror,
            _ => Box::new(Mirror::new(store, device)),
        };
        mirror.update(store);
        slot.insert(mirror).words.clone()
    }
}

#[derive(Clone)]
struct Mirror {
    /// `[blocks, words of a block]`, more blocks than there are vectors for.
    words: Tensor<2, Int>,
    /// Vectors that have been written; all further ones have not.
    length: usize,
    /// Of those, the ones that have been replaced since.
    changed: Vec<Range<usize>>,
}

/// Blocks that a mirror of `held` blocks has when `needed` are needed.
fn capacity(needed: usize, held: usize) -> usize {
    if needed <= held {
        held
    } else if needed <= CHUNK_BLOCKS {
        needed.next_power_of_two()
    } else {
        needed.max(held + held / 4).next_multiple_of(CHUNK_BLOCKS)
    }
}

impl Mirror {
    fn new(store: &Store, device: &Device) -> Self {
        let blocks = capacity(store.len().div_ceil(PANEL).max(1), 0);
        Self { words: zeros(blocks, block_words(store.dim, store.format), device), length: 0, changed: Vec::new() }
    }

    fn note(&mut self, row: usize) {
        if row >= self.length {
            return;
        }
        match self.changed.last_mut() {
            Some(last) if last.contains(&row) => {}
            Some(last) if last.end == row => last.end += 1,
            _ => self.changed.push(row..row + 1),
        }
        if self.changed.len() > APART {
            let start = self.changed.iter().map(|rows| rows.start).min().unwrap_or(row);
            let end = self.changed.iter().map(|rows| rows.end).max().unwrap_or(row);
            self.changed.clear();
            self.changed.push(start..end);
        }
    }

    /// Writes what is not there yet.
    fn update(&mut self, store: &Store) {
        let [held, words] = self.words.dims();
        let blocks = capacity(store.len().div_ceil(PANEL), held);
        if blocks > held {
            let more = zeros(blocks - held, words, &self.words.device());
            self.words = Tensor::cat(vec![self.words.clone(), more], 0);
        }
        let new = (self.length < store.len()).then_some(self.length..store.len());
        for rows in std::mem::take(&mut self.changed).into_iter().chain(new) {
            // Whole blocks, of one chunk at a time.
            let (mut block, end) = (rows.start / PANEL, rows.end.div_ceil(PANEL));
            while block < end {
                let chunk = block / CHUNK_BLOCKS;
                let stop = end.min((chunk + 1) * CHUNK_BLOCKS);
                let inside = block - chunk * CHUNK_BLOCKS..stop - chunk * CHUNK_BLOCKS;
                self.write(block, packed_blocks(&store.chunks[chunk], store.dim, store.format, inside));
                block = stop;
            }
        }
        self.length = store.len();
    }

    /// Writes blocks from number `block` on.
    fn write(&mut self, block: usize, values: Vec<u32>) {
        let [held, words] = self.words.dims();
        let device = self.words.device();
        let blocks = values.len() / words;
        let values = Tensor::from_data(TensorData::new(values, [blocks, words]), (&device, DType::U32));
        // The tensor is given away, so that it is overwritten where it lies unless someone else has it too.
        let all = std::mem::replace(&mut self.words, values.clone());
        self.words = if blocks == held { values } else { all.slice_assign([block..block + blocks, 0..words], values) };
    }
}

fn zeros(blocks: usize, words: usize, device: &Device) -> Tensor<2, Int> {
    Tensor::zeros([blocks, words], (device, DType::U32))
}

/// These blocks of a chunk, the last one with zeros where it has fewer vectors.
fn packed_blocks(chunk: &Chunk, dim: usize, format: Option<Format>, blocks: Range<usize>) -> Vec<u32> {
    let [codes, scales] = chunk.parts();
    let sizes = match format {
        None => [4 * dim * PANEL, 0],
        Some(format) => [dim * format.bits() / 8 * PANEL, dim / format.group() * PANEL],
    };
    let mut words = Vec::with_capacity(blocks.len() * block_words(dim, format));
    for block in blocks {
        for (bytes, size) in [codes, scales].into_iter().zip(sizes) {
            let bytes = &bytes[(block * size).min(bytes.len())..((block + 1) * size).min(bytes.len())];
            let filled = words.len() + size / 4;
            words.extend(bytes.chunks(4).map(|bytes| {
                let mut word = [0; 4];
                word[..bytes.len()].copy_from_slice(bytes);
                u32::from_le_bytes(word)
            }));
            words.resize(filled, 0);
        }
    }
    words
}
