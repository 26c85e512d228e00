//! Normalisation and the gated activation, against their definitions.

use burn::tensor::Tensor;
use csa2_model::ops;

use super::cases;
use super::common::numbers;
use super::common::random::Source;
use super::driver::{Array, Case, Operator, Place, Results, Side, gradient};

/// Rows of `width` numbers.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub batch: usize,
    pub seq: usize,
    pub width: usize,
    /// Numbers are that large.
    pub unit: f64,
    pub views: bool,
}

impl Rows {
    fn dims(&self) -> [usize; 3] {
        [self.batch, self.seq, self.width]
    }

    fn numbers(&self, source: &mut Source) -> Array<f64, 3> {
        let normal = source.normals(self.dims().iter().product());
        Array::new(normal.into_iter().map(|value| value * self.unit).collect(), self.dims())
    }
}

/// Root-mean-square normalisation.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm(pub Rows);

const EPS: f64 = 1e-6;

/// `gamma * x / sqrt(mean(x^2) + eps)`.
fn normalised(x: Tensor<3>, gamma: Tensor<1>, eps: f64) -> Tensor<3> {
    let [_, _, width] = x.dims();
    // Not `div_scalar`, whose gradient is no better than f32 in Burn 0.22.1.
    let mean = (x.clone() * x.clone()).sum_dim(2).mul_scalar(1.0 / width as f64);
    x * mean.add_scalar(eps).sqrt().recip() * gamma.reshape([1, 1, width])
}

impl Operator for RmsNorm {
    const NAME: &'static str = "rms_norm";
    /// The rows, the gain, the gradient.
    type Inputs = (Array<f64, 3>, Array<f64, 1>, Array<f64, 3>);

    fn table() -> &'static [Case<Self>] {
        cases::RMS_NORM
    }

    fn inputs(&self, source: &mut Source) -> Self::Inputs {
        let x = self.0.numbers(source);
        (x, Array::normal(source, [self.0.width]), Array::normal(source, self.0.dims()))
    }

    fn run(&self, side: Side, (x, gamma, grad): &Self::Inputs, place: &Place) -> Results {
        let norm: fn(_, _, _) -> Tensor<3> = match side {
            Side::Operator => ops::rms_norm,
            Side::Reference => normalised,
        };
        let place = place.with_views(self.0.views && matches!(side, Side::Operator));
        let (x, gamma) = (place.leaf(x), place.leaf(gamma));
        let y = norm(x.clone(), gamma.clone(), EPS);
        let grads = (y.clone() * place.constant(grad)).sum().backward();
        let (dx, dgamma) = (gradient(&x, &grads), gradient(&gamma, &grads));
        vec![("normalised", numbers(y)), ("gradient", dx), ("gain gradient", dgamma)]
    }
}

/// The gated activation.
#[derive(Clone, Copy, Debug)]
pub struct Swiglu(pub Rows);

/// `gate / (1 + exp(-gate)) * up`.
fn gated(gate: Tensor<3>, up: Tensor<3>) -> Tensor<3> {
    gate.clone().div(gate.neg().exp().add_scalar(1.0)).mul(up)
}

impl Operator for Swiglu {
    const NAME: &'static str = "swiglu";
    /// Gate, what is gated, the gradient.
    type Inputs = (Array<f64, 3>, Array<f64, 3>, Array<f64, 3>);

    fn table() -> &'static [Case<Self>] {
        cases::SWIGLU
    }

    fn inputs(&self, source: &mut Source) -> Self::Inputs {
        let gate = self.0.numbers(source);
        (gate, Array::normal(source, self.0.dims()), Array::normal(source, self.0.dims()))
    }

    fn run(&self, side: Side, (gate, up, grad): &Self::Inputs, place: &Place) -> Results {
        let activation: fn(_, _) -> Tensor<3> = match side {
            Side::Operator => ops::swiglu,
            Side::Reference => gated,
        };
        let place = place.with_views(self.0.views && matches!(side, Side::Operator));
        let (gate, up) = (place.leaf(gate), place.leaf(up));
        let y = activation(gate.clone(), up.clone());
        let grads = (y.clone() * place.constant(grad)).sum().backward();
        let (dgate, dup) = (gradient(&gate, &grads), gradient(&up, &grads));
        vec![("gated", numbers(y)), ("gate gradient", dgate), ("other gradient", dup)]
    }
}
