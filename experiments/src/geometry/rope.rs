//! Rotary position embedding: what it makes of the map from query to output.
//!
//! Keys are rotated by their own positions, the query by its own: logits are `scale <R_t q, R_j c_j>`. Where the value is the rotated key
//! and the output is rotated back, `o = R_t^T sum_j p_j R_j c_j`, the map from q to o is the read-out of the points `R_t^T R_j c_j`, so its
//! Jacobian is symmetric and has no negative eigenvalue. Where only keys are rotated it need not be.

use faer::{Mat, Side};

use super::entries::Entries;
use super::error::{GeometryError, in_range, list};
use super::linalg::{power_of_two, product};
use super::readout::{ReadOut, Reading};

/// The rotation of a position: pair i of the last channels, two adjacent ones a pair, turns by position times frequency i.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    frequencies: Vec<f64>,
}

impl Rope {
    /// From the frequencies of the pairs.
    ///
    /// # Errors
    /// When one is not finite.
    pub fn new(frequencies: Vec<f64>) -> Result<Self, GeometryError> {
        super::error::finite("frequencies", &frequencies)?;
        Ok(Self { frequencies })
    }

    /// `base^(-2i / channels)` for the pairs of so many channels; an odd last channel is left alone.
    ///
    /// # Errors
    /// When the base is not above 0 and finite.
    pub fn standard(channels: usize, base: f64) -> Result<Self, GeometryError> {
        if !(base > 0.0 && base.is_finite()) {
            return Err(GeometryError::Range { what: "base", found: base, right: "above 0 and finite" });
        }
        let pair = |i: usize| base.powf(-2.0 * i as f64 / channels as f64);
        Self::new((0..channels / 2).map(pair).collect())
    }

    /// How many channels turn.
    pub fn channels(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// `x`, `[d]`, rotated by `position`.
    ///
    /// # Errors
    /// When `x` has fewer channels than turn, or a number is not finite.
    pub fn rotate(&self, x: &[f64], position: f64) -> Result<Vec<f64>, GeometryError> {
        super::error::finite("vector", x)?;
        super::error::finite("position", &[position])?;
        let Some(first) = x.len().checked_sub(self.channels()) else {
            return Err(GeometryError::Length { what: "vector to rotate", found: x.len(), expected: self.channels() });
        };
        let mut turned = x.to_vec();
        for (pair, frequency) in turned[first..].as_chunks_mut::<2>().0.iter_mut().zip(&self.frequencies) {
            let (sin, cos) = (position * frequency).sin_cos();
            *pair = [cos * pair[0] - sin * pair[1], sin * pair[0] + cos * pair[1]];
        }
        in_range("rotated vector", &turned)?;
        Ok(turned)
    }
}

/// What is rotated beside the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotated {
    /// Key and value, which are one vector; the output is rotated back by the query's position. The released operator.
    KeysAndValuesAndBack,
    /// Key and value; the output is left as it is.
    KeysAndValues,
    /// Keys alone; values are the entries.
    Keys,
}

/// The map from query to output at one query.
#[derive(Clone, Debug, PartialEq)]
pub struct RotatedMap {
    /// What the query reads.
    pub reading: Reading,
    /// `d o / d q`, `[d, d]`.
    pub jacobian: Mat<f64>,
    /// `|J - J^T| / |J|` in Frobenius norms; 0 where J is 0.
    pub asymmetry: f64,
    /// Smallest and largest eigenvalue of `(J + J^T) / 2`.
    pub eigenvalues: [f64; 2],
}

/// The map of a read-out whose entries stand at `positions`, `[n]` without the sink, at a query, `[d]`, of the position `at`.
///
/// # Errors
/// When sizes do not fit, or a number is not finite or leaves the range of f64.
pub fn rotated_map(
    readout: &ReadOut,
    rope: &Rope,
    positions: &[f64],
    q: &[f64],
    at: f64,
    rotated: Rotated,
) -> Result<RotatedMap, GeometryError> {
    let points = readout.points();
    let (n, d) = (points.count(), points.width());
    list("positions", positions, n - usize::from(readout.has_sink()))?;
    list("query", q, d)?;
    // The sink is at the origin, which every rotation leaves alone.
    let places = positions.iter().copied().chain([0.0]);
    let keys: Vec<Vec<f64>> = points.rows().zip(places).map(|(c, j)| rope.rotate(c, j)).collect::<Result<_, _>>()?;
    let keys = Entries::from_rows(&keys)?;
    let turned = readout.with_points(keys.clone()).read(&rope.rotate(q, at)?)?;
    let values = if rotated == Rotated::Keys { points.clone() } else { keys.clone() };
    let mut o = values.mix(&turned.p);
    // J = scale * cov(value, key) R_t, and rotated back R_t^T before it. A product with R_t rotates rows back.
    let mean = keys.mix(&turned.p);
    let weighed = Mat::from_fn(n, d, |j, i| turned.p[j] * (values.row(j)[i] - o[i]));
    let centred = Mat::from_fn(n, d, |j, k| keys.row(j)[k] - mean[k]);
    let cross = product(weighed.transpose(), centred.as_ref());
    let row = |i: usize| -> Vec<f64> { (0..d).map(|k| readout.scale() * cross[(i, k)]).collect() };
    let mut rows: Vec<Vec<f64>> = (0..d).map(|i| rope.rotate(&row(i), -at)).collect::<Result<_, _>>()?;
    if rotated == Rotated::KeysAndValuesAndBack {
        o = rope.rotate(&o, -at)?;
        let column = |k: usize| -> Vec<f64> { rows.iter().map(|row| row[k]).collect() };
        let columns: Vec<Vec<f64>> = (0..d).map(|k| rope.rotate(&column(k), -at)).collect::<Result<_, _>>()?;
        rows = (0..d).map(|i| columns.iter().map(|column| column[i]).collect()).collect();
    }
    let jacobian = Mat::from_fn(d, d, |i, k| rows[i][k]);
    let (asymmetry, eigenvalues) = symmetry(&jacobian)?;
    let reading = Reading { p: turned.p, o, log_partition: turned.log_partition };
    Ok(RotatedMap { reading, jacobian, asymmetry, eigenvalues })
}

/// How far a square matrix is from symmetric, and the extreme eigenvalues of its symmetric part.
fn symmetry(jacobian: &Mat<f64>) -> Result<(f64, [f64; 2]), GeometryError> {
    let d = jacobian.nrows();
    let largest = (0..d).flat_map(|k| jacobian.col_as_slice(k)).fold(0.0, |most: f64, value| value.abs().max(most));
    if largest == 0.0 {
        return Ok((0.0, [0.0, 0.0]));
    }
    let unit = power_of_two(largest);
    let scaled = Mat::from_fn(d, d, |i, k| jacobian[(i, k)] / unit);
    let asymmetry = (&scaled - scaled.transpose()).norm_l2() / scaled.norm_l2();
    let half = Mat::from_fn(d, d, |i, k| f64::midpoint(scaled[(i, k)], scaled[(k, i)]));
    let values = half.self_adjoint_eigenvalues(Side::Lower);
    let values = values.map_err(|_| GeometryError::Decomposition { what: "symmetric part of the Jacobian" })?;
    let extreme = |fold: fn(f64, f64) -> f64| values.iter().copied().reduce(fold).unwrap_or(0.0) * unit;
    Ok((asymmetry, [extreme(f64::min), extreme(f64::max)]))
}
