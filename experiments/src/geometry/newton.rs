//! The convex problem behind "which query reaches u": `min log sum_j rho_j exp(<q, x_j>)`, where `x_j` are the points seen from u.
//!
//! Its gradient is the mean of the `x_j`, so the minimiser's mean is u. Damped Newton, in white coordinates.

use faer::linalg::solvers::Solve;
use faer::{Mat, MatRef, Side};

use super::linalg::{dot, norm, times, transpose_times, weighted_gram};
use super::readout::softmax;

/// Most steps; quadratic convergence takes a handful, a target near the boundary some dozens.
const STEPS: usize = 200;

/// Where the minimisation ended.
pub struct Minimum {
    /// The query, `[r]`.
    pub q: Vec<f64>,
    /// Probabilities, `[n]`.
    pub p: Vec<f64>,
    /// Mean of the points under them, `[r]`: 0 at the minimum.
    pub gradient: Vec<f64>,
    /// Whether the query is a functional that separates the points from 0: then there is no minimum.
    pub separates: bool,
}

struct Place {
    q: Vec<f64>,
    value: f64,
    p: Vec<f64>,
    gradient: Vec<f64>,
    /// `<q, x_j>`, `[n]`.
    tilts: Vec<f64>,
}

fn at(x: MatRef<'_, f64>, log_prior: &[f64], q: Vec<f64>) -> Place {
    let tilts = times(x, &q);
    let logits: Vec<f64> = tilts.iter().zip(log_prior).map(|(tilt, prior)| tilt + prior).collect();
    let (p, value) = softmax(&logits);
    let gradient = transpose_times(x, &p);
    Place { q, value, p, gradient, tilts }
}

/// Most steps past what is enough. Convergence is quadratic there, so that one or two reach rounding.
const POLISH: usize = 3;

/// Minimises over the rows of `x`, `[n, r]` with r > 0, until `enough` says so or no step helps any more; then as near to rounding as a few
/// more steps bring it.
pub fn minimise(x: MatRef<'_, f64>, log_prior: &[f64], enough: impl Fn(&[f64], &[f64]) -> bool) -> Minimum {
    let r = x.ncols();
    let (mut seen, mut scratch) = (Mat::zeros(x.nrows(), r), Mat::zeros(x.nrows(), r));
    let mut hessian = Mat::zeros(r, r);
    let mut trust = TILT;
    let mut here = at(x, log_prior, vec![0.0; r]);
    let mut separates = false;
    let mut past = 0;
    for _ in 0..STEPS {
        separates = here.tilts.iter().all(|tilt| *tilt < 0.0);
        if past == 0 && enough(&here.p, &here.gradient) {
            past = 1;
        }
        if separates || past > POLISH {
            break;
        }
        // About the mean: where one point has nearly all of the weight, what the others add is below the last digit of its square.
        for i in 0..r {
            for (seen, x) in seen.col_mut(i).iter_mut().zip(x.col(i).iter()) {
                *seen = x - here.gradient[i];
            }
        }
        weighted_gram(seen.as_ref(), &here.p, &mut scratch, &mut hessian);
        let Some(next) = advance(x, log_prior, &hessian, &here, &mut trust) else { break };
        if past > 0 {
            if norm(&next.gradient) > 0.5 * norm(&here.gradient) {
                break;
            }
            past += 1;
        }
        here = next;
    }
    Minimum { q: here.q, p: here.p, gradient: here.gradient, separates }
}

/// One step. Where probabilities underflow, the covariance loses rank, and a little of its largest variance is added until it has it and
/// a step helps.
fn advance(x: MatRef<'_, f64>, log_prior: &[f64], hessian: &Mat<f64>, here: &Place, trust: &mut f64) -> Option<Place> {
    let r = hessian.nrows();
    let largest = (0..r).map(|i| hessian[(i, i)]).fold(0.0, f64::max);
    for added in std::iter::once(0.0).chain((-15..=0).map(|exponent| largest * 10.0_f64.powi(exponent))) {
        let damped = Mat::from_fn(r, r, |i, j| hessian[(i.max(j), i.min(j))] + if i == j { added } else { 0.0 });
        let Ok(factor) = damped.llt(Side::Lower) else { continue };
        let step = factor.solve(Mat::from_fn(r, 1, |i, _| -here.gradient[i]));
        let step = step.col_as_slice(0);
        let downhill = step.iter().all(|value| value.is_finite()) && dot(step, &here.gradient) < 0.0;
        if let Some(there) = downhill.then(|| search(x, log_prior, here, step, trust)).flatten() {
            return Some(there);
        }
    }
    None
}

/// The largest ratio, as a logarithm, by which the first step may change the odds of two points: the covariance that the step is made of
/// says nothing of what is farther away. While such steps are good as they are, the next may be twice as long.
const TILT: f64 = 5.0;

/// The first of the step, shortened to `trust`, half of it, a quarter, ... that makes the value smaller by a share of what the slope promises; where the
/// value's last digit is too coarse to tell, one that makes the gradient smaller.
fn search(x: MatRef<'_, f64>, log_prior: &[f64], here: &Place, step: &[f64], trust: &mut f64) -> Option<Place> {
    let slope = dot(step, &here.gradient);
    // The value is no finer than the tilts in it, which are sums of products that can be larger than they are.
    let products = |row: usize| (0..x.ncols()).map(|i| (here.q[i] * x[(row, i)]).abs()).sum::<f64>();
    let coarsest: f64 = here.p.iter().enumerate().map(|(row, p)| p * products(row)).sum();
    let grain = 4.0 * f64::EPSILON * (here.value.abs().max(1.0) + coarsest);
    let tilts = times(x, step);
    let range = tilts.iter().fold(f64::NEG_INFINITY, |most, tilt| tilt.max(most))
        - tilts.iter().fold(f64::INFINITY, |least, tilt| tilt.min(least));
    let mut size = if range > *trust { *trust / range } else { 1.0 };
    for tried in 0..30 {
        let q: Vec<f64> = here.q.iter().zip(step).map(|(q, step)| q + size * step).collect();
        let there = at(x, log_prior, q);
        let falls = there.value < here.value + 1e-4 * size * slope - grain;
        let level = (there.value - here.value).abs() <= grain && norm(&there.gradient) < norm(&here.gradient);
        if there.value.is_finite() && (falls || level) {
            *trust = if tried > 0 { (size * range).max(TILT) } else { 2.0 * trust.max(TILT) };
            return Some(there);
        }
        size *= 0.5;
    }
    None
}
