//! `h_*`: components, each alone.

mod expert;
mod gate;
mod mixing;
mod rope;
mod window;

use burn::tensor::DType;
use csa2_model::config::ModelConfig;
use csa2_model::ops;

use crate::conform::Place;
use crate::conform::check::Check;
use crate::conform::error::CaseError;
use crate::conform::tolerance::COMPONENT;

/// Compares one case.
///
/// # Errors
/// When the case is not what the family holds, or the device fails.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    rope::run(check, place)?;
    norm(check, place)?;
    mixing::run(check, place)?;
    gate::run(check, place)?;
    expert::run(check, place)?;
    window::run(check)
}

/// `RMSNorm`. Its epsilon is the JSON's, or the released model's where that has none.
fn norm(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    let case = check.case;
    let [rows, channels] = case.dims("rmsnorm.x")?;
    let eps = match case.find("norm_eps") {
        Some(_) => case.number("norm_eps")?,
        None => ModelConfig::deepseek_v41_flash()?.norm_eps,
    };
    let x = case.tensor::<2>("rmsnorm.x", [rows, channels], &place.device, DType::F32)?;
    let gain = case.tensor("rmsnorm.weight", [channels], &place.device, DType::F32)?;
    check.tensor("rmsnorm.y", ops::rms_norm(x, gain, eps), COMPONENT)
}
