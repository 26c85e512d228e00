//! Whether a point is in the convex hull of some points, how far outside it is, and what separates it.

use faer::{Mat, MatRef};

use super::entries::Entries;
use super::error::{GeometryError, in_range, tolerance};
use super::frame::Frame;
use super::linalg::{norm, normalise, times, transpose_times};
use super::nnls;

/// How exactly questions about hulls are answered, relative to the hull's radius: its farthest point's distance from its mean. Where the
/// points' own numbers are so large that rounding them is more than that, it counts in place of it.
///
/// Points are taken as known up to rounding: a direction in which all of them extend by no more than 64 units in the last place of the largest
/// singular value, or 16 of the largest norm, is none, as flat points have such extents once they are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precision {
    /// Singular values below this share of the largest are none.
    pub rank: f64,
    /// A point nearer to the hull than this is in it; a functional that exceeds the point's by less than this supports it.
    pub distance: f64,
    /// An output nearer to the target than this has reached it.
    pub reach: f64,
}

impl Precision {
    /// What is used unless something else is asked for.
    pub const DEFAULT: Self = Self { rank: 1e-12, distance: 1e-10, reach: 1e-10 };

    pub(super) fn check(&self) -> Result<(), GeometryError> {
        tolerance("relative tolerance of the rank", self.rank)?;
        tolerance("relative tolerance of distances", self.distance)?;
        tolerance("relative tolerance of what is reached", self.reach)
    }
}

/// Where a point is.
#[derive(Clone, Debug, PartialEq)]
pub enum Membership {
    /// In the hull.
    Inside {
        /// A convex combination of the points, `[n]`, which is the point up to `distance`.
        weights: Vec<f64>,
        /// How far the combination is from the point.
        distance: f64,
    },
    /// Outside.
    Outside {
        /// The nearest combination, `[n]`.
        weights: Vec<f64>,
        /// How far it is: no combination is nearer by more than the precision.
        distance: f64,
        /// Unit vector v, `[d]`, with `<v, c_j - u> <= -distance` for every j, up to the precision.
        direction: Vec<f64>,
    },
    /// Neither could be shown.
    Undecided {
        /// The hull is at least so far away.
        least: f64,
        /// A point of the hull is so far away.
        most: f64,
    },
}

/// The convex hull of some points, prepared for questions.
pub struct Hull {
    pub(super) frame: Frame,
    pub(super) precision: Precision,
}

impl Hull {
    /// Decomposes the points once.
    ///
    /// # Errors
    /// When a tolerance is not inside (0, 1), the decomposition fails, or the radius leaves the range of f64.
    pub fn new(points: &Entries, precision: Precision) -> Result<Self, GeometryError> {
        precision.check()?;
        let frame = Frame::new(points, precision.rank)?;
        // Any tolerance would be met by a radius that has overflowed.
        in_range("radius of the hull", &[frame.unit(), frame.radius * frame.unit()])?;
        Ok(Self { frame, precision })
    }

    /// Dimension of the affine hull.
    pub fn rank(&self) -> usize {
        self.frame.rank()
    }

    /// Distance of the farthest point from the mean.
    pub fn radius(&self) -> f64 {
        self.frame.radius * self.frame.unit()
    }

    /// What is no distance, in the frame's unit.
    pub(super) fn near(&self) -> f64 {
        (self.precision.distance * self.frame.radius).max(self.frame.grain)
    }

    /// How far from a target its output may be, in the frame's unit.
    pub(super) fn reached(&self) -> f64 {
        (self.precision.reach * self.frame.radius).max(self.frame.grain)
    }

    /// Where `u`, `[d]`, is.
    ///
    /// # Errors
    /// When `u` is not of the points' width or not finite, or so far away that its distance cannot be told.
    pub fn locate(&self, u: &[f64]) -> Result<Membership, GeometryError> {
        let seen = self.frame.see("point", u)?;
        let from = self.frame.from(&seen);
        let metric = self.frame.metric(&from);
        let farthest = (0..metric.nrows()).map(|j| norm(&row(&metric, j))).fold(0.0, f64::max);
        // The solver's own precision is relative to the length that it is given; where that is not enough, what was found is the next.
        let mut length = if farthest > 0.0 { farthest } else { 1.0 };
        for _ in 0..4 {
            let gap = match self.judge(&from, nearest(&metric, length)) {
                Membership::Undecided { most, .. } => most / self.frame.unit(),
                decided => return Ok(decided),
            };
            if gap >= 0.1 * length {
                break;
            }
            length = gap;
        }
        Ok(self.judge(&from, nearest(&metric, length)))
    }

    /// What weights prove, checked on the points themselves, seen from the one in question.
    fn judge(&self, from: &Mat<f64>, weights: Vec<f64>) -> Membership {
        let unit = self.frame.unit();
        let gap = transpose_times(from.as_ref(), &weights);
        let most = norm(&gap);
        if most <= self.near() {
            return Membership::Inside { weights, distance: most * unit };
        }
        // A distance beyond the radius is told to as many digits.
        let enough = most - self.near().max(self.precision.distance * most);
        let mut least = 0.0_f64;
        for gap in [gap.clone(), across_face(from, &weights, &gap)] {
            let size = norm(&gap);
            let direction: Vec<f64> = gap.iter().map(|value| -value / size).collect();
            let separates = -times(from.as_ref(), &direction).into_iter().fold(f64::NEG_INFINITY, f64::max);
            if separates >= enough {
                return Membership::Outside { weights, distance: most * unit, direction };
            }
            // Not what is not a number, where nothing of the gap is across the face.
            least = least.max(separates);
        }
        Membership::Undecided { least: least * unit, most: most * unit }
    }

    /// The functional as a unit vector, with the largest `<v, c_j - u>`, if it supports the hull at u: that is 0 up to the precision, or
    /// less, and the functional tells some of the hull from u. With all `<v, c_j - u>`, in the frame's unit.
    pub(super) fn supports(&self, from: &Mat<f64>, functional: &[f64]) -> Option<Supporting> {
        let size = norm(functional);
        if !(size > 0.0 && size.is_finite()) {
            return None;
        }
        let direction: Vec<f64> = functional.iter().map(|value| value / size).collect();
        let values = times(from.as_ref(), &direction);
        let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
        let margin = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let fits = margin <= self.near() && margin <= -1e-3 * lowest && lowest < 0.0;
        fits.then_some(Supporting { direction, values, margin })
    }
}

/// A functional that supports a hull at a point u.
pub(super) struct Supporting {
    /// Unit vector v, `[d]`.
    pub direction: Vec<f64>,
    /// `<v, c_j - u>`, `[n]`, in the frame's unit.
    pub values: Vec<f64>,
    /// The largest of them.
    pub margin: f64,
}

impl Supporting {
    /// The points that are below by more than `near`.
    pub fn below(&self, near: f64) -> Vec<usize> {
        (0..self.values.len()).filter(|&j| self.values[j] < -near).collect()
    }

    /// By how much the nearest of those is below.
    pub fn gap(&self, near: f64) -> f64 {
        self.values.iter().filter(|value| **value < -near).fold(f64::INFINITY, |least, value| least.min(-value))
    }
}

/// The gap, `[d]`, without what rounding left in it along the face that the weights are on: near to the hull that share is large.
fn across_face(from: &Mat<f64>, weights: &[f64], gap: &[f64]) -> Vec<f64> {
    let used: Vec<usize> = (0..weights.len()).filter(|&j| weights[j] > 0.0).collect();
    let Some((&first, others)) = used.split_first() else { return gap.to_vec() };
    let along = Mat::from_fn(gap.len(), others.len(), |i, k| from[(others[k], i)] - from[(first, i)]);
    without(along.qr().compute_thin_Q().as_ref(), gap)
}

/// What of a vector, `[d]`, is orthogonal to orthonormal columns, `[d, k]`: to the last bit of itself.
pub(super) fn without(columns: MatRef<'_, f64>, vector: &[f64]) -> Vec<f64> {
    let mut rest = vector.to_vec();
    for _ in 0..2 {
        let within = times(columns, &transpose_times(columns, &rest));
        rest.iter_mut().zip(within).for_each(|(rest, within)| *rest -= within);
    }
    rest
}

pub(super) fn row(matrix: &Mat<f64>, j: usize) -> Vec<f64> {
    matrix.row(j).iter().copied().collect()
}

/// Weights, `[n]`, of the combination of the rows of `metric`, `[n, r]`, that is nearest to 0.
///
/// They are, up to their sum, the coefficients >= 0 with which the columns `(row_j, s)` come nearest to `(0, s)`, whatever the length s > 0
/// is.
pub(super) fn nearest(metric: &Mat<f64>, s: f64) -> Vec<f64> {
    let (n, r) = (metric.nrows(), metric.ncols());
    let columns = Mat::from_fn(r + 1, n, |i, j| if i < r { metric[(j, i)] / s } else { 1.0 });
    let mut goal = vec![0.0; r + 1];
    goal[r] = 1.0;
    let mut weights = nnls::solve(columns.as_ref(), &goal, 0.0).x;
    normalise(&mut weights);
    weights
}
