//! The operators over stored vectors on a GPU: what its kernels are given, for one run of queries after the other.

use std::ops::Range;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Dispatch, DispatchDevice, backend_extension};
use burn::tensor::kind::Basic;
use burn::tensor::{Device, Int, Tensor, TensorReadError};

use super::super::{NO_ENTRY, PoolUse, SelectSpec, Selection};
use super::{Place, StoredSpec, StoredWindow, as_scored, indices};
use crate::quant::Format;
use crate::store::Store;

/// What a read-out over the words of stored latents is told besides: of one row, for queries at consecutive positions.
#[derive(Clone, Copy, Debug)]
pub struct StoredReadout {
    /// Position of the first query.
    pub first: usize,
    /// As in [`StoredWindow`].
    pub start: usize,
    /// As in [`StoredWindow`].
    pub width: Option<usize>,
    /// As in [`StoredWindow`].
    pub since: usize,
    /// Format of the window latents.
    pub window: Option<Format>,
    /// Format of the main latents.
    pub main: Option<Format>,
    /// Main latents that are stored.
    pub entries: usize,
    /// Factor of the logits.
    pub scale: f64,
}

/// Backends that read stored vectors from words (the mirror of a [`Store`]) in their own memory.
///
/// Shapes: `q` `[1, T, H, d]`, `sink` `[H]`, words `[blocks, words of a block]`, lists as in
/// [`SelectBackend`](crate::ops::SelectBackend) and [`ReadoutBackend`](crate::ops::ReadoutBackend).
#[backend_extension(Autodiff, Cube: cfg(feature = "cube"))]
pub trait StoredBackend: Backend {
    /// As [`SelectBackend::index_select`](crate::ops::SelectBackend::index_select).
    fn stored_select(
        q: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        keys: IntTensor<Self>,
        pool: IntTensor<Self>,
        format: Option<Format>,
        spec: SelectSpec,
    ) -> (IntTensor<Self>, IntTensor<Self>);

    /// As [`ReadoutBackend::readout`](crate::ops::ReadoutBackend::readout); no gradient goes through it.
    fn stored_readout(
        q: FloatTensor<Self>,
        sink: FloatTensor<Self>,
        past: IntTensor<Self>,
        new: IntTensor<Self>,
        main: IntTensor<Self>,
        topk: IntTensor<Self>,
        asked: StoredReadout,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl<B: StoredBackend, C: CheckpointStrategy> StoredBackend for Autodiff<B, C> {
    fn stored_select(
        q: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        keys: IntTensor<Self>,
        pool: IntTensor<Self>,
        format: Option<Format>,
        spec: SelectSpec,
    ) -> (IntTensor<Self>, IntTensor<Self>) {
        B::stored_select(q.into_primitive(), weights.into_primitive(), keys, pool, format, spec)
    }

    fn stored_readout(
        q: FloatTensor<Self>,
        sink: FloatTensor<Self>,
        past: IntTensor<Self>,
        new: IntTensor<Self>,
        main: IntTensor<Self>,
        topk: IntTensor<Self>,
        asked: StoredReadout,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (output, lse) = B::stored_readout(q.into_primitive(), sink.into_primitive(), past, new, main, topk, asked);
        (FloatTensor::<Self>::new(output), FloatTensor::<Self>::new(lse))
    }
}

/// Whether tensors on `device` are read by kernels; elsewhere by native code.
pub fn has_kernels(device: &Device) -> bool {
    matches!(device.clone().inner().as_dispatch(), DispatchDevice::Cube(_))
}

/// Queries of one row at consecutive positions.
struct Run {
    row: usize,
    /// Position of the first one.
    first: usize,
    /// Which of the queries they are.
    queries: Range<usize>,
}

fn runs(places: &[Place]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (t, place) in places.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.row == place.row && run.first + run.queries.len() == place.position => {
                run.queries.end = t + 1;
            }
            _ => runs.push(Run { row: place.row, first: place.position, queries: t..t + 1 }),
        }
    }
    runs
}

impl Run {
    /// Their part of what is given for all queries, `[1, T, ..]`.
    fn part<const D: usize, K: Basic>(&self, all: &Tensor<D, K>) -> Tensor<D, K> {
        all.clone().narrow(1, self.queries.start, self.queries.len())
    }
}

/// What runs gave, one behind the other. One run's is left where it is.
fn joined<const D: usize, K: Basic>(mut parts: Vec<Tensor<D, K>>) -> Tensor<D, K> {
    if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, 1) }
}

/// Entries that the query at `place` scores; `pool` are the blocks of its pool, where it reads one.
fn candidates(place: &Place, entries: usize, pool: &[i32], spec: StoredSpec) -> u64 {
    let visible = place.visible(spec.ratio, entries);
    let PoolUse::Read { size } = spec.pool else { return visible as u64 };
    let inside = |&block: &i32| {
        let first = usize::try_from(block).ok()?.saturating_mul(size);
        Some(visible.min(first.saturating_add(size)).saturating_sub(first) as u64)
    };
    pool.iter().filter_map(inside).sum()
}

/// See [`stored_select`](super::stored_select).
pub(super) fn select(
    q: Tensor<4>,
    weights: Tensor<3>,
    pool: Option<&Tensor<3, Int>>,
    keys: &[&Store],
    places: &[Place],
    spec: StoredSpec,
) -> Result<(Selection, u64), TensorReadError> {
    let device = q.device();
    let q = as_scored(q, pool, keys, places, spec).detach();
    let weights = weights.detach();
    // The kernels do not count.
    let blocks = pool.cloned().map(indices).transpose()?;
    let blocks: &[i32] = blocks.as_ref().map_or(&[], super::slice);
    let width = blocks.len() / places.len();
    let rows = places.iter().enumerate();
    let count = |(t, place): (usize, &Place)| {
        candidates(place, keys[place.row].len(), &blocks[t * width..(t + 1) * width], spec)
    };
    let scored = rows.map(count).sum();

    let unused = Tensor::<3, Int>::zeros([1, 1, 1], &device);
    let (mut topk, mut built) = (Vec::new(), Vec::new());
    for run in runs(places) {
        let keys = keys[run.row];
        let StoredSpec { ratio, topk: count, pool: pool_use } = spec;
        let (found, pool) = Dispatch::stored_select(
            run.part(&q).into_dispatch(),
            run.part(&weights).into_dispatch(),
            keys.words(&device).into_dispatch(),
            pool.map_or_else(|| unused.clone(), |pool| run.part(pool)).into_dispatch(),
            keys.format(),
            SelectSpec { ratio, start: run.first, entries: keys.len(), topk: count, pool: pool_use },
        );
        topk.push(Tensor::from_dispatch(found));
        built.push(Tensor::from_dispatch(pool));
    }
    let pool = matches!(spec.pool, PoolUse::Build { .. }).then(|| joined(built));
    Ok((Selection { topk: joined(topk), pool }, scored))
}

/// See [`stored_readout`](super::stored_readout).
pub(super) fn readout(
    q: Tensor<4>,
    sink: Tensor<1>,
    entries: Option<(&Tensor<3, Int>, &[&Store])>,
    windows: &[StoredWindow<'_>],
    places: &[Place],
    scale: f64,
) -> (Tensor<4>, Tensor<3>) {
    let [batch, queries, _, _] = q.dims();
    assert_eq!((batch, queries), (1, places.len()), "every query has a place");
    let device = q.device();
    let (q, sink) = (q.detach(), sink.detach());
    let (mut output, mut lse) = (Vec::new(), Vec::new());
    for run in runs(places) {
        let window = windows[run.row];
        assert_eq!(window.past.format(), window.new.format(), "a window has one format");
        // What no query reads is not brought to the device.
        let past = if window.past.is_empty() { window.new } else { window.past };
        let new = if window.new.is_empty() { window.past } else { window.new };
        let (past, new) = (past.words(&device), new.words(&device));
        let (topk, main, count, format) = if let Some((topk, main)) = entries {
            let main = main[run.row];
            (run.part(topk), main.words(&device), main.len(), main.format())
        } else {
            let none = Tensor::full([1, run.queries.len(), 1], NO_ENTRY, &device);
            (none, past.clone(), 0, window.past.format())
        };
        let StoredWindow { start, width, since, .. } = window;
        let asked = StoredReadout {
            first: run.first,
            start,
            width,
            since,
            window: window.past.format(),
            main: format,
            entries: count,
            scale,
        };
        let (found, sums) = Dispatch::stored_readout(
            run.part(&q).into_dispatch(),
            sink.clone().into_dispatch(),
            past.into_dispatch(),
            new.into_dispatch(),
            main.into_dispatch(),
            topk.into_dispatch(),
            asked,
        );
        output.push(Tensor::from_dispatch(found));
        lse.push(Tensor::from_dispatch(sums));
    }
    (joined(output), joined(lse))
}
