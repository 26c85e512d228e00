//! Stored vectors: what decoding keeps of the past, in the formats of [`quant`](crate::quant) or in f32.

mod chunk;
mod mirror;
#[cfg(test)]
mod tests;

use std::sync::Arc;

#[cfg(feature = "cube")]
use burn::tensor::{Device, Int, Tensor};

use crate::quant::Format;

pub(crate) use chunk::Chunk;

/// Vectors in a chunk. A chunk is the unit of growth (nothing stored is moved when a store grows) and of sharing (a copy of a
/// store shares its chunks until one of the two writes to them).
pub const CHUNK: usize = 1024;

/// Vectors of a panel: in [`Format::Fp4E8m0`], the format of index keys, so many vectors lie interleaved.
///
/// Of a panel, the codes of 8 channels stand together in 64 bytes, 4 bytes a vector; the low half of byte `i` is channel `i` of
/// them, the high half channel `4 + i`. The scales of a group of channels follow each other. Vector registers then hold the
/// same channels of many keys, and a score needs no sum across a register.
pub const PANEL: usize = 16;

/// Vectors of one length in the order in which they came.
#[derive(Clone, Debug)]
pub struct Store {
    dim: usize,
    format: Option<Format>,
    length: usize,
    chunks: Vec<Arc<Chunk>>,
    mirror: mirror::Slot,
}

/// Bytes of one stored vector of `dim` channels, codes and scales; without a format, of f32 numbers.
pub const fn vector_bytes(dim: usize, format: Option<Format>) -> usize {
    match format {
        None => 4 * dim,
        Some(format) => dim * format.bits() / 8 + dim / format.group(),
    }
}

impl Store {
    /// An empty store of vectors of `dim` channels.
    ///
    /// # Panics
    /// When a vector is not whole groups of the format; a validated [`ModelConfig`](crate::config::ModelConfig) has no such
    /// vectors.
    pub fn new(dim: usize, format: Option<Format>) -> Self {
        let group = format.map_or(1, Format::group);
        assert!(dim > 0 && dim.is_multiple_of(group), "vectors of {dim} channels are not whole groups of {group}");
        Self { dim, format, length: 0, chunks: Vec::new(), mirror: mirror::Slot::default() }
    }

    /// A store of `length` vectors of zeros, to be filled with [`parts_mut`](Self::parts_mut).
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn zeros(dim: usize, format: Option<Format>, length: usize) -> Self {
        let mut store = Self::new(dim, format);
        while store.length < length {
            let rows = CHUNK.min(length - store.length);
            store.chunks.push(Arc::new(Chunk::zeros(dim, format, rows)));
            store.length += rows;
        }
        store
    }

    /// Vectors stored.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is no vector.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Channels of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// How numbers are stored; in f32 where that is none.
    pub fn format(&self) -> Option<Format> {
        self.format
    }

    /// Bytes of the stored vectors, exactly.
    pub fn bytes(&self) -> u64 {
        self.length as u64 * vector_bytes(self.dim, self.format) as u64
    }

    /// Bytes of memory that are held for them: the last chunk may have room, and a panel is never cut.
    pub fn allocated(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.allocated() as u64).sum()
    }

    /// Bytes of memory that a GPU holds for them beside that: those of the store's mirror, which grows by a quarter at a time. A copy of a
    /// store counts the mirror that it shares, until one of the two is written to, as its own.
    pub fn device_bytes(&self) -> u64 {
        self.mirror.bytes()
    }

    /// The vectors on a device, up to date: packed as here, in the words that kernels read (see `mirror`).
    #[cfg(feature = "cube")]
    pub(crate) fn words(&self, device: &Device) -> Tensor<2, Int> {
        self.mirror.words(self, device)
    }

    /// Appends vectors, one after the other in `values`, rounded to the format. A group of channels that holds a number that is
    /// not finite is read back as NaN.
    ///
    /// # Panics
    /// When `values` are not whole vectors.
    pub fn push(&mut self, values: &[f32]) {
        assert!(values.len().is_multiple_of(self.dim), "{} numbers are not whole vectors", values.len());
        let mut values = values;
        while !values.is_empty() {
            let inside = self.length % CHUNK;
            if inside == 0 {
                // The first chunk grows with its vectors: many short sequences must not hold a whole one each.
                let room = if self.chunks.is_empty() { 0 } else { CHUNK };
                self.chunks.push(Arc::new(Chunk::with_room(self.dim, self.format, room)));
            }
            let (new, rest) = values.split_at(values.len().min((CHUNK - inside) * self.dim));
            let last = self.chunks.last_mut().expect("there is a chunk with room");
            Arc::make_mut(last).push(self.dim, self.format, inside, new);
            self.length += new.len() / self.dim;
            values = rest;
        }
    }

    /// Puts a vector in the place of another one.
    ///
    /// # Panics
    /// When there is no vector at `row`, or `vector` has another length.
    pub fn replace(&mut self, row: usize, vector: &[f32]) {
        assert!(
            row < self.length && vector.len() == self.dim,
            "row {row} of {}, {} channels",
            self.length,
            vector.len()
        );
        Arc::make_mut(&mut self.chunks[row / CHUNK]).set(self.dim, self.format, row % CHUNK, vector);
        self.mirror.changed(row);
    }

    /// Reads the vector at `row` into `out`.
    ///
    /// # Panics
    /// When there is no vector at `row`, or `out` has another length.
    pub fn read(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.length && out.len() == self.dim, "row {row} of {}, {} channels", self.length, out.len());
        self.chunks[row / CHUNK].read(self.format, row % CHUNK, out);
    }

    /// All vectors, as they are read back `[length, dim]`.
    pub fn unpack(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.length * self.dim];
        for (row, out) in values.chunks_exact_mut(self.dim).enumerate() {
            self.read(row, out);
        }
        values
    }

    /// The chunks, [`CHUNK`] vectors each, the last one as many as are left.
    #[cfg_attr(not(feature = "flex"), allow(dead_code, reason = "read by the processor's operators"))]
    pub(crate) fn chunks(&self) -> &[Arc<Chunk>] {
        &self.chunks
    }

    /// The memory in which the vectors lie, in order; the same for the same vectors, however they came.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().flat_map(|chunk| chunk.parts())
    }

    /// As [`parts`](Self::parts), to be overwritten: with parts of a store of the same dimension, format and length.
    pub fn parts_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.mirror.forget();
        self.chunks.iter_mut().flat_map(|chunk| Arc::make_mut(chunk).parts_mut())
    }

    /// Bytes of all [`parts`](Self::parts) of a store of `length` vectors; none beyond the range of 128 bits.
    pub fn parts_bytes(dim: usize, format: Option<Format>, length: u64) -> Option<u128> {
        let length =
            if format == Some(Format::Fp4E8m0) { length.checked_next_multiple_of(PANEL as u64)? } else { length };
        u128::from(length).checked_mul(vector_bytes(dim, format) as u128)
    }

    /// How many chunks there are.
    pub fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// Chunks that this store shares with copies of it.
    pub fn shared_chunks(&self) -> usize {
        self.chunks.iter().filter(|chunk| Arc::strong_count(chunk) > 1).count()
    }
}
