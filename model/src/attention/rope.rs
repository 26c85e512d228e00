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
    // The (fractional) channel whose pair turns `rotations` times over the training length.
    let channel =
        |rotations: f64| dim as f64 * (yarn.original_length as f64 / (2.0 * PI * rotations)).ln() / (2.0 * base.ln());
    let low = channel(yarn.beta_fast).floor().max(0.0);
    let high = channel(yarn.beta_slow).ceil().min(dim as f64 - 1.0);
    plain
        .enumerate()
        .map(|(i, frequency)| {
            let ramp = ((i as f64 - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
            frequency / yarn.factor * ramp + frequency * (1.0 - ramp)
        })
        .collect()
}

/// Cosines and sines of the angles at a list of positions, `[positions, d_r / 2]` each.
#[derive(Clone, Debug)]
pub struct RopeTable {
    cos: Tensor<2>,
    sin: Tensor<2>,
}

impl RopeTable {
    /// The table of `count` positions `0, stride, 2 stride, ...`, computed in f64 and stored as `dtype`. An empty list gives
    /// one row, for the padding row that stands in where no entry exists.
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
        let rows = count.max(1);
        let table = |function: fn(f64) -> f64| {
            let values: Vec<f64> = (first..first + rows)
                .flat_map(|row| frequencies.iter().map(move |f| function((row * stride) as f64 * f)))
                .collect();
            Tensor::from_data(TensorData::new(values, [rows, frequencies.len()]), (device, dtype))
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
