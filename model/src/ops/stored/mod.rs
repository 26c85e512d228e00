//! The read-out and the index selection over stored vectors ([`Store`]): what a step of decoding runs.
//!
//! Queries are those of any rows of a batch, each at a position of its own, in one list of `T`. Stores lie in the host's
//! memory, packed, and vectors are dequantized a few at a time, next to where they are used.
//!
//! | the tensors are on | what computes |
//! |---|---|
//! | the processor | native code (`flex/stored`): stores are read where they lie |
//! | a GPU | the kernels of the operators over tensors, which read a packed copy of each store in the device's memory; a store keeps its copy and completes it with what was stored since |
//!
//! [`reference`](mod@reference) is the plain form that tests hold both against.

#[cfg(feature = "cube")]
mod device;
pub mod reference;

use burn::tensor::{Int, Tensor, TensorData, TensorReadError};

use super::{PoolUse, Selection};
use crate::store::Store;

#[cfg(feature = "flex")]
use super::flex::stored as native;
#[cfg(feature = "cube")]
pub use device::{StoredBackend, StoredReadout, has_kernels};
#[cfg(not(feature = "flex"))]
use reference::native;

/// Where a query stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose past it reads: a row of the batch.
    pub row: usize,
    /// Its position in that row's sequence.
    pub position: usize,
}

impl Place {
    /// Entries of ratio `ratio` that the query sees, of `entries` that exist.
    pub fn visible(&self, ratio: usize, entries: usize) -> usize {
        ((self.position + 1) / ratio).min(entries)
    }
}

/// The window latents of one row of the batch: those of earlier passes, and those of the tokens at hand.
#[derive(Clone, Copy, Debug)]
pub struct StoredWindow<'a> {
    /// Latents of the positions before [`start`](Self::start): that of position `p` at `p % width`; where the window is
    /// unlimited, at `p`.
    pub past: &'a Store,
    /// Latents of the positions from [`start`](Self::start) on.
    pub new: &'a Store,
    /// Positions before the tokens at hand.
    pub start: usize,
    /// Tokens that a query reads, itself included; none: all of them.
    pub width: Option<usize>,
    /// The first position whose latent is there: that at which a bounded replay began, or 0. Nothing before it is read.
    pub since: usize,
}

impl StoredWindow<'_> {
    /// The first position that the query at `position` reads.
    pub(crate) fn first(&self, position: usize) -> usize {
        self.width.map_or(0, |width| (position + 1).saturating_sub(width)).max(self.since)
    }

    /// Where the latent of a position lies: in [`past`](Self::past) or else in [`new`](Self::new), and at which place.
    pub(crate) fn place(&self, position: usize) -> (bool, usize) {
        if position >= self.start {
            return (false, position - self.start);
        }
        (true, self.width.map_or(position, |width| position % width))
    }
}

/// The settings of one selection over stored keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredSpec {
    /// Compression ratio m: entry `j` is visible to the query at position `t` when `j < floor((t + 1) / m)`.
    pub ratio: usize,
    /// K, the length of a Top-K row.
    pub topk: usize,
    /// The pool, if any.
    pub pool: PoolUse,
}

/// What a read-out over stored vectors is asked.
pub(crate) struct ReadoutInputs<'a> {
    /// `[T, H, d]`.
    pub q: &'a [f32],
    /// `[H]`.
    pub sink: &'a [f32],
    /// `[T, K]`; empty where there are no entries to be read.
    pub topk: &'a [i32],
    /// By row of the batch.
    pub windows: &'a [StoredWindow<'a>],
    /// By row of the batch; empty where there are no entries to be read.
    pub main: &'a [&'a Store],
    pub places: &'a [Place],
    pub heads: usize,
    pub dim: usize,
    pub scale: f64,
}

/// What a selection over stored keys is asked.
pub(crate) struct SelectInputs<'a> {
    /// `[T, H_I, d_I]`, as they are scored.
    pub q: &'a [f32],
    /// `[T, H_I]`.
    pub weights: &'a [f32],
    /// `[T, P]`; empty unless a pool is read.
    pub pool: &'a [i32],
    /// By row of the batch, all of one format.
    pub keys: &'a [&'a Store],
    pub places: &'a [Place],
    pub heads: usize,
    pub dim: usize,
    pub spec: StoredSpec,
}

/// What a selection over stored keys gives.
pub(crate) struct Selected {
    /// `[T, K]`.
    pub topk: Vec<i32>,
    /// `[T, blocks]`; empty unless a pool is built.
    pub built: Vec<i32>,
    /// Entries that have been scored, over all queries.
    pub scored: u64,
}

/// A tensor's numbers on the host, in f32.
fn floats<const D: usize>(tensor: Tensor<D>) -> Result<TensorData, TensorReadError> {
    tensor.detach().try_into_data_as::<f32>()
}

/// A list's numbers on the host.
fn indices<const D: usize>(tensor: Tensor<D, Int>) -> Result<TensorData, TensorReadError> {
    tensor.try_into_data_as::<i32>()
}

/// As [`readout`](fn@super::readout), over stored latents: for queries `q` `[1, T, H, d]`, each at its place, the output
/// `[1, T, H, d]` and the log-sum-exp `[1, T, H]`. `topk` `[1, T, K]` numbers entries of `main`, the stores of all rows of the
/// batch; both are left out together where a layer reads its window alone. `windows` are those of all rows of the batch.
///
/// # Errors
/// When the tensors cannot be read from their device.
///
/// # Panics
/// When places, windows and stores do not belong together, there is no query, or vectors on a GPU have more than
/// [`GPU_CHANNELS`](super::GPU_CHANNELS).
pub fn stored_readout(
    q: Tensor<4>,
    sink: Tensor<1>,
    entries: Option<(Tensor<3, Int>, &[&Store])>,
    windows: &[StoredWindow<'_>],
    places: &[Place],
    scale: f64,
) -> Result<(Tensor<4>, Tensor<3>), TensorReadError> {
    #[cfg(feature = "cube")]
    if device::has_kernels(&q.device()) {
        let entries = entries.as_ref().map(|(topk, main)| (topk, *main));
        return Ok(device::readout(q, sink, entries, windows, places, scale));
    }
    readout_by(native::readout, q, sink, entries, windows, places, scale)
}

fn readout_by(
    operator: impl Fn(&ReadoutInputs<'_>) -> (Vec<f32>, Vec<f32>),
    q: Tensor<4>,
    sink: Tensor<1>,
    entries: Option<(Tensor<3, Int>, &[&Store])>,
    windows: &[StoredWindow<'_>],
    places: &[Place],
    scale: f64,
) -> Result<(Tensor<4>, Tensor<3>), TensorReadError> {
    let [batch, queries, heads, dim] = q.dims();
    assert_eq!((batch, queries), (1, places.len()), "every query has a place");
    let (device, dtype) = (q.device(), q.dtype());
    let (topk, main) = entries.unzip();
    let topk = topk.map(indices).transpose()?;
    let (q, sink) = (floats(q)?, floats(sink)?);
    let inputs = ReadoutInputs {
        q: slice(&q),
        sink: slice(&sink),
        topk: topk.as_ref().map_or(&[], slice),
        windows,
        main: main.unwrap_or(&[]),
        places,
        heads,
        dim,
        scale,
    };
    let (output, lse) = operator(&inputs);
    let output = Tensor::from_data(TensorData::new(output, [1, queries, heads, dim]), (&device, dtype));
    Ok((output, Tensor::from_data(TensorData::new(lse, [1, queries, heads]), (&device, dtype))))
}

/// As [`index_select`](fn@super::index_select), over stored keys: for queries `q` `[1, T, H_I, d_I]` with head weights
/// `[1, T, H_I]`, each at its place, Top-K `[1, T, K]` and, where one is built, the pool `[1, T, blocks]`; besides, how many
/// entries have been scored. `keys` are the stores of all rows of the batch.
///
/// Queries are scored in the keys' format: where that is packed, they are rounded to it first, as a quantized model does.
///
/// # Errors
/// When the tensors cannot be read from their device.
///
/// # Panics
/// When places and stores do not belong together, or there is no query.
pub fn stored_select(
    q: Tensor<4>,
    weights: Tensor<3>,
    pool: Option<Tensor<3, Int>>,
    keys: &[&Store],
    places: &[Place],
    spec: StoredSpec,
) -> Result<(Selection, u64), TensorReadError> {
    #[cfg(feature = "cube")]
    if device::has_kernels(&q.device()) {
        return device::select(q, weights, pool.as_ref(), keys, places, spec);
    }
    select_by(native::select, q, weights, pool, keys, places, spec)
}

fn select_by(
    operator: impl Fn(&SelectInputs<'_>) -> Selected,
    q: Tensor<4>,
    weights: Tensor<3>,
    pool: Option<Tensor<3, Int>>,
    keys: &[&Store],
    places: &[Place],
    spec: StoredSpec,
) -> Result<(Selection, u64), TensorReadError> {
    let [_, queries, heads, dim] = q.dims();
    let device = q.device();
    let q = floats(as_scored(q, pool.as_ref(), keys, places, spec))?;
    let weights = floats(weights)?;
    let pool = pool.map(indices).transpose()?;
    let inputs = SelectInputs {
        q: slice(&q),
        weights: slice(&weights),
        pool: pool.as_ref().map_or(&[], slice),
        keys,
        places,
        heads,
        dim,
        spec,
    };
    let Selected { topk, built, scored } = operator(&inputs);
    let tensor = |values: Vec<i32>, width| Tensor::from_data(TensorData::new(values, [1, queries, width]), &device);
    let pool = match spec.pool {
        PoolUse::Build { blocks, .. } => Some(tensor(built, blocks)),
        PoolUse::None | PoolUse::Read { .. } => None,
    };
    Ok((Selection { topk: tensor(topk, spec.topk), pool }, scored))
}

/// The queries of a selection in the keys' format.
fn as_scored(
    q: Tensor<4>,
    pool: Option<&Tensor<3, Int>>,
    keys: &[&Store],
    places: &[Place],
    spec: StoredSpec,
) -> Tensor<4> {
    let [batch, queries, _, _] = q.dims();
    assert_eq!((batch, queries), (1, places.len()), "every query has a place");
    assert_eq!(pool.is_some(), matches!(spec.pool, PoolUse::Read { .. }), "a pool is given where one is read");
    assert!(keys.windows(2).all(|pair| pair[0].format() == pair[1].format()), "all rows store keys in one format");
    match keys.first().and_then(|keys| keys.format()) {
        Some(format) => super::fake_quantize(q, format),
        None => q,
    }
}

/// The numbers of `data`, which holds this type.
fn slice<T: burn::tensor::Element>(data: &TensorData) -> &[T] {
    data.as_slice().expect("converted to this type")
}
