//! The family of distributions of a read-out, and the query that reaches a target.

use faer::Mat;

use super::error::{GeometryError, in_range};
use super::hull::{Hull, Membership, Precision, Supporting};
use super::interior::Interior;
use super::linalg::{minus, norm, transpose_times};
use super::newton;
use super::readout::ReadOut;
use super::support;

/// A read-out whose points were decomposed: all distributions that a query can make, and the hull of all outputs.
pub struct Family {
    pub(super) readout: ReadOut,
    pub(super) hull: Hull,
}

/// Whether a target can be a query's output.
#[derive(Clone, Debug, PartialEq)]
pub enum Reach {
    /// It can: the target is in the relative interior.
    Reached {
        /// The query, `[d]`: of all that reach it the one in the direction space of the affine hull.
        query: Vec<f64>,
        /// Distance of its output from the target, by a read-out in the points' own coordinates.
        residual: f64,
    },
    /// It cannot: the target is on the boundary of the hull, or outside.
    OutsideOrBoundary {
        /// Unit vector v, `[d]`, with `<v, c_j - u> <= margin` for every j, and less for some.
        direction: Vec<f64>,
        /// The largest `<v, c_j - u>`: minus the distance outside, and on the boundary 0, up to the precision.
        margin: f64,
        /// Distance of the target from the hull; on the boundary 0 up to the precision.
        distance: f64,
    },
    /// Neither could be shown.
    Undecided {
        /// Distance of the best output found from the target.
        residual: f64,
        /// What was missing.
        reason: &'static str,
    },
}

impl Family {
    /// Decomposes the points once.
    ///
    /// # Errors
    /// As [`Hull::new`].
    pub fn new(readout: ReadOut, precision: Precision) -> Result<Self, GeometryError> {
        let hull = Hull::new(readout.points(), precision)?;
        Ok(Self { readout, hull })
    }

    /// The read-out.
    pub fn readout(&self) -> &ReadOut {
        &self.readout
    }

    /// The hull of its points, the sink's among them.
    pub fn hull(&self) -> &Hull {
        &self.hull
    }

    /// A query whose output is `u`, `[d]`, or a proof that there is none.
    ///
    /// # Errors
    /// When `u` is not of the points' width or not finite, or the query would leave the range of f64.
    pub fn reach(&self, u: &[f64]) -> Result<Reach, GeometryError> {
        let frame = &self.hull.frame;
        let seen = frame.see("target", u)?;
        let from = frame.from(&seen);
        let off = norm(&seen.outside);
        if off > self.hull.reached() {
            return self.refuse(u, &from, &seen.outside, off * frame.unit());
        }
        if frame.rank() == 0 {
            return self.verify(u, vec![0.0; u.len()]);
        }
        let metric = frame.metric(&from);
        let x = frame.whiten(&metric);
        let proof = Interior::new(frame, &from, &x);
        let aim = 0.01 * self.hull.reached();
        let found = newton::minimise(x.as_ref(), self.readout.log_prior(), |p, gradient| {
            let off = frame.length(gradient);
            off <= 0.1 * proof.noise || (off <= aim && proof.holds(p, gradient))
        });
        if found.separates {
            return self.refuse(u, &from, &frame.functional(&found.q), frame.length(&found.gradient) * frame.unit());
        }
        if proof.holds(&found.p, &found.gradient) {
            return self.accept(u, &found.q);
        }
        // Probabilities of 1e-15, as beside a heavy sink, prove nothing: rounding could make up for them. Others may prove it.
        let (functional, weights) = support::functional(frame, &metric, proof.noise);
        if proof.holds(&weights, &transpose_times(x.as_ref(), &weights)) {
            return self.accept(u, &found.q);
        }
        self.refuse(u, &from, &functional, frame.length(&found.gradient) * frame.unit())
    }

    /// Accepts a query in white coordinates, `[r]`, for a target in the relative interior.
    fn accept(&self, u: &[f64], white: &[f64]) -> Result<Reach, GeometryError> {
        let frame = &self.hull.frame;
        let query = frame.functional(white);
        let query: Vec<f64> = query.iter().map(|value| value / frame.unit() / self.readout.scale()).collect();
        in_range("query that reaches the target", &query)?;
        self.verify(u, query)
    }

    /// Accepts a query whose output is the target.
    fn verify(&self, u: &[f64], query: Vec<f64>) -> Result<Reach, GeometryError> {
        let residual = norm(&minus(&self.readout.read(&query)?.o, u));
        if residual.is_finite() && residual <= self.hull.reached() * self.hull.frame.unit() {
            return Ok(Reach::Reached { query, residual });
        }
        Ok(Reach::Undecided { residual, reason: "the output of the query found is not near enough to the target" })
    }

    /// Accepts a functional that supports the hull at the target; outside of the hull, the one that separates it by the distance.
    fn refuse(&self, u: &[f64], from: &Mat<f64>, functional: &[f64], residual: f64) -> Result<Reach, GeometryError> {
        let undecided = |reason| Ok(Reach::Undecided { residual, reason });
        let (functional, distance) = match self.hull.locate(u)? {
            Membership::Inside { distance, .. } => (functional.to_vec(), distance),
            Membership::Outside { distance, direction, .. } => (direction, distance),
            Membership::Undecided { .. } => return undecided("the target's distance from the hull is not certain"),
        };
        let Some(Supporting { direction, margin, .. }) = self.hull.supports(from, &functional) else {
            return undecided("no query reaches the target, and no functional supports the hull there");
        };
        Ok(Reach::OutsideOrBoundary { direction, margin: margin * self.hull.frame.unit(), distance })
    }
}
