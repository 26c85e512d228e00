//! Residual streams: balancing, reading and writing.

use burn::tensor::{DType, Device, Tensor, TensorData};
use csa2_model::ops::{self, HYPER_EPS, SINKHORN_ROUNDS};

use super::cases;
use super::common::random::Source;
use super::common::{assert_close, numbers};
use super::driver::{Array, Case, Operator, Place, Results, Side, gradient};

/// Tokens with `streams` streams of `channels` each.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    pub rows: usize,
    pub count: usize,
    pub channels: usize,
    /// Logits and streams are that large.
    pub unit: f64,
    pub views: bool,
}

impl Streams {
    fn scaled<const D: usize>(&self, source: &mut Source, dims: [usize; D]) -> Array<f64, D> {
        let normal = source.normals(dims.iter().product());
        Array::new(normal.into_iter().map(|value| value * self.unit).collect(), dims)
    }
}

/// Balanced matrices.
#[derive(Clone, Copy, Debug)]
pub struct Sinkhorn(pub Streams);

/// Softmax, then columns, then rows and columns in turn, each divided by its sum.
fn balanced(logits: Tensor<3>) -> Tensor<3> {
    // Small logits only: no maximum is taken off.
    let power = logits.exp();
    let mut x = (power.clone() / power.sum_dim(2)).add_scalar(HYPER_EPS);
    for division in 0..2 * SINKHORN_ROUNDS - 1 {
        let axis = if division % 2 == 0 { 1 } else { 2 };
        x = x.clone() / x.sum_dim(axis).add_scalar(HYPER_EPS);
    }
    x
}

impl Operator for Sinkhorn {
    const NAME: &'static str = "sinkhorn";
    /// Logits and the gradient.
    type Inputs = (Array<f64, 3>, Array<f64, 3>);

    fn table() -> &'static [Case<Self>] {
        cases::SINKHORN
    }

    fn inputs(&self, source: &mut Source) -> Self::Inputs {
        let dims = [self.0.rows, self.0.count, self.0.count];
        (self.0.scaled(source, dims), Array::normal(source, dims))
    }

    fn run(&self, side: Side, (logits, grad): &Self::Inputs, place: &Place) -> Results {
        let balance: fn(_) -> Tensor<3> = match side {
            Side::Operator => ops::sinkhorn,
            Side::Reference => balanced,
        };
        let place = place.with_views(self.0.views && matches!(side, Side::Operator));
        let logits = place.leaf(logits);
        let y = balance(logits.clone());
        let grads = (y.clone() * place.constant(grad)).sum().backward();
        vec![("balanced", numbers(y)), ("gradient", gradient(&logits, &grads))]
    }
}

/// What a part reads.
#[derive(Clone, Copy, Debug)]
pub struct Read(pub Streams);

/// One stream after the other.
#[allow(clippy::needless_pass_by_value, reason = "the operator's signature")]
fn read(streams: Tensor<3>, pre: Tensor<2>) -> Tensor<2> {
    let [rows, n, channels] = streams.dims();
    let stream = |i| streams.clone().narrow(1, i, 1).reshape([rows, channels]) * pre.clone().narrow(1, i, 1);
    (1..n).fold(stream(0), |sum, i| sum + stream(i))
}

impl Operator for Read {
    const NAME: &'static str = "hyper_read";
    /// Streams, weights, the gradient.
    type Inputs = (Array<f64, 3>, Array<f64, 2>, Array<f64, 2>);

    fn table() -> &'static [Case<Self>] {
        cases::HYPER_READ
    }

    fn inputs(&self, source: &mut Source) -> Self::Inputs {
        let Streams { rows, count, channels, .. } = self.0;
        let pre = Array::normal(source, [rows, count]);
        (self.0.scaled(source, [rows, count, channels]), pre, Array::normal(source, [rows, channels]))
    }

    fn run(&self, side: Side, (streams, pre, grad): &Self::Inputs, place: &Place) -> Results {
        let function: fn(_, _) -> Tensor<2> = match side {
            Side::Operator => ops::hyper_read,
            Side::Reference => read,
        };
        let place = place.with_views(self.0.views && matches!(side, Side::Operator));
        let (streams, pre) = (place.leaf(streams), place.leaf(pre));
        let y = function(streams.clone(), pre.clone());
        let grads = (y.clone() * place.constant(grad)).sum().backward();
        vec![("read", numbers(y)), ("streams", gradient(&streams, &grads)), ("weights", gradient(&pre, &grads))]
    }
}

/// The streams after a part.
#[derive(Clone, Copy, Debug)]
pub struct Write(pub Streams);

/// Stream by stream.
#[allow(clippy::needless_pass_by_value, reason = "the operator's signature")]
fn written(streams: Tensor<3>, output: Tensor<2>, post: Tensor<2>, comb: Tensor<3>) -> Tensor<3> {
    let [rows, n, channels] = streams.dims();
    let into = |j| {
        let stream = |i: usize| {
            let weight = comb.clone().narrow(1, i, 1).narrow(2, j, 1).reshape([rows, 1]);
            streams.clone().narrow(1, i, 1).reshape([rows, channels]) * weight
        };
        let written = output.clone() * post.clone().narrow(1, j, 1);
        (0..n).fold(written, |sum, i| sum + stream(i)).reshape([rows, 1, channels])
    };
    Tensor::cat((0..n).map(into).collect(), 1)
}

impl Operator for Write {
    const NAME: &'static str = "hyper_write";
    /// Streams, output, both kinds of weights, the gradient.
    type Inputs = (Array<f64, 3>, Array<f64, 2>, Array<f64, 2>, Array<f64, 3>, Array<f64, 3>);

    fn table() -> &'static [Case<Self>] {
        cases::HYPER_WRITE
    }

    fn inputs(&self, source: &mut Source) -> Self::Inputs {
        let Streams { rows, count, channels, .. } = self.0;
        (
            self.0.scaled(source, [rows, count, channels]),
            Array::normal(source, [rows, channels]),
            Array::normal(source, [rows, count]),
            Array::normal(source, [rows, count, count]),
            Array::normal(source, [rows, count, channels]),
        )
    }

    fn run(&self, side: Side, (streams, output, post, comb, grad): &Self::Inputs, place: &Place) -> Results {
        let function: fn(_, _, _, _) -> Tensor<3> = match side {
            Side::Operator => ops::hyper_write,
            Side::Reference => written,
        };
        let place = place.with_views(self.0.views && matches!(side, Side::Operator));
        let (streams, output) = (place.leaf(streams), place.leaf(output));
        let (post, comb) = (place.leaf(post), place.leaf(comb));
        let y = function(streams.clone(), output.clone(), post.clone(), comb.clone());
        let grads = (y.clone() * place.constant(grad)).sum().backward();
        vec![
            ("written", numbers(y)),
            ("streams", gradient(&streams, &grads)),
            ("output", gradient(&output, &grads)),
            ("post", gradient(&post, &grads)),
            ("comb", gradient(&comb, &grads)),
        ]
    }
}

/// What is added to a whole row changes nothing, however far beyond what an exponential holds.
#[test]
fn balancing_of_rows_far_from_zero() {
    let options = (&Device::flex(), DType::F64);
    let shape = [2, 3, 3];
    let logits = Source::new(4).normal::<3>(shape, options.0, options.1);
    let rows: Vec<f64> = [1000.0, -1000.0, 0.0, 2000.0, 3000.0, 4000.0].iter().flat_map(|&row| [row; 3]).collect();
    let far = logits.clone() + Tensor::from_data(TensorData::new(rows, shape), options);
    assert_close("balanced", &numbers(ops::sinkhorn(far)), &numbers(ops::sinkhorn(logits)), 1e-11);
}
