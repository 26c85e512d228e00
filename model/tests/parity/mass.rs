//! The attention mass, which is the indexer's teacher.

use burn::tensor::{DType, Device, Tensor};
use csa2_model::ops::{self, reference};

use super::common::random::Source;
use super::common::{assert_close, numbers};
use super::driver::{Array, Case, Lists, Operator, Place, Results, Side};
use super::readout::{Numbers, Readout, Values};
use super::{cases, rows};

/// A read-out, and the range of entries whose mass is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Mass {
    pub read: Readout,
    pub range: Range,
}

/// Entries whose mass is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Range {
    /// The ones that were read.
    Read,
    /// Other lists, of this many places: an entry may have more mass there than it had share in the softmax.
    Other(Lists, usize),
}

impl Operator for Mass {
    const NAME: &'static str = "attention_mass";
    /// Inputs of the read-out, its log-sum-exp, the range.
    type Inputs = (Numbers, Array<f64, 3>, Array<i32, 3>);

    fn table() -> &'static [Case<Self>] {
        cases::MASS
    }

    fn inputs(&self, source: &mut Source) -> Self::Inputs {
        let read = self.read.inputs(source);
        let flex = Place::flex(DType::F64);
        let (_, lse) = reference::readout(
            flex.constant(&read.q),
            flex.constant(&read.window),
            flex.constant(&read.main),
            flex.constant(&read.sink),
            flex.rows(&read.topk),
            self.read.width,
            read.scale,
        );
        let Readout { batch, seq, entries, .. } = self.read;
        let range = match self.range {
            Range::Read => read.topk.clone(),
            Range::Other(lists, places) => lists.make(source, [batch, seq, places], entries),
        };
        (read, Array::of(lse), range)
    }

    fn run(&self, side: Side, (read, lse, range): &Self::Inputs, place: &Place) -> Results {
        let mass: fn(_, _, _, _, _) -> _ = match side {
            Side::Operator => ops::attention_mass,
            Side::Reference => reference::attention_mass,
        };
        let place = place.with_views(self.read.views && matches!(side, Side::Operator));
        // Inputs that take a gradient elsewhere: none arrives from here.
        let (q, main) = (place.leaf(&read.q), place.leaf(&read.main));
        let mass: Tensor<3> = mass(q, main, place.constant(lse), place.rows(range), read.scale);
        assert!(!mass.is_require_grad());
        vec![("mass", numbers(mass))]
    }

    fn slack(&self) -> f64 {
        // A logit of hundreds minus a log-sum-exp as large.
        if self.read.values == Values::Large { 10.0 } else { 1.0 }
    }
}

#[test]
fn mass_window_and_sink_share_one_per_head() {
    let (heads, dim, width) = (3, 4, 2);
    let device = Device::flex();
    let mut source = Source::new(95);
    let q = source.normal([1, 5, heads, dim], &device, DType::F64);
    let (window, main) =
        (source.normal([1, 5, dim], &device, DType::F64), source.normal([1, 6, dim], &device, DType::F64));
    let sink = source.normal([heads], &device, DType::F64);
    let topk = rows([[0, 3, 5, -1], [1, -1, -1, -1], [-1; 4], [0, 1, 2, 3], [2, 2, 4, -1]]);
    let (_, lse) = ops::readout(q.clone(), window.clone(), main.clone(), sink.clone(), topk.clone(), width, 0.5);
    let mass = numbers(ops::attention_mass(q.clone(), main, lse.clone(), topk, 0.5));
    let (q, window, sink, lse) = (numbers(q), numbers(window), numbers(sink), numbers(lse));
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

/// The read-out's log-sum-exp and the mass are rounded alike: no weight exceeds 1, however large the logits are.
#[test]
fn a_weight_is_at_most_one_at_logits_of_every_size() {
    let (heads, dim) = (2, 40);
    for unit in [1.0, 1e3, 1e5] {
        for seed in 0..5 {
            let device = Device::flex();
            let mut source = Source::new(200 + seed);
            let mut normal = |dims: [usize; 3]| source.normal::<3>(dims, &device, DType::F32).mul_scalar(unit);
            let q = normal([1, 5, heads * dim]).reshape([1, 5, heads, dim]);
            let (window, main) = (normal([1, 5, dim]), normal([1, 6, dim]));
            let sink = Tensor::<1>::zeros([heads], &device);
            let topk = rows([[0, 3, 5, -1], [1, -1, -1, -1], [4, 5, 0, 2], [0, 1, 2, 3], [2, 3, 4, -1]]);
            let scale = (dim as f64).powf(-0.5);
            let (_, lse) = ops::readout(q.clone(), window, main.clone(), sink, topk.clone(), 2, scale);
            let mass = numbers(ops::attention_mass(q, main, lse, topk, scale));
            assert!(mass.iter().all(|&mass| mass <= heads as f64 * (1.0 + 1e-5)), "{unit} {seed}: {mass:?}");
            assert!(mass.iter().any(|&mass| mass > 0.0), "{unit} {seed}: {mass:?}");
        }
    }
}
