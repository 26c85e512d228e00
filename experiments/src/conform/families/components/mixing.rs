//! The weights of hyper-connections from raw numbers, and their gradient.

use burn::tensor::{DType, Device, Tensor};
use csa2_model::block::split_mixes;

use crate::conform::Place;
use crate::conform::case::Case;
use crate::conform::check::Check;
use crate::conform::error::CaseError;
use crate::conform::gradient::gradient;
use crate::conform::tolerance::COMPONENT;

/// Compares them.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    let case = check.case;
    let device = &place.device.clone().autodiff();
    let [batch, seq, n] = case.dims("sinkhorn.pre")?;
    let (tokens, width) = (batch * seq, n * (n + 2));
    let load = |part: &str, last: usize| rows(case, part, [batch, seq, last], device);
    let raw = load("mixes", width)?.require_grad();
    let scale = case.tensor("sinkhorn.scale", [3], device, DType::F32)?;
    let base = case.tensor("sinkhorn.base", [width], device, DType::F32)?;
    let mixes = split_mixes(&raw, &scale, &base);
    check.tensor("sinkhorn.pre", mixes.pre.clone().reshape([batch, seq, n]), COMPONENT)?;
    check.tensor("sinkhorn.post", mixes.post.clone().reshape([batch, seq, n]), COMPONENT)?;
    check.tensor("sinkhorn.comb", mixes.comb.clone().reshape([batch, seq, n, n]), COMPONENT)?;
    let comb = case.tensor::<4>("sinkhorn.gcomb", [batch, seq, n, n], device, DType::F32)?.reshape([tokens, n, n]);
    let loss =
        (mixes.pre * load("gpre", n)?).sum() + (mixes.post * load("gpost", n)?).sum() + (mixes.comb * comb).sum();
    let grads = loss.backward();
    check.tensor("sinkhorn.dmixes", gradient(&raw, &grads).reshape([batch, seq, width]), COMPONENT)
}

/// A tensor `[B, S, last]` as rows `[B S, last]`.
fn rows(case: &Case, part: &str, dims: [usize; 3], device: &Device) -> Result<Tensor<2>, CaseError> {
    let [batch, seq, last] = dims;
    Ok(case.tensor::<3>(&format!("sinkhorn.{part}"), dims, device, DType::F32)?.reshape([batch * seq, last]))
}
