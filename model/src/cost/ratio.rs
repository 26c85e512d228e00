//! Exact fractions, for counts that are not whole per token.

use std::fmt;

/// A non-negative fraction in lowest terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ratio {
    numerator: u128,
    denominator: u128,
}

impl Ratio {
    /// Zero.
    pub const ZERO: Self = Self { numerator: 0, denominator: 1 };

    /// The fraction, or nothing where the denominator is 0.
    pub fn new(numerator: u128, denominator: u128) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        let shared = gcd(numerator, denominator);
        Some(Self { numerator: numerator / shared, denominator: denominator / shared })
    }

    /// The sum, or nothing where it is too large to be exact.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let shared = gcd(self.denominator, other.denominator);
        let (left, right) = (other.denominator / shared, self.denominator / shared);
        let denominator = self.denominator.checked_mul(left)?;
        let numerator = (self.numerator.checked_mul(left)?).checked_add(other.numerator.checked_mul(right)?)?;
        Self::new(numerator, denominator)
    }

    /// The upper number.
    pub const fn numerator(self) -> u128 {
        self.numerator
    }

    /// The lower number.
    pub const fn denominator(self) -> u128 {
        self.denominator
    }

    /// The nearest floating-point number.
    pub fn to_f64(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }
}

/// `890`, or `89/3` where it is not whole.
impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.denominator == 1 {
            write!(f, "{}", self.numerator)
        } else {
            write!(f, "{}/{}", self.numerator, self.denominator)
        }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(numerator: u128, denominator: u128) -> Ratio {
        Ratio::new(numerator, denominator).unwrap()
    }

    #[test]
    fn fractions_are_reduced_and_add_exactly() {
        assert_eq!(ratio(6, 4), ratio(3, 2));
        assert_eq!(ratio(1, 6).checked_add(ratio(1, 3)), Some(ratio(1, 2)));
        assert_eq!(ratio(0, 7), Ratio::ZERO);
        assert_eq!(ratio(89, 3).to_string(), "89/3");
        assert_eq!(ratio(890, 1).to_string(), "890");
        assert!((ratio(1, 4).to_f64() - 0.25).abs() < f64::EPSILON);
    }

    #[test]
    fn what_cannot_be_exact_is_refused() {
        assert_eq!(Ratio::new(1, 0), None);
        assert_eq!(ratio(1, u128::MAX).checked_add(ratio(1, u128::MAX - 1)), None);
    }
}
