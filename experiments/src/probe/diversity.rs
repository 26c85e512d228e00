//! Whether layers that read the same content at the same address do the same: how alike their outputs and their weights are.

use csa2_model::config::ModelConfig;

use super::seat::LayerView;
use super::sums::Sums;

/// Adds every pair of layers with one address that are both there.
pub fn add(config: &ModelConfig, views: &[LayerView], sums: &mut Sums) {
    let view = |layer: usize| views.iter().find(|view| view.layer == layer);
    for (first, second) in pairs(config) {
        let (Some(one), Some(other)) = (view(first), view(second)) else { continue };
        for place in 0..one.places() {
            let (a, b) = (one.output_at(place), other.output_at(place));
            if let Some(cosine) = cosine(a, b) {
                sums.pair(first, second, "output_cosine", cosine);
            }
            if let Some(difference) = weights_apart(one, other, place) {
                sums.pair(first, second, "weights_apart", difference);
            }
        }
    }
}

/// Layers with one address, each pair once: who has chosen it stands first.
pub fn pairs(config: &ModelConfig) -> Vec<(usize, usize)> {
    let layers = config.layers.layers();
    let source = |index: usize| layers[index].address_from;
    let mut pairs = Vec::new();
    for second in 0..layers.len() {
        let same = |first: &usize| source(*first).is_some() && source(*first) == source(second);
        pairs.extend((0..second).filter(same).map(|first| (first, second)));
    }
    pairs
}

/// None where one of them is 0.
fn cosine(a: &[f64], b: &[f64]) -> Option<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    (lengths > 0.0).then(|| dot(a, b) / lengths)
}

/// Total variation between the two layers' weights, averaged over heads, over the window's tokens, the entries and the sink: from 0 (the
/// same) to 1 (nothing in common). None where a number is not finite.
fn weights_apart(one: &LayerView, other: &LayerView, place: usize) -> Option<f64> {
    let weights = |view: &LayerView| -> Option<Vec<f64>> {
        let seat = view.seat(place);
        let mut mean: Vec<f64> = Vec::new();
        for head in 0..view.heads() {
            let p = seat.read_out(head, &seat.selected).ok()?.read(seat.query(head)).ok()?.p;
            mean.resize(p.len(), 0.0);
            mean.iter_mut().zip(p).for_each(|(mean, p)| *mean += p / view.heads() as f64);
        }
        Some(mean)
    };
    let (a, b) = (weights(one)?, weights(other)?);
    (a.len() == b.len()).then(|| a.iter().zip(&b).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0)
}
