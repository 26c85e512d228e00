//! Rotary position tables. Adjacent channel pairs are complex numbers; pair `i` turns by `theta_i` per position.

use std::f64::consts::PI;

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::config::YarnConfig;
use crate::ops;

/// Angle per position of each of the `dim / 2` pairs: `base^(-2 i / dim)`, stretched by `YaRN` where a training length is
/// given. Slow pairs are divided by the factor, fast ones are kept, with a linear ramp over the pair number in between.
/// There is no attention factor (released reference code).
pub fn rope_frequencies(dim: usize, base: f64, yarn: Option<&YarnConfig>) -> Vec<f64> {
    let plain = (0..dim / 2).map(|i| base.powf(-2.0 * i as f64 / dim as f64));
    let Some(yarn) = yarn else { return plain.collect() };
    let (low, high) = yarn_range(dim, base, yarn);
    plain
        .enumerate()
        .map(|(i, frequency)| {
            let ramp = ((i as f64 - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
            frequency / yarn.factor * ramp + frequency * (1.0 - ramp)
        })
        .collect()
}

/// [`rope_frequencies`] for a table of number format `dtype`: exact for f64. Below that, rounded where the released code
/// rounds, which works in f32 (the power, its reciprocal, every step of the stretching): a last bit of a frequency
/// is 1e-4 radians at position 2000, and released checkpoints have been trained with these.
pub fn rope_frequencies_in(dtype: DType, dim: usize, base: f64, yarn: Option<&YarnConfig>) -> Vec<f64> {
    if dtype == DType::F64 {
        return rope_frequencies(dim, base, yarn);
    }
    let pairs = (0..dim / 2).map(|i| {
        let exponent = (2 * i) as f32 / dim as f32;
        let frequency = 1.0 / base.powf(f64::from(exponent)) as f32;
        let Some(yarn) = yarn else { return frequency };
        let (low, high) = yarn_range(dim, base, yarn);
        let kept = 1.0 - ((i as f32 - low as f32) / (high - low).max(1e-3) as f32).clamp(0.0, 1.0);
        frequency / yarn.factor as f32 * (1.0 - kept) + frequency * kept
    });
    pairs.map(f64::from).collect()
}

/// The pairs (fractional) between which `YaRN` goes over from keeping a frequency to dividing it.
fn yarn_range(dim: usize, base: f64, yarn: &YarnConfig) -> (f64, f64) {
    // The channel whose pair turns `rotations` times over the training length.
    let channel =
        |rotations: f64| dim as f64 * (yarn.original_length as f64 / (2.0 * PI * rotations)).ln() / (2.0 * base.ln());
    (channel(yarn.beta_fast).floor().max(0.0), channel(yarn.beta_slow).ceil().min(dim as f64 - 1.0))
}

/// Cosines and sines of the angles at a list of positions, `[positions, d_r / 2]` each.
#[derive(Clone, Debug)]
pub struct RopeTable {
    cos: Tensor<2>,
    sin: Tensor<2>,
}

impl RopeTable {
    /// The table of `count` positions `0, stride, 2 stride, ...`, stored as `dtype`. Below f64 the angle is rounded to f32
    /// before its cosine is taken, as in the released code (see [`rope_frequencies_in`]). An empty list gives one row, for
    /// the padding row that stands in where no entry exists.
    pub fn new(frequencies: &[f64], count: usize, stride: usize, dtype: DType, device: &Device) -> Self {
        Self::from_row(frequencies, 0, count, stride, dtype, device)
    }

    /// As [`new`](Self::new), of `count` positions from `first stride` on.
    pub fn from_row(
        frequencies: &[f64],
        first: usize,
        count: usize,
        stride: usize,
        dtype: DType,
        device: &Device,
    ) -> Self {
        Self::of_rows(frequencies, first..first + count, stride, dtype, device)
    }

    /// As [`new`](Self::new), of the positions `row stride` of any rows.
    pub fn of_rows(
        frequencies: &[f64],
        rows: impl IntoIterator<Item = usize>,
        stride: usize,
        dtype: DType,
        device: &Device,
    ) -> Self {
        let mut rows: Vec<usize> = rows.into_iter().collect();
        if rows.is_empty() {
            rows.push(0);
        }
        let angle = |row: usize, frequency: f64| match dtype {
            DType::F64 => (row * stride) as f64 * frequency,
            _ => f64::from((row * stride) as f32 * frequency as f32),
        };
        let table = |function: fn(f64) -> f64| {
            let values: Vec<f64> =
                rows.iter().flat_map(|&row| frequencies.iter().map(move |f| function(angle(row, *f)))).collect();
            Tensor::from_data(TensorData::new(values, [rows.len(), frequencies.len()]), (device, dtype))
        };
        Self { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// The cosines `[positions, d_r / 2]`.
    pub fn cos(&self) -> Tensor<2> {
        self.cos.clone()
    }

    /// The sines `[positions, d_r / 2]`.
    pub fn sin(&self) -> Tensor<2> {
        self.sin.clone()
    }

    /// Turns the last `d_r` channels of `x` `[B, positions, H, d]` forwards.
    pub fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        ops::rotate(x, self.cos(), self.sin(), false)
    }

    /// Turns the last `d_r` channels of `x` `[B, positions, H, d]` backwards.
    pub fn rotate_back(&self, x: Tensor<4>) -> Tensor<4> {
        ops::rotate(x, self.cos(), self.sin(), true)
    }

    /// Turns the last `d_r` channels of one vector per position, `x` `[B, positions, d]`, forwards.
    pub fn rotate_vectors(&self, x: Tensor<3>) -> Tensor<3> {
        self.rotate(x.unsqueeze_dim(2)).squeeze_dim(2)
    }
}
