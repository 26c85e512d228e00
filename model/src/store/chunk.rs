//! A chunk of stored vectors: how codes and scales lie in memory.

use super::PANEL;
use crate::quant::{Format, encode_group};

/// Up to [`CHUNK`](super::CHUNK) vectors.
#[derive(Clone, Debug)]
pub(crate) enum Chunk {
    /// In f32, one vector after the other.
    Floats(Vec<f32>),
    /// Codes and scales of each vector one after the other, or in panels (see [`PANEL`]).
    Packed { codes: Vec<u8>, scales: Vec<u8> },
}

/// Whether vectors of this format lie in panels.
fn in_panels(format: Format) -> bool {
    format == Format::Fp4E8m0
}

/// Where in a panel's codes the byte lies that holds channel `channel` of vector `lane`, and whether in its high half.
fn place(channel: usize, lane: usize) -> (usize, bool) {
    (channel / 8 * 4 * PANEL + lane * 4 + channel % 4, channel % 8 >= 4)
}

impl Chunk {
    /// No vectors yet, room for `rows`.
    pub(super) fn with_room(dim: usize, format: Option<Format>, rows: usize) -> Self {
        match format {
            None => Self::Floats(Vec::with_capacity(rows * dim)),
            Some(format) => Self::Packed {
                codes: Vec::with_capacity(rows * dim * format.bits() / 8),
                scales: Vec::with_capacity(rows * dim / format.group()),
            },
        }
    }

    /// `rows` vectors of zeros.
    pub(super) fn zeros(dim: usize, format: Option<Format>, rows: usize) -> Self {
        let mut chunk = Self::with_room(dim, format, rows);
        chunk.grow(dim, format, rows);
        chunk
    }

    /// Makes place for vectors up to `rows`.
    fn grow(&mut self, dim: usize, format: Option<Format>, rows: usize) {
        match (self, format) {
            (Self::Floats(values), _) => values.resize(rows * dim, 0.0),
            (Self::Packed { codes, scales }, Some(format)) => {
                let rows = if in_panels(format) { rows.next_multiple_of(PANEL) } else { rows };
                codes.resize(rows * dim * format.bits() / 8, 0);
                scales.resize(rows * dim / format.group(), 0);
            }
            (Self::Packed { .. }, None) => unreachable!("packed chunks have a format"),
        }
    }

    /// Appends `values` behind the `rows` vectors that are there.
    pub(super) fn push(&mut self, dim: usize, format: Option<Format>, rows: usize, values: &[f32]) {
        self.grow(dim, format, rows + values.len() / dim);
        for (new, vector) in values.chunks_exact(dim).enumerate() {
            self.set(dim, format, rows + new, vector);
        }
    }

    /// Overwrites the vector at `row`.
    pub(super) fn set(&mut self, dim: usize, format: Option<Format>, row: usize, vector: &[f32]) {
        let (codes, scales, format) = match (self, format) {
            (Self::Floats(values), _) => {
                values[row * dim..(row + 1) * dim].copy_from_slice(vector);
                return;
            }
            (Self::Packed { codes, scales }, Some(format)) => (codes, scales, format),
            (Self::Packed { .. }, None) => unreachable!("packed chunks have a format"),
        };
        let (size, groups) = (format.group(), dim / format.group());
        let mut group_codes = [0; 32];
        let group_codes = &mut group_codes[..size];
        for (group, values) in vector.chunks_exact(size).enumerate() {
            let scale = encode_group(values, format, group_codes);
            if in_panels(format) {
                let (panel, lane) = (row / PANEL, row % PANEL);
                scales[(panel * groups + group) * PANEL + lane] = scale;
                let codes = &mut codes[panel * PANEL * dim / 2..(panel + 1) * PANEL * dim / 2];
                for (channel, &code) in group_codes.iter().enumerate() {
                    let (at, high) = place(group * size + channel, lane);
                    codes[at] = if high { codes[at] & 0x0f | code << 4 } else { codes[at] & 0xf0 | code };
                }
                continue;
            }
            scales[row * groups + group] = scale;
            let start = (row * dim + group * size) * format.bits() / 8;
            if format.bits() == 4 {
                for (byte, pair) in codes[start..].iter_mut().zip(group_codes.as_chunks::<2>().0) {
                    *byte = pair[0] | pair[1] << 4;
                }
            } else {
                codes[start..start + size].copy_from_slice(group_codes);
            }
        }
    }

    /// Reads the vector at `row`.
    pub(crate) fn read(&self, format: Option<Format>, row: usize, out: &mut [f32]) {
        let dim = out.len();
        let (codes, scales, format) = match (self, format) {
            (Self::Floats(values), _) => {
                out.copy_from_slice(&values[row * dim..(row + 1) * dim]);
                return;
            }
            (Self::Packed { codes, scales }, Some(format)) => (codes, scales, format),
            (Self::Packed { .. }, None) => unreachable!("packed chunks have a format"),
        };
        let values = format.values();
        let (size, groups) = (format.group(), dim / format.group());
        if in_panels(format) {
            let (panel, lane) = (row / PANEL, row % PANEL);
            let codes = &codes[panel * PANEL * dim / 2..(panel + 1) * PANEL * dim / 2];
            for (group, out) in out.chunks_exact_mut(size).enumerate() {
                let scale = format.stored_scale(scales[(panel * groups + group) * PANEL + lane]);
                for (channel, out) in out.iter_mut().enumerate() {
                    let (at, high) = place(group * size + channel, lane);
                    let code = if high { codes[at] >> 4 } else { codes[at] & 15 };
                    *out = values[usize::from(code)] * scale;
                }
            }
            return;
        }
        let bytes = size * format.bits() / 8;
        let codes = codes[row * groups * bytes..(row + 1) * groups * bytes].chunks_exact(bytes);
        let scales = &scales[row * groups..(row + 1) * groups];
        for ((out, codes), &scale) in out.chunks_exact_mut(size).zip(codes).zip(scales) {
            let scale = format.stored_scale(scale);
            if format.bits() == 4 {
                for (pair, &byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                    *pair = [values[usize::from(byte & 15)] * scale, values[usize::from(byte >> 4)] * scale];
                }
            } else {
                for (out, &code) in out.iter_mut().zip(codes) {
                    *out = values[usize::from(code)] * scale;
                }
            }
        }
    }

    /// Bytes of memory held.
    pub(super) fn allocated(&self) -> usize {
        match self {
            Self::Floats(values) => 4 * values.capacity(),
            Self::Packed { codes, scales } => codes.capacity() + scales.capacity(),
        }
    }

    /// The memory, codes first.
    pub(super) fn parts(&self) -> [&[u8]; 2] {
        match self {
            Self::Floats(values) => [bytemuck::cast_slice(values), &[]],
            Self::Packed { codes, scales } => [codes, scales],
        }
    }

    /// The memory, codes first.
    pub(super) fn parts_mut(&mut self) -> [&mut [u8]; 2] {
        match self {
            Self::Floats(values) => [bytemuck::cast_slice_mut(values), &mut []],
            Self::Packed { codes, scales } => [codes, scales],
        }
    }
}
