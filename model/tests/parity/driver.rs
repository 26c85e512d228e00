//! One driver for every operator and backend: inputs made on the host, expected values from the reference in f64.

use std::collections::BTreeMap;
use std::fmt::Debug;

use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData};

use super::common::random::{Source, named};
use super::common::{assert_close, assert_relative, numbers};

/// One row of an operator's table.
pub struct Case<O> {
    pub name: &'static str,
    pub operator: O,
    /// Whether every backend runs it. What only the CPU runs would add kernels to compile, and nothing that these test.
    #[cfg_attr(not(any(feature = "wgpu", feature = "cuda")), allow(dead_code, reason = "there is only the CPU"))]
    pub everywhere: bool,
}

/// What a computation gives: by name, all numbers.
pub type Results = Vec<(&'static str, Vec<f64>)>;

/// Who computes.
#[derive(Clone, Copy)]
pub enum Side {
    Operator,
    Reference,
}

/// An operator at one size and with one kind of input.
pub trait Operator: Copy + Debug + Sync + 'static {
    /// What it is called.
    const NAME: &'static str;
    /// How often a case is repeated on the CPU, with other random numbers.
    const REPEATS: u64 = 1;
    /// Inputs on the host.
    type Inputs: Sync;

    /// The table, in `cases.rs`.
    fn table() -> &'static [Case<Self>];

    /// The cases that one row stands for.
    fn variants(self) -> Vec<Self> {
        vec![self]
    }

    /// Random inputs, each of them a number of f32.
    fn inputs(&self, source: &mut Source) -> Self::Inputs;

    /// Results and gradients of every input that takes one.
    fn run(&self, side: Side, inputs: &Self::Inputs, place: &Place) -> Results;

    /// Factor on the tolerance of a single number, for inputs that lose more digits than most.
    fn slack(&self) -> f64 {
        1.0
    }

    /// Whether the result may hold something that is not a number.
    fn marked(&self) -> bool {
        false
    }

    /// Fails unless the results agree.
    fn compare(&self, what: &str, _inputs: &Self::Inputs, found: &Results, expected: &Results, place: &Place) {
        compare_numbers(what, found, expected, place, self.slack(), self.marked());
    }
}

/// How close two numbers must be.
#[derive(Clone, Copy, Debug)]
pub enum Tolerance {
    /// Each number, absolutely below 1 and relatively above.
    Each(f64),
    /// Relative to the largest expected number of the tensor.
    #[cfg_attr(not(any(feature = "wgpu", feature = "cuda")), allow(dead_code, reason = "for graphics cards"))]
    Largest(f64),
}

/// Where and in which format tensors are made.
#[derive(Clone, Debug)]
pub struct Place {
    pub device: Device,
    pub dtype: DType,
    /// Tensors are views: neither contiguous, nor at the start of their memory, nor alone in it.
    pub views: bool,
    pub tolerance: Tolerance,
}

impl Place {
    /// The CPU, with the agreement that can be asked of a format.
    pub fn flex(dtype: DType) -> Self {
        let tolerance = Tolerance::Each(if dtype == DType::F64 { 1e-12 } else { 1e-5 });
        Self { device: Device::flex().autodiff(), dtype, views: false, tolerance }
    }

    /// A graphics card.
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    pub fn gpu(device: &Device) -> Self {
        let tolerance = Tolerance::Largest(1e-4);
        Self { device: device.clone().autodiff(), dtype: DType::F32, views: false, tolerance }
    }

    pub fn with_views(&self, views: bool) -> Self {
        Self { views, ..self.clone() }
    }

    /// A constant.
    pub fn constant<const D: usize>(&self, array: &Array<f64, D>) -> Tensor<D> {
        let options = (&self.device, self.dtype);
        if !self.views {
            return Tensor::from_data(TensorData::new(array.values.clone(), array.dims), options);
        }
        let around = array.surrounded(f64::NAN);
        let tensor = Tensor::<D>::from_data(TensorData::new(around.values, around.dims), options);
        let tensor = if D > 1 { tensor.swap_dims(D - 2, D - 1) } else { tensor };
        tensor.narrow(D - 1, BEFORE, array.dims[D - 1]).detach()
    }

    /// A tensor whose gradient is asked for.
    pub fn leaf<const D: usize>(&self, array: &Array<f64, D>) -> Tensor<D> {
        self.constant(array).require_grad()
    }

    /// Row numbers.
    pub fn rows(&self, array: &Array<i32, 3>) -> Tensor<3, Int> {
        if !self.views {
            return Tensor::from_data(TensorData::new(array.values.clone(), array.dims), &self.device);
        }
        let around = array.surrounded(1_000_000);
        let tensor = Tensor::<3, Int>::from_data(TensorData::new(around.values, around.dims), &self.device);
        tensor.swap_dims(1, 2).narrow(2, BEFORE, array.dims[2])
    }
}

/// Numbers before and after each row of a view.
const BEFORE: usize = 1;
const AFTER: usize = 2;

/// A tensor on the host.
#[derive(Clone, Debug)]
pub struct Array<T, const D: usize> {
    pub dims: [usize; D],
    pub values: Vec<T>,
}

impl<const D: usize> Array<f64, D> {
    /// Numbers, rounded to those of f32.
    pub fn new(values: Vec<f64>, dims: [usize; D]) -> Self {
        assert_eq!(values.len(), dims.iter().product::<usize>());
        Self { dims, values: values.into_iter().map(|value| f64::from(value as f32)).collect() }
    }

    /// Standard normal numbers.
    pub fn normal(source: &mut Source, dims: [usize; D]) -> Self {
        Self::new(source.normals(dims.iter().product()), dims)
    }

    /// Whole numbers of at most `largest`, times `unit`.
    pub fn whole(source: &mut Source, dims: [usize; D], largest: i32, unit: f64) -> Self {
        let values = source.wholes(dims.iter().product(), largest);
        Self::new(values.into_iter().map(|value| value * unit).collect(), dims)
    }

    pub fn full(value: f64, dims: [usize; D]) -> Self {
        Self::new(vec![value; dims.iter().product()], dims)
    }

    /// The numbers of a tensor.
    pub fn of(tensor: Tensor<D>) -> Self {
        let dims = tensor.dims();
        Self::new(numbers(tensor), dims)
    }
}

impl<T: Copy, const D: usize> Array<T, D> {
    /// The last two axes swapped, with some of `filling` around each row: what [`Place::constant`] makes a view of.
    fn surrounded(&self, filling: T) -> Self {
        let columns = self.dims[D - 1];
        let rows = if D > 1 { self.dims[D - 2] } else { 1 };
        let wide = BEFORE + columns + AFTER;
        let mut dims = self.dims;
        dims[D - 1] = wide;
        if D > 1 {
            dims.swap(D - 2, D - 1);
        }
        let mut values = vec![filling; self.values.len() / columns * wide];
        let matrices = self.values.chunks_exact(rows * columns).zip(values.chunks_exact_mut(rows * wide));
        for (from, into) in matrices {
            for (at, &value) in from.iter().enumerate() {
                into[(BEFORE + at % columns) * rows + at / columns] = value;
            }
        }
        Self { dims, values }
    }
}

/// Row numbers for every query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// A third of the lists empty; gaps, repetitions and any order in the others.
    Random,
    /// Ascending, ever more of them along the sequence, the rest of the places without an entry.
    Ragged,
    /// No entry in any list.
    None,
    /// One or two entries, over and over.
    Duplicates,
    /// Different entries in any order.
    Unsorted,
    /// As [`Lists::Random`], but every second row says that its scores were not numbers.
    Marked,
}

impl Lists {
    pub fn make(self, source: &mut Source, dims: [usize; 3], entries: usize) -> Array<i32, 3> {
        use csa2_model::ops::{NAN_ROW, NO_ENTRY};
        use rand::RngExt;
        use rand::seq::SliceRandom;

        let [batch, seq, width] = dims;
        let mut values = source.list_values(dims, entries);
        for row in 0..batch * seq {
            let list = &mut values[row * width..(row + 1) * width];
            match self {
                Lists::Ragged | Lists::Unsorted => {
                    let seen = if self == Lists::Ragged { (row % seq + 1) * entries / seq } else { entries };
                    let mut all: Vec<i32> = (0..seen as i32).collect();
                    all.shuffle(&mut source.0);
                    all.truncate(width);
                    if self == Lists::Ragged {
                        all.sort_unstable();
                    }
                    all.resize(width, NO_ENTRY);
                    list.copy_from_slice(&all);
                }
                Lists::None => list.fill(NO_ENTRY),
                Lists::Duplicates => {
                    let two = [0; 2].map(|_| source.0.random_range(0..entries) as i32);
                    list.iter_mut().enumerate().for_each(|(place, index)| *index = two[usize::from(place % 3 == 1)]);
                }
                Lists::Marked if row % 2 == 1 => list.fill(NAN_ROW),
                Lists::Random | Lists::Marked => {}
            }
        }
        Array { dims, values }
    }
}

/// The gradient of a leaf, zeros where none arrived.
pub fn gradient<const D: usize>(tensor: &Tensor<D>, grads: &Gradients) -> Vec<f64> {
    numbers(tensor.grad(grads).unwrap_or_else(|| tensor.clone().inner().zeros_like()))
}

/// Fails unless all numbers agree; what is not a number must be so on both sides.
pub fn compare_numbers(what: &str, found: &Results, expected: &Results, place: &Place, slack: f64, marked: bool) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        let what = format!("{what}: {name}");
        assert_eq!(found.len(), expected.len(), "{what}: count");
        let (mut kept, mut right) = (found.clone(), expected.clone());
        for (at, (a, e)) in kept.iter_mut().zip(&mut right).enumerate() {
            assert!(marked || e.is_finite(), "{what}[{at}] of the reference: {e}");
            assert_eq!(a.is_nan(), e.is_nan(), "{what}[{at}]: {a} against {e}");
            if e.is_nan() {
                (*a, *e) = (0.0, 0.0);
            }
        }
        match place.tolerance {
            Tolerance::Each(tolerance) => assert_close(&what, &kept, &right, slack * tolerance),
            Tolerance::Largest(tolerance) => {
                // A tensor of small numbers is not asked for digits that the sums behind it never had.
                let floor = 1e-2;
                let largest = right.iter().fold(0.0_f64, |m, e| m.max(e.abs()));
                if largest < floor {
                    assert_close(&what, &kept, &right, tolerance * floor);
                } else {
                    assert_relative(&what, &kept, &right, tolerance);
                }
            }
        }
    }
}

/// The bits of all results.
pub fn bits(results: &Results) -> Vec<(&'static str, Vec<u64>)> {
    results.iter().map(|(name, values)| (*name, values.iter().map(|value| value.to_bits()).collect())).collect()
}

/// Compares operator and reference on the same numbers in `places`; in each place a second run gives the same bits.
/// Returns the largest magnitude of every result.
pub fn check<O: Operator>(what: &str, operator: O, seed: u64, places: &[Place]) -> BTreeMap<&'static str, f64> {
    let inputs = operator.inputs(&mut Source(named(what, seed)));
    let exact = operator.run(Side::Reference, &inputs, &Place::flex(DType::F64));
    for place in places {
        let what = format!("{}: {what} [seed {seed}, {:?}] {operator:?}", O::NAME, place.dtype);
        let found = operator.run(Side::Operator, &inputs, place);
        operator.compare(&what, &inputs, &found, &exact, place);
        let again = operator.run(Side::Operator, &inputs, place);
        for ((name, first), (_, second)) in bits(&found).into_iter().zip(bits(&again)) {
            let differ = first.iter().zip(&second).filter(|(a, b)| a != b).count();
            assert!(differ == 0, "{what}: {name}: {differ} of {} numbers have other bits the second time", first.len());
        }
    }
    let largest = |values: &[f64]| values.iter().fold(0.0_f64, |m, value| m.max(value.abs()));
    exact.iter().map(|(name, values)| (*name, largest(values))).collect()
}

/// The whole table on the CPU, in both formats.
pub fn on_flex<O: Operator>() {
    let places = [DType::F64, DType::F32].map(Place::flex);
    let mut largest = BTreeMap::new();
    for case in O::table() {
        for operator in case.operator.variants() {
            for seed in 0..O::REPEATS {
                for (name, value) in check(case.name, operator, seed, &places) {
                    let so_far = largest.entry(name).or_insert(0.0_f64);
                    *so_far = so_far.max(value);
                }
            }
        }
    }
    for (name, value) in largest {
        assert!(value > 1e-2, "{}: {name} is nowhere more than {value}", O::NAME);
    }
}

/// The bits of every case on 1, 2 and 5 threads.
pub fn on_threads<O: Operator>() {
    let place = Place::flex(DType::F32);
    for case in O::table() {
        for operator in case.operator.variants() {
            let inputs = operator.inputs(&mut Source(named(case.name, 0)));
            let run = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                bits(&pool.install(|| operator.run(Side::Operator, &inputs, &place)))
            };
            let one = run(1);
            for threads in [2, 5] {
                assert!(one == run(threads), "{}: {}: other bits on {threads} threads", O::NAME, case.name);
            }
        }
    }
}

/// How many cases a graphics card runs.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub fn count<O: Operator>() -> usize {
    O::table().iter().filter(|case| case.everywhere).count()
}

/// The part of the table that is for every backend, on a graphics card.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub fn on_gpu<O: Operator>(device: Option<&Device>) {
    let Some(device) = device else { return };
    for case in O::table().iter().filter(|case| case.everywhere) {
        let started = std::time::Instant::now();
        for operator in case.operator.variants() {
            check(case.name, operator, 0, &[Place::gpu(device)]);
        }
        println!("{}: {}: {:.1} s", O::NAME, case.name, started.elapsed().as_secs_f64());
    }
}
