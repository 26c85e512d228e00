//! Where a forward pass goes wrong first.

use burn::tensor::{Device, Tensor, TensorReadError};
use csa2_model::attention::Context;
use csa2_model::model::Model;
use csa2_model::ops::NAN_ROW;

use crate::evaluate::tokens;
use crate::tasks::Batch;

/// Runs a batch again: the first layer behind which the residual stream is not finite, and whether that layer's index scores
/// are to blame. None if all of it is finite.
///
/// # Errors
/// When the device cannot be read.
pub(crate) fn broken_layer(
    model: &Model,
    batch: &Batch,
    cx: &Context,
    device: &Device,
) -> Result<Option<String>, TensorReadError> {
    let mut first = Ok(None);
    let output = model.forward_watched(tokens(batch, device), &cx.clone().with_trace(true), |layer, stream| {
        if let Ok(None) = first {
            first = finite(stream.read().abs().sum()).map(|fine| (!fine).then_some(layer));
        }
    });
    let Some(layer) = first? else { return Ok(None) };
    let mode = model.layers()[layer].attention().mode();
    let trace = &output.traces[layer].attn;
    let unranked = trace.index_query.is_some() && trace.topk.clone().min().try_into_scalar::<i32>()? == NAN_ROW;
    let what = if unranked { "the index scores of layer" } else { "the residual stream after layer" };
    Ok(Some(format!("{what} {layer} ({mode})")))
}

/// Whether a sum of magnitudes is finite.
///
/// # Errors
/// When the device cannot be read.
pub(crate) fn finite(sum: Tensor<1>) -> Result<bool, TensorReadError> {
    Ok(sum.try_into_scalar::<f32>()?.is_finite())
}
