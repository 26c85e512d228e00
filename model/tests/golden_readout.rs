//! The read-out operator against the golden cases `a_*`: padded, ragged, duplicated indices, a row without entries.
#![cfg(feature = "flex")]

mod common;

use burn::tensor::{DType, Device, Tensor};
use common::{Golden, assert_close, numbers};
use csa2_model::ops;

const CASES: [&str; 6] = ["basic", "dup", "layout", "long", "padded", "ragged"];

/// Output, log-sum-exp and gradients of a case, by the operator or by the reference, in one number format.
fn check(case: &str, dtype: DType, reference: bool) {
    let golden = Golden::load(&format!("a_sparse_attn_{case}"));
    let (format, tolerance) = if dtype == DType::F64 { ("f64", 1e-9) } else { ("f32", 1e-5) };
    let device = Device::flex().autodiff();
    let q = golden.tensor::<4>("q", &device, dtype).require_grad();
    let kv = golden.tensor::<3>("kv", &device, dtype).require_grad();
    let sink = golden.tensor::<1>("attn_sink", &device, dtype).require_grad();
    let topk = golden.indices::<3>("topk_idxs", &device);
    let scale = golden.about["softmax_scale"].as_f64().unwrap();
    let [batch, seq, _, dim] = q.dims();
    // All entries come from one buffer: the window is empty.
    let window = Tensor::<3>::zeros([batch, seq, dim], (&device, dtype));
    let run = if reference { ops::reference::readout } else { ops::readout };
    let (o, lse) = run(q.clone(), window, kv.clone(), sink.clone(), topk.clone(), 0, scale);
    let weight = golden.tensor::<4>("grad_o", &device, dtype);
    let grads = (o.clone() * weight).sum().backward();

    let name = |part: &str| format!("{format}.{part}");
    let expect = |part: &str| golden.values(&name(part));
    assert_close(&name("o"), &numbers(o), &expect("o"), tolerance);
    assert_close(&name("dq"), &numbers(q.grad(&grads).unwrap()), &expect("dq"), tolerance);
    assert_close(&name("dkv"), &numbers(kv.grad(&grads).unwrap()), &expect("dkv"), tolerance);
    assert_close(&name("dsink"), &numbers(sink.grad(&grads).unwrap()), &expect("dsink"), tolerance);

    // The log-sum-exp of a row without entries has no meaning in the goldens.
    let heads = sink.dims()[0];
    let slots = topk.dims()[2];
    let rows = common::ints(topk);
    let listed = |at: usize| rows[at / heads * slots..(at / heads + 1) * slots].iter().any(|&i| i >= 0);
    let keep = |values: Vec<f64>| -> Vec<f64> {
        values.into_iter().enumerate().filter(|(at, _)| listed(*at)).map(|(_, v)| v).collect()
    };
    assert_close(&name("lse"), &keep(numbers(lse)), &keep(expect("lse")), tolerance);
}

#[test]
fn operator_in_f64() {
    for case in CASES {
        check(case, DType::F64, false);
    }
}

#[test]
fn operator_in_f32() {
    for case in CASES {
        check(case, DType::F32, false);
    }
}

#[test]
fn reference_in_f64() {
    for case in CASES {
        check(case, DType::F64, true);
    }
}

#[test]
fn reference_in_f32() {
    for case in CASES {
        check(case, DType::F32, true);
    }
}

#[test]
fn a_row_without_entries_is_exactly_zero() {
    let golden = Golden::load("a_sparse_attn_ragged");
    let device = Device::flex();
    let q = golden.tensor::<4>("q", &device, DType::F32);
    let kv = golden.tensor::<3>("kv", &device, DType::F32);
    let sink = golden.tensor::<1>("attn_sink", &device, DType::F32);
    let topk = golden.indices::<3>("topk_idxs", &device).mul_scalar(0).sub_scalar(1);
    let (o, lse) = ops::readout(q.clone(), q.clone().narrow(2, 0, 1).squeeze_dim(2), kv, sink.clone(), topk, 0, 1.0);
    assert!(numbers(o).iter().all(|&value| value == 0.0));
    let sinks = numbers(sink);
    assert_close("lse", &numbers(lse)[..sinks.len()], &sinks, 1e-6);
}
