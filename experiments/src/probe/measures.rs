//! What is measured of a single query: how many dimensions it reaches, how its weights lie, where they go.

use crate::geometry::{Concentration, Dimensions, GeometryError, RotatedMap};

use super::seat::Seat;

/// Singular values below this share of the largest count as none: entries are 32-bit numbers.
pub const RANK: f64 = 1e-6;

/// A measure of a layer, whatever the head.
pub const LAYER: [(&str, &str); 4] = [
    ("entries", "points that a query reads: window, selected entries and the sink"),
    (
        "rank",
        "rank of the points: dimensions of what a change of the query adds to the logits; singular values below 1e-6 of the largest count as none, for points are 32-bit numbers",
    ),
    (
        "affine_rank",
        "dimensions that the points span, seen from one of them: so many have the outputs, and the weights, that queries reach",
    ),
    ("unreachable", "directions in which weights could change that no query reaches: points - 1 - affine rank"),
];

/// A measure of a head.
pub const HEAD: [(&str, &str); 14] = [
    ("entropy", "entropy of the weights, nats"),
    ("effective_entries", "as many points with equal weights would be as spread out: e to the entropy"),
    ("smallest_weight_log10", "decimal logarithm of the smallest weight on a point"),
    ("spread", "trace of Sigma_p: the variance of the points under the weights"),
    ("effective_rank", "effective rank of Sigma_p: e to the entropy of its eigenvalues' shares"),
    (
        "mass_window",
        "of the attention that the query would spread over everything visible, the share on the tokens of the window",
    ),
    ("mass_selected", "share on the selected entries"),
    ("mass_sink", "share on the sink"),
    ("mass_missed", "share on visible entries that were not selected, which the layer does not read"),
    ("output_norm", "length of what is read"),
    (
        "asymmetry",
        "of the derivative J of the output by the query: |J - transpose(J)| / |J|, from 0 (symmetric, as where key and value are one rotated \
         vector) to 2",
    ),
    (
        "smallest_eigenvalue",
        "of its symmetric part, over the largest in size: below 0 there is a direction in which a query moves what it reads backwards",
    ),
    ("asymmetry_unrotated", "the asymmetry if keys were rotated and values were not"),
    ("smallest_eigenvalue_unrotated", "the smallest eigenvalue if keys were rotated and values were not"),
];

/// The smallest weight that is told apart from 0: below it a 32-bit weight underflows.
const LEAST: f64 = 1e-300;

/// Of one query, whatever the head: in the order of [`LAYER`].
///
/// # Errors
/// When a number is not finite.
pub fn layer(seat: &Seat) -> Result<[f64; 4], GeometryError> {
    let points = seat.points(&seat.selected)?.with_origin();
    let found = Dimensions::of(&points, RANK)?;
    Ok([points.count() as f64, found.tilts as f64, found.family as f64, found.unreachable() as f64])
}

/// Of one head of one query: in the order of [`HEAD`], and the eigenvalues of `Sigma_p`, the largest first, as shares of their sum.
pub struct HeadMeasures {
    /// In the order of [`HEAD`].
    pub values: [f64; 14],
    /// `[d]`.
    pub spectrum: Vec<f64>,
}

/// Measures one head of one query; `everything` as [`Seat::everything`] gives it.
///
/// # Errors
/// When a number is not finite.
pub fn head(seat: &Seat, head: usize, everything: &[f64]) -> Result<HeadMeasures, GeometryError> {
    let read = seat.read(head, &seat.selected)?;
    let weights = Concentration::of(&read.weights)?;
    let eigenvalues = crate::geometry::eigenvalues(&read.family.covariance(&read.weights)?)?;
    let spread: f64 = eigenvalues.iter().sum();
    let share = |value: &f64| if spread > 0.0 { value / spread } else { 0.0 };
    let spectrum: Vec<f64> = eigenvalues.iter().map(share).collect();
    let entropy: f64 = spectrum.iter().filter(|share| **share > 0.0).map(|share| -share * share.ln()).sum();
    let masses = seat.masses(everything);
    let [own, unrotated] = seat.maps(head)?;
    let norm = read.output.iter().map(|value| value * value).sum::<f64>().sqrt();
    let values = [
        weights.entropy,
        weights.effective,
        weights.smallest.max(LEAST).log10(),
        spread,
        // Without any spread there is no direction at all.
        if spread > 0.0 { entropy.exp() } else { 0.0 },
        masses.window,
        masses.selected,
        masses.sink,
        masses.missed,
        norm,
        own.asymmetry,
        smallest(&own),
        unrotated.asymmetry,
        smallest(&unrotated),
    ];
    Ok(HeadMeasures { values, spectrum })
}

/// The smallest eigenvalue of a map's symmetric part, over that of the largest size; 0 where all are 0.
fn smallest(map: &RotatedMap) -> f64 {
    let [low, high] = map.eigenvalues;
    let size = low.abs().max(high.abs());
    if size > 0.0 { low / size } else { 0.0 }
}
