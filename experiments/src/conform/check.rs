//! Comparisons of one case: what the network gives beside what the case holds.

use burn::tensor::{Int, Tensor};

use super::case::{Array, Case, place};
use super::error::CaseError;
use super::tolerance::{Scale, Tolerance};

/// How two lists of numbers were compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Numbers within a tolerance.
    Close(Tolerance),
    /// Indices, masks and codes, equal.
    Equal,
    /// Numbers, equal to the last bit, the sign of a zero included; every NaN is like every other.
    Bits,
}

/// Two numbers that differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Where in the tensor.
    pub place: Vec<usize>,
    /// What the network gives.
    pub found: f64,
    /// What the case holds.
    pub expected: f64,
}

/// One tensor compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The tensor's name in the case, with what was compared of it where that is not all.
    pub name: String,
    /// The backend that computed, or `host` for plain Rust.
    pub on: &'static str,
    /// How it was compared.
    pub kind: Kind,
    /// How many numbers were compared.
    pub compared: usize,
    /// How many of them are off by more than the tolerance, or unequal.
    pub differing: usize,
    /// How many differ where the case cannot tell which one is right.
    pub excused: usize,
    /// Largest difference.
    pub absolute: f64,
    /// Largest difference over the tolerance's scale.
    pub relative: f64,
    /// The largest difference, or the first one of an exact comparison, if there is any.
    pub worst: Option<Difference>,
    /// How many numbers each side has, where these are not as many.
    pub counts: Option<(usize, usize)>,
}

impl Comparison {
    fn new(name: String, on: &'static str, kind: Kind) -> Self {
        let none = (0, 0.0);
        Self {
            name,
            on,
            kind,
            compared: none.0,
            differing: none.0,
            excused: none.0,
            absolute: none.1,
            relative: none.1,
            worst: None,
            counts: None,
        }
    }

    /// Whether everything is as expected; of nothing, nothing is.
    pub fn passed(&self) -> bool {
        self.compared > 0 && self.differing == 0 && self.counts.is_none()
    }

    /// Largest difference as a share of the tolerance; above 1 it fails. None of an exact comparison.
    pub fn share(&self) -> Option<f64> {
        match self.kind {
            Kind::Close(tolerance) => Some(self.relative / tolerance.limit),
            Kind::Equal | Kind::Bits => None,
        }
    }
}

/// A part of a case that was not compared, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRun {
    /// What was left out.
    pub part: String,
    /// Why.
    pub reason: String,
}

/// The comparisons of one case, in the making.
#[derive(Debug)]
pub struct Check<'a> {
    /// The case.
    pub case: &'a Case,
    /// Where the numbers that come next were computed.
    pub on: &'static str,
    /// Comparisons so far.
    pub comparisons: Vec<Comparison>,
    /// Parts left out so far.
    pub not_run: Vec<NotRun>,
}

/// Plain Rust, whatever the backend.
pub const HOST: &str = "host";

impl<'a> Check<'a> {
    /// No comparisons yet; numbers come from the backend `on`.
    pub fn new(case: &'a Case, on: &'static str) -> Self {
        Self { case, on, comparisons: Vec::new(), not_run: Vec::new() }
    }

    /// Notes that `part` is left out.
    pub fn leave_out(&mut self, part: &str, reason: impl Into<String>) {
        self.not_run.push(NotRun { part: part.into(), reason: reason.into() });
    }

    /// Compares a tensor with the one that the case holds as `name`, which must have its shape.
    ///
    /// # Errors
    /// When the case has no such tensor, or the device cannot be read.
    pub fn tensor<const D: usize>(
        &mut self,
        name: &str,
        found: Tensor<D>,
        tolerance: Tolerance,
    ) -> Result<(), CaseError> {
        let expected = self.case.floats(name, &found.dims())?;
        self.close(name, &numbers(found)?, &expected, tolerance);
        Ok(())
    }

    /// Compares numbers within a tolerance.
    pub fn close(&mut self, name: &str, found: &[f64], expected: &Array, tolerance: Tolerance) {
        let largest = expected.values.iter().fold(0.0, |most: f64, value| value.abs().max(most));
        let mut comparison = self.start(name, Kind::Close(tolerance), found.len(), expected.values.len());
        for (at, (&found, &expected_one)) in found.iter().zip(&expected.values).enumerate() {
            let difference = difference(found, expected_one);
            let scale = match tolerance.scale {
                Scale::Number => expected_one.abs().max(1.0),
                Scale::Largest => largest,
            };
            // Nothing is off by nothing, whatever the scale; by what is infinite, infinitely.
            let relative = if difference > 0.0 && difference.is_finite() { difference / scale } else { difference };
            comparison.differing += usize::from(relative > tolerance.limit);
            comparison.absolute = comparison.absolute.max(difference);
            if relative > comparison.relative {
                comparison.relative = relative;
                comparison.worst = Some(Difference { place: place(&expected.dims, at), found, expected: expected_one });
            }
        }
        self.comparisons.push(comparison);
    }

    /// Compares indices, masks or codes, which must be equal.
    pub fn equal(&mut self, name: &str, found: &[i64], expected: &Array<i64>) {
        self.equal_unless(name, found, expected, |_| false);
    }

    /// As [`equal`](Self::equal), but a difference in a row (along the last axis) that `excused` names counts as excused.
    pub fn equal_unless(&mut self, name: &str, found: &[i64], expected: &Array<i64>, excused: impl Fn(usize) -> bool) {
        let width = expected.dims.last().copied().unwrap_or(1).max(1);
        let mut comparison = self.start(name, Kind::Equal, found.len(), expected.values.len());
        for (at, (&found, &expected_one)) in found.iter().zip(&expected.values).enumerate() {
            if found == expected_one {
                continue;
            }
            if excused(at / width) {
                comparison.excused += 1;
                continue;
            }
            comparison.differing += 1;
            comparison.worst.get_or_insert_with(|| Difference {
                place: place(&expected.dims, at),
                found: found as f64,
                expected: expected_one as f64,
            });
        }
        self.comparisons.push(comparison);
    }

    /// Compares f32 numbers to the last bit.
    pub fn bits(&mut self, name: &str, found: &[f32], expected: &Array<f32>) {
        let mut comparison = self.start(name, Kind::Bits, found.len(), expected.values.len());
        for (at, (&found, &expected_one)) in found.iter().zip(&expected.values).enumerate() {
            if found.to_bits() == expected_one.to_bits() || (found.is_nan() && expected_one.is_nan()) {
                continue;
            }
            comparison.differing += 1;
            comparison.worst.get_or_insert_with(|| Difference {
                place: place(&expected.dims, at),
                found: f64::from(found),
                expected: f64::from(expected_one),
            });
        }
        self.comparisons.push(comparison);
    }

    fn start(&self, name: &str, kind: Kind, found: usize, expected: usize) -> Comparison {
        let mut comparison = Comparison::new(name.into(), self.on, kind);
        comparison.compared = found.min(expected);
        comparison.counts = (found != expected).then_some((found, expected));
        comparison
    }
}

/// How far apart two numbers are: equal infinities not at all, a NaN from everything as far as can be.
fn difference(found: f64, expected: f64) -> f64 {
    if found.is_infinite() && found.total_cmp(&expected).is_eq() {
        return 0.0;
    }
    let difference = (found - expected).abs();
    if difference.is_nan() { f64::INFINITY } else { difference }
}

/// Reads a tensor's numbers.
///
/// # Errors
/// When the device cannot be read.
pub fn numbers<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f64>, CaseError> {
    Ok(tensor.try_into_data()?.iter::<f64>().collect())
}

/// Reads a tensor's whole numbers.
///
/// # Errors
/// When the device cannot be read.
pub fn ints<const D: usize>(tensor: Tensor<D, Int>) -> Result<Vec<i64>, CaseError> {
    Ok(tensor.try_into_data()?.iter::<i64>().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conform::testing;
    use crate::conform::tolerance::{GRADIENT, LAYER};

    fn array<T: Copy>(values: &[T]) -> Array<T> {
        Array { name: "x".into(), dims: vec![2, values.len() / 2], values: values.into() }
    }

    fn one(run: impl FnOnce(&mut Check)) -> Comparison {
        let (_folder, case) = testing::empty_case();
        let mut check = Check::new(&case, HOST);
        run(&mut check);
        check.comparisons.remove(0)
    }

    #[test]
    fn small_numbers_absolutely_and_large_ones_relatively() {
        let expected = array(&[0.0, 0.5, 2000.0, -3.0]);
        let within = one(|check| check.close("x", &[9e-6, 0.5, 2000.019, -3.0], &expected, LAYER));
        assert!(within.passed() && within.share().unwrap() < 1.0, "{within:?}");
        assert!((within.absolute - 0.019).abs() < 1e-9 && (within.relative - 9.5e-6).abs() < 1e-12, "{within:?}");
        let beyond = one(|check| check.close("x", &[1.1e-5, 0.5, 2000.0, -3.0001], &expected, LAYER));
        assert_eq!((beyond.passed(), beyond.differing, beyond.compared), (false, 2, 4));
        assert_eq!(beyond.worst.unwrap().place, [1, 1]);
    }

    #[test]
    fn gradients_of_zeros_are_zeros() {
        let zeros = array(&[0.0; 4]);
        assert!(one(|check| check.close("x", &[0.0, -0.0, 0.0, 0.0], &zeros, GRADIENT)).passed());
        assert!(!one(|check| check.close("x", &[0.0, 0.0, 1e-30, 0.0], &zeros, GRADIENT)).passed());
        let mixed = array(&[0.0, 10.0, 0.0, 0.0]);
        assert!(one(|check| check.close("x", &[9e-4, 10.0, 0.0, 0.0], &mixed, GRADIENT)).passed());
        assert!(!one(|check| check.close("x", &[11e-4, 10.0, 0.0, 0.0], &mixed, GRADIENT)).passed());
    }

    #[test]
    fn what_is_not_a_number_never_passes() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let expected = array(&[-inf, 1.0, inf, 1.0]);
        assert!(one(|check| check.close("x", &[-inf, 1.0, inf, 1.0], &expected, LAYER)).passed());
        for found in [[inf, 1.0, inf, 1.0], [-inf, nan, inf, 1.0], [-inf, 1.0, 3.0, 1.0], [-inf, 1.0, inf, inf]] {
            let comparison = one(|check| check.close("x", &found, &expected, LAYER));
            assert_eq!((comparison.passed(), comparison.differing, comparison.relative), (false, 1, inf), "{found:?}");
        }
        let unknown = array(&[nan, 1.0]);
        assert!(!one(|check| check.close("x", &[nan, 1.0], &unknown, LAYER)).passed());
        assert!(!one(|check| check.close("x", &[1.0, 1.0], &unknown, GRADIENT)).passed());
    }

    #[test]
    fn exact_comparisons_tell_the_first_difference() {
        let expected = array(&[1, -1, 4, 7]);
        assert!(one(|check| check.equal("x", &[1, -1, 4, 7], &expected)).passed());
        let comparison = one(|check| check.equal("x", &[1, 0, 5, 7], &expected));
        assert_eq!((comparison.passed(), comparison.differing), (false, 2));
        assert_eq!(comparison.worst, Some(Difference { place: vec![0, 1], found: 0.0, expected: -1.0 }));
        let excused = one(|check| check.equal_unless("x", &[1, 0, 4, 7], &expected, |row| row == 0));
        assert_eq!((excused.passed(), excused.differing, excused.excused), (true, 0, 1));
        assert!(!one(|check| check.equal_unless("x", &[1, 0, 4, 8], &expected, |row| row == 0)).passed());
    }

    #[test]
    fn other_counts_and_nothing_at_all_fail() {
        let expected = array(&[1.0, 2.0]);
        let short = one(|check| check.close("x", &[1.0], &expected, LAYER));
        assert_eq!((short.passed(), short.counts), (false, Some((1, 2))));
        assert!(!one(|check| check.equal("x", &[], &array(&[]))).passed());
    }
}
