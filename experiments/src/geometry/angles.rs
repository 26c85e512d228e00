//! Principal angles between column spaces.

use faer::Mat;

use super::entries::Entries;
use super::error::{GeometryError, tolerance};
use super::linalg::{Svd, power_of_two, product};

/// Principal angles between two column spaces.
#[derive(Clone, Debug, PartialEq)]
pub struct Angles {
    /// Cosines, descending, as many as the smaller space has dimensions.
    pub cosines: Vec<f64>,
    /// The angles themselves in radians, ascending; small ones from their sine, which a cosine near 1 does not tell.
    pub radians: Vec<f64>,
    /// Dimensions of the two spaces.
    pub ranks: [usize; 2],
}

/// Between col(A) and col(B), A and B `[n, d_A]` and `[n, d_B]` over the same n entries. A singular value counts where it is above
/// `relative` times the largest.
///
/// # Errors
/// When A and B have not the same number of rows, the tolerance is not inside (0, 1), or a decomposition fails.
pub fn principal_angles(a: &Entries, b: &Entries, relative: f64) -> Result<Angles, GeometryError> {
    tolerance("relative tolerance of the rank", relative)?;
    if a.count() != b.count() {
        return Err(GeometryError::Length {
            what: "a column of the second matrix",
            found: b.count(),
            expected: a.count(),
        });
    }
    let (mut wide, mut narrow) = (basis("first matrix", a, relative)?, basis("second matrix", b, relative)?);
    let ranks = [wide.ncols(), narrow.ncols()];
    if wide.ncols() < narrow.ncols() {
        std::mem::swap(&mut wide, &mut narrow);
    }
    let overlap = product(wide.transpose(), narrow.as_ref());
    let cosines: Vec<f64> = if narrow.ncols() == 0 {
        Vec::new()
    } else {
        Svd::of("overlap", overlap.as_ref())?.values.into_iter().map(|cosine| cosine.min(1.0)).collect()
    };
    // The sines are the singular values of what of the narrow basis is outside of the wide space, smallest angle last.
    let outside = &narrow - product(wide.as_ref(), overlap.as_ref());
    let sines = if narrow.ncols() == 0 { Vec::new() } else { Svd::of("rest", outside.as_ref())?.values };
    let angle = |(cosine, sine): (&f64, &f64)| if *cosine > 0.7 { sine.min(1.0).asin() } else { cosine.acos() };
    let radians = cosines.iter().zip(sines.iter().rev()).map(angle).collect();
    Ok(Angles { cosines, radians, ranks })
}

/// Orthonormal columns, `[n, rank]`.
fn basis(what: &'static str, matrix: &Entries, relative: f64) -> Result<Mat<f64>, GeometryError> {
    let unit = match matrix.largest() {
        0.0 => 1.0,
        largest => power_of_two(largest),
    };
    let scaled = Mat::from_fn(matrix.count(), matrix.width(), |i, j| matrix.row(i)[j] / unit);
    let svd = Svd::of(what, scaled.as_ref())?;
    let rank = svd.rank(relative);
    Ok(svd.left.subcols(0, rank).to_owned())
}
