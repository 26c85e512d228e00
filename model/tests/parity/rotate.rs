//! Rotation.

use burn::tensor::{DType, Device, Tensor};
use csa2_model::attention::{RopeTable, rope_frequencies};
use csa2_model::ops::{self, reference};

use super::common::random::Source;
use super::common::{assert_close, numbers};
use super::{FORMATS, copied, gradient};

/// `[B, S, H, d]` and the rotary channels.
const CASES: [([usize; 4], usize); 6] = [
    ([2, 5, 3, 8], 4),
    ([1, 1, 1, 2], 2),
    ([3, 7, 12, 16], 16),
    ([2, 4, 1, 96], 6),
    ([1, 9, 2, 7], 2),
    ([2, 3, 4, 6], 6),
];

#[test]
fn rotation_of_every_shape() {
    let device = Device::flex().autodiff();
    for (dtype, tolerance) in FORMATS {
        for (seed, (dims, rotary)) in CASES.into_iter().enumerate() {
            let table = RopeTable::new(&rope_frequencies(rotary, 100.0, None), dims[1], 3, dtype, &device);
            let mut source = Source::new(seed as u64);
            let x = source.normal(dims, &device, dtype).require_grad();
            let weight = source.normal(dims, &device, dtype);
            for inverse in [false, true] {
                let run = |rotate: fn(Tensor<4>, Tensor<2>, Tensor<2>, bool) -> Tensor<4>| {
                    let y = rotate(x.clone(), table.cos(), table.sin(), inverse);
                    let grads = (y.clone() * weight.clone()).sum().backward();
                    (numbers(y), gradient(&x, &grads))
                };
                let (fast, exact) = (run(ops::rotate), run(reference::rotate));
                let what = format!("{dims:?} {dtype:?} inverse {inverse}");
                assert_close(&what, &fast.0, &exact.0, tolerance);
                assert_close(&format!("{what}: gradient"), &fast.1, &exact.1, tolerance);
            }
        }
    }
}

#[test]
fn turning_back_restores_and_keeps_lengths() {
    let device = Device::flex();
    let x = Source::new(7).normal([2, 6, 3, 10], &device, DType::F64);
    let table = RopeTable::new(&rope_frequencies(8, 50.0, None), 6, 1, DType::F64, &device);
    let turned = table.rotate(x.clone());
    assert_close("restored", &numbers(table.rotate_back(turned.clone())), &numbers(x.clone()), 1e-14);
    let lengths = |y: Tensor<4>| numbers(y.square().sum_dim(3));
    assert_close("lengths", &lengths(turned.clone()), &lengths(x.clone()), 1e-13);
    let still = |y: Tensor<4>| numbers(y.narrow(3, 0, 2));
    assert_eq!(still(turned.clone()), still(x.clone()), "the first channels stay");
    let moved = |y: Tensor<4>| numbers(y.narrow(1, 1, 5).narrow(3, 2, 8));
    assert!(moved(turned).iter().zip(moved(x)).all(|(a, b)| (a - b).abs() > 1e-12), "the last channels turn");
}

#[test]
fn the_product_depends_on_the_distance_alone() {
    let device = Device::flex();
    let table = RopeTable::new(&rope_frequencies(8, 50.0, None), 12, 1, DType::F64, &device);
    let mut source = Source::new(8);
    let mut everywhere = || table.rotate(source.normal([1, 1, 1, 8], &device, DType::F64).repeat_dim(1, 12));
    let (q, k) = (numbers(everywhere()), numbers(everywhere()));
    let product = |t: usize, j: usize| -> f64 { (0..8).map(|c| q[t * 8 + c] * k[j * 8 + c]).sum() };
    for shift in 1..7 {
        assert!((product(5, 2) - product(5 + shift, 2 + shift)).abs() < 1e-12);
    }
    assert!((product(5, 2) - product(5, 3)).abs() > 1e-3);
}

#[test]
fn rotation_of_a_view() {
    let device = Device::flex();
    let table = RopeTable::new(&rope_frequencies(4, 50.0, None), 5, 1, DType::F32, &device);
    let x = Source::new(9).normal([2, 3, 9, 6], &device, DType::F32).swap_dims(1, 2).narrow(1, 3, 5);
    assert_eq!(numbers(table.rotate(x.clone())), numbers(table.rotate(copied(&x))));
}
