//! The read-out: probabilities, output and log-partition of a query, and how they move with it.

use faer::Mat;

use super::entries::Entries;
use super::error::{GeometryError, finite, in_range, list};
use super::linalg::{dot, weighted_gram};

/// A family of distributions over points: `p_j(q)` is proportional to `rho_j exp(scale <q, c_j>)`.
///
/// Attention is the uniform prior with scale `1 / sqrt(d)`. An attention sink of logit s is one more point, the last one, at the origin
/// with prior `e^s`; everything said of entries holds for it, too.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadOut {
    points: Entries,
    /// Natural logarithms of rho, not normalised.
    log_prior: Vec<f64>,
    scale: f64,
    sink: bool,
}

/// What one query reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Probabilities, `[n]`; with a sink `[n + 1]`, its own last.
    pub p: Vec<f64>,
    /// Output, `[d]`: the mean of the points under `p`.
    pub o: Vec<f64>,
    /// `log sum_j rho_j exp(scale <q, c_j>)`, sink included.
    pub log_partition: f64,
}

impl ReadOut {
    /// A uniform prior of weight 1 on every entry.
    ///
    /// # Errors
    /// When the scale is not above 0 and finite.
    pub fn new(entries: Entries, scale: f64) -> Result<Self, GeometryError> {
        if !(scale > 0.0 && scale.is_finite()) {
            return Err(GeometryError::Range { what: "scale", found: scale, right: "above 0 and finite" });
        }
        Ok(Self { log_prior: vec![0.0; entries.count()], points: entries, scale, sink: false })
    }

    /// As attention does it: scale `1 / sqrt(d)`.
    ///
    /// # Errors
    /// None: the entries were checked.
    pub fn attention(entries: Entries) -> Result<Self, GeometryError> {
        let scale = 1.0 / (entries.width() as f64).sqrt();
        Self::new(entries, scale)
    }

    /// With a sink of logit `sink`, after whose addition there is one more point.
    ///
    /// # Errors
    /// When the logit is not finite, or there is a sink already.
    pub fn with_sink(mut self, sink: f64) -> Result<Self, GeometryError> {
        finite("sink", &[sink])?;
        if self.sink {
            return Err(GeometryError::Range { what: "number of sinks", found: 2.0, right: "0 or 1" });
        }
        self.points = self.points.with_origin();
        self.log_prior.push(sink);
        self.sink = true;
        Ok(self)
    }

    /// With prior weights `rho` on its points, `[n]` (with a sink `[n + 1]`); they need not sum to 1.
    ///
    /// # Errors
    /// When there are not as many as points, or one is not above 0 and finite.
    pub fn with_prior(mut self, rho: &[f64]) -> Result<Self, GeometryError> {
        list("prior", rho, self.points.count())?;
        if let Some(&found) = rho.iter().find(|&&weight| weight <= 0.0) {
            return Err(GeometryError::Range { what: "a weight of the prior", found, right: "above 0" });
        }
        self.log_prior = rho.iter().map(|weight| weight.ln()).collect();
        Ok(self)
    }

    /// The points, `[n, d]`, or `[n + 1, d]` with the sink at the origin as the last.
    pub fn points(&self) -> &Entries {
        &self.points
    }

    /// Whether the last point is a sink's.
    pub fn has_sink(&self) -> bool {
        self.sink
    }

    /// The same prior and scale over as many other points.
    pub(super) fn with_points(&self, points: Entries) -> Self {
        Self { points, ..self.clone() }
    }

    /// What inner products are multiplied with.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Natural logarithms of the prior weights, `[n]` or `[n + 1]`.
    pub fn log_prior(&self) -> &[f64] {
        &self.log_prior
    }

    /// The prior as a distribution: what the query 0 reads with.
    pub fn prior(&self) -> Vec<f64> {
        softmax(&self.log_prior).0
    }

    /// The same family on the points of these indices alone; there must be some, all of them inside.
    pub(super) fn subset(&self, indices: &[usize]) -> Self {
        Self {
            points: self.points.subset(indices),
            log_prior: indices.iter().map(|&index| self.log_prior[index]).collect(),
            scale: self.scale,
            sink: false,
        }
    }

    /// Logits with the prior's logarithm: `scale <q, c_j> + log rho_j`.
    ///
    /// # Errors
    /// When `q`, `[d]`, is not of the entries' width or not finite, or a logit leaves the range of f64.
    pub fn logits(&self, q: &[f64]) -> Result<Vec<f64>, GeometryError> {
        list("query", q, self.points.width())?;
        let logits = self.points.rows().zip(&self.log_prior).map(|(row, prior)| self.scale * dot(row, q) + prior);
        let logits: Vec<f64> = logits.collect();
        in_range("logits", &logits)?;
        Ok(logits)
    }

    /// What the query `q`, `[d]`, reads.
    ///
    /// # Errors
    /// As [`logits`](Self::logits), or when the output leaves the range of f64.
    pub fn read(&self, q: &[f64]) -> Result<Reading, GeometryError> {
        let (p, log_partition) = softmax(&self.logits(q)?);
        let o = self.points.mix(&p);
        in_range("output", &o)?;
        Ok(Reading { p, o, log_partition })
    }

    /// The mean of the points, `[d]`, under weights that are not negative; they are taken as they are.
    ///
    /// # Errors
    /// When there are not as many weights as points, one is negative or not finite, or the mean leaves the range of f64.
    pub fn mean(&self, p: &[f64]) -> Result<Vec<f64>, GeometryError> {
        weights("weights", p, self.points.count())?;
        let mean = self.points.mix(p);
        in_range("mean", &mean)?;
        Ok(mean)
    }

    /// Covariance of the points under `p`, `[d, d]`: `sum_j p_j (c_j - o) transpose(c_j - o)`.
    ///
    /// # Errors
    /// When there are not as many probabilities as points, one is negative or not finite, or a product overflows.
    pub fn covariance(&self, p: &[f64]) -> Result<Mat<f64>, GeometryError> {
        weights("probabilities", p, self.points.count())?;
        let (n, d) = (self.points.count(), self.points.width());
        let o = self.points.mix(p);
        let centred = Mat::from_fn(n, d, |j, i| self.points.row(j)[i] - o[i]);
        let (mut scratch, mut lower) = (Mat::zeros(n, d), Mat::zeros(d, d));
        weighted_gram(centred.as_ref(), p, &mut scratch, &mut lower);
        // Symmetric to the last bit.
        let covariance = Mat::from_fn(d, d, |i, j| lower[(i.max(j), i.min(j))]);
        for column in 0..d {
            in_range("covariance", covariance.col_as_slice(column))?;
        }
        Ok(covariance)
    }

    /// `d o / d q` at `q`, `[d, d]`: scale times the covariance.
    ///
    /// # Errors
    /// As [`read`](Self::read) and [`covariance`](Self::covariance).
    pub fn jacobian(&self, q: &[f64]) -> Result<Mat<f64>, GeometryError> {
        let mut jacobian = self.covariance(&self.read(q)?.p)?;
        for j in 0..jacobian.ncols() {
            for i in 0..jacobian.nrows() {
                jacobian[(i, j)] *= self.scale;
            }
            in_range("Jacobian", jacobian.col_as_slice(j))?;
        }
        Ok(jacobian)
    }

    /// `d p / d q` at `q`, `[n, d]`, or `[n + 1, d]` with a sink: row j is `scale p_j (c_j - o)`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn probability_jacobian(&self, q: &[f64]) -> Result<Mat<f64>, GeometryError> {
        let Reading { p, o, .. } = self.read(q)?;
        let change = |j: usize, i: usize| self.scale * p[j] * (self.points.row(j)[i] - o[i]);
        Ok(Mat::from_fn(self.points.count(), self.points.width(), change))
    }
}

/// Refuses weights that are negative or not finite.
pub(super) fn weights(what: &'static str, values: &[f64], expected: usize) -> Result<(), GeometryError> {
    list(what, values, expected)?;
    match values.iter().find(|&&value| value < 0.0) {
        None => Ok(()),
        Some(&found) => Err(GeometryError::Range { what, found, right: "0 or more, each of them" }),
    }
}

/// Probabilities, and the logarithm of what they were divided by.
pub(super) fn softmax(logits: &[f64]) -> (Vec<f64>, f64) {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut p: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f64 = p.iter().sum();
    for p in &mut p {
        *p /= sum;
    }
    (p, largest + sum.ln())
}
