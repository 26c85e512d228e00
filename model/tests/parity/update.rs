//! The language model's loss and the optimizer's update.

use burn::tensor::{Int, Tensor, TensorData};
use csa2_model::ops::{self, AdamwStep, reference};

use super::cases;
use super::common::numbers;
use super::common::random::Source;
use super::driver::{Array, Case, Operator, Place, Results, Side, gradient};

/// Rows of logits.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    pub rows: usize,
    pub vocabulary: usize,
    /// Logits are that large.
    pub unit: f64,
    /// The first row's target does not exist.
    pub outside: Option<i32>,
}

impl Operator for CrossEntropy {
    const NAME: &'static str = "cross_entropy";
    /// Logits, gradients of the losses, targets.
    type Inputs = (Array<f64, 2>, Array<f64, 1>, Vec<i32>);

    fn table() -> &'static [Case<Self>] {
        cases::CROSS_ENTROPY
    }

    fn inputs(&self, source: &mut Source) -> Self::Inputs {
        let dims = [self.rows, self.vocabulary];
        let normal = source.normals(self.rows * self.vocabulary);
        let logits = Array::new(normal.into_iter().map(|value| value * self.unit).collect(), dims);
        let mut targets: Vec<i32> = (0..self.rows).map(|row| (row * 7 % self.vocabulary) as i32).collect();
        if let Some(outside) = self.outside {
            targets[0] = outside;
        }
        (logits, Array::normal(source, [self.rows]), targets)
    }

    fn run(&self, side: Side, (logits, grad, targets): &Self::Inputs, place: &Place) -> Results {
        let loss: fn(_, _) -> Tensor<1> = match side {
            Side::Operator => ops::cross_entropy,
            Side::Reference => reference::cross_entropy,
        };
        let logits = place.leaf(logits);
        let targets = Tensor::<1, Int>::from_data(TensorData::new(targets.clone(), [self.rows]), &place.device);
        let losses = loss(logits.clone(), targets);
        let grads = (losses.clone() * place.constant(grad)).sum().backward();
        let mut dlogits = gradient(&logits, &grads);
        if self.outside.is_some() {
            // What such a row passes down is not defined, only that its loss shows.
            dlogits.drain(..self.vocabulary);
        }
        vec![("losses", numbers(losses)), ("gradient", dlogits)]
    }

    fn marked(&self) -> bool {
        self.outside.is_some()
    }
}

/// A parameter of that many numbers, and a step.
#[derive(Clone, Copy, Debug)]
pub struct Adamw {
    pub count: usize,
    pub step: AdamwStep,
}

impl Operator for Adamw {
    const NAME: &'static str = "adamw";
    /// Parameter, gradient, moments.
    type Inputs = [Array<f64, 1>; 4];

    fn table() -> &'static [Case<Self>] {
        cases::ADAMW
    }

    fn inputs(&self, source: &mut Source) -> Self::Inputs {
        let [parameter, gradient, first, mut second] = std::array::from_fn(|_| Array::normal(source, [self.count]));
        for value in &mut second.values {
            *value = value.abs();
        }
        [parameter, gradient, first, second]
    }

    fn run(&self, side: Side, inputs: &Self::Inputs, place: &Place) -> Results {
        let update: fn(_, _, _, _, _) -> (Tensor<1>, Tensor<1>, Tensor<1>) = match side {
            Side::Operator => ops::adamw,
            Side::Reference => reference::adamw,
        };
        let [parameter, gradient, first, second] = inputs.each_ref().map(|array| place.constant(array));
        let (parameter, first, second) = update(parameter, gradient, first, second, self.step);
        vec![("parameter", numbers(parameter)), ("first moment", numbers(first)), ("second moment", numbers(second))]
    }
}
