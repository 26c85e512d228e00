//! Read-out and index loss, every number of every input.

use burn::tensor::{DType, Int, Tensor, TensorData};
use csa2_model::ops;

use super::common::random::Source;
use super::common::{assert_close, numbers};
use super::{device, differences, tensor};

/// The numbers of a read-out: query, window, main and sink.
type Flat = [Vec<f64>; 4];

#[test]
fn readout_gradients() {
    const NAMES: [&str; 4] = ["query", "window", "main", "sink"];
    let (batch, seq, heads, dim, entries) = (2, 4, 2, 3, 5);
    let mut source = Source::new(1);
    let mut normal = |count: usize| numbers(source.normal([count], &device(), DType::F64));
    let flat: Flat =
        [normal(batch * seq * heads * dim), normal(batch * seq * dim), normal(batch * entries * dim), normal(heads)];
    let weight = tensor(&normal(batch * seq * heads * dim), [batch, seq, heads, dim]);
    let lists = [[0, 4, -1], [-1, -1, -1], [2, 2, 1], [3, -1, 0], [4, 3, 2], [1, -1, -1], [-1, 0, -1], [0, 0, 0]];
    let topk = Tensor::<3, Int>::from_data(TensorData::new(lists.concat(), [batch, seq, 3]), &device());
    let loss = |flat: &Flat| {
        let q = tensor(&flat[0], [batch, seq, heads, dim]).require_grad();
        let window = tensor(&flat[1], [batch, seq, dim]).require_grad();
        let main = tensor(&flat[2], [batch, entries, dim]).require_grad();
        let sink = tensor(&flat[3], [heads]).require_grad();
        let read = ops::readout(q.clone(), window.clone(), main.clone(), sink.clone(), topk.clone(), 2, 0.7).0;
        ((read * weight.clone()).sum(), q, window, main, sink)
    };
    let (total, q, window, main, sink) = loss(&flat);
    let grads = total.backward();
    let found = [
        numbers(q.grad(&grads).unwrap()),
        numbers(window.grad(&grads).unwrap()),
        numbers(main.grad(&grads).unwrap()),
        numbers(sink.grad(&grads).unwrap()),
    ];
    for (which, found) in found.iter().enumerate() {
        let expected = differences(&flat[which], |values| {
            let mut moved = flat.clone();
            moved[which] = values.to_vec();
            numbers(loss(&moved).0)[0]
        });
        assert!(expected.iter().any(|g| g.abs() > 1e-2));
        assert_close(NAMES[which], found, &expected, 1e-8);
    }
}

#[test]
fn index_loss_gradients() {
    let (batch, seq, heads, dim, entries) = (2, 3, 2, 4, 5);
    let mut source = Source::new(2);
    let mut normal = |count: usize| numbers(source.normal([count], &device(), DType::F64));
    let flat = [normal(batch * seq * heads * dim), normal(batch * entries * dim), normal(batch * seq * heads)];
    let teacher = tensor(&normal(batch * seq * 4), [batch, seq, 4]).clamp_min(0.0);
    let weight = tensor(&normal(batch * seq), [batch, seq]);
    let lists = [[0, 1, 2, 4], [3, 1, -1, -1], [-1; 4], [2, 2, 3, -1], [-1, 4, -1, 0], [0, 1, 2, 3]];
    let range = Tensor::<3, Int>::from_data(TensorData::new(lists.concat(), [batch, seq, 4]), &device());
    let loss = |flat: &[Vec<f64>; 3]| {
        let q = tensor(&flat[0], [batch, seq, heads, dim]).require_grad();
        let keys = tensor(&flat[1], [batch, entries, dim]).require_grad();
        let weights = tensor(&flat[2], [batch, seq, heads]).require_grad();
        let kl = ops::index_kl(q.clone(), keys.clone(), weights.clone(), teacher.clone(), range.clone());
        ((kl * weight.clone()).sum(), q, keys, weights)
    };
    let (total, q, keys, weights) = loss(&flat);
    let grads = total.backward();
    let found =
        [numbers(q.grad(&grads).unwrap()), numbers(keys.grad(&grads).unwrap()), numbers(weights.grad(&grads).unwrap())];
    for ((which, found), name) in found.iter().enumerate().zip(["query", "keys", "head weights"]) {
        let expected = differences(&flat[which], |values| {
            let mut moved = flat.clone();
            moved[which] = values.to_vec();
            numbers(loss(&moved).0)[0]
        });
        assert!(expected.iter().any(|g| g.abs() > 1e-2));
        assert_close(name, found, &expected, 1e-8);
    }
}
