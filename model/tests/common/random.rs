//! Reproducible random inputs.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

/// A stream of its own for every name (FNV-1a, the same on every machine and compiler).
pub fn named(name: &str, seed: u64) -> StdRng {
    let start = 0xcbf2_9ce4_8422_2325_u64 ^ seed;
    StdRng::seed_from_u64(name.bytes().fold(start, |hash, byte| (hash ^ byte as u64).wrapping_mul(0x0100_0000_01b3)))
}

/// A stream of random numbers.
pub struct Source(pub StdRng);

impl Source {
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Standard normal numbers, the same ones in either format up to rounding.
    pub fn normal<const D: usize>(&mut self, dims: [usize; D], device: &Device, dtype: DType) -> Tensor<D> {
        Tensor::from_data(TensorData::new(self.normals(dims.iter().product()), dims), (device, dtype))
    }

    /// Standard normal numbers.
    pub fn normals(&mut self, count: usize) -> Vec<f64> {
        StandardNormal.sample_iter(&mut self.0).take(count).collect()
    }

    /// Whole numbers of at most `largest`, either sign: sums of products are exact in any order, and equal sums are many.
    pub fn whole<const D: usize>(
        &mut self,
        dims: [usize; D],
        largest: i32,
        device: &Device,
        dtype: DType,
    ) -> Tensor<D> {
        Tensor::from_data(TensorData::new(self.wholes(dims.iter().product(), largest), dims), (device, dtype))
    }

    /// Whole numbers of at most `largest`, either sign.
    pub fn wholes(&mut self, count: usize, largest: i32) -> Vec<f64> {
        (0..count).map(|_| self.0.random_range(-largest..=largest) as f64).collect()
    }

    /// Lists of up to `width` row numbers below `entries`, in any order and with repetitions; a third of the lists are
    /// empty, and gaps may stand anywhere.
    pub fn lists(&mut self, dims: [usize; 3], entries: usize, device: &Device) -> Tensor<3, Int> {
        Tensor::from_data(TensorData::new(self.list_values(dims, entries), dims), device)
    }

    /// The numbers of [`Self::lists`].
    pub fn list_values(&mut self, [batch, seq, width]: [usize; 3], entries: usize) -> Vec<i32> {
        let mut values = Vec::with_capacity(batch * seq * width);
        for _ in 0..batch * seq {
            let empty = entries == 0 || self.0.random_bool(1.0 / 3.0);
            values.extend((0..width).map(|_| {
                let gap = empty || self.0.random_bool(0.25);
                if gap { -1 } else { self.0.random_range(0..entries) as i32 }
            }));
        }
        values
    }

    /// Token ids below `vocabulary`.
    pub fn tokens(&mut self, [batch, seq]: [usize; 2], vocabulary: usize) -> Vec<i32> {
        (0..batch * seq).map(|_| self.0.random_range(0..vocabulary) as i32).collect()
    }
}
