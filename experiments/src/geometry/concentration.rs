//! How concentrated a distribution is: how close its mean is to the boundary of the hull.
//!
//! Weights that underflow put a computed output on the boundary, where no query's output is in exact numbers. So the smallest weight is told,
//! and nothing is claimed of strict interiority.

use super::error::GeometryError;
use super::readout::weights;

/// Measures of one distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concentration {
    /// The smallest weight; 0 where it underflowed.
    pub smallest: f64,
    /// The largest weight.
    pub largest: f64,
    /// How many weights are exactly 0.
    pub zeros: usize,
    /// Entropy in nats.
    pub entropy: f64,
    /// Effective number of entries: e to the entropy.
    pub effective: f64,
}

impl Concentration {
    /// Of the distribution `p`; its weights are taken as they are and should sum to 1.
    ///
    /// # Errors
    /// When there is no weight, or one is negative or not finite.
    pub fn of(p: &[f64]) -> Result<Self, GeometryError> {
        if p.is_empty() {
            return Err(GeometryError::Empty { what: "weight" });
        }
        weights("probabilities", p, p.len())?;
        let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
        Ok(Self {
            smallest: p.iter().copied().fold(f64::INFINITY, f64::min),
            largest: p.iter().copied().fold(0.0, f64::max),
            zeros: p.iter().filter(|p| **p == 0.0).count(),
            entropy,
            effective: entropy.exp(),
        })
    }
}
