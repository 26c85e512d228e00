//! The read-out.

use burn::tensor::{DType, Device, Int, Tensor};
use csa2_model::ops::{self, NAN_ROW, NO_ENTRY, reference};
use proptest::prelude::*;

use super::common::random::Source;
use super::common::{assert_close, assert_relative, numbers};
use super::driver::{Array, Case, Lists, Operator, Place, Results, Side, compare_numbers, gradient};
use super::{cases, copied, rows};

/// A read-out of one size; `entries` 0 stands for content that does not exist yet, one padding row.
#[derive(Clone, Copy, Debug)]
pub struct Readout {
    pub batch: usize,
    /// Queries.
    pub seq: usize,
    /// Window rows before the first query.
    pub before: usize,
    pub heads: usize,
    pub dim: usize,
    pub entries: usize,
    /// Places of a list.
    pub slots: usize,
    /// Reach of the window.
    pub width: usize,
    pub lists: Lists,
    pub values: Values,
    pub views: bool,
}

/// The numbers of a read-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    Normal,
    /// Many logits are equal.
    Whole,
    /// Logits of hundreds, exact in f32: an exponential overflows unless the maximum is taken out.
    Large,
    /// All sinks at this value.
    Sink(i32),
}

/// The inputs of a read-out on the host.
pub struct Numbers {
    pub q: Array<f64, 4>,
    pub window: Array<f64, 3>,
    pub main: Array<f64, 3>,
    pub sink: Array<f64, 1>,
    pub topk: Array<i32, 3>,
    pub grad: Array<f64, 4>,
    pub scale: f64,
}

impl Operator for Readout {
    const NAME: &'static str = "readout";
    type Inputs = Numbers;

    fn table() -> &'static [Case<Self>] {
        cases::READOUT
    }

    fn inputs(&self, source: &mut Source) -> Numbers {
        let Self { batch, seq, before, heads, dim, entries, slots, .. } = *self;
        let (q, window) = ([batch, seq, heads, dim], [batch, before + seq, dim]);
        let main = [batch, entries.max(1), dim];
        let grad = Array::normal(source, q);
        let topk = self.lists.make(source, [batch, seq, slots], entries);
        let scale = (dim as f64).powf(-0.5);
        let exact = |largest: i32, scale: f64, source: &mut Source| {
            let (q, window) = (Array::whole(source, q, largest, 1.0), Array::whole(source, window, largest, 1.0));
            let main = Array::whole(source, main, largest, 1.0);
            let sink = Array::whole(source, [heads], largest, scale);
            Numbers { q, window, main, sink, topk: topk.clone(), grad: grad.clone(), scale }
        };
        match self.values {
            Values::Whole => exact(1, 0.25, source),
            Values::Large => exact(4, 2.0, source),
            Values::Normal | Values::Sink(_) => {
                let (q, window) = (Array::normal(source, q), Array::normal(source, window));
                let main = Array::normal(source, main);
                let sink = match self.values {
                    Values::Sink(value) => Array::full(value.into(), [heads]),
                    _ => Array::normal(source, [heads]),
                };
                Numbers { q, window, main, sink, topk, grad, scale }
            }
        }
    }

    /// Output, log-sum-exp, and gradients for query, window, main and sink.
    fn run(&self, side: Side, inputs: &Numbers, place: &Place) -> Results {
        let read: Function = match side {
            Side::Operator => ops::readout,
            Side::Reference => reference::readout,
        };
        let placed = inputs.on(&place.with_views(self.views && matches!(side, Side::Operator)));
        run(read, &placed, self.width, inputs.scale)
    }

    fn slack(&self) -> f64 {
        match self.values {
            // The log-sum-exp of hundreds has lost three digits.
            Values::Large => 200.0,
            // Sums over thousands of queries.
            _ if self.seq > 1000 => 10.0,
            _ => 1.0,
        }
    }

    fn marked(&self) -> bool {
        self.lists == Lists::Marked
    }

    fn compare(&self, what: &str, _: &Numbers, found: &Results, expected: &Results, place: &Place) {
        // A row that is not a number makes the loss one too: what its gradients are is left open.
        let kept = if self.marked() { 2 } else { found.len() };
        let (found, expected) = (found[..kept].to_vec(), expected[..kept].to_vec());
        compare_numbers(what, &found, &expected, place, self.slack(), self.marked());
    }
}

impl Numbers {
    fn on(&self, place: &Place) -> Inputs {
        Inputs {
            q: place.leaf(&self.q),
            window: place.leaf(&self.window),
            main: place.leaf(&self.main),
            sink: place.leaf(&self.sink),
            topk: place.rows(&self.topk),
            grad: place.constant(&self.grad),
        }
    }
}

/// Inputs on a device.
struct Inputs {
    q: Tensor<4>,
    window: Tensor<3>,
    main: Tensor<3>,
    sink: Tensor<1>,
    topk: Tensor<3, Int>,
    grad: Tensor<4>,
}

/// Sizes without anything special.
const SMALL: Readout = cases::READOUT[0].operator;

fn case([batch, seq, heads, dim]: [usize; 4], entries: usize, slots: usize, width: usize) -> Readout {
    Readout { batch, seq, heads, dim, entries, slots, width, ..SMALL }
}

fn inputs(case: Readout, seed: u64, dtype: DType) -> Inputs {
    let device = &Device::flex().autodiff();
    let Readout { batch, seq, before, heads, dim, entries, slots, .. } = case;
    let mut source = Source::new(seed);
    let mut normal = |dims| source.normal(dims, device, dtype);
    let (q, grad) = (normal([batch, seq, heads, dim]).require_grad(), normal([batch, seq, heads, dim]));
    let window = source.normal([batch, before + seq, dim], device, dtype).require_grad();
    let main = source.normal([batch, entries.max(1), dim], device, dtype).require_grad();
    let sink = source.normal([heads], device, dtype).require_grad();
    let topk = source.lists([batch, seq, slots], entries, device);
    Inputs { q, window, main, sink, topk, grad }
}

type Function = fn(Tensor<4>, Tensor<3>, Tensor<3>, Tensor<1>, Tensor<3, Int>, usize, f64) -> (Tensor<4>, Tensor<3>);

/// Output, log-sum-exp, and gradients for query, window, main and sink.
fn run(readout: Function, inputs: &Inputs, width: usize, scale: f64) -> Results {
    let Inputs { q, window, main, sink, topk, grad } = inputs;
    let (output, lse) = readout(q.clone(), window.clone(), main.clone(), sink.clone(), topk.clone(), width, scale);
    let grads = (output.clone() * grad.clone()).sum().backward();
    vec![
        ("output", numbers(output)),
        ("log-sum-exp", numbers(lse)),
        ("query gradient", gradient(q, &grads)),
        ("window gradient", gradient(window, &grads)),
        ("main gradient", gradient(main, &grads)),
        ("sink gradient", gradient(sink, &grads)),
    ]
}

/// Operator and reference in one format, on the CPU.
fn check(case: Readout, seed: u64, scale: f64, dtype: DType, tolerance: f64) {
    let inputs = inputs(case, seed, dtype);
    let fast = run(ops::readout, &inputs, case.width, scale);
    let exact = run(reference::readout, &inputs, case.width, scale);
    for ((name, fast), (_, exact)) in fast.into_iter().zip(exact) {
        assert!(exact.iter().all(|value| value.is_finite()), "{case:?}: {name} of the reference");
        assert_close(&format!("{case:?} {dtype:?}: {name}"), &fast, &exact, tolerance);
    }
}

#[test]
fn readout_of_extreme_logits() {
    // Logits of hundreds overflow an exponential without the maximum taken out.
    for (dtype, tolerance) in [(DType::F64, 1e-9), (DType::F32, 2e-3)] {
        check(SMALL, 50, 60.0, dtype, tolerance);
    }
    for sink in [-800.0, 800.0] {
        let mut case = inputs(SMALL, 51, DType::F64);
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
    let broken = vec![
        Inputs { q: nan(6).reshape([1, 2, 1, 3]), ..fresh() },
        Inputs { window: nan(6).reshape([1, 2, 3]), ..fresh() },
        Inputs { main: nan(6).reshape([1, 2, 3]), ..fresh() },
        Inputs { sink: nan(1), ..fresh() },
        // All on the sink would be infinity divided by infinity.
        Inputs { sink: Tensor::full([1], f32::INFINITY, &device), ..fresh() },
    ];
    assert!(read(fresh()).iter().all(|value| value.is_finite()));
    for (number, case) in broken.into_iter().enumerate() {
        assert!(read(case).iter().all(|value| value.is_nan()), "input {number}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_readout_agrees_and_stays_in_the_hull(
        sizes in (1_usize..4, 1_usize..12, 1_usize..5, 1_usize..20),
        reach in (0_usize..9, 1_usize..10, 0_usize..14),
        before in prop_oneof![Just(0), 0_usize..20],
        seed in any::<u64>(),
    ) {
        let case = Readout { before, ..case([sizes.0, sizes.1, sizes.2, sizes.3], reach.0, reach.1, reach.2) };
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
