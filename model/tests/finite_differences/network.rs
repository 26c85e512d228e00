//! Whole networks of every mode: the slope of a loss along a random direction of each parameter.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Gradients, Tensor};
use csa2_model::attention::{Context, Phase};
use csa2_model::checkpoint::{ParameterPath, is_indexer};
use csa2_model::config::{FfnConfig, ModelConfig};
use csa2_model::model::{Model, ModelOutput};

use super::common::random::{Source, named};
use super::common::{numbers, small};
use super::{STEP, device, tensor};

/// The direction in which a parameter is moved.
fn direction<const D: usize>(name: &str, dims: [usize; D]) -> Tensor<D> {
    Source(named(name, 0)).normal(dims, &device(), DType::F64)
}

/// The model in f64, one parameter moved.
struct Move<'a> {
    path: ParameterPath,
    moved: &'a str,
    by: f64,
}

impl ModuleMapper for Move<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.official();
        let by = if name == self.moved { self.by } else { 0.0 };
        param.map(|old| {
            let dims = old.dims();
            (tensor(&numbers(old), dims) + direction(&name, dims).mul_scalar(by)).require_grad()
        })
    }
}

fn moved(model: &Model, moved: &str, by: f64) -> Model {
    model.clone().map(&mut Move { path: ParameterPath::default(), moved, by })
}

/// Reads off each parameter's slope along its direction.
struct Slopes<'a> {
    path: ParameterPath,
    grads: &'a Gradients,
    found: BTreeMap<String, f64>,
}

impl ModuleVisitor for Slopes<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.path.official();
        let value = param.val();
        let direction = numbers(direction(&name, value.dims()));
        let slope = value.grad(self.grads).map_or(0.0, |gradient| {
            numbers(gradient).iter().zip(direction).map(|(gradient, direction)| gradient * direction).sum()
        });
        self.found.insert(name, slope);
    }
}

fn check(config: &ModelConfig, phase: Phase, loss: fn(ModelOutput) -> Tensor<1>, checked: fn(&str) -> bool) {
    let mix = &config.layers;
    let shape = [2, 9];
    let cx = Context::new(config, shape[1], DType::F64, &device()).with_phase(phase).with_index_loss(true);
    let tokens = small::ids(&Source::new(5).tokens(shape, small::VOCABULARY), shape, &device());
    let model = moved(&small::model(config, 6, &device()), "", 0.0);
    let total = loss(model.forward(tokens.clone(), &cx));
    assert_eq!(total.dtype(), DType::F64);
    let mut slopes = Slopes { path: ParameterPath::default(), grads: &total.backward(), found: BTreeMap::new() };
    model.visit(&mut slopes);
    for (name, found) in slopes.found.into_iter().filter(|(name, _)| checked(name)) {
        let at = |by: f64| numbers(loss(moved(&model, &name, by).forward(tokens.clone(), &cx)))[0];
        let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
        assert!(expected.abs() > 1e-6, "{mix} {phase:?} {name}: the loss does not depend on it");
        let difference = (found - expected).abs();
        assert!(difference <= 1e-7 * expected.abs().max(1.0), "{mix} {phase:?} {name}: {found} against {expected}");
    }
}

#[test]
fn every_parameter_but_the_indexers_follows_the_logits() {
    let loss = |out: ModelOutput| {
        let weight = Source::new(7).normal(out.logits.dims(), &device(), DType::F64);
        (out.logits * weight).sum()
    };
    for mix in small::MIXES {
        for phase in [Phase::Sparse, Phase::Dense] {
            check(&small::config(mix), phase, loss, |name| !is_indexer(name));
        }
    }
}

#[test]
fn hyper_connections_and_experts_follow_the_logits() {
    let loss = |out: ModelOutput| {
        let weight = Source::new(7).normal(out.logits.dims(), &device(), DType::F64);
        (out.logits * weight).sum()
    };
    for mix in ["swa full@2 reuse", "full+pool reindex"] {
        let mut config = small::released(&small::config(mix));
        // Every expert gets tokens, so that every parameter has a slope.
        if let FfnConfig::Moe { experts, active, .. } = &mut config.ffn {
            *active = *experts;
        }
        // Biases of gates choose and nothing else: they have no slope.
        check(&config, Phase::Sparse, loss, |name| !is_indexer(name) && !name.ends_with("gate.bias"));
    }
}

#[test]
fn unrotated_values_follow_the_logits() {
    let loss = |out: ModelOutput| {
        let weight = Source::new(7).normal(out.logits.dims(), &device(), DType::F64);
        (out.logits * weight).sum()
    };
    for (mix, rope_dim) in [("swa full@2 reindex reuse stale@2 dense", 4), ("full reuse", 6)] {
        let mut config = small::unrotated(&small::config(mix));
        // All channels of a head turn where there are as many.
        (config.rope_dim, config.head_dim) = (rope_dim, if rope_dim == 6 { 6 } else { config.head_dim });
        check(&config, Phase::Sparse, loss, |name| !is_indexer(name));
    }
}

#[test]
fn every_indexer_parameter_follows_the_index_losses() {
    let loss = |out: ModelOutput| out.index_losses.into_iter().map(|(_, loss)| loss).reduce(|a, b| a + b).unwrap();
    for mix in small::MIXES.into_iter().filter(|mix| mix.contains("full")) {
        for phase in [Phase::Sparse, Phase::Dense] {
            check(&small::config(mix), phase, loss, is_indexer);
        }
    }
}
