//! A proof that a point is in the relative interior of a hull.

use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use super::frame::Frame;
use super::linalg::{dot, norm, weighted_gram};

/// Weights p above 0 whose mean is so near to u that a correction of them to the mean u leaves them above 0.
///
/// With `x_j` the points seen from u, g their mean and S their covariance under p, the weights `p_j (1 - <a, x_j - g>)` with `S a = g` have the
/// same sum and the mean 0. They are above 0 if `<a, x_j - g> < 1` for all j. Rounding of the points can make g larger by `noise`; half of
/// the room is left to it and to rounding of the proof itself.
pub(super) struct Interior<'a> {
    frame: &'a Frame,
    /// The points seen from u, in white coordinates, `[n, r]`.
    x: &'a Mat<f64>,
    /// What rounding may have moved a point by, in the frame's unit.
    pub noise: f64,
}

impl<'a> Interior<'a> {
    /// For the points seen from u: `from`, `[n, d]`, in the frame's unit, and `x`, `[n, r]`, the same in white coordinates.
    pub fn new(frame: &'a Frame, from: &Mat<f64>, x: &'a Mat<f64>) -> Self {
        let squared = |j: usize| (0..from.ncols()).map(|i| from[(j, i)].powi(2)).sum::<f64>();
        let farthest = (0..from.nrows()).map(squared).fold(0.0, f64::max).sqrt();
        Self { frame, x, noise: 4.0 * f64::EPSILON * farthest + frame.grain / 16.0 }
    }

    /// Whether the weights `p`, `[n]`, with the mean `g`, `[r]`, in white coordinates, prove it.
    pub fn holds(&self, p: &[f64], g: &[f64]) -> bool {
        // A weight that underflowed is above 0 in exact numbers, and moves the mean by less than any rounding.
        let (n, r) = (self.x.nrows(), self.x.ncols());
        let seen = Mat::from_fn(n, r, |j, i| self.x[(j, i)] - g[i]);
        let (mut scratch, mut covariance) = (Mat::zeros(n, r), Mat::zeros(r, r));
        weighted_gram(seen.as_ref(), p, &mut scratch, &mut covariance);
        let Ok(factor) = covariance.llt(Side::Lower) else { return false };
        let mut solved = seen.transpose().to_owned();
        factor.solve_in_place(&mut solved);
        (0..n).all(|j| {
            let column = solved.col_as_slice(j);
            let moved = dot(column, g);
            let rounding = self.noise * norm(&self.frame.blown_up(column));
            moved + rounding < 0.5
        })
    }
}
