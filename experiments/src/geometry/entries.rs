//! The entries that a read-out mixes: C, one row an entry.

use super::error::{GeometryError, finite};

/// n entries of d numbers each, all finite: the rows `c_j` of C, `[n, d]`. Key and value are the same row.
#[derive(Clone, Debug, PartialEq)]
pub struct Entries {
    width: usize,
    values: Vec<f64>,
}

impl Entries {
    /// From n times d numbers, row by row.
    ///
    /// # Errors
    /// When there is no entry, no dimension, a number that is not finite, or a last row that is not whole.
    pub fn new(values: Vec<f64>, width: usize) -> Result<Self, GeometryError> {
        if width == 0 {
            return Err(GeometryError::Empty { what: "dimension of the entries" });
        }
        if values.is_empty() {
            return Err(GeometryError::Empty { what: "entry" });
        }
        if !values.len().is_multiple_of(width) {
            let expected = values.len().next_multiple_of(width);
            return Err(GeometryError::Length { what: "entries", found: values.len(), expected });
        }
        finite("entries", &values)?;
        Ok(Self { width, values })
    }

    /// From rows.
    ///
    /// # Errors
    /// As [`new`](Self::new), or when the rows differ in length.
    pub fn from_rows<R: AsRef<[f64]>>(rows: &[R]) -> Result<Self, GeometryError> {
        let width = rows.first().map_or(1, |row| row.as_ref().len());
        if let Some(row) = rows.iter().map(AsRef::as_ref).find(|row| row.len() != width) {
            return Err(GeometryError::Length { what: "a row of the entries", found: row.len(), expected: width });
        }
        Self::new(rows.iter().flat_map(AsRef::as_ref).copied().collect(), width)
    }

    /// How many entries: n.
    pub fn count(&self) -> usize {
        self.values.len() / self.width
    }

    /// Numbers in an entry: d.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Entry `index`, `[d]`.
    pub(super) fn row(&self, index: usize) -> &[f64] {
        &self.values[index * self.width..(index + 1) * self.width]
    }

    /// The entries in order, each `[d]`.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f64]> {
        self.values.chunks_exact(self.width)
    }

    /// All numbers, row by row.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The largest absolute number.
    pub fn largest(&self) -> f64 {
        self.values.iter().fold(0.0, |most, value| value.abs().max(most))
    }

    /// These entries and one more, at the origin: the point that an attention sink adds.
    #[must_use]
    pub fn with_origin(&self) -> Self {
        let mut values = self.values.clone();
        values.resize(values.len() + self.width, 0.0);
        Self { width: self.width, values }
    }

    /// The entries of these indices, in their order; there must be some, all of them inside.
    pub(super) fn subset(&self, indices: &[usize]) -> Self {
        let values = indices.iter().flat_map(|&index| self.row(index)).copied().collect();
        Self { width: self.width, values }
    }

    /// Refuses an index that no entry has.
    pub(super) fn check_index(&self, index: usize) -> Result<(), GeometryError> {
        if index < self.count() {
            return Ok(());
        }
        Err(GeometryError::Entry { index, entries: self.count() })
    }

    /// `sum_j weights_j c_j`, `[d]`.
    pub(super) fn mix(&self, weights: &[f64]) -> Vec<f64> {
        let mut sum = vec![0.0; self.width];
        for (&weight, row) in weights.iter().zip(self.rows()) {
            for (sum, &value) in sum.iter_mut().zip(row) {
                *sum += weight * value;
            }
        }
        sum
    }
}
