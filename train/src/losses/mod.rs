//! What training minimises: cross-entropy of the language model (and of a task's auxiliary head), plus the indexers' KL.

use burn::tensor::{Device, Int, Tensor, TensorData};
use csa2_model::ops;

use crate::tasks::NONE;

/// The positions of a batch that have a target.
pub struct Targets {
    /// Their places in the flattened batch.
    pub places: Vec<i32>,
    /// Their targets.
    pub ids: Vec<i32>,
}

impl Targets {
    /// From targets `[rows * len]`, [`NONE`] where there is none.
    pub fn new(targets: &[i32]) -> Self {
        let with_target = || targets.iter().enumerate().filter(|&(_, &id)| id != NONE);
        Self {
            places: with_target().map(|(place, _)| place as i32).collect(),
            ids: with_target().map(|(_, &id)| id).collect(),
        }
    }

    /// The logits `[count, V]` of the positions with a target; none if there is no target.
    pub fn select(&self, logits: Tensor<3>) -> Option<Tensor<2>> {
        if self.ids.is_empty() {
            return None;
        }
        let [rows, len, vocabulary] = logits.dims();
        let places = integers(&self.places, &logits.device());
        Some(logits.reshape([rows * len, vocabulary]).select(0, places))
    }

    /// Cross-entropy of each position `[count]`, in nats, from its logits `[count, V]`.
    pub fn cross_entropy(&self, logits: Tensor<2>) -> Tensor<1> {
        let ids = integers(&self.ids, &logits.device());
        ops::cross_entropy(logits, ids)
    }
}

fn integers(values: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_positions_with_a_target_count() {
        let device = Device::flex();
        let logits = Tensor::<3>::from_data([[[0.0, 0.0], [1.0, 3.0], [9.0, -9.0]]], &device);
        let targets = Targets::new(&[NONE, 1, NONE]);
        let loss = targets.cross_entropy(targets.select(logits.clone()).unwrap());
        let expected = (1.0 + (-2.0_f64).exp()).ln();
        let actual: Vec<f32> = loss.into_data().try_to_vec().unwrap();
        assert_eq!(actual.len(), 1);
        assert!((f64::from(actual[0]) - expected).abs() < 1e-6);
        assert!(Targets::new(&[NONE, NONE, NONE]).select(logits).is_none());
    }
}
