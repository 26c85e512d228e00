//! The read-out and the attention mass.

use burn::tensor::{DType, Device, Int, Tensor};
use csa2_model::ops::{self, NAN_ROW, NO_ENTRY, reference};
use proptest::prelude::*;

use super::common::random::Source;
use super::common::{assert_close, assert_relative, numbers};
use super::{FORMATS, copied, gradient, rows};

/// Sizes of one case; `entries` 0 stands for content that does not exist yet, one padding row.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    entries: usize,
    slots: usize,
    width: usize,
}

const fn case([batch, seq, heads, dim]: [usize; 4], entries: usize, slots: usize, width: usize) -> Case {
    Case { batch, seq, heads, dim, entries, slots, width }
}

const CASES: [Case; 11] = [
    case([2, 9, 3, 8], 7, 5, 3),
    case([1, 1, 1, 2], 1, 1, 1),
    case([3, 5, 2, 6], 4, 9, 0),
    case([2, 5, 2, 3], 2, 4, 100),
    case([2, 7, 12, 16], 6, 4, 2),
    case([1, 4, 1, 96], 11, 3, 4),
    case([2, 3, 4, 10], 0, 3, 2),
    case([2, 3, 4, 10], 0, 3, 0),
    case([1, 1, 5, 7], 3, 8, 0),
    case([2, 33, 1, 17], 16, 16, 8),
    case([4, 2, 2, 4], 5, 1, 1),
];

struct Inputs {
    q: Tensor<4>,
    window: Tensor<3>,
    main: Tensor<3>,
    sink: Tensor<1>,
    topk: Tensor<3, Int>,
    grad: Tensor<4>,
}

fn inputs(case: Case, seed: u64, dtype: DType) -> Inputs {
    let device = &Device::flex().autodiff();
    let Case { batch, seq, heads, dim, entries, slots, .. } = case;
    let mut source = Source::new(seed);
    let mut normal = |dims| source.normal(dims, device, dtype);
    let (q, grad) = (normal([batch, seq, heads, dim]).require_grad(), normal([batch, seq, heads, dim]));
    let window = source.normal([batch, seq, dim], device, dtype).require_grad();
    let main = source.normal([batch, entries.max(1), dim], device, dtype).require_grad();
    let sink = source.normal([heads], device, dtype).require_grad();
    let topk = source.lists([batch, seq, slots], entries, device);
    Inputs { q, window, main, sink, topk, grad }
}

type Readout = fn(Tensor<4>, Tensor<3>, Tensor<3>, Tensor<1>, Tensor<3, Int>, usize, f64) -> (Tensor<4>, Tensor<3>);

/// Output, log-sum-exp, and gradients for query, window, main and sink.
fn run(readout: Readout, inputs: &Inputs, width: usize, scale: f64) -> [(&'static str, Vec<f64>); 6] {
    let Inputs { q, window, main, sink, topk, grad } = inputs;
    let (output, lse) = readout(q.clone(), window.clone(), main.clone(), sink.clone(), topk.clone(), width, scale);
    let grads = (output.clone() * grad.clone()).sum().backward();
    [
        ("output", numbers(output)),
        ("log-sum-exp", numbers(lse)),
        ("query gradient", gradient(q, &grads)),
        ("window gradient", gradient(window, &grads)),
        ("main gradient", gradient(main, &grads)),
        ("sink gradient", gradient(sink, &grads)),
    ]
}

fn check(case: Case, seed: u64, scale: f64, dtype: DType, tolerance: f64) {
    let inputs = inputs(case, seed, dtype);
    let fast = run(ops::readout, &inputs, case.width, scale);
    let exact = run(reference::readout, &inputs, case.width, scale);
    for ((name, fast), (_, exact)) in fast.into_iter().zip(exact) {
        assert!(exact.iter().all(|value| value.is_finite()), "{case:?}: {name} of the reference");
        assert_close(&format!("{case:?} {dtype:?}: {name}"), &fast, &exact, tolerance);
    }
}

#[test]
fn readout_of_every_shape() {
    for (dtype, tolerance) in FORMATS {
        for (seed, case) in CASES.into_iter().enumerate() {
            check(case, seed as u64, (case.dim as f64).powf(-0.5), dtype, tolerance);
        }
    }
}

#[test]
fn readout_of_extreme_logits() {
    // Logits of hundreds overflow an exponential without the maximum taken out.
    for (dtype, tolerance) in [(DType::F64, 1e-9), (DType::F32, 2e-3)] {
        check(CASES[0], 50, 60.0, dtype, tolerance);
    }
    for sink in [-800.0, 800.0] {
        let mut case = inputs(CASES[0], 51, DType::F64);
        case.sink = Tensor::<1>::full([3], sink, (&case.q.device(), DType::F64)).require_grad();
        let fast = run(ops::readout, &case, 3, 1.0);
        for ((name, fast), (_, exact)) in fast.into_iter().zip(run(reference::readout, &case, 3, 1.0)) {
            assert_close(&format!("sink {sink}: {name}"), &fast, &exact, 1e-11);
        }
    }
}

#[test]
fn readout_of_views() {
    let device = Device::flex().autodiff();
    let mut source = Source::new(60);
    let mut normal = |dims| source.normal(dims, &device, DType::F32);
    let q = normal([2, 3, 5, 8]).swap_dims(1, 2);
    let grad = normal([2, 5, 3, 8]);
    let window = source.normal::<3>([2, 9, 8], &device, DType::F32).narrow(1, 2, 5);
    let main = source.normal::<3>([2, 8, 4], &device, DType::F32).swap_dims(1, 2);
    let sink = source.normal::<1>([7], &device, DType::F32).narrow(0, 4, 3);
    let topk = source.lists([1, 5, 6], 4, &device).expand([2, 5, 6]);
    let copies = Inputs {
        q: copied(&q).require_grad(),
        window: copied(&window).require_grad(),
        main: copied(&main).require_grad(),
        sink: copied(&sink).require_grad(),
        topk: Tensor::from_data(topk.to_data(), &device),
        grad: grad.clone(),
    };
    let views = Inputs {
        q: q.detach().require_grad(),
        window: window.detach().require_grad(),
        main: main.detach().require_grad(),
        sink: sink.detach().require_grad(),
        topk,
        grad,
    };
    assert_eq!(run(ops::readout, &views, 2, 0.3), run(ops::readout, &copies, 2, 0.3));
    assert_eq!(numbers(copies.q), numbers(views.q), "the copies hold the same numbers");
}

#[test]
fn rows_that_are_not_numbers_are_nan_and_disturb_no_other() {
    let healthy =
        Inputs { topk: rows([[0, 1], [2, 0], [1, NO_ENTRY]]), ..inputs(case([1, 3, 2, 4], 3, 2, 1), 70, DType::F32) };
    let clean = run(ops::readout, &healthy, 1, 0.5);
    // Row 3 does not exist.
    for marked in [[NAN_ROW, NAN_ROW], [1, 3]] {
        let broken = Inputs {
            topk: rows([[0, 1], marked, [1, NO_ENTRY]]),
            ..inputs(case([1, 3, 2, 4], 3, 2, 1), 70, DType::F32)
        };
        let found = run(ops::readout, &broken, 1, 0.5);
        for name in [0, 1, 2] {
            let row = clean[name].1.len() / 3;
            let (found, clean) = (&found[name].1, &clean[name].1);
            assert!(found[row..2 * row].iter().all(|value| value.is_nan()), "{marked:?}: {found:?}");
            assert_eq!(found[..row], clean[..row], "{marked:?}");
            assert_eq!(found[2 * row..], clean[2 * row..], "{marked:?}");
        }
        if marked[0] == NAN_ROW {
            let exact = run(reference::readout, &broken, 1, 0.5);
            let row = exact[0].1.len() / 3;
            assert!(exact[0].1[row..2 * row].iter().all(|value| value.is_nan()), "{exact:?}");
        }
    }
}

#[test]
fn not_a_number_in_any_input_reaches_the_output() {
    let device = Device::flex();
    let nan = |count: usize| Tensor::<1>::full([count], f32::NAN, &device);
    let fresh = || inputs(case([1, 2, 1, 3], 2, 2, 1), 71, DType::F32);
    let read = |case: Inputs| {
        numbers(ops::readout(case.q, case.window, case.main, case.sink, rows([[0, 1], [0, 1]]), 1, 0.5).0)
    };
    let broken = [
        Inputs { q: nan(6).reshape([1, 2, 1, 3]), ..fresh() },
        Inputs { window: nan(6).reshape([1, 2, 3]), ..fresh() },
        Inputs { main: nan(6).reshape([1, 2, 3]), ..fresh() },
        Inputs { sink: nan(1), ..fresh() },
    ];
    assert!(read(fresh()).iter().all(|value| value.is_finite()));
    for (number, case) in broken.into_iter().enumerate() {
        assert!(read(case).iter().all(|value| value.is_nan()), "input {number}");
    }
}

#[test]
fn attention_mass_is_the_readouts_own_weight() {
    for (dtype, tolerance) in FORMATS {
        for (seed, case) in CASES.into_iter().enumerate() {
            let device = Device::flex();
            let Inputs { q, window, main, sink, topk, .. } = inputs(case, 80 + seed as u64, dtype);
            let scale = (case.dim as f64).powf(-0.5);
            let (_, lse) = ops::readout(q.clone(), window, main.clone(), sink, topk.clone(), case.width, scale);
            // The range may differ from what was read.
            let others = Source::new(90 + seed as u64).lists([case.batch, case.seq, 6], case.entries, &device);
            for range in [topk, others] {
                let fast = ops::attention_mass(q.clone(), main.clone(), lse.clone(), range.clone(), scale);
                let exact = reference::attention_mass(q.clone(), main.clone(), lse.clone(), range, scale);
                assert_close(&format!("{case:?} {dtype:?}"), &numbers(fast), &numbers(exact), tolerance);
            }
        }
    }
}

#[test]
fn mass_window_and_sink_share_one_per_head() {
    let (heads, dim, width) = (3, 4, 2);
    let case = inputs(case([1, 5, heads, dim], 6, 4, width), 95, DType::F64);
    let topk = rows([[0, 3, 5, -1], [1, -1, -1, -1], [-1; 4], [0, 1, 2, 3], [2, 2, 4, -1]]);
    let (q, window, sink) = (numbers(case.q.clone()), numbers(case.window.clone()), numbers(case.sink.clone()));
    let (_, lse) = ops::readout(case.q.clone(), case.window, case.main.clone(), case.sink, topk.clone(), width, 0.5);
    let mass = numbers(ops::attention_mass(case.q, case.main, lse.clone(), topk, 0.5));
    let lse = numbers(lse);
    for t in 0..5 {
        let mut total: f64 = mass[t * 4..(t + 1) * 4].iter().sum();
        for (h, sink) in sink.iter().enumerate() {
            let at = t * heads + h;
            total += (sink - lse[at]).exp();
            for i in (t + 1).saturating_sub(width)..=t {
                let logit: f64 = (0..dim).map(|c| 0.5 * q[at * dim + c] * window[i * dim + c]).sum();
                total += (logit - lse[at]).exp();
            }
        }
        assert!((total - heads as f64).abs() < 1e-12, "query {t}: {total}");
    }
}

#[test]
fn a_higher_sink_or_window_logit_takes_mass_from_every_entry() {
    let device = Device::flex();
    let full = |value: f64, dims: [usize; 3]| Tensor::<3>::full(dims, value, (&device, DType::F64));
    let mass = |sink: f64, near: f64| {
        let (q, main) = (full(1.0, [1, 1, 4]).unsqueeze_dim::<4>(2), full(0.3, [1, 2, 4]));
        let (window, sink) = (full(near, [1, 1, 4]), Tensor::<1>::full([1], sink, (&device, DType::F64)));
        let lse = ops::readout(q.clone(), window, main.clone(), sink, rows([[0, 1]]), 1, 0.5).1;
        numbers(ops::attention_mass(q, main, lse, rows([[0, 1]]), 0.5))
    };
    let logit = |value: f64| (4.0 * 0.5 * value).exp();
    for (sink, near) in [(0.0_f64, 0.1), (1.5, 0.1), (0.0, 0.9)] {
        let expected = logit(0.3) / (sink.exp() + logit(near) + 2.0 * logit(0.3));
        assert_close(&format!("sink {sink} window {near}"), &mass(sink, near), &[expected; 2], 1e-13);
    }
    assert!(mass(1.5, 0.1)[0] < mass(0.0, 0.1)[0] && mass(0.0, 0.9)[0] < mass(0.0, 0.1)[0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_readout_agrees_and_stays_in_the_hull(
        sizes in (1_usize..4, 1_usize..12, 1_usize..5, 1_usize..20),
        reach in (0_usize..9, 1_usize..10, 0_usize..14),
        seed in any::<u64>(),
    ) {
        let case = case([sizes.0, sizes.1, sizes.2, sizes.3], reach.0, reach.1, reach.2);
        check(case, seed, (case.dim as f64).powf(-0.5), DType::F64, 1e-11);
        let Inputs { q, window, main, sink, topk, .. } = inputs(case, seed, DType::F64);
        let output = numbers(ops::readout(q, window.clone(), main.clone(), sink, topk, case.width, 0.7).0);
        // Together with the origin, which stands for the sink.
        let all: Vec<f64> = numbers(window).into_iter().chain(numbers(main)).chain(vec![0.0; case.dim]).collect();
        for (at, &value) in output.iter().enumerate() {
            let channel = all.iter().skip(at % case.dim).step_by(case.dim);
            let (low, high) = channel.fold((0.0_f64, 0.0_f64), |(low, high), &c| (low.min(c), high.max(c)));
            prop_assert!(low <= value && value <= high, "{case:?}: {value} outside {low}..{high}");
        }
    }
}

#[test]
fn an_entry_listed_twice_counts_twice() {
    let Inputs { q, window, main, sink, grad, .. } = inputs(case([1, 1, 2, 5], 2, 3, 1), 99, DType::F64);
    let again = Tensor::cat(vec![main.clone(), main.clone().narrow(1, 1, 1)], 1).detach();
    let twice = Inputs {
        q: q.clone(),
        window: window.clone(),
        main,
        sink: sink.clone(),
        topk: rows([[0, 1, 1]]),
        grad: grad.clone(),
    };
    let apart = Inputs { q, window, main: again.require_grad(), sink, topk: rows([[0, 1, 2]]), grad };
    let (twice, apart) = (run(ops::readout, &twice, 1, 0.4), run(ops::readout, &apart, 1, 0.4));
    assert_close("output", &twice[0].1, &apart[0].1, 1e-14);
    let folded: Vec<f64> = (0..10).map(|at| apart[4].1[at] + if at < 5 { 0.0 } else { apart[4].1[at + 5] }).collect();
    assert_relative("main gradient", &twice[4].1, &folded, 1e-13);
}
