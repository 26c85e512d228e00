use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use csa2_model::ops::{self, NAN_ROW, NO_ENTRY, reference};

use super::common::random::Source;
use super::common::{assert_close, numbers};
use super::{copied, device, gradient};

/// Sizes of one case: `before` window rows precede the first query; `entries` 0 stands for content that does not exist
/// yet, one padding row.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    before: usize,
    entries: usize,
    slots: usize,
    width: usize,
}

const fn case([batch, seq, heads, dim]: [usize; 4], before: usize, [entries, slots, width]: [usize; 3]) -> Case {
    Case { batch, seq, heads, dim, before, entries, slots, width }
}

struct Inputs {
    q: Tensor<4>,
    window: Tensor<3>,
    main: Tensor<3>,
    sink: Tensor<1>,
    topk: Tensor<3, Int>,
    grad: Tensor<4>,
}

impl Inputs {
    fn new(case: Case, seed: u64) -> Self {
        let device = &Device::flex();
        let Case { batch, seq, heads, dim, before, entries, slots, .. } = case;
        let mut source = Source::new(seed);
        Self {
            q: source.normal([batch, seq, heads, dim], device, DType::F32),
            grad: source.normal([batch, seq, heads, dim], device, DType::F32),
            window: source.normal([batch, before + seq, dim], device, DType::F32),
            main: source.normal([batch, entries.max(1), dim], device, DType::F32),
            sink: source.normal([heads], device, DType::F32),
            topk: source.lists([batch, seq, slots], entries, device),
        }
    }

    /// Leaves of a graph on `device`.
    fn on(&self, device: &Device) -> Self {
        let device = &device.clone().autodiff();
        Self {
            q: copied(&self.q, device).require_grad(),
            window: copied(&self.window, device).require_grad(),
            main: copied(&self.main, device).require_grad(),
            sink: copied(&self.sink, device).require_grad(),
            topk: Tensor::from_data(self.topk.to_data(), device),
            grad: copied(&self.grad, device),
        }
    }
}

type Readout = fn(Tensor<4>, Tensor<3>, Tensor<3>, Tensor<1>, Tensor<3, Int>, usize, f64) -> (Tensor<4>, Tensor<3>);

const RESULTS: [&str; 6] =
    ["output", "log-sum-exp", "query gradient", "window gradient", "main gradient", "sink gradient"];

/// What [`RESULTS`] names.
fn run(readout: Readout, inputs: &Inputs, width: usize, scale: f64) -> [Vec<f64>; 6] {
    let Inputs { q, window, main, sink, topk, grad } = inputs;
    let (output, lse) = readout(q.clone(), window.clone(), main.clone(), sink.clone(), topk.clone(), width, scale);
    let grads = (output.clone() * grad.clone()).sum().backward();
    [
        numbers(output),
        numbers(lse),
        gradient(q, &grads),
        gradient(window, &grads),
        gradient(main, &grads),
        gradient(sink, &grads),
    ]
}

#[test]
fn readout_of_every_shape() {
    let Some(wgpu) = device() else { return };
    let cases = [
        case([2, 9, 3, 16], 0, [7, 5, 3]),
        case([1, 1, 1, 5], 0, [1, 1, 1]),
        case([2, 3, 4, 10], 0, [0, 3, 2]),
        case([2, 3, 2, 16], 0, [0, 3, 0]),
        case([2, 2, 12, 96], 5, [11, 19, 4]),
        case([1, 7, 1, 192], 0, [40, 33, 100]),
        case([1, 3, 5, 512], 2, [9, 6, 3]),
        case([1, 2, 2, 600], 0, [4, 5, 2]),
        // More queries and longer lists than a workgroup has threads.
        case([2, 140, 2, 16], 3, [150, 150, 5]),
    ];
    for (seed, case) in cases.into_iter().enumerate() {
        let inputs = Inputs::new(case, seed as u64);
        let scale = (case.dim as f64).powf(-0.5);
        let here = run(reference::readout, &inputs.on(&Device::flex()), case.width, scale);
        let inputs = inputs.on(&wgpu);
        let there = run(ops::readout, &inputs, case.width, scale);
        for ((what, there), here) in RESULTS.into_iter().zip(&there).zip(&here) {
            let largest = here.iter().fold(1.0_f64, |most, x| most.max(x.abs()));
            assert_close(&format!("{case:?}: {what}"), there, here, 5e-6 * largest);
        }
        // The same bits again.
        for ((what, first), again) in RESULTS.into_iter().zip(there).zip(run(ops::readout, &inputs, case.width, scale))
        {
            assert!(first == again, "{case:?}: {what} of a second run");
        }
    }
}

#[test]
fn rows_that_are_not_numbers_stay_apart() {
    let Some(wgpu) = device() else { return };
    let case = case([1, 4, 2, 8], 0, [3, 3, 2]);
    let mut inputs = Inputs::new(case, 1);
    let lists = [[2, NO_ENTRY, 0], [NAN_ROW; 3], [1, 3, NO_ENTRY], [0, 0, 2]];
    inputs.topk = Tensor::from_data(TensorData::new(lists.concat(), [1, 4, 3]), &Device::flex());
    let here = run(ops::readout, &inputs.on(&Device::flex()), 2, 0.5);
    let there = run(ops::readout, &inputs.on(&wgpu), 2, 0.5);
    for ((what, there), here) in RESULTS.into_iter().zip(&there).zip(&here) {
        let numbers = |values: &[f64]| values.iter().map(|v| v.is_nan()).collect::<Vec<_>>();
        assert_eq!(numbers(there), numbers(here), "{what}");
        let finite = |values: &[f64]| values.iter().copied().filter(|v| !v.is_nan()).collect::<Vec<_>>();
        assert_close(what, &finite(there), &finite(here), 1e-5);
    }
    assert!(there[0].iter().any(|v| v.is_nan()) && there[4].iter().all(|v| v.is_finite()));
}

#[test]
fn no_entries_give_exactly_zero() {
    let Some(wgpu) = device() else { return };
    let case = case([1, 3, 2, 16], 0, [2, 4, 0]);
    let mut inputs = Inputs::new(case, 2);
    inputs.topk = inputs.topk.full_like(NO_ENTRY);
    let [output, lse, rest @ ..] = run(ops::readout, &inputs.on(&wgpu), 0, 1.0);
    assert!(output.iter().all(|&value| value == 0.0));
    assert_close("log-sum-exp", &lse, &numbers(inputs.sink).repeat(3), 1e-6);
    assert!(rest.iter().flatten().all(|&value| value == 0.0));
}
