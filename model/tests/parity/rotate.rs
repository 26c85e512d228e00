//! Rotation.

use burn::tensor::{DType, Device, Tensor};
use csa2_model::attention::{RopeTable, rope_frequencies};
use csa2_model::ops::{self, reference};

use super::common::random::Source;
use super::common::{assert_close, numbers};
use super::driver::{Array, Case, Operator, Place, Results, Side, gradient};
use super::{cases, copied};

/// A rotation, in both directions.
#[derive(Clone, Copy, Debug)]
pub struct Rotate {
    pub batch: usize,
    pub seq: usize,
    pub heads: usize,
    pub dim: usize,
    /// Rotary channels.
    pub rotary: usize,
    pub views: bool,
}

impl Operator for Rotate {
    const NAME: &'static str = "rotate";
    /// The vectors, cosine, sine, and the gradient.
    type Inputs = (Array<f64, 4>, Array<f64, 2>, Array<f64, 2>, Array<f64, 4>);

    fn table() -> &'static [Case<Self>] {
        cases::ROTATE
    }

    fn inputs(&self, source: &mut Source) -> Self::Inputs {
        let Self { batch, seq, heads, dim, rotary, .. } = *self;
        let (dims, angles) = ([batch, seq, heads, dim], [seq, rotary / 2]);
        let turns = source.normals(seq * rotary / 2);
        let table = |function: fn(f64) -> f64| turns.iter().map(|turn| function(10.0 * turn)).collect();
        let (cos, sin) = (Array::new(table(f64::cos), angles), Array::new(table(f64::sin), angles));
        (Array::normal(source, dims), cos, sin, Array::normal(source, dims))
    }

    fn run(&self, side: Side, (x, cos, sin, grad): &Self::Inputs, place: &Place) -> Results {
        let rotate: fn(_, _, _, _) -> Tensor<4> = match side {
            Side::Operator => ops::rotate,
            Side::Reference => reference::rotate,
        };
        let place = place.with_views(self.views && matches!(side, Side::Operator));
        let turn = |inverse: bool| {
            let x = place.leaf(x);
            let y = rotate(x.clone(), place.constant(cos), place.constant(sin), inverse);
            let grads = (y.clone() * place.constant(grad)).sum().backward();
            (numbers(y), gradient(&x, &grads))
        };
        let (forwards, backwards) = (turn(false), turn(true));
        vec![
            ("turned", forwards.0),
            ("gradient", forwards.1),
            ("turned back", backwards.0),
            ("gradient of turning back", backwards.1),
        ]
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

#[test]
fn rotation_of_a_part_that_nobody_else_holds() {
    let device = Device::flex();
    let table = RopeTable::new(&rope_frequencies(4, 50.0, None), 5, 1, DType::F32, &device);
    // Contiguous, but with other numbers of the same memory before and behind it.
    let part = || Source::new(9).normal([1, 9, 3, 6], &device, DType::F32).narrow(1, 3, 5);
    assert_eq!(numbers(table.rotate(part())), numbers(table.rotate(copied(&part()))));
}
