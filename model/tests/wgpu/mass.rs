use burn::tensor::{DType, Device, Tensor};
use csa2_model::ops::{self, reference};

use super::common::random::Source;
use super::common::{assert_close, numbers};
use super::{copied, device};

#[test]
fn mass_of_every_shape() {
    let Some(wgpu) = device() else { return };
    let cpu = Device::flex();
    for (seed, ([batch, seq, heads, dim], entries, width)) in
        [([2, 5, 3, 8], 7, 5), ([1, 1, 1, 33], 1, 1), ([1, 3, 12, 96], 90, 70), ([2, 2, 2, 512], 0, 3)]
            .into_iter()
            .enumerate()
    {
        let mut source = Source::new(seed as u64);
        let q = source.normal([batch, seq, heads, dim], &cpu, DType::F32);
        let main = source.normal([batch, entries.max(1), dim], &cpu, DType::F32);
        let lse = source.normal([batch, seq, heads], &cpu, DType::F32);
        let range = source.lists([batch, seq, width], entries, &cpu);
        let scale = (dim as f64).powf(-0.5);
        let here = reference::attention_mass(q.clone(), main.clone(), lse.clone(), range.clone(), scale);
        let range = Tensor::from_data(range.to_data(), &wgpu);
        let there = ops::attention_mass(copied(&q, &wgpu), copied(&main, &wgpu), copied(&lse, &wgpu), range, scale);
        assert_close(&format!("case {seed}"), &numbers(there), &numbers(here), 1e-5);
    }
}
