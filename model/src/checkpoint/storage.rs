//! From the ways in which released checkpoints store numbers to f32.
//!
//! | what | stored as | beside it |
//! |---|---|---|
//! | any tensor | F32, F16 or BF16 | |
//! | a matrix `[out, in]` | `F8_E4M3` `[out, in]` | `F8_E8M0` scales `[ceil(out / b), ceil(in / b)]`, one per block of b x b |
//! | a matrix of a routed expert | I8 `[out, in / 2]`, two E2M1 codes a byte, the low half first | `F8_E8M0` scales `[out, in / 32]` |
//!
//! F64 is refused: no such checkpoint holds it, and rounding it would lose digits without a word.

use half::{bf16, f16};
use safetensors::Dtype;

use super::archive::View;
use crate::quant::Format;

/// Numbers along the input that share a scale in packed experts.
const EXPERT_GROUP: usize = 32;

/// Blocks of released checkpoints: of V4.1 and of V4. Where both fit a matrix it has one block along each axis, so that they mean
/// the same.
const BLOCKS: [[usize; 2]; 2] = [[32, 32], [128, 128]];

/// The byte of a power-of-two scale that is not a number.
const SCALE_NAN: u8 = 255;

/// What a tensor is, as far as its storage goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A matrix of a linear map, `[out, in]`.
    Matrix,
    /// A matrix of a routed expert, `[out, in]`.
    Expert,
    /// Anything else: never quantized.
    Plain,
}

/// A tensor that can be decoded: its type, shape and scales have been checked against what is expected.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    view: View<'a>,
    code: Code<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Code<'a> {
    Float,
    /// With scales and the block that shares one.
    Fp8(&'a [u8], [usize; 2]),
    Fp4(&'a [u8]),
}

impl<'a> Stored<'a> {
    /// Checks that `view` holds the tensor of `shape`; `scale` is the tensor named so beside it, and `block` what the
    /// configuration says of quantized matrices.
    ///
    /// # Errors
    /// What does not fit, without the tensor's name.
    pub fn check(
        view: View<'a>,
        scale: Option<View<'a>>,
        shape: &[usize],
        kind: Kind,
        block: Option<[usize; 2]>,
    ) -> Result<Self, String> {
        let code = match (view.dtype, kind, shape) {
            (Dtype::F32 | Dtype::F16 | Dtype::BF16, _, _) => {
                if scale.is_some() {
                    return Err(format!("has a scale, but is stored as {:?}, which needs none", view.dtype));
                }
                check_shape(view, shape)?;
                Code::Float
            }
            (Dtype::F8_E4M3, Kind::Matrix | Kind::Expert, &[rows, columns]) => {
                check_shape(view, shape)?;
                let scale = scales(scale)?;
                Code::Fp8(scale.bytes, find_block([rows, columns], scale.shape, block)?)
            }
            (Dtype::I8, Kind::Expert, &[rows, columns]) => {
                if !columns.is_multiple_of(EXPERT_GROUP) {
                    return Err(format!("packed rows of {columns} numbers are not whole groups of {EXPERT_GROUP}"));
                }
                check_shape(view, &[rows, columns / 2])?;
                let scale = scales(scale)?;
                let expected = [rows, columns / EXPERT_GROUP];
                if scale.shape != expected {
                    return Err(format!("its scale has shape {:?}, expected {expected:?}", scale.shape));
                }
                Code::Fp4(scale.bytes)
            }
            (dtype, _, _) => {
                let more = match kind {
                    Kind::Matrix => ", or F8_E4M3 with a scale",
                    Kind::Expert => ", F8_E4M3 with a scale, or packed I8 with a scale",
                    Kind::Plain => "",
                };
                return Err(format!("stored as {dtype:?}, expected F32, F16 or BF16{more}"));
            }
        };
        Ok(Self { view, code })
    }

    /// How it is stored, in words.
    pub fn describe(&self) -> String {
        match self.code {
            Code::Float => format!("{:?}", self.view.dtype),
            Code::Fp8(_, [rows, columns]) => format!("F8_E4M3, a scale per {rows} x {columns}"),
            Code::Fp4(_) => format!("E2M1, a scale per {EXPERT_GROUP}"),
        }
    }

    /// The numbers, last axis fastest.
    ///
    /// # Errors
    /// The place of a number that is not finite, without the tensor's name.
    pub fn decode(&self) -> Result<Vec<f32>, String> {
        let bytes = self.view.bytes;
        let pair = |b: &[u8]| [b[0], b[1]];
        let (values, columns) = match self.code {
            Code::Float => {
                let values: Vec<f32> = match self.view.dtype {
                    Dtype::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes(pair(b)).to_f32()).collect(),
                    Dtype::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes(pair(b)).to_f32()).collect(),
                    _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
                };
                (values, self.view.shape.last().copied().unwrap_or(1))
            }
            Code::Fp8(scales, block) => (decode_fp8(bytes, self.view.shape[1], scales, block)?, self.view.shape[1]),
            Code::Fp4(scales) => (decode_fp4(bytes, scales, self.view.shape[1])?, 2 * self.view.shape[1]),
        };
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => Err(format!("number {} of row {} is {}", at % columns, at / columns, values[at])),
        }
    }
}

fn check_shape(view: View, expected: &[usize]) -> Result<(), String> {
    if view.shape == expected {
        return Ok(());
    }
    Err(format!("has shape {:?} as {:?}, expected {expected:?}", view.shape, view.dtype))
}

fn scales(scale: Option<View>) -> Result<View, String> {
    let scale = scale.ok_or("has no scale beside it")?;
    if scale.dtype == Dtype::F8_E8M0 {
        return Ok(scale);
    }
    Err(format!("its scale is stored as {:?}, expected F8_E8M0", scale.dtype))
}

/// The block whose scales have this shape.
fn find_block(shape: [usize; 2], scales: &[usize], stated: Option<[usize; 2]>) -> Result<[usize; 2], String> {
    let fits = |block: &[usize; 2]| scales == [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])];
    let found = match stated {
        Some(block) => Some(block).filter(fits),
        None => BLOCKS.into_iter().find(fits),
    };
    found.ok_or_else(|| match stated {
        Some([rows, columns]) => format!("its scales {scales:?} are not those of blocks of {rows} x {columns}"),
        None => format!("its scales {scales:?} are neither those of blocks of 32 x 32 nor of 128 x 128"),
    })
}

/// One power of two per stored scale.
fn powers(scales: &[u8], columns: usize) -> Result<Vec<f32>, String> {
    if let Some(at) = scales.iter().position(|&byte| byte == SCALE_NAN) {
        return Err(format!("scale {} of row {} is the byte 255, which is not a number", at % columns, at / columns));
    }
    Ok(scales.iter().map(|&byte| Format::Fp8E8m0.stored_scale(byte)).collect())
}

fn decode_fp8(codes: &[u8], columns: usize, scales: &[u8], block: [usize; 2]) -> Result<Vec<f32>, String> {
    let across = columns.div_ceil(block[1]).max(1);
    let scales = powers(scales, across)?;
    let numbers: Vec<f32> = (0..=255).map(|code| Format::Fp8E8m0.decode(code)).collect();
    let mut values = Vec::with_capacity(codes.len());
    for (row, codes) in codes.chunks_exact(columns.max(1)).enumerate() {
        let scales = &scales[row / block[0] * across..][..across];
        for (codes, scale) in codes.chunks(block[1]).zip(scales) {
            values.extend(codes.iter().map(|&code| numbers[usize::from(code)] * scale));
        }
    }
    Ok(values)
}

fn decode_fp4(codes: &[u8], scales: &[u8], bytes_in_row: usize) -> Result<Vec<f32>, String> {
    let scales = powers(scales, (2 * bytes_in_row / EXPERT_GROUP).max(1))?;
    let numbers: Vec<f32> = (0..16).map(|code| Format::Fp4E8m0.decode(code)).collect();
    let mut values = Vec::with_capacity(2 * codes.len());
    for (codes, scale) in codes.chunks_exact(EXPERT_GROUP / 2).zip(scales) {
        let number = |code: u8| numbers[usize::from(code)] * scale;
        values.extend(codes.iter().flat_map(|&pair| [number(pair & 15), number(pair >> 4)]));
    }
    Ok(values)
}
