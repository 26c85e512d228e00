//! `a_*`: the read-out operator and its gradients, in f32 on the backend and in f64 on the CPU.

use burn::tensor::{DType, Device, Tensor};
use csa2_model::ops;

use crate::conform::Place;
use crate::conform::case::{Array, int_tensor};
use crate::conform::check::{Check, numbers};
use crate::conform::error::CaseError;
use crate::conform::gradient::gradient;
use crate::conform::tolerance::{READOUT, READOUT_F64, Tolerance};

/// Compares one case.
///
/// # Errors
/// When the case is not what the family holds, or the device fails.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    let [_, _, _, dim] = check.case.dims("q")?;
    if place.holds(check, "q", dim) {
        compare(check, &place.device, DType::F32, "f32", READOUT)?;
    }
    place.on_cpu(check, |check, cpu| compare(check, cpu, DType::F64, "f64", READOUT_F64))
}

fn compare(
    check: &mut Check,
    device: &Device,
    dtype: DType,
    format: &str,
    tolerance: Tolerance,
) -> Result<(), CaseError> {
    let case = check.case;
    let device = &device.clone().autodiff();
    let [batch, seq, heads, dim] = case.dims("q")?;
    let [_, entries, _] = case.dims("kv")?;
    let [_, _, slots] = case.dims("topk_idxs")?;
    let q = case.tensor("q", [batch, seq, heads, dim], device, dtype)?.require_grad();
    let kv = case.tensor("kv", [batch, entries, dim], device, dtype)?.require_grad();
    let sink = case.tensor("attn_sink", [heads], device, dtype)?.require_grad();
    let listed = case.ints("topk_idxs", &[batch, seq, slots], -1..entries as i64)?;
    let topk = int_tensor(listed.values.clone(), [batch, seq, slots], device);
    let weight = case.tensor::<4>("grad_o", [batch, seq, heads, dim], device, dtype)?;
    let scale = case.number("softmax_scale")?;
    // All entries come from one buffer: the window is empty.
    let window = Tensor::zeros([batch, seq, dim], (device, dtype));
    let (o, lse) = ops::readout(q.clone(), window, kv.clone(), sink.clone(), topk, 0, scale);
    let grads = (o.clone() * weight).sum().backward();

    let name = |part: &str| format!("{format}.{part}");
    check.tensor(&name("o"), o, tolerance)?;
    check.tensor(&name("dq"), gradient(&q, &grads), tolerance)?;
    check.tensor(&name("dkv"), gradient(&kv, &grads), tolerance)?;
    check.tensor(&name("dsink"), gradient(&sink, &grads), tolerance)?;

    // The log-sum-exp of a row without entries has no meaning in the goldens.
    let expected = case.floats(&name("lse"), &[batch, seq, heads])?;
    let written: Vec<bool> = listed.rows().map(|row| row.iter().any(|&entry| entry >= 0)).collect();
    let keep = |values: &[f64]| -> Vec<f64> {
        values.iter().enumerate().filter(|(at, _)| written[at / heads]).map(|(_, &value)| value).collect()
    };
    let found = keep(&numbers(lse)?);
    let values = keep(&expected.values);
    let rows = values.len() / heads;
    let expected = Array { dims: vec![rows, heads], values, ..expected };
    if rows > 0 {
        check.close(&format!("{} (rows with entries)", name("lse")), &found, &expected, tolerance);
    }
    Ok(())
}
