//! The operators over stored vectors as they are defined: everything unpacked, in f64, a full sort. Tests hold the native code
//! against this.

use burn::tensor::{Int, Tensor, TensorReadError};

use super::super::reference::{best, candidate_blocks};
use super::super::{NAN_ROW, NO_ENTRY, PoolUse, Selection};
use super::{Place, ReadoutInputs, SelectInputs, Selected, StoredSpec, StoredWindow, readout_by, select_by};
use crate::store::Store;

/// Under the name of the native code, for builds without that.
#[cfg(not(feature = "flex"))]
pub(super) mod native {
    pub(in super::super) use super::{readout_rows as readout, select_rows as select};
}

/// See [`stored_readout`](super::stored_readout).
///
/// # Errors
/// When the tensors cannot be read from their device.
pub fn readout(
    q: Tensor<4>,
    sink: Tensor<1>,
    entries: Option<(Tensor<3, Int>, &[&Store])>,
    windows: &[StoredWindow<'_>],
    places: &[Place],
    scale: f64,
) -> Result<(Tensor<4>, Tensor<3>), TensorReadError> {
    readout_by(readout_rows, q, sink, entries, windows, places, scale)
}

/// See [`stored_select`](super::stored_select).
///
/// # Errors
/// When the tensors cannot be read from their device.
pub fn select(
    q: Tensor<4>,
    weights: Tensor<3>,
    pool: Option<Tensor<3, Int>>,
    keys: &[&Store],
    places: &[Place],
    spec: StoredSpec,
) -> Result<(Selection, u64), TensorReadError> {
    select_by(select_rows, q, weights, pool, keys, places, spec)
}

fn inner_product(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

fn unpacked(store: &Store) -> Vec<Vec<f32>> {
    store.unpack().chunks_exact(store.dim()).map(<[f32]>::to_vec).collect()
}

pub(super) fn readout_rows(inputs: &ReadoutInputs<'_>) -> (Vec<f32>, Vec<f32>) {
    let &ReadoutInputs { heads, dim, scale, .. } = inputs;
    let width = inputs.topk.len() / inputs.places.len().max(1);
    let main: Vec<Vec<Vec<f32>>> = inputs.main.iter().map(|store| unpacked(store)).collect();
    let windows: Vec<[Vec<Vec<f32>>; 2]> =
        inputs.windows.iter().map(|window| [unpacked(window.past), unpacked(window.new)]).collect();
    let (mut output, mut lse) = (Vec::new(), Vec::new());
    for (t, place) in inputs.places.iter().enumerate() {
        let window = inputs.windows[place.row];
        let mut entries: Vec<&[f32]> = Vec::new();
        for position in window.first(place.position)..=place.position {
            let (past, at) = window.place(position);
            entries.push(&windows[place.row][usize::from(!past)][at]);
        }
        let mut broken = false;
        for &index in &inputs.topk[t * width..(t + 1) * width] {
            match usize::try_from(index) {
                Ok(j) if j < main[place.row].len() => entries.push(&main[place.row][j]),
                Err(_) if index == NO_ENTRY => {}
                _ => broken = true,
            }
        }
        for h in 0..heads {
            let q = &inputs.q[(t * heads + h) * dim..(t * heads + h + 1) * dim];
            let sink = f64::from(inputs.sink[h]);
            let logits: Vec<f64> = entries.iter().map(|entry| inner_product(q, entry) * scale).collect();
            let max = logits.iter().copied().fold(sink, f64::max);
            let weights: Vec<f64> = logits.iter().map(|logit| (logit - max).exp()).collect();
            let sum = weights.iter().sum::<f64>() + (sink - max).exp();
            for channel in 0..dim {
                let total: f64 = weights.iter().zip(&entries).map(|(w, entry)| w * f64::from(entry[channel])).sum();
                output.push(if broken { f32::NAN } else { (total / sum) as f32 });
            }
            lse.push(if broken { f32::NAN } else { (max + sum.ln()) as f32 });
        }
    }
    (output, lse)
}

pub(super) fn select_rows(inputs: &SelectInputs<'_>) -> Selected {
    let &SelectInputs { heads, dim, spec, .. } = inputs;
    let pool_width = inputs.pool.len() / inputs.places.len().max(1);
    let keys: Vec<Vec<Vec<f32>>> = inputs.keys.iter().map(|store| unpacked(store)).collect();
    let mut selected = Selected { topk: Vec::new(), built: Vec::new(), scored: 0 };
    for (t, place) in inputs.places.iter().enumerate() {
        let keys = &keys[place.row];
        let visible = place.visible(spec.ratio, keys.len());
        let inside = |j: &usize| match spec.pool {
            PoolUse::Read { size } => inputs.pool[t * pool_width..(t + 1) * pool_width].contains(&((j / size) as i32)),
            PoolUse::None | PoolUse::Build { .. } => true,
        };
        let candidates: Vec<usize> = (0..visible).filter(inside).collect();
        let score = |j: usize| -> f64 {
            let head = |h: usize| {
                let product = inner_product(&inputs.q[(t * heads + h) * dim..(t * heads + h + 1) * dim], &keys[j]);
                let product = if product < 0.0 { 0.0 } else { product };
                product * f64::from(inputs.weights[t * heads + h])
            };
            (0..heads).map(head).sum()
        };
        let scores: Vec<f64> = (0..visible).map(|j| if inside(&j) { score(j) } else { 0.0 }).collect();
        let marked = candidates.iter().any(|&j| scores[j].is_nan());
        selected.scored += candidates.len() as u64;
        selected.topk.extend(if marked { vec![NAN_ROW; spec.topk] } else { best(&scores, candidates, spec.topk) });
        if let PoolUse::Build { blocks, size } = spec.pool {
            let row = if marked { vec![NO_ENTRY; blocks] } else { candidate_blocks(&scores, size, blocks) };
            selected.built.extend(row);
        }
    }
    selected
}
