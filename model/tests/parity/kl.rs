//! The indexer's loss.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use csa2_model::ops::{self, NAN_ROW, NO_ENTRY, reference};
use proptest::prelude::*;

use super::common::random::Source;
use super::common::{assert_close, numbers};
use super::driver::{Array, Case, Lists, Operator, Place, Results, Side, gradient};
use super::{cases, rows};

/// An indexer's loss.
#[derive(Clone, Copy, Debug)]
pub struct Kl {
    pub batch: usize,
    pub seq: usize,
    pub heads: usize,
    pub dim: usize,
    /// Entries that exist (0: one padding row).
    pub entries: usize,
    /// Places of the range.
    pub width: usize,
    pub lists: Lists,
    pub scores: Scores,
    pub teacher: Teacher,
    pub views: bool,
}

/// Which index scores come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    Normal,
    /// Many are equal, and many products are exactly 0, where the rectifier has its kink.
    Whole,
    /// First one, then the other.
    NormalAndWhole,
    /// Scores of hundreds, exact in f32: an exponential overflows unless the maximum is taken out.
    Large,
    /// All entries the same.
    Equal,
}

/// The teacher's mass. Places without an entry have some too, which must not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teacher {
    /// None on a third of the places.
    Random,
    /// None on any entry of every second query.
    Silent,
    /// All on one place.
    One,
}

/// Inputs on the host.
pub struct Numbers {
    q: Array<f64, 4>,
    keys: Array<f64, 3>,
    weights: Array<f64, 3>,
    teacher: Array<f64, 3>,
    range: Array<i32, 3>,
    grad: Array<f64, 2>,
}

impl Operator for Kl {
    const NAME: &'static str = "index_kl";
    type Inputs = Numbers;

    fn table() -> &'static [Case<Self>] {
        cases::KL
    }

    fn variants(self) -> Vec<Self> {
        match self.scores {
            Scores::NormalAndWhole => [Scores::Normal, Scores::Whole].map(|scores| Self { scores, ..self }).to_vec(),
            _ => vec![self],
        }
    }

    fn inputs(&self, source: &mut Source) -> Numbers {
        let Self { batch, seq, heads, dim, entries, width, .. } = *self;
        let grad = Array::normal(source, [batch, seq]);
        let range = self.lists.make(source, [batch, seq, width], entries);
        let mut teacher = Array::normal(source, [batch, seq, width]);
        for (at, mass) in teacher.values.iter_mut().enumerate() {
            let (row, place) = (at / width, at % width);
            let silent = match self.teacher {
                Teacher::Random => false,
                Teacher::Silent => row % 2 == 0,
                Teacher::One => place != row % width,
            };
            *mass = if silent { 0.0 } else { f64::from((*mass + 0.4).max(0.0) as f32) };
        }
        let dims = ([batch, seq, heads, dim], [batch, entries.max(1), dim], [batch, seq, heads]);
        let mut whole = |largest: [i32; 3], unit: f64| {
            let q = Array::whole(source, dims.0, largest[0], unit);
            let keys = Array::whole(source, dims.1, largest[1], unit);
            (q, keys, Array::whole(source, dims.2, largest[2], unit))
        };
        let (q, keys, weights) = match self.scores {
            Scores::Whole => whole([1, 1, 1], 1.0),
            Scores::Large => whole([6, 6, 2], 1.0),
            Scores::Equal => (Array::full(1.0, dims.0), Array::full(0.5, dims.1), Array::full(0.25, dims.2)),
            Scores::Normal | Scores::NormalAndWhole => {
                let (q, keys) = (Array::normal(source, dims.0), Array::normal(source, dims.1));
                (q, keys, Array::normal(source, dims.2))
            }
        };
        Numbers { q, keys, weights, teacher, range, grad }
    }

    fn run(&self, side: Side, inputs: &Numbers, place: &Place) -> Results {
        let kl: Function = match side {
            Side::Operator => ops::index_kl,
            Side::Reference => reference::index_kl,
        };
        let place = place.with_views(self.views && matches!(side, Side::Operator));
        let placed = Inputs {
            q: place.leaf(&inputs.q),
            keys: place.leaf(&inputs.keys),
            weights: place.leaf(&inputs.weights),
            teacher: place.constant(&inputs.teacher),
            range: place.rows(&inputs.range),
            grad: place.constant(&inputs.grad),
        };
        run(kl, &placed)
    }

    fn slack(&self) -> f64 {
        10.0
    }
}

/// Inputs on a device.
struct Inputs {
    q: Tensor<4>,
    keys: Tensor<3>,
    weights: Tensor<3>,
    teacher: Tensor<3>,
    range: Tensor<3, Int>,
    grad: Tensor<2>,
}

/// Sizes without anything special.
const SMALL: Kl = cases::KL[0].operator;

fn inputs(
    dims: [usize; 4],
    entries: usize,
    width: usize,
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

type Function = fn(Tensor<4>, Tensor<3>, Tensor<3>, Tensor<3>, Tensor<3, Int>) -> Tensor<2>;

/// Loss, and gradients for queries, keys and head weights.
fn run(kl: Function, inputs: &Inputs) -> Results {
    let Inputs { q, keys, weights, teacher, range, grad } = inputs;
    let loss = kl(q.clone(), keys.clone(), weights.clone(), teacher.clone(), range.clone());
    let grads = (loss.clone() * grad.clone()).sum().backward();
    vec![
        ("loss", numbers(loss)),
        ("query gradient", gradient(q, &grads)),
        ("key gradient", gradient(keys, &grads)),
        ("weight gradient", gradient(weights, &grads)),
    ]
}

/// Operator and reference in one format, on the CPU.
fn check(what: &str, inputs: &Inputs, tolerance: f64) {
    let exact = run(reference::index_kl, inputs);
    for ((name, fast), (_, exact)) in run(ops::index_kl, inputs).into_iter().zip(exact) {
        assert!(exact.iter().all(|value| value.is_finite()), "{what}: {name} of the reference");
        assert_close(&format!("{what}: {name}"), &fast, &exact, tolerance);
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
        let dims = [sizes.0, sizes.1, sizes.2, sizes.3];
        let inputs = inputs(dims, entries, width, seed, whole, &Device::flex().autodiff(), DType::F64);
        check(&format!("{dims:?} {entries} {width}"), &inputs, 1e-10);
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
    let Kl { batch, seq, heads, dim, entries, width, .. } = SMALL;
    let case = inputs([batch, seq, heads, dim], entries, width, 30, false, &device, DType::F32);
    let teacher = case.teacher.require_grad();
    let grads = ops::index_kl(case.q.clone(), case.keys, case.weights, teacher.clone(), case.range).sum().backward();
    assert!(teacher.grad(&grads).is_none());
    assert!(gradient(&case.q, &grads).iter().any(|&g| g != 0.0));
}
