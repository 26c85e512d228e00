//! `b_attn_grad_*`: gradients of one attention layer for its input and every parameter.

use burn::tensor::DType;
use csa2_model::attention::Context;

use super::attention::{build, layer, shared};
use crate::conform::Place;
use crate::conform::check::Check;
use crate::conform::error::CaseError;
use crate::conform::gradient::{compare_gradients, gradient};
use crate::conform::sizes::check_rows;
use crate::conform::tolerance::{GRADIENT, LAYER};

/// Compares one case.
///
/// # Errors
/// When the case is not what the family holds, or the device fails.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    let case = check.case;
    let config = case.config()?;
    if !place.holds_model(check, &config) {
        return Ok(());
    }
    let device = &place.device.clone().autodiff();
    let layer = layer(case, &config)?;
    let attention = build(case, &config, &layer, device)?;
    let [batch, seq, _] = case.dims("input")?;
    check_rows(&config, batch, seq)?;
    let dims = [batch, seq, config.d_model];
    let x = case.tensor("input", dims, device, DType::F32)?.require_grad();
    let weight = case.tensor("grad_output", dims, device, DType::F32)?;
    let cx = Context::new(&config, seq, DType::F32, device);
    let mut shared = shared(case, &config, &layer, [batch, seq], device)?;
    let out = attention.forward(x.clone(), &mut shared, &cx);
    check.tensor("output", out.output.clone(), LAYER)?;
    let grads = (out.output * weight).sum().backward();
    check.tensor("dinput", gradient(&x, &grads), GRADIENT)?;
    compare_gradients(check, attention, &grads, "grad.", GRADIENT)
}
