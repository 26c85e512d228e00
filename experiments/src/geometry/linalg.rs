//! The few things that are needed of linear algebra, on faer's matrices; one thread.

use faer::linalg::matmul::{matmul, triangular};
use faer::{Accum, Mat, MatRef, Par};

use super::error::GeometryError;

/// Inner product.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    // Four sums side by side, so that additions need not wait for one another.
    let (a4, a_rest) = a.as_chunks::<4>();
    let (b4, b_rest) = b.as_chunks::<4>();
    let mut sums = [0.0; 4];
    for (a, b) in a4.iter().zip(b4) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums[0] + sums[1] + (sums[2] + sums[3]) + rest
}

/// Euclidean norm, safe for numbers whose squares leave the range of f64.
pub fn norm(values: &[f64]) -> f64 {
    let largest = values.iter().fold(0.0, |most: f64, value| value.abs().max(most));
    if largest == 0.0 || !largest.is_finite() {
        return largest;
    }
    largest * values.iter().map(|value| (value / largest).powi(2)).sum::<f64>().sqrt()
}

/// A - B.
pub fn minus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn column(values: &[f64]) -> MatRef<'_, f64> {
    MatRef::from_column_major_slice(values, values.len(), 1)
}

/// A x.
pub fn times(a: MatRef<'_, f64>, x: &[f64]) -> Vec<f64> {
    let mut product = Mat::zeros(a.nrows(), 1);
    matmul(product.as_mut(), Accum::Replace, a, column(x), 1.0, Par::Seq);
    product.col_as_slice(0).to_vec()
}

/// Transpose of A times x.
pub fn transpose_times(a: MatRef<'_, f64>, x: &[f64]) -> Vec<f64> {
    times(a.transpose(), x)
}

/// A B.
pub fn product(a: MatRef<'_, f64>, b: MatRef<'_, f64>) -> Mat<f64> {
    let mut product = Mat::zeros(a.nrows(), b.ncols());
    matmul(product.as_mut(), Accum::Replace, a, b, 1.0, Par::Seq);
    product
}

/// The lower triangle of `transpose(A) diag(weights) A`; `scratch` has A's shape.
pub fn weighted_gram(a: MatRef<'_, f64>, weights: &[f64], scratch: &mut Mat<f64>, gram: &mut Mat<f64>) {
    for j in 0..a.ncols() {
        for ((scaled, value), weight) in scratch.col_mut(j).iter_mut().zip(a.col(j).iter()).zip(weights) {
            *scaled = weight * value;
        }
    }
    triangular::matmul(
        gram.as_mut(),
        triangular::BlockStructure::TriangularLower,
        Accum::Replace,
        a.transpose(),
        triangular::BlockStructure::Rectangular,
        scratch.as_ref(),
        triangular::BlockStructure::Rectangular,
        1.0,
        Par::Seq,
    );
}

/// Thin singular value decomposition: `left * diag(values) * transpose(right)`, values descending.
pub struct Svd {
    /// `[rows, k]`.
    pub left: Mat<f64>,
    /// `[k]`.
    pub values: Vec<f64>,
    /// `[columns, k]`.
    pub right: Mat<f64>,
}

impl Svd {
    /// Of a matrix; its numbers should be near 1, for nothing is rescaled here.
    pub fn of(what: &'static str, a: MatRef<'_, f64>) -> Result<Self, GeometryError> {
        let svd = a.thin_svd().map_err(|_| GeometryError::Decomposition { what })?;
        let values: Vec<f64> = svd.S().column_vector().iter().copied().collect();
        if values.iter().any(|value| !value.is_finite()) {
            return Err(GeometryError::Decomposition { what });
        }
        Ok(Self { left: svd.U().to_owned(), values, right: svd.V().to_owned() })
    }

    /// How many values are above `tolerance` times the largest.
    pub fn rank(&self, tolerance: f64) -> usize {
        let largest = self.values.first().copied().unwrap_or(0.0);
        self.values.iter().filter(|&&value| value > tolerance * largest).count()
    }
}

/// Divides weights that are not all 0 by their sum.
pub fn normalise(weights: &mut [f64]) {
    let sum: f64 = weights.iter().sum();
    for weight in weights {
        *weight /= sum;
    }
}

/// The power of two next below `value`, which is finite and above zero: a division by it is exact.
pub fn power_of_two(value: f64) -> f64 {
    let exponent = value.log2().floor().clamp(-1022.0, 1023.0);
    exponent.exp2()
}
