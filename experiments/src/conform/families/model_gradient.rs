//! `g_grad_*`: gradients of a model's loss for every parameter.

use burn::tensor::DType;
use csa2_model::attention::Context;

use crate::conform::Place;
use crate::conform::check::Check;
use crate::conform::error::CaseError;
use crate::conform::gradient::compare_gradients;
use crate::conform::network::{Network, compare_loss};
use crate::conform::tolerance::{GRADIENT, MODEL};

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
    let network = Network::load(case, config, device)?;
    let cx = Context::new(&network.config, network.seq, DType::F32, device);
    let tokens = network.tokens(device);
    let logits = network.model.forward(tokens.clone(), &cx).logits;
    check.tensor("logits", logits.clone(), MODEL)?;
    let loss = compare_loss(check, logits, tokens, MODEL)?;
    let grads = loss.backward();
    compare_gradients(check, network.model, &grads, "grad.", GRADIENT)?;
    silent(check)
}

/// The JSON names the parameters without gradient: these have one of zeros in the file, to be met exactly.
fn silent(check: &mut Check) -> Result<(), CaseError> {
    let case = check.case;
    let Some(names) = case.find("params_without_grad") else { return Ok(()) };
    let wrong = || CaseError::key("params_without_grad", "must list names of parameters");
    for name in names.as_array().ok_or_else(wrong)? {
        let name = format!("grad.{}", name.as_str().ok_or_else(wrong)?);
        let stored = case.floats(&name, &case.shape(&name)?)?;
        if stored.values.iter().any(|&value| value != 0.0) {
            let wrong = format!("names {name:?}, which the file has a gradient for that is not zero");
            return Err(CaseError::key("params_without_grad", wrong));
        }
    }
    Ok(())
}
