//! What the geometry cannot be asked.

use thiserror::Error;

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum GeometryError {
    /// Nothing to read from.
    #[error("{what}: there is none; give at least one")]
    Empty {
        /// What is missing.
        what: &'static str,
    },
    /// A list or matrix of another size than its partner's.
    #[error("{what}: has {found} numbers, expected {expected}")]
    Length {
        /// The list.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that would be right.
        expected: usize,
    },
    /// NaN or an infinity.
    #[error("{what}[{at}] is {found}; it must be finite")]
    NotFinite {
        /// The list.
        what: &'static str,
        /// Where in it; a matrix counts row by row.
        at: usize,
        /// The number.
        found: f64,
    },
    /// A number outside its range.
    #[error("{what} is {found}; it must be {right}")]
    Range {
        /// The argument.
        what: &'static str,
        /// The number.
        found: f64,
        /// What would be right.
        right: &'static str,
    },
    /// An entry that is not there.
    #[error("entry {index}: there are {entries}, counted from 0")]
    Entry {
        /// The index asked for.
        index: usize,
        /// How many there are.
        entries: usize,
    },
    /// Numbers too large to calculate with.
    #[error("{what}: beyond the range of f64; rescale the entries, the query or the target")]
    Overflow {
        /// What could not be calculated.
        what: &'static str,
    },
    /// A decomposition that did not converge.
    #[error("{what}: the singular value decomposition did not converge")]
    Decomposition {
        /// The matrix.
        what: &'static str,
    },
}

/// Refuses a number that is not finite.
pub(super) fn finite(what: &'static str, values: &[f64]) -> Result<(), GeometryError> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(at) => Err(GeometryError::NotFinite { what, at, found: values[at] }),
    }
}

/// Refuses a list of another length, or with a number that is not finite.
pub(super) fn list(what: &'static str, values: &[f64], expected: usize) -> Result<(), GeometryError> {
    if values.len() != expected {
        return Err(GeometryError::Length { what, found: values.len(), expected });
    }
    finite(what, values)
}

/// Refuses results that overflowed.
pub(super) fn in_range(what: &'static str, values: &[f64]) -> Result<(), GeometryError> {
    if values.iter().all(|value| value.is_finite()) { Ok(()) } else { Err(GeometryError::Overflow { what }) }
}

/// Refuses a relative tolerance outside (0, 1).
pub(super) fn tolerance(what: &'static str, found: f64) -> Result<(), GeometryError> {
    if found > 0.0 && found < 1.0 {
        return Ok(());
    }
    Err(GeometryError::Range { what, found, right: "above 0 and below 1" })
}
