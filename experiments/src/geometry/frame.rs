//! The affine hull of some points: where they lie in it, and how many dimensions it has.

use faer::Mat;

use super::entries::Entries;
use super::error::{GeometryError, in_range, list, tolerance};
use super::linalg::{Svd, minus, norm, power_of_two, product, times, transpose_times};

/// rank(C): the dimension of the tilts that some change of the query makes. A singular value counts where it is above
/// `relative` times the largest.
///
/// # Errors
/// When the tolerance is not inside (0, 1), or the decomposition fails.
pub fn rank(entries: &Entries, relative: f64) -> Result<usize, GeometryError> {
    tolerance("relative tolerance of the rank", relative)?;
    let largest = entries.largest();
    if largest == 0.0 {
        return Ok(0);
    }
    let unit = power_of_two(largest);
    let scaled = Mat::from_fn(entries.count(), entries.width(), |j, i| entries.row(j)[i] / unit);
    Ok(Svd::of("entries", scaled.as_ref())?.rank(relative))
}

/// The dimension of the entries' affine hull, which is that of their family of distributions: the rank of the entries minus their
/// mean. A singular value counts where it is above `relative` times the largest of that centred matrix.
///
/// # Errors
/// As [`rank`].
pub fn affine_rank(entries: &Entries, relative: f64) -> Result<usize, GeometryError> {
    Ok(Frame::new(entries, relative)?.rank())
}

/// How many dimensions a query reaches, of how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimensions {
    /// Of the simplex of distributions over n entries: n - 1.
    pub simplex: usize,
    /// Of the tilts that some change of the query makes: rank(C).
    pub tilts: usize,
    /// Of the family of distributions, and of the outputs: the affine rank.
    pub family: usize,
}

impl Dimensions {
    /// Counts them, with a relative tolerance for both ranks.
    ///
    /// # Errors
    /// As [`rank`].
    pub fn of(entries: &Entries, relative: f64) -> Result<Self, GeometryError> {
        let (tilts, family) = (rank(entries, relative)?, affine_rank(entries, relative)?);
        Ok(Self { simplex: entries.count() - 1, tilts, family })
    }

    /// Directions of re-weighting that no query reaches.
    pub fn unreachable(&self) -> usize {
        self.simplex - self.family
    }
}

/// Coordinates inside the affine hull of n points: `c_j = centre + unit * basis * diag(spread) * white_j / sqrt(n)`.
///
/// `white` has unit covariance, so that thin and wide directions look alike to a solver.
pub(super) struct Frame {
    /// A power of two of the points' magnitude, by which everything is divided before anything is subtracted.
    outer: f64,
    /// The first point over `outer`.
    first: Vec<f64>,
    /// Mean of the points minus the first, in units of `outer * inner`.
    shift: Vec<f64>,
    /// A power of two of the points' spread, in units of `outer`.
    inner: f64,
    /// Orthonormal directions, `[d, r]`.
    pub basis: Mat<f64>,
    /// Singular values of the centred points in units of `outer * inner`, `[r]`.
    pub spread: Vec<f64>,
    /// White coordinates of the points, `[n, r]`.
    pub white: Mat<f64>,
    /// The points minus the centre, `[n, d]`, in the frame's unit.
    centred: Mat<f64>,
    /// The farthest point's distance from the centre, in units of `outer * inner`.
    pub radius: f64,
    /// Rounding of the points' own numbers, in units of `outer * inner`: no distance is told more finely.
    pub grain: f64,
    /// Whether in a direction that was taken for none the points extend farther than rounding explains.
    pub lost: bool,
}

/// Rounding of a sum of d numbers of the points' size, in units in the last place: more than it is in practice.
const ROUNDING: f64 = 16.0 * f64::EPSILON;

/// Norm of a row over `unit`, which alone may leave the range of f64.
fn scaled_norm(row: &[f64], unit: f64) -> f64 {
    norm(&row.iter().map(|value| value / unit).collect::<Vec<_>>())
}

/// A point seen from a frame.
pub(super) struct Seen {
    /// The point minus the centre, `[d]`, in the frame's unit.
    pub offset: Vec<f64>,
    /// What is orthogonal to the affine hull, `[d]`, in the frame's unit.
    pub outside: Vec<f64>,
}

impl Frame {
    pub fn new(points: &Entries, relative: f64) -> Result<Self, GeometryError> {
        tolerance("relative tolerance of the rank", relative)?;
        let (n, d) = (points.count(), points.width());
        let outer = match points.largest() {
            0.0 => 1.0,
            largest => power_of_two(largest),
        };
        let first: Vec<f64> = points.row(0).iter().map(|value| value / outer).collect();
        let grain = ROUNDING * points.rows().map(|row| scaled_norm(row, outer)).fold(0.0, f64::max);
        // Against the first point, so that repeated entries are exactly one.
        let mut centred = Mat::from_fn(n, d, |j, i| points.row(j)[i] / outer - first[i]);
        let largest = (0..d).flat_map(|i| centred.col_as_slice(i)).fold(0.0, |most: f64, value| value.abs().max(most));
        if largest == 0.0 {
            let (basis, white) = (Mat::zeros(d, 0), Mat::zeros(n, 0));
            let shift = vec![0.0; d];
            let (spread, radius, lost) = (Vec::new(), 0.0, false);
            return Ok(Self { outer, first, shift, inner: 1.0, basis, spread, white, centred, radius, grain, lost });
        }
        let inner = power_of_two(largest);
        let mut shift = vec![0.0; d];
        for (i, shift) in shift.iter_mut().enumerate() {
            let column = centred.col_as_slice_mut(i);
            for value in &mut *column {
                *value /= inner;
            }
            *shift = column.iter().sum::<f64>() / n as f64;
            for value in column {
                *value -= *shift;
            }
        }
        let radius = (0..n).map(|j| (0..d).map(|i| centred[(j, i)].powi(2)).sum::<f64>()).fold(0.0, f64::max).sqrt();
        let svd = Svd::of("centred entries", centred.as_ref())?;
        let r = svd.rank(relative);
        let root = (n as f64).sqrt();
        let basis = svd.right.subcols(0, r).to_owned();
        let rounding = (grain / inner).max(64.0 * f64::EPSILON * svd.values[0]);
        let lost = svd.values.get(r).is_some_and(|dropped| *dropped > rounding);
        Ok(Self {
            outer,
            first,
            shift,
            inner,
            basis,
            spread: svd.values[..r].to_vec(),
            white: Mat::from_fn(n, r, |j, i| root * svd.left[(j, i)]),
            centred,
            radius,
            grain: grain / inner,
            lost,
        })
    }

    /// Dimension r of the affine hull.
    pub fn rank(&self) -> usize {
        self.spread.len()
    }

    /// One unit in the points' own numbers; 0 where that is below the range of f64.
    pub fn unit(&self) -> f64 {
        self.outer * self.inner
    }

    /// The point `u`, `[d]`, taken apart.
    pub fn see(&self, what: &'static str, u: &[f64]) -> Result<Seen, GeometryError> {
        list(what, u, self.first.len())?;
        let steps = u.iter().zip(&self.first).zip(&self.shift);
        let offset: Vec<f64> = steps.map(|((u, first), shift)| (u / self.outer - first) / self.inner - shift).collect();
        in_range(what, &offset)?;
        let inside = transpose_times(self.basis.as_ref(), &offset);
        let outside = minus(&offset, &times(self.basis.as_ref(), &inside));
        in_range(what, &[norm(&offset)])?;
        Ok(Seen { offset, outside })
    }

    /// The points seen from `u`, `[n, d]`, in the frame's unit: where a point is `u`, exactly 0.
    pub fn from(&self, u: &Seen) -> Mat<f64> {
        Mat::from_fn(self.centred.nrows(), self.centred.ncols(), |j, i| self.centred[(j, i)] - u.offset[i])
    }

    /// What of such points is inside the affine hull, `[n, r]`: in the metric of the points.
    pub fn metric(&self, from: &Mat<f64>) -> Mat<f64> {
        product(from.as_ref(), self.basis.as_ref())
    }

    /// The same in white coordinates, `[n, r]`.
    pub fn whiten(&self, metric: &Mat<f64>) -> Mat<f64> {
        let root = (self.white.nrows() as f64).sqrt();
        Mat::from_fn(metric.nrows(), metric.ncols(), |j, i| root * metric[(j, i)] / self.spread[i])
    }

    /// A functional of white coordinates, `[r]`, as one of coordinates in the basis, `[r]`.
    pub fn blown_up(&self, white: &[f64]) -> Vec<f64> {
        let root = (self.white.nrows() as f64).sqrt();
        white.iter().zip(&self.spread).map(|(value, spread)| root * value / spread).collect()
    }

    /// A functional of white coordinates as one of the points, `[d]`, in the frame's unit.
    pub fn functional(&self, white: &[f64]) -> Vec<f64> {
        times(self.basis.as_ref(), &self.blown_up(white))
    }

    /// Length, in the frame's unit, of a difference in white coordinates.
    pub fn length(&self, white: &[f64]) -> f64 {
        let root = (self.white.nrows() as f64).sqrt();
        norm(&white.iter().zip(&self.spread).map(|(value, spread)| value * spread / root).collect::<Vec<_>>())
    }
}
