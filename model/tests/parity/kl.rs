//! The indexer's loss.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use csa2_model::ops::{self, NAN_ROW, NO_ENTRY, reference};
use proptest::prelude::*;

use super::common::random::Source;
use super::common::{assert_close, numbers};
use super::{FORMATS, gradient, rows};

/// `[B, S, H_I, d_I]`, entries (0: one padding row) and the width of the range.
const CASES: [([usize; 4], usize, usize); 8] = [
    ([2, 6, 3, 8], 5, 4),
    ([1, 1, 1, 1], 1, 1),
    ([3, 4, 1, 5], 4, 9),
    ([2, 3, 12, 16], 6, 3),
    ([1, 5, 2, 96], 9, 9),
    ([2, 3, 2, 4], 0, 3),
    ([1, 1, 4, 7], 3, 8),
    ([2, 17, 2, 3], 8, 5),
];

struct Inputs {
    q: Tensor<4>,
    keys: Tensor<3>,
    weights: Tensor<3>,
    teacher: Tensor<3>,
    range: Tensor<3, Int>,
    grad: Tensor<2>,
}

/// `whole`: whole numbers, among them many products that are exactly 0, where the rectifier has its kink.
fn inputs(
    (dims, entries, width): ([usize; 4], usize, usize),
    seed: u64,
    whole: bool,
    device: &Device,
    dtype: DType,
) -> Inputs {
    let [batch, seq, heads, dim] = dims;
    let mut source = Source::new(seed);
    let grad = source.normal([batch, seq], device, dtype);
    // A third of the places without mass; places without an entry have some too, which must not count.
    let teacher = source.normal([batch, seq, width], device, dtype).add_scalar(0.4).clamp_min(0.0);
    let range = source.lists([batch, seq, width], entries, device);
    let keys = [batch, entries.max(1), dim];
    let (q, keys, weights) = if whole {
        let q = source.whole(dims, 1, device, dtype);
        (q, source.whole(keys, 1, device, dtype), source.whole([batch, seq, heads], 1, device, dtype))
    } else {
        let q = source.normal(dims, device, dtype);
        (q, source.normal(keys, device, dtype), source.normal([batch, seq, heads], device, dtype))
    };
    let (q, keys, weights) = (q.require_grad(), keys.require_grad(), weights.require_grad());
    Inputs { q, keys, weights, teacher, range, grad }
}

type Kl = fn(Tensor<4>, Tensor<3>, Tensor<3>, Tensor<3>, Tensor<3, Int>) -> Tensor<2>;

/// Loss, and gradients for queries, keys and head weights.
fn run(kl: Kl, inputs: &Inputs) -> [(&'static str, Vec<f64>); 4] {
    let Inputs { q, keys, weights, teacher, range, grad } = inputs;
    let loss = kl(q.clone(), keys.clone(), weights.clone(), teacher.clone(), range.clone());
    let grads = (loss.clone() * grad.clone()).sum().backward();
    [
        ("loss", numbers(loss)),
        ("query gradient", gradient(q, &grads)),
        ("key gradient", gradient(keys, &grads)),
        ("weight gradient", gradient(weights, &grads)),
    ]
}

fn check(what: &str, inputs: &Inputs, tolerance: f64) {
    let exact = run(reference::index_kl, inputs);
    for ((name, fast), (_, exact)) in run(ops::index_kl, inputs).into_iter().zip(exact) {
        assert!(exact.iter().all(|value| value.is_finite()), "{what}: {name} of the reference");
        assert_close(&format!("{what}: {name}"), &fast, &exact, tolerance);
    }
}

#[test]
fn loss_and_gradients_of_every_shape() {
    let device = Device::flex().autodiff();
    for (dtype, tolerance) in FORMATS {
        for (seed, case) in CASES.into_iter().enumerate() {
            for whole in [false, true] {
                let inputs = inputs(case, seed as u64, whole, &device, dtype);
                check(&format!("{case:?} {dtype:?} whole {whole}"), &inputs, 10.0 * tolerance);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_loss_agrees_and_is_not_negative(
        sizes in (1_usize..4, 1_usize..8, 1_usize..5, 1_usize..12),
        entries in 0_usize..9,
        width in 1_usize..10,
        whole in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let case = ([sizes.0, sizes.1, sizes.2, sizes.3], entries, width);
        let inputs = inputs(case, seed, whole, &Device::flex().autodiff(), DType::F64);
        check(&format!("{case:?}"), &inputs, 1e-10);
        for loss in numbers(ops::index_kl(inputs.q, inputs.keys, inputs.weights, inputs.teacher, inputs.range)) {
            prop_assert!(loss >= -1e-14, "{loss}");
        }
    }
}

/// Scores equal to `scores`, all positive, from one head.
fn by_hand(scores: [f64; 3], teacher: [f64; 3], range: [i32; 3]) -> f64 {
    let options = (&Device::flex(), DType::F64);
    let keys = Tensor::<3>::from_data(TensorData::new(scores.to_vec(), [1, 3, 1]), options);
    let one = Tensor::<3>::ones([1, 1, 1], options);
    let teacher = Tensor::<3>::from_data(TensorData::new(teacher.to_vec(), [1, 1, 3]), options);
    numbers(ops::index_kl(one.clone().unsqueeze_dim(3), keys, one, teacher, rows([range])))[0]
}

#[test]
fn losses_by_hand() {
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found} against {expected}");
    let ln2 = 2.0_f64.ln();
    // Student 1/5, 2/5, 2/5 against teacher 1/4, 1/4, 1/2, whatever the teacher's total.
    let expected = 0.25 * (1.25_f64.ln() + 0.625_f64.ln()) + 0.5 * 1.25_f64.ln();
    close(by_hand([1.0, 1.0 + ln2, 1.0 + ln2], [3.0, 3.0, 6.0], [0, 1, 2]), expected);
    // An entry that is not listed is in neither distribution.
    close(by_hand([1.0, 1.0 + ln2, 50.0], [3.0, 3.0, 6.0], [0, 1, NO_ENTRY]), 0.5 * (1.5_f64.ln() + 0.75_f64.ln()));
    // A teacher without mass on an entry: the entry stays in the student's sum.
    close(by_hand([1.0, 1.0 + ln2, 1.0], [0.0, 2.0, 0.0], [0, 1, 2]), 2.0_f64.ln());
    close(by_hand([1.0, 2.0, 3.0], [0.0; 3], [0, 1, 2]), 0.0);
    close(by_hand([1.0, 2.0, 3.0], [1.0; 3], [NO_ENTRY; 3]), 0.0);
    close(by_hand([1.0, 2.0, 3.0], [1.0; 3], [NAN_ROW; 3]), 0.0);
    // Scores far beyond what an exponential holds.
    close(by_hand([2000.0, 2000.0, 1.0], [1.0, 1.0, 0.0], [0, 1, 2]), 0.0);
}

#[test]
fn not_a_number_reaches_the_loss() {
    assert!(by_hand([f64::NAN, 1.0, 2.0], [1.0; 3], [0, 1, 2]).is_nan());
    assert!(by_hand([1.0, 1.0, 2.0], [f64::NAN, 1.0, 1.0], [0, 1, 2]).is_nan());
    assert!(by_hand([f64::NAN, 1.0, 2.0], [1.0; 3], [NO_ENTRY, 1, 2]).is_finite(), "an entry that is not listed");
}

#[test]
fn the_teacher_takes_no_gradient() {
    let device = Device::flex().autodiff();
    let case = inputs(CASES[0], 30, false, &device, DType::F32);
    let teacher = case.teacher.require_grad();
    let grads = ops::index_kl(case.q.clone(), case.keys, case.weights, teacher.clone(), case.range).sum().backward();
    assert!(teacher.grad(&grads).is_none());
    assert!(gradient(&case.q, &grads).iter().any(|&g| g != 0.0));
}
