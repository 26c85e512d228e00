//! The member of a family that has a distribution's mean: what a query can make of it, and what none can repair.

use super::error::GeometryError;
use super::family::{Family, Reach};
use super::readout::weights;
use super::support::{Face, face};

/// The member of the family with the mean of a given distribution w. Of all members it has the smallest KL(w | member).
#[derive(Clone, Debug, PartialEq)]
pub enum Member {
    /// It was found.
    Found {
        /// The member, `[n]`.
        p: Vec<f64>,
        /// KL(w | member) in nats: what no query can repair.
        kl: f64,
        /// The query, `[d]`, that makes it; inside the face where `face` is given.
        query: Vec<f64>,
        /// Where the mean is on the boundary of the hull, no query makes the member: it is a limit of members, which lives on the
        /// smallest face that holds the mean, and this is the face. None where a query makes it.
        face: Option<Vec<usize>>,
    },
    /// It could not be found.
    Undecided {
        /// What was missing.
        reason: &'static str,
    },
}

impl Family {
    /// The member with the mean of the distribution `w`, `[n]` (with a sink `[n + 1]`); weights may be 0, and are divided by their sum.
    ///
    /// # Errors
    /// When there are not as many weights as points, one is negative or not finite, or all are 0.
    pub fn member(&self, w: &[f64]) -> Result<Member, GeometryError> {
        let points = self.readout.points();
        weights("distribution", w, points.count())?;
        let sum: f64 = w.iter().sum();
        if !(sum > 0.0 && sum.is_finite()) {
            return Err(GeometryError::Range {
                what: "sum of the distribution",
                found: sum,
                right: "above 0 and finite",
            });
        }
        let w: Vec<f64> = w.iter().map(|weight| weight / sum).collect();
        let mean = points.mix(&w);
        match self.reach(&mean)? {
            Reach::Reached { query, .. } => {
                let (p, kl) = self.divergence(&w, &query)?;
                Ok(Member::Found { p, kl, query, face: None })
            }
            Reach::Undecided { reason, .. } => Ok(Member::Undecided { reason }),
            Reach::OutsideOrBoundary { .. } => self.limit(&w, &mean),
        }
    }

    /// The member on the face that holds the mean.
    fn limit(&self, w: &[f64], mean: &[f64]) -> Result<Member, GeometryError> {
        let undecided = |reason| Ok(Member::Undecided { reason });
        let points = self.readout.points();
        let Face::Found { members, .. } = face(points, mean, self.hull.precision)? else {
            return undecided("the face that the mean is in could not be told");
        };
        let inside: Vec<f64> = members.iter().map(|&j| w[j]).collect();
        if inside.iter().filter(|weight| **weight > 0.0).count() < w.iter().filter(|weight| **weight > 0.0).count() {
            return undecided("the mean is too near to a face to tell whether it is on it");
        }
        let inner = Self::new(self.readout.subset(&members), self.hull.precision)?;
        let Reach::Reached { query, .. } = inner.reach(mean)? else {
            return undecided("no query was found that reaches the mean inside its face");
        };
        let (on_face, kl) = inner.divergence(&inside, &query)?;
        let mut p = vec![0.0; points.count()];
        members.iter().zip(&on_face).for_each(|(&j, &on_face)| p[j] = on_face);
        Ok(Member::Found { p, kl, query, face: Some(members) })
    }

    /// Probabilities of a query, and the divergence of `w` from them.
    fn divergence(&self, w: &[f64], query: &[f64]) -> Result<(Vec<f64>, f64), GeometryError> {
        let reading = self.readout.read(query)?;
        let logits = self.readout.logits(query)?;
        // By logarithms, for a probability may underflow.
        let each = w.iter().zip(&logits).filter(|(w, _)| **w > 0.0);
        let kl = each.map(|(w, logit)| w * (w.ln() - (logit - reading.log_partition))).sum();
        Ok((reading.p, kl))
    }
}
