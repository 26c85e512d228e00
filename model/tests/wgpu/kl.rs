use burn::tensor::{DType, Device, Int, Tensor};
use csa2_model::ops::{self, NAN_ROW, reference};

use super::common::random::Source;
use super::common::{assert_close, numbers};
use super::{copied, device, gradient};

type Kl = fn(Tensor<4>, Tensor<3>, Tensor<3>, Tensor<3>, Tensor<3, Int>) -> Tensor<2>;

struct Inputs {
    q: Tensor<4>,
    keys: Tensor<3>,
    weights: Tensor<3>,
    teacher: Tensor<3>,
    range: Tensor<3, Int>,
    grad: Tensor<2>,
}

impl Inputs {
    /// `whole`: whole numbers, among them many products that are exactly 0, where the rectifier has its kink.
    fn new(dims: [usize; 4], entries: usize, width: usize, whole: bool, seed: u64) -> Self {
        let device = &Device::flex();
        let [batch, seq, heads, dim] = dims;
        let mut source = Source::new(seed);
        let teacher = source.normal([batch, seq, width], device, DType::F32).add_scalar(0.4).clamp_min(0.0);
        let range = source.lists([batch, seq, width], entries, device);
        let grad = source.normal([batch, seq], device, DType::F32);
        let keys = [batch, entries.max(1), dim];
        let (q, keys, weights) = if whole {
            let q = source.whole(dims, 1, device, DType::F32);
            (q, source.whole(keys, 1, device, DType::F32), source.whole([batch, seq, heads], 1, device, DType::F32))
        } else {
            let q = source.normal(dims, device, DType::F32).mul_scalar((dim as f64).powf(-0.5));
            (q, source.normal(keys, device, DType::F32), source.normal([batch, seq, heads], device, DType::F32))
        };
        Self { q, keys, weights, teacher, range, grad }
    }

    /// Leaves of a graph on `device`.
    fn on(&self, device: &Device) -> Self {
        let device = &device.clone().autodiff();
        Self {
            q: copied(&self.q, device).require_grad(),
            keys: copied(&self.keys, device).require_grad(),
            weights: copied(&self.weights, device).require_grad(),
            teacher: copied(&self.teacher, device),
            range: Tensor::from_data(self.range.to_data(), device),
            grad: copied(&self.grad, device),
        }
    }
}

/// Loss, and gradients for queries, keys and head weights.
fn run(kl: Kl, inputs: &Inputs) -> [(&'static str, Vec<f64>); 4] {
    let Inputs { q, keys, weights, teacher, range, grad } = inputs;
    let loss = kl(q.clone(), keys.clone(), weights.clone(), teacher.clone(), range.clone());
    let grads = (loss.clone() * grad.clone()).sum().backward();
    [
        ("loss", numbers(loss)),
        ("query gradient", gradient(q, &grads)),
        ("key gradient", gradient(keys, &grads)),
        ("weight gradient", gradient(weights, &grads)),
    ]
}

#[test]
fn loss_and_gradients_of_every_shape() {
    let Some(wgpu) = device() else { return };
    let cases = [
        ([2, 6, 3, 8], 5, 4),
        ([1, 1, 1, 1], 1, 1),
        ([1, 5, 12, 96], 9, 9),
        ([2, 3, 2, 4], 0, 3),
        ([1, 2, 5, 192], 6, 17),
        ([1, 140, 2, 16], 150, 150),
    ];
    for (seed, (dims, entries, width)) in cases.into_iter().enumerate() {
        for whole in [false, true] {
            let what = format!("{dims:?} {entries} {width} whole {whole}");
            let inputs = Inputs::new(dims, entries, width, whole, seed as u64);
            let here = run(reference::index_kl, &inputs.on(&Device::flex()));
            let inputs = inputs.on(&wgpu);
            let there = run(ops::index_kl, &inputs);
            for ((name, there), (_, here)) in there.iter().zip(&here) {
                let largest = here.iter().fold(1.0_f64, |most, x| most.max(x.abs()));
                assert_close(&format!("{what}: {name}"), there, here, 1e-5 * largest);
            }
            assert!(there == run(ops::index_kl, &inputs), "{what}: the same bits again");
        }
    }
}

#[test]
fn nothing_to_learn_gives_exactly_zero() {
    let Some(wgpu) = device() else { return };
    let mut inputs = Inputs::new([1, 3, 2, 4], 4, 5, false, 9);
    inputs.range = inputs.range.full_like(NAN_ROW);
    for (name, values) in run(ops::index_kl, &inputs.on(&wgpu)) {
        assert!(values.iter().all(|&value| value == 0.0), "{name}");
    }
    inputs.range = inputs.range.full_like(2);
    inputs.teacher = inputs.teacher.zeros_like();
    for (name, values) in run(ops::index_kl, &inputs.on(&wgpu)) {
        assert!(values.iter().all(|&value| value == 0.0), "{name}");
    }
}
