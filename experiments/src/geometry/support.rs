//! A functional that supports a hull at a point of its boundary, and the face of the hull that the point is in.

use faer::{Mat, MatRef};

use super::entries::Entries;
use super::error::GeometryError;
use super::frame::Frame;
use super::hull::{Hull, Precision};
use super::interior::Interior;
use super::linalg::{norm, normalise, times, transpose_times};
use super::nnls;

/// A functional v, `[d]`, with `<v, c_j - u> <= 0` for the points seen from u, `metric` `[n, r]`, and less for some; rounding alone where
/// there is none, because u is in the relative interior of the hull.
///
/// In the points' own metric, for rounding is as small as their numbers there, while white coordinates would blow it up.
pub(super) fn functional(frame: &Frame, metric: &Mat<f64>, noise: f64) -> Vec<f64> {
    times(frame.basis.as_ref(), &combination(metric.as_ref(), noise).0)
}

/// That functional, and weights above 0 whose mean is 0 where it is not one; rounding may have moved a point by `noise`.
///
/// 0 is in the relative interior if and only if it is a combination with all weights above 0, that is, with `1 + mu_j`, `mu_j >= 0`,
/// up to their sum. The residual of the nearest such combination is the functional: by optimality no row exceeds it.
fn combination(x: MatRef<'_, f64>, noise: f64) -> (Vec<f64>, Vec<f64>) {
    let (n, r) = (x.nrows(), x.ncols());
    let largest = (0..r).flat_map(|i| x.col(i).iter()).fold(0.0, |most: f64, value| value.abs().max(most));
    let unit = if largest > 0.0 { largest } else { 1.0 };
    let columns = Mat::from_fn(r, n, |i, j| x[(j, i)] / unit);
    let goal: Vec<f64> = transpose_times(columns.transpose(), &vec![1.0; n]).iter().map(|value| -value).collect();
    let solved = nnls::solve(columns.as_ref(), &goal, noise / unit);
    let mut weights: Vec<f64> = solved.x.iter().map(|mu| 1.0 + mu).collect();
    normalise(&mut weights);
    (solved.residual, weights)
}

/// The smallest face of a hull that holds a point.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Face {
    /// The points in it, and the functionals that expose it, one after another.
    Found { members: Vec<usize>, exposed: Vec<Exposed> },
    /// The point is not in the hull.
    Outside,
    /// Neither could be shown.
    Undecided,
}

/// One step from a face to a smaller one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Exposed {
    /// Unit vector v, `[d]`.
    pub direction: Vec<f64>,
    /// Points of the larger face that the step leaves out, where `<v, c_j - u>` is below 0, with that number.
    pub left: Vec<(usize, f64)>,
}

/// Finds the face of `u` by supporting functionals, each of which leaves out the points below it.
///
/// # Errors
/// As [`Hull::new`] and [`Hull::locate`].
pub(super) fn face(points: &Entries, u: &[f64], precision: Precision) -> Result<Face, GeometryError> {
    let mut members: Vec<usize> = (0..points.count()).collect();
    let mut exposed = Vec::new();
    let mut level = 0.0;
    loop {
        let hull = Hull::new(&points.subset(&members), precision)?;
        let seen = hull.frame.see("point", u)?;
        if exposed.is_empty() {
            level = hull.near() * hull.frame.unit();
        }
        let near = |length: f64| length * hull.frame.unit() <= level;
        if !near(norm(&seen.outside)) {
            return Ok(if exposed.is_empty() { Face::Outside } else { Face::Undecided });
        }
        if hull.rank() == 0 {
            return Ok(Face::Found { members, exposed });
        }
        let from = hull.frame.from(&seen);
        let metric = hull.frame.metric(&from);
        let x = hull.frame.whiten(&metric);
        let proof = Interior::new(&hull.frame, &from, &x);
        let (functional, weights) = combination(metric.as_ref(), proof.noise);
        if let Some(found) = hull.supports(&from, &times(hull.frame.basis.as_ref(), &functional)) {
            let values = members.iter().zip(&found.values).map(|(&j, value)| (j, value * hull.frame.unit()));
            let (left, kept): (Vec<_>, Vec<_>) = values.partition(|(_, value)| *value < -level);
            if left.is_empty() {
                return Ok(Face::Undecided);
            }
            members = kept.into_iter().map(|(j, _)| j).collect();
            if members.is_empty() {
                return Ok(Face::Outside);
            }
            exposed.push(Exposed { direction: found.direction, left });
            continue;
        }
        // In a direction that was taken for none, but is not one of rounding, the point may be on the boundary.
        if !hull.frame.lost && proof.holds(&weights, &transpose_times(x.as_ref(), &weights)) {
            return Ok(Face::Found { members, exposed });
        }
        return Ok(Face::Undecided);
    }
}
