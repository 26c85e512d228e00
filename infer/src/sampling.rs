//! From logits to a token: temperature, and the smallest set of tokens that holds a share of the probability (top-p).

use rand::{Rng, RngExt};
use thiserror::Error;

/// Draws tokens.
#[derive(Clone, Debug)]
pub struct Sampler<R> {
    temperature: f64,
    top_p: f64,
    rng: R,
}

/// Why nothing can be drawn.
#[derive(Debug, Error, PartialEq)]
pub enum SamplingError {
    /// A temperature below 0, or none.
    #[error("temperature {0}: it must be a finite number, 0 (always the likeliest token) or above")]
    Temperature(f64),
    /// A share outside (0, 1].
    #[error("top-p {0}: it must be above 0 and at most 1 (1: every token)")]
    TopP(f64),
    /// A logit that is NaN, or none that is finite.
    #[error("the logits hold a NaN, or none of them is finite: the model's weights are damaged or far too large")]
    Logits,
}

impl<R: Rng> Sampler<R> {
    /// Draws with `rng`. At `temperature` 0 nothing is drawn: the token with the largest logit is taken, of equal ones the lowest.
    ///
    /// # Errors
    /// When a setting is out of its range.
    pub fn new(temperature: f64, top_p: f64, rng: R) -> Result<Self, SamplingError> {
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(SamplingError::Temperature(temperature));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(SamplingError::TopP(top_p));
        }
        Ok(Self { temperature, top_p, rng })
    }

    /// A token from `logits` `[vocabulary]`.
    ///
    /// # Errors
    /// When a logit is NaN, or none is finite.
    pub fn draw(&mut self, logits: &[f32]) -> Result<i32, SamplingError> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if logits.iter().any(|logit| logit.is_nan()) || !largest.is_finite() {
            return Err(SamplingError::Logits);
        }
        if self.temperature == 0.0 {
            return Ok(logits.iter().position(|logit| *logit >= largest).unwrap_or(0) as i32);
        }
        let weight = |logit: f32| (f64::from(logit - largest) / self.temperature).exp();
        let mut tokens: Vec<(usize, f64)> = logits.iter().map(|logit| weight(*logit)).enumerate().collect();
        // The likeliest first, of equal ones the lowest: the order decides which ones top-p keeps.
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let whole: f64 = tokens.iter().map(|(_, weight)| weight).sum();
        let mut kept = 0.0;
        let within = tokens.iter().position(|(_, weight)| {
            kept += weight;
            kept >= self.top_p * whole
        });
        tokens.truncate(within.map_or(tokens.len(), |last| last + 1));
        let sum: f64 = tokens.iter().map(|(_, weight)| weight).sum();
        let mut left = self.rng.random::<f64>() * sum;
        for (token, weight) in &tokens {
            left -= weight;
            if left < 0.0 {
                return Ok(*token as i32);
            }
        }
        // Rounding may leave a rest behind the last one.
        Ok(tokens.last().map_or(0, |(token, _)| *token) as i32)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn counts(temperature: f64, top_p: f64, logits: &[f32]) -> Vec<usize> {
        let mut sampler = Sampler::new(temperature, top_p, ChaCha8Rng::seed_from_u64(1)).unwrap();
        let mut counts = vec![0; logits.len()];
        for _ in 0..10_000 {
            counts[sampler.draw(logits).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn frequencies_are_those_of_the_softmax() {
        let logits = [0.0, 2.0_f32.ln(), 4.0_f32.ln(), f32::NEG_INFINITY];
        // 1 : 2 : 4, and at temperature 1/2 1 : 4 : 16; a standard deviation is at most 50.
        for (temperature, shares) in
            [(1.0, [1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0]), (0.5, [1.0 / 21.0, 4.0 / 21.0, 16.0 / 21.0])]
        {
            let found = counts(temperature, 1.0, &logits);
            assert_eq!(found[3], 0);
            for (found, share) in found.iter().zip(shares) {
                assert!((*found as f64 - 10_000.0 * share).abs() < 250.0, "{found} {share}");
            }
        }
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_holds_the_share() {
        let logits = [0.0, 2.0_f32.ln(), 4.0_f32.ln()];
        assert_eq!(counts(1.0, 0.5, &logits), [0, 0, 10_000]);
        // 4/7 is less than 0.6, 6/7 is more.
        let two = counts(1.0, 0.6, &logits);
        assert!(two[0] == 0 && (two[1] as f64 - 10_000.0 / 3.0).abs() < 250.0, "{two:?}");
        assert!(counts(1.0, 0.99, &logits)[0] > 0);
        // Of equal tokens the lowest are kept.
        assert_eq!(counts(1.0, 0.3, &[1.0, 1.0, 1.0]), [10_000, 0, 0]);
    }

    #[test]
    fn temperature_zero_takes_the_lowest_of_the_largest() {
        assert_eq!(counts(0.0, 1.0, &[0.5, 3.0, 3.0, -1.0]), [0, 10_000, 0, 0]);
    }

    #[test]
    fn what_cannot_be_is_named() {
        let new = |temperature, top_p| Sampler::new(temperature, top_p, ChaCha8Rng::seed_from_u64(0)).err();
        assert_eq!(new(-0.1, 1.0), Some(SamplingError::Temperature(-0.1)));
        assert!(matches!(new(f64::NAN, 1.0), Some(SamplingError::Temperature(_))));
        assert_eq!(new(1.0, 0.0), Some(SamplingError::TopP(0.0)));
        assert_eq!(new(1.0, 1.1), Some(SamplingError::TopP(1.1)));
        let mut sampler = Sampler::new(1.0, 1.0, ChaCha8Rng::seed_from_u64(0)).unwrap();
        for logits in [&[0.0, f32::NAN][..], &[f32::NEG_INFINITY], &[f32::INFINITY, 0.0], &[]] {
            assert_eq!(sampler.draw(logits), Err(SamplingError::Logits), "{logits:?}");
        }
    }
}
