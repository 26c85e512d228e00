//! Tilting: how a change of the query re-weights the entries, and which re-weightings one can make.

use super::error::{GeometryError, in_range, list};
use super::family::Family;
use super::linalg::{norm, transpose_times};
use super::readout::{ReadOut, softmax, weights};

impl ReadOut {
    /// The tilt of a change of the query, `[n]` (with a sink `[n + 1]`, 0 for the sink): `t_j = scale <dq, c_j>`.
    ///
    /// # Errors
    /// When `dq`, `[d]`, is not of the entries' width or not finite, or a product leaves the range of f64.
    pub fn tilt(&self, dq: &[f64]) -> Result<Vec<f64>, GeometryError> {
        let logits = self.logits(dq)?;
        Ok(logits.iter().zip(self.log_prior()).map(|(logit, prior)| logit - prior).collect())
    }
}

/// Re-weights a distribution: `p_j e^{t_j}` over its sum. Equal t change nothing, and what has no weight gets none.
///
/// # Errors
/// When there are not as many tilts as probabilities, a probability is negative, all are 0, or a number is not finite.
pub fn tilted(p: &[f64], t: &[f64]) -> Result<Vec<f64>, GeometryError> {
    weights("probabilities", p, p.len())?;
    list("tilt", t, p.len())?;
    if p.iter().all(|p| *p == 0.0) {
        return Err(GeometryError::Range { what: "sum of the probabilities", found: 0.0, right: "above 0" });
    }
    Ok(softmax(&p.iter().zip(t).map(|(p, t)| p.ln() + t).collect::<Vec<_>>()).0)
}

/// What of a logarithmic re-weighting a change of the query can make.
#[derive(Clone, Debug, PartialEq)]
pub struct Untilted {
    /// The change of the query, `[d]`, that comes nearest: of all such the one in the direction space of the affine hull.
    pub dq: Vec<f64>,
    /// The part that no change of the query makes, `[n]`: what is outside of the columns of C and the constants.
    pub outside: Vec<f64>,
    /// Its Euclidean norm: how far the re-weighting is from what can be made.
    pub distance: f64,
}

impl Family {
    /// Which change of the query re-weights by `t`, `[n]` (with a sink `[n + 1]`), up to a constant: the nearest one by least squares over
    /// the entries, and how far it is from it.
    ///
    /// # Errors
    /// When there are not as many tilts as points, one is not finite, or the change leaves the range of f64.
    pub fn untilt(&self, t: &[f64]) -> Result<Untilted, GeometryError> {
        let frame = &self.hull.frame;
        let n = self.readout.points().count();
        list("tilt", t, n)?;
        let mean = t.iter().map(|t| t / n as f64).sum::<f64>();
        let mut rest: Vec<f64> = t.iter().map(|t| t - mean).collect();
        let mut white = vec![0.0; frame.rank()];
        // White columns are orthogonal, of squared length n, and have mean 0. Twice, for the last digits.
        for _ in 0..2 {
            let along: Vec<f64> = transpose_times(frame.white.as_ref(), &rest).iter().map(|a| a / n as f64).collect();
            let made = super::linalg::times(frame.white.as_ref(), &along);
            rest.iter_mut().zip(&made).for_each(|(rest, made)| *rest -= made);
            white.iter_mut().zip(&along).for_each(|(white, along)| *white += along);
        }
        let scale = self.readout.scale();
        let dq: Vec<f64> = frame.functional(&white).iter().map(|v| v / frame.unit() / scale).collect();
        in_range("change of the query", &dq)?;
        in_range("part of the tilt that is out of reach", &rest)?;
        let distance = norm(&rest);
        in_range("distance of the tilt", &[distance])?;
        Ok(Untilted { dq, distance, outside: rest })
    }
}
