//! Gradients of tensors and of whole modules.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Gradients, Tensor};
use csa2_model::checkpoint::{Weight, weights};

use super::case::{Array, Case};
use super::check::Check;
use super::error::CaseError;
use super::tolerance::Tolerance;

/// The gradient of `tensor`, zeros where it has none.
pub fn gradient<const D: usize>(tensor: &Tensor<D>, grads: &Gradients) -> Tensor<D> {
    tensor.grad(grads).unwrap_or_else(|| tensor.clone().inner().zeros_like())
}

/// Gradients of every parameter of `module`, by official name; zeros where there is none.
///
/// # Errors
/// When the device cannot be read.
fn gradients<M: Module>(module: M, grads: &Gradients) -> Result<BTreeMap<String, Weight>, CaseError> {
    Ok(weights(&module.map(&mut TakeGradient(grads)))?)
}

/// Replaces every parameter by its gradient, so that it can be read by official name and in the official layout.
struct TakeGradient<'a>(&'a Gradients);

impl ModuleMapper for TakeGradient<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| Tensor::from_inner(gradient(&value, self.0)))
    }
}

/// Compares the gradients of every parameter of `module` with the tensors that the case holds below `prefix`; both must have
/// the same parameters.
///
/// # Errors
/// When the case lacks a gradient or has one too many, or the device cannot be read.
pub fn compare_gradients<M: Module>(
    check: &mut Check,
    module: M,
    grads: &Gradients,
    prefix: &str,
    tolerance: Tolerance,
) -> Result<(), CaseError> {
    let found = gradients(module, grads)?;
    only_these(check.case, prefix, &found)?;
    for (name, Weight { dims, values }) in found {
        let name = format!("{prefix}{name}");
        let expected: Array = check.case.floats(&name, &dims)?;
        let values: Vec<f64> = values.into_iter().map(f64::from).collect();
        check.close(&name, &values, &expected, tolerance);
    }
    Ok(())
}

/// Refuses gradients of parameters that the module does not have.
fn only_these(case: &Case, prefix: &str, there: &BTreeMap<String, Weight>) -> Result<(), CaseError> {
    let unknown = |name: &&str| name.strip_prefix(prefix).is_some_and(|name| !there.contains_key(name));
    match case.names().find(unknown) {
        None => Ok(()),
        Some(name) => Err(CaseError::Format {
            file: format!("{}.safetensors", case.name()),
            wrong: format!("{name} is the gradient of a parameter that the module does not have"),
        }),
    }
}
