//! `c_trace*`: a whole model layer by layer; its tokens and weights are those of the case that the JSON names as `of`.

use burn::tensor::DType;
use csa2_model::attention::Context;

use crate::conform::Place;
use crate::conform::block::{Held, compare};
use crate::conform::check::Check;
use crate::conform::error::CaseError;
use crate::conform::network::Network;
use crate::conform::tolerance::MODEL;

/// Compares one case.
///
/// # Errors
/// When the case or the one that it belongs to is not what the family holds, or the device fails.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    let model = check.case.sibling("of")?;
    let config = model.config()?;
    if !place.holds_model(check, &config) {
        return Ok(());
    }
    let device = &place.device;
    let network = Network::load(&model, config, device)?;
    let cx = Context::new(&network.config, network.seq, DType::F32, device).with_trace(true);
    let traces = network.model.forward(network.tokens(device), &cx).traces;
    for (layer, trace) in network.config.layers.layers().iter().zip(traces) {
        let prefix = format!("layers.{}.", layer.index);
        let held = Held { prefix: &prefix, tolerance: MODEL, whole: false, margins: None };
        compare(check, &network.config, layer, trace, &held)?;
    }
    Ok(())
}
