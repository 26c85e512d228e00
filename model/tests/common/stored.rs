//! Cases of the operators over stored vectors.

use burn::tensor::{DType, Device, Int, Tensor, TensorData, TensorReadError};
use csa2_model::ops::{Place, PoolUse, Selection, StoredSpec, StoredWindow};
use csa2_model::quant::Format;
use csa2_model::store::Store;
use rand::RngExt;

use super::random::Source;
use super::{ints, numbers};

pub const FORMATS: [Option<Format>; 4] = [None, Some(Format::Fp4E4m3), Some(Format::Fp4E8m0), Some(Format::Fp8E8m0)];

pub fn store(dim: usize, format: Option<Format>, values: &[f64]) -> Store {
    let mut store = Store::new(dim, format);
    store.push(&values.iter().map(|&x| x as f32).collect::<Vec<_>>());
    store
}

/// Rows of different lengths, and queries anywhere in them, the newest position among them.
fn places(source: &mut Source, lengths: &[usize], count: usize) -> Vec<Place> {
    let mut places = Vec::new();
    for (row, length) in lengths.iter().enumerate() {
        places.push(Place { row, position: length - 1 });
    }
    for _ in 0..count {
        let row = source.0.random_range(0..lengths.len());
        places.push(Place { row, position: source.0.random_range(0..lengths[row]) });
    }
    places
}

#[derive(Clone, Debug)]
pub struct SelectCase {
    pub seed: u64,
    pub format: Option<Format>,
    pub lengths: Vec<usize>,
    pub ratio: usize,
    pub heads: usize,
    pub groups: usize,
    pub topk: usize,
    pub blocks: usize,
    pub size: usize,
    pub whole: bool,
}

/// On one device, what a selection is asked.
pub struct Asked {
    pub q: Tensor<4>,
    pub weights: Tensor<3>,
    pub keys: Vec<Store>,
    pub places: Vec<Place>,
}

pub type SelectOperator = fn(
    Tensor<4>,
    Tensor<3>,
    Option<Tensor<3, Int>>,
    &[&Store],
    &[Place],
    StoredSpec,
) -> Result<(Selection, u64), TensorReadError>;

impl SelectCase {
    pub fn dim(&self) -> usize {
        // Odd widths where the format allows them.
        if self.format.is_some() { 32 * self.groups } else { 5 * self.groups + 1 }
    }

    /// Whole numbers make many equal scores, and sums that are exact in any order. Of others, the 4-bit ones do so too, but for
    /// the head weights: these are whole always.
    pub fn asked(&self, device: &Device) -> Asked {
        let mut source = Source::new(self.seed);
        let dim = self.dim();
        let places = places(&mut source, &self.lengths, 5);
        let numbers =
            |source: &mut Source, count| if self.whole { source.wholes(count, 2) } else { source.normals(count) };
        let keys = self.lengths.iter().map(|length| {
            let entries = length / self.ratio;
            store(dim, self.format, &numbers(&mut source, entries * dim))
        });
        let keys = keys.collect();
        let dims = [1, places.len(), self.heads, dim];
        let q = numbers(&mut source, dims.iter().product());
        let q = Tensor::from_data(TensorData::new(q, dims), (device, DType::F32));
        let weights = source.whole([1, places.len(), self.heads], 3, device, DType::F32);
        Asked { q, weights, keys, places }
    }

    pub fn spec(&self, pool: PoolUse) -> StoredSpec {
        StoredSpec { ratio: self.ratio, topk: self.topk, pool }
    }
}

impl Asked {
    /// Top-K, pool and how many were scored; `pool` are blocks, so many a query.
    pub fn select(
        &self,
        operator: SelectOperator,
        pool: Option<&[i64]>,
        spec: StoredSpec,
    ) -> (Vec<i64>, Option<Vec<i64>>, u64) {
        let keys: Vec<&Store> = self.keys.iter().collect();
        let pool = pool.map(|blocks| {
            let dims = [1, self.places.len(), blocks.len() / self.places.len()];
            let blocks: Vec<i32> = blocks.iter().map(|&block| block as i32).collect();
            Tensor::from_data(TensorData::new(blocks, dims), &self.q.device())
        });
        let (selection, scored) =
            operator(self.q.clone(), self.weights.clone(), pool, &keys, &self.places, spec).unwrap();
        (ints(selection.topk), selection.pool.map(ints), scored)
    }
}

/// A window of `width` latents as a row of the batch keeps it when `start` tokens have gone, and `new` more are at hand.
pub fn window(
    source: &mut Source,
    dim: usize,
    format: Option<Format>,
    start: usize,
    new: usize,
    width: Option<usize>,
) -> [Store; 2] {
    let numbers: Vec<f32> = source.normals((start + new) * dim).into_iter().map(|x| x as f32).collect();
    let (old, new) = numbers.split_at(start * dim);
    let mut past = Store::new(dim, format);
    for (position, vector) in old.chunks(dim).enumerate() {
        match width {
            Some(width) if position >= width => past.replace(position % width, vector),
            _ => past.push(vector),
        }
    }
    let mut store = Store::new(dim, format);
    store.push(new);
    [past, store]
}

#[derive(Clone, Debug)]
pub struct ReadoutCase {
    pub seed: u64,
    pub formats: [Option<Format>; 2],
    /// Tokens gone and tokens at hand, by row.
    pub rows: Vec<(usize, usize)>,
    pub entries: usize,
    pub width: Option<usize>,
    pub heads: usize,
    pub groups: usize,
    pub topk: usize,
    /// Positions before the tokens at hand that are there at most.
    pub since: usize,
}

/// What a read-out is asked, lists and queries as numbers.
pub struct AskedReadout {
    pub case: ReadoutCase,
    pub dim: usize,
    pub stores: Vec<[Store; 2]>,
    pub main: Vec<Store>,
    pub places: Vec<Place>,
    pub q: Vec<f64>,
    pub sink: Vec<f64>,
    pub topk: Vec<i32>,
}

pub type ReadoutOperator = fn(
    Tensor<4>,
    Tensor<1>,
    Option<(Tensor<3, Int>, &[&Store])>,
    &[StoredWindow<'_>],
    &[Place],
    f64,
) -> Result<(Tensor<4>, Tensor<3>), TensorReadError>;

impl ReadoutCase {
    pub fn asked(&self) -> AskedReadout {
        let mut source = Source::new(self.seed);
        let packed = self.formats.iter().any(Option::is_some);
        let dim = if packed { 32 * self.groups } else { 5 * self.groups + 1 };
        let stores: Vec<[Store; 2]> = (self.rows.iter())
            .map(|&(start, new)| window(&mut source, dim, self.formats[0], start, new, self.width))
            .collect();
        let main = self.rows.iter().map(|_| store(dim, self.formats[1], &source.normals(self.entries * dim))).collect();
        let places: Vec<Place> = (self.rows.iter().enumerate())
            .flat_map(|(row, &(start, new))| (start..start + new).map(move |position| Place { row, position }))
            .collect();
        let count = places.len();
        let q = source.normals(count * self.heads * dim);
        let sink = source.normals(self.heads);
        let topk = source.list_values([1, count, self.topk], self.entries);
        AskedReadout { case: self.clone(), dim, stores, main, places, q, sink, topk }
    }
}

impl AskedReadout {
    /// Output and log-sum-exp on `device`, with entries or without.
    pub fn readout(&self, operator: ReadoutOperator, device: &Device, listed: bool) -> [Vec<f64>; 2] {
        let Self { case, dim, places, .. } = self;
        let count = places.len();
        let windows: Vec<StoredWindow<'_>> = (self.stores.iter().zip(&case.rows))
            .map(|([past, new], &(start, _))| {
                let since = start.saturating_sub(case.since);
                StoredWindow { past, new, start, width: case.width, since }
            })
            .collect();
        let main: Vec<&Store> = self.main.iter().collect();
        let options = (device, DType::F32);
        let q = Tensor::from_data(TensorData::new(self.q.clone(), [1, count, case.heads, *dim]), options);
        let sink = Tensor::from_data(TensorData::new(self.sink.clone(), [case.heads]), options);
        let topk = Tensor::from_data(TensorData::new(self.topk.clone(), [1, count, case.topk]), device);
        let entries = listed.then_some((topk, &main[..]));
        let (output, lse) = operator(q, sink, entries, &windows, places, (*dim as f64).powf(-0.5)).unwrap();
        [numbers(output), numbers(lse)]
    }
}
