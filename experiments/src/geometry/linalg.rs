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
    ///
    /// By way of QR with pivots: of a matrix whose first rows are small, a decomposition of itself gives values of up to 100 units in the last place
    /// of the largest for those that are 0.
    pub fn of(what: &'static str, a: MatRef<'_, f64>) -> Result<Self, GeometryError> {
        let (m, n) = a.shape();
        if (0..n).all(|i| a.col(i).iter().all(|value| *value == 0.0)) {
            // Nothing to take a pivot from.
            let k = m.min(n);
            return Ok(Self { left: Mat::identity(m, k), values: vec![0.0; k], right: Mat::identity(n, k) });
        }
        let qr = a.col_piv_qr();
        let svd = qr.thin_R().thin_svd().map_err(|_| GeometryError::Decomposition { what })?;
        let values: Vec<f64> = svd.S().column_vector().iter().copied().collect();
        if values.iter().any(|value| !value.is_finite()) {
            return Err(GeometryError::Decomposition { what });
        }
        let left = product(qr.compute_thin_Q().as_ref(), svd.U());
        let right = qr.P().inverse() * svd.V();
        Ok(Self { left, values, right })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Three of four points in a line through the fourth, which is first and near their mean: the second value is rounding alone.
    #[test]
    fn a_decomposition_makes_the_matrix_again_and_finds_what_is_0() {
        let direction = [0.0, -0.366, 0.4602, 0.7401, 0.2811, 0.0293, 0.4495, -0.0552];
        let along = [0.00802, -0.86617, 0.85336, 0.00479];
        let a = Mat::from_fn(4, 8, |j, i| along[j] * direction[i]);
        let none = Mat::zeros(4, 2);
        let wide = Mat::from_fn(4, 8, |j, i| ((7 * j + 3 * i) as f64).sin());
        for a in [a.as_ref(), a.transpose(), wide.as_ref(), wide.transpose(), none.as_ref(), none.transpose()] {
            let Svd { left, values, right } = Svd::of("matrix", a).unwrap();
            assert!(values.is_sorted_by(|a, b| a >= b));
            for j in 0..a.nrows() {
                for i in 0..a.ncols() {
                    let made: f64 = (0..values.len()).map(|k| left[(j, k)] * values[k] * right[(i, k)]).sum();
                    assert!((made - a[(j, i)]).abs() < 4e-15, "{made} {}", a[(j, i)]);
                }
            }
        }
        let values = Svd::of("matrix", a.as_ref()).unwrap().values;
        assert!(values[1] < 1e-15 * values[0], "{values:?}");
    }
}
