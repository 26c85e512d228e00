//! `c_model*`: logits and loss of a whole model, of a prompt, and of the tokens behind it one by one. Where the JSON has a
//! `quantisation`, the case is of another kind (see [`super::quantized`]).

use burn::tensor::{DType, Device, Tensor};
use csa2_model::attention::{Cache, Context};

use super::quantized;
use crate::conform::Place;
use crate::conform::check::Check;
use crate::conform::error::CaseError;
use crate::conform::network::{Network, compare_loss};
use crate::conform::tolerance::{MODEL, Tolerance};

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
    let device = &place.device;
    if case.find(quantized::KEY).is_some() {
        return quantized::run(check, place, config);
    }
    if case.name().ends_with("_quant") {
        return Err(CaseError::key(quantized::KEY, format!("is missing in {}.json", case.name())));
    }
    let network = Network::load(case, config, device)?;
    whole(check, &network, device, MODEL)?;
    if case.has("prefill_logits") || case.has("decode_logits") {
        in_pieces(check, &network, device)?;
    }
    Ok(())
}

/// One pass over all tokens.
fn whole(check: &mut Check, network: &Network, device: &Device, tolerance: Tolerance) -> Result<(), CaseError> {
    let case = check.case;
    let cx = Context::new(&network.config, network.seq, DType::F32, device);
    let tokens = network.tokens(device);
    let logits = network.model.forward(tokens.clone(), &cx).logits;
    check.tensor("logits", logits.clone(), tolerance)?;
    for name in ["f64.logits", "hf.logits"] {
        if case.has(name) {
            check.tensor(name, logits.clone(), tolerance)?;
        }
    }
    if case.has("loss") {
        compare_loss(check, logits, tokens, tolerance)?;
    }
    Ok(())
}

/// A prompt, then the tokens behind it one by one. The JSON says how long the prompt is.
fn in_pieces(check: &mut Check, network: &Network, device: &Device) -> Result<(), CaseError> {
    let case = check.case;
    let (prompt, end) = (case.size("prefill")?, case.size("decode_to")?);
    if prompt == 0 || prompt >= end || end > network.seq {
        let wrong = format!("is {prompt}, and `decode_to` is {end}: there are {} tokens to divide", network.seq);
        return Err(CaseError::key("prefill", wrong));
    }
    let mut past = Cache::new(network.config.layers.len());
    let mut next = |length: usize| {
        let start = past.len();
        let cx = Context::continued(&network.config, start, length, DType::F32, device);
        network.model.forward_cached(network.tokens(device).narrow(1, start, length), &mut past, &cx).logits
    };
    check.tensor("prefill_logits", next(prompt), MODEL)?;
    let steps = (prompt..end).map(|_| next(1)).collect();
    check.tensor("decode_logits", Tensor::cat(steps, 1), MODEL)
}
