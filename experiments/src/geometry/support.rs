//! A functional that supports a hull at a point of its boundary, and the face of the hull that the point is in.

use faer::{Mat, MatRef};

use super::entries::Entries;
use super::error::GeometryError;
use super::frame::Frame;
use super::hull::{Hull, Precision, Supporting, nearest, row, without};
use super::interior::Interior;
use super::linalg::{norm, normalise, times, transpose_times};
use super::nnls;

/// A functional v, `[d]`, with `<v, c_j - u> <= 0` for the points seen from u, `metric` `[n, r]`, and less for some; rounding alone where
/// there is none, because u is in the relative interior of the hull.
///
/// With it weights, `[n]`, all above 0: their mean is u where the functional is no more than rounding.
///
/// In the points' own metric, for rounding is as small as their numbers there, while white coordinates would blow it up.
pub(super) fn functional(frame: &Frame, metric: &Mat<f64>, noise: f64) -> (Vec<f64>, Vec<f64>) {
    let (functional, weights) = combination(metric.as_ref(), noise);
    (times(frame.basis.as_ref(), &functional), weights)
}

/// A supporting functional at u that starts from `functional`, if there is one.
fn supporting(hull: &Hull, from: &Mat<f64>, functional: &[f64], noise: f64) -> Option<Supporting> {
    // The few points that it was found from can be almost in one line; then their rounding decides what it is across the line.
    let flattened = || hull.supports(from, &flattened(from, functional, noise)?);
    let found = hull.supports(from, functional).or_else(flattened)?;
    // Points can be below it by next to nothing, though another functional has them far below.
    let near = hull.near();
    let (below, gap) = (found.below(near), found.gap(near));
    if gap > 1e-3 * hull.frame.radius {
        return Some(found);
    }
    let wide = widened(from, &below, noise).and_then(|functional| hull.supports(from, &functional));
    Some(wide.filter(|wide| wide.below(near) == below && wide.gap(near) > gap).unwrap_or(found))
}

/// The functional made 0 on all points on which it nearly is. None where that leaves little of it.
fn flattened(from: &Mat<f64>, functional: &[f64], noise: f64) -> Option<Vec<f64>> {
    let values = times(from.as_ref(), functional);
    let lowest = values.iter().copied().fold(0.0, f64::min);
    let face: Vec<usize> = (0..values.len()).filter(|&j| values[j] > 1e-6 * lowest).collect();
    let rest = without(span(from, &face, noise)?.as_ref(), functional);
    (norm(&rest) > 0.5 * norm(functional)).then_some(rest)
}

/// The functional that has the nearest of some points as far below as can be, and is 0 on all others.
fn widened(from: &Mat<f64>, below: &[usize], noise: f64) -> Option<Vec<f64>> {
    let face: Vec<usize> = (0..from.nrows()).filter(|j| !below.contains(j)).collect();
    let span = span(from, &face, noise)?;
    let rows: Vec<Vec<f64>> = below.iter().map(|&j| without(span.as_ref(), &row(from, j))).collect();
    let across = Mat::from_fn(rows.len(), from.ncols(), |j, i| rows[j][i]);
    let farthest = rows.iter().map(|row| norm(row)).fold(0.0, f64::max);
    let nearest = transpose_times(across.as_ref(), &nearest(&across, farthest));
    Some(nearest.iter().map(|value| -value).collect())
}

/// Orthonormal columns, `[d, k]`, that span some of the points seen from u, up to rounding.
fn span(from: &Mat<f64>, points: &[usize], noise: f64) -> Option<Mat<f64>> {
    let columns = Mat::from_fn(from.ncols(), points.len(), |i, k| from[(points[k], i)]);
    let svd = columns.thin_svd().ok()?;
    let rank = svd.S().column_vector().iter().filter(|size| **size > 64.0 * noise).count();
    Some(svd.U().subcols(0, rank).to_owned())
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
        let (functional, weights) = functional(&hull.frame, &metric, proof.noise);
        if let Some(found) = supporting(&hull, &from, &functional, proof.noise) {
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
