//! Which entries a query can single out, and the largest probability that an entry can get.

use super::error::{GeometryError, in_range};
use super::family::{Family, Reach};
use super::support::{Exposed, Face, face};

/// How often e fits into what a witness leaves outside of the face, as a share: e^-40 is below the last digit of 1.
const FAR: f64 = 40.0;

/// The largest probability of an entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Largest {
    /// It was found.
    Found {
        /// The supremum over all queries.
        supremum: f64,
        /// No query gives more: a bound from duality, equal to the supremum up to rounding. Of the points up to rounding, too: what extends by
        /// less than some 100 units in the last place of the hull's extent is taken for flat (see [`Precision`](super::Precision)), though
        /// points that are meant to the last digit could be told apart there by a query of 10^14 or more.
        bound: f64,
        /// Whether some query gives it; otherwise queries only come near, along a direction.
        attained: bool,
        /// A query, `[d]`, that gives `witnessed`.
        witness: Vec<f64>,
        /// The entry's probability under the witness.
        witnessed: f64,
        /// Entries of the smallest face of the hull that holds this one.
        face: Vec<usize>,
    },
    /// The face could not be told, or no query found that proves it.
    Undecided {
        /// What was missing.
        reason: &'static str,
    },
}

impl Family {
    /// Whether entry `index` is a vertex of the hull: whether some linear functional exposes it, and entries equal to it, alone; of the points
    /// up to rounding (see [`Precision`](super::Precision)). None where that is undecided.
    ///
    /// # Errors
    /// When there is no such entry.
    pub fn is_vertex(&self, index: usize) -> Result<Option<bool>, GeometryError> {
        let points = self.readout.points();
        points.check_index(index)?;
        Ok(match face(points, points.row(index), self.hull.precision)? {
            Face::Found { members, .. } => {
                let entry = points.row(index);
                Some(members.iter().all(|&member| points.row(member) == entry))
            }
            Face::Outside | Face::Undecided => None,
        })
    }

    /// The supremum over all queries of the probability of entry `index`.
    ///
    /// Outside of the smallest face that holds the entry, everything can be driven to 0; inside, the entry is in the relative interior,
    /// and the best query is the one that reaches the entry itself. So a vertex gets 1 (shared with entries equal to it, by prior).
    ///
    /// # Errors
    /// When there is no such entry, or a query leaves the range of f64.
    pub fn largest_probability(&self, index: usize) -> Result<Largest, GeometryError> {
        let undecided = |reason| Ok(Largest::Undecided { reason });
        let points = self.readout.points();
        points.check_index(index)?;
        let u = points.row(index);
        let Face::Found { members, exposed } = face(points, u, self.hull.precision)? else {
            return undecided("the face that the entry is in could not be told");
        };
        let inner = Self::new(self.readout.subset(&members), self.hull.precision)?;
        let Reach::Reached { query, .. } = inner.reach(u)? else {
            return undecided("no query was found that reaches the entry inside its face");
        };
        let reading = inner.readout.read(&query)?;
        let at = members.iter().position(|&member| member == index);
        let Some(at) = at else { return undecided("the face found does not hold the entry") };
        // With p the member whose mean is the entry: rho_k e^KL(p | rho), no matter how rho is normalised.
        let logits = inner.readout.logits(&query)?;
        let log_prior = inner.readout.log_prior();
        let divergence = |((p, logit), prior): ((&f64, &f64), &f64)| p * (logit - prior - reading.log_partition);
        let divergence: f64 = reading.p.iter().zip(&logits).zip(log_prior).map(divergence).sum();
        let bound = (log_prior[at] + divergence).exp().min(1.0);
        let witness = self.approach(index, &query, &exposed)?;
        let witnessed = self.readout.read(&witness)?.p[index];
        let supremum = reading.p[at];
        if (bound - supremum).abs() > 1e-9 || (witnessed - supremum).abs() > 1e-9 {
            return undecided("bound, supremum and witness do not agree");
        }
        Ok(Largest::Found { supremum, bound, attained: exposed.is_empty(), witness, witnessed, face: members })
    }

    /// A query that leaves next to nothing outside of the face: the functionals that expose it, the last one first, each so far that
    /// what it leaves out is below `e^-FAR` of the entry's weight.
    fn approach(&self, index: usize, query: &[f64], exposed: &[Exposed]) -> Result<Vec<f64>, GeometryError> {
        let mut witness = query.to_vec();
        for step in exposed.iter().rev() {
            let logits = self.readout.logits(&witness)?;
            let needed = step.left.iter().map(|&(j, value)| (FAR + logits[j] - logits[index]) / -value);
            let far = needed.fold(0.0, f64::max) / self.readout.scale();
            witness.iter_mut().zip(&step.direction).for_each(|(q, v)| *q += far * v);
            in_range("query that singles an entry out", &witness)?;
        }
        Ok(witness)
    }
}
