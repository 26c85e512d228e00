//! Eigenvalues of symmetric matrices: the spectrum of a covariance.

use faer::{Mat, Side};

use super::error::GeometryError;

/// The eigenvalues of a symmetric matrix that has no negative direction, such as a covariance, the largest first. What comes out below 0 is
/// rounding and given as 0. Only the lower half of the matrix is read.
///
/// # Errors
/// When the decomposition fails.
pub fn eigenvalues(matrix: &Mat<f64>) -> Result<Vec<f64>, GeometryError> {
    let found = matrix.self_adjoint_eigenvalues(Side::Lower);
    let mut values = found.map_err(|_| GeometryError::Decomposition { what: "covariance" })?;
    for value in &mut values {
        *value = value.max(0.0);
    }
    values.sort_by(|a, b| b.total_cmp(a));
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let matrix = Mat::from_fn(2, 2, |i, j| if i == j { 2.0 } else { 1.0 });
        let found = eigenvalues(&matrix).unwrap();
        assert!((found[0] - 3.0).abs() < 1e-12 && (found[1] - 1.0).abs() < 1e-12, "{found:?}");
        // Rank one: a rounded 0 is no negative variance.
        let flat = Mat::from_fn(3, 3, |_, _| 1.0);
        let found = eigenvalues(&flat).unwrap();
        assert!(
            (found[0] - 3.0).abs() < 1e-12 && found[1..].iter().all(|value| (0.0..1e-12).contains(value)),
            "{found:?}"
        );
    }
}
