//! One expert, whose activations are bounded.

use burn::tensor::DType;
use csa2_model::block::SwiGlu;
use csa2_model::checkpoint::load;

use crate::conform::Place;
use crate::conform::check::Check;
use crate::conform::error::CaseError;
use crate::conform::tolerance::COMPONENT;

/// Compares its output, alone and weighted.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    let case = check.case;
    let device = &place.device;
    let [rows, channels] = case.dims("expert.x")?;
    let [width, _] = case.dims("expert.weights.w1.weight")?;
    let limit = case.number("expert_swiglu_limit")?;
    if limit <= 0.0 {
        return Err(CaseError::key("expert_swiglu_limit", format!("is {limit}; it must be above 0")));
    }
    let expert = SwiGlu::new(channels, width, Some(limit), device);
    let expert = load(expert, case.weights("expert.weights.")?, case.name())?;
    let y = expert.forward(case.tensor::<2>("expert.x", [rows, channels], device, DType::F32)?);
    check.tensor("expert.y", y.clone(), COMPONENT)?;
    let route = case.tensor("expert.route", [rows, 1], device, DType::F32)?;
    check.tensor("expert.y_routed", y * route, COMPONENT)
}
