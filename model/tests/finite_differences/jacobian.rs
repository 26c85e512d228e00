//! The read-out as a map of the query: its derivative is the covariance of the entries under the weights, over `sqrt(d)`.

use burn::tensor::{DType, Int, Tensor};
use csa2_model::attention::{RopeTable, rope_frequencies};
use csa2_model::ops;

use super::common::random::Source;
use super::common::{assert_close, numbers};
use super::{device, differences, tensor};

/// The derivative of the read-out for a query, row by row of `d o / d q`, by automatic differentiation.
fn jacobian(q: &[f64], read: impl Fn(Tensor<4>) -> Tensor<4>) -> Vec<f64> {
    let dim = q.len();
    let row = |channel: usize| {
        let q = tensor(q, [1, 1, 1, dim]).require_grad();
        let grads = read(q.clone()).narrow(3, channel, 1).sum().backward();
        numbers(q.grad(&grads).unwrap())
    };
    (0..dim).flat_map(row).collect()
}

/// The read-out of one query over all rows of `entries` `[n, d]` and no window.
fn read_all(entries: &[f64], dim: usize, sink: f64) -> impl Fn(Tensor<4>) -> Tensor<4> {
    let count = entries.len() / dim;
    let main = tensor(entries, [1, count, dim]);
    let topk = Tensor::<1, Int>::arange(0..count as i64, &device()).reshape([1, 1, count]);
    move |q| {
        let window = Tensor::zeros([1, 1, dim], (&device(), DType::F64));
        ops::readout(q, window, main.clone(), tensor(&[sink], [1]), topk.clone(), 0, (dim as f64).powf(-0.5)).0
    }
}

/// `Sigma_p / sqrt(d)` with the sink as an entry at the origin, from the definitions.
fn covariance(q: &[f64], entries: &[f64], sink: f64) -> Vec<f64> {
    let dim = q.len();
    let root = (dim as f64).sqrt();
    let weight = |c: &[f64]| (q.iter().zip(c).map(|(q, c)| q * c).sum::<f64>() / root).exp();
    let sum: f64 = sink.exp() + entries.chunks(dim).map(weight).sum::<f64>();
    let mean = |f: &dyn Fn(&[f64]) -> f64| entries.chunks(dim).map(|c| weight(c) / sum * f(c)).sum::<f64>();
    let o: Vec<f64> = (0..dim).map(|a| mean(&|c| c[a])).collect();
    (0..dim * dim).map(|at| (mean(&|c| c[at / dim] * c[at % dim]) - o[at / dim] * o[at % dim]) / root).collect()
}

#[test]
fn the_jacobian_is_the_covariance_of_the_entries() {
    let (dim, count) = (6, 9);
    let mut source = Source::new(3);
    let mut normal = |count: usize| numbers(source.normal([count], &device(), DType::F64));
    let (q, entries) = (normal(dim), normal(count * dim));
    for sink in [-1e4, 0.3, 2.0] {
        let read = read_all(&entries, dim, sink);
        let found = jacobian(&q, &read);
        assert_close("automatic", &found, &covariance(&q, &entries, sink), 1e-12);
        let output = |q: &[f64], channel: usize| numbers(read(tensor(q, [1, 1, 1, dim])))[channel];
        let by_difference: Vec<f64> = (0..dim).flat_map(|channel| differences(&q, |q| output(q, channel))).collect();
        assert_close("central difference", &found, &by_difference, 1e-8);
        for at in 0..dim * dim {
            let turned = found[at % dim * dim + at / dim];
            assert!((found[at] - turned).abs() < 1e-13, "symmetric");
        }
        let along = normal(dim);
        let square: f64 = (0..dim * dim).map(|at| along[at / dim] * found[at] * along[at % dim]).sum();
        assert!(square > 0.0, "positive semidefinite: {square}");
    }
}

#[test]
fn the_worked_example() {
    let entries = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
    // A sink so low that nothing falls to it.
    let read = read_all(&entries, 2, -1e4);
    for (q, expected) in [
        ([2.0_f64.sqrt(), 0.0], [0.8446, 0.5777]),
        ([-(2.0_f64.sqrt()), 0.0], [0.4239, 0.7881]),
        ([0.0; 2], [2.0 / 3.0; 2]),
    ] {
        assert_close("output", &numbers(read(tensor(&q, [1, 1, 1, 2]))), &expected, 1e-4);
    }
    let found = jacobian(&[2.0_f64.sqrt(), 0.0], &read);
    assert_close("Jacobian", &found, &[0.0928, -0.0464, -0.0464, 0.1725], 1e-4);
}

#[test]
fn turning_back_keeps_the_jacobian_symmetric() {
    let dim = 6;
    let mut source = Source::new(4);
    let mut normal = |count: usize| numbers(source.normal([count], &device(), DType::F64));
    let (q, entries) = (normal(dim), normal(7 * dim));
    let read = read_all(&entries, dim, 0.0);
    // One position, 5 tokens in.
    let row = |table: Tensor<2>| table.narrow(0, 1, 1);
    let table = RopeTable::new(&rope_frequencies(4, 30.0, None), 2, 5, DType::F64, &device());
    let (cos, sin) = (row(table.cos()), row(table.sin()));
    let turn = |x, inverse| ops::rotate(x, cos.clone(), sin.clone(), inverse);
    let turned = jacobian(&q, |q| turn(read(turn(q, false)), true));
    let left = jacobian(&q, |q| read(turn(q, false)));
    let asymmetry =
        |j: &[f64]| (0..dim * dim).map(|at| (j[at] - j[at % dim * dim + at / dim]).abs()).fold(0.0, f64::max);
    assert!(asymmetry(&turned) < 1e-13);
    assert!(asymmetry(&left) > 1e-3, "without the turn back it is not");
}
