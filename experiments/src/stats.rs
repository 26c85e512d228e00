//! Means over seeds, their intervals, and paired differences to a baseline.
//!
//! **Interval of a mean.** The values of `n` seeds are taken as independent draws of one normal distribution. With the
//! sample standard deviation `s` (divisor `n - 1`) the 95% interval is `mean ± t · s / √n`, where `t` is the 97.5%
//! quantile of Student's t distribution with `n - 1` degrees of freedom: 12.71 for two seeds, 4.30 for three, 2.78 for
//! five. Two seeds therefore give wide intervals, and one seed gives none.
//!
//! **Paired difference.** Runs of one seed share their data order and, where shapes agree, their initial weights, so
//! the noise that they have in common cancels when they are subtracted seed by seed. The difference is taken over the
//! seeds that both sides have, and its interval is the interval of the mean of those differences.
//!
//! **Many comparisons.** Each interval stands alone: nothing corrects for comparing many variants at once. Of twenty
//! variants that equal the baseline, one is expected to exclude zero by chance.

use std::collections::BTreeMap;

use statrs::distribution::{ContinuousCDF, StudentsT};
use thiserror::Error;

/// What the functions here refuse.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum StatsError {
    /// There is nothing to average.
    #[error("no values: a mean needs at least one")]
    Empty,
    /// A value is NaN or infinite; averaging it would spoil or hide the others.
    #[error("value {position} is {value}: only finite numbers can be averaged")]
    NotFinite {
        /// Place among the values, from 1.
        position: usize,
        /// The refused value.
        value: f64,
    },
    /// The two sides of a paired difference have no seed in common.
    #[error("no seed in common: a paired difference needs at least one seed that both sides finished")]
    NoSharedSeed,
}

/// A mean over seeds with what is known about its spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Number of values.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation (divisor `n - 1`); `None` for one value.
    pub sd: Option<f64>,
    /// Half the width of the 95% interval of the mean; `None` for one value, 0 where all values are equal.
    pub half_width: Option<f64>,
}

impl Estimate {
    /// The 95% interval of the mean, `None` for one value.
    pub fn interval(&self) -> Option<(f64, f64)> {
        self.half_width.map(|half| (self.mean - half, self.mean + half))
    }
}

/// What the interval of a difference says about zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The 95% interval lies on one side of zero.
    ExcludesZero,
    /// Zero is inside the 95% interval, or every difference is exactly zero.
    IncludesZero,
    /// One shared seed: there is no interval.
    OneSeed,
    /// Every seed shows the same non-zero difference. The interval has no width, which says that the seeds moved
    /// nothing, not that the difference is certain.
    NoSpread,
}

/// The mean over shared seeds of `variant - baseline`.
#[derive(Debug, Clone, PartialEq)]
pub struct PairedDifference {
    /// The seeds that both sides have, ascending.
    pub seeds: Vec<u64>,
    /// Mean difference and its interval.
    pub estimate: Estimate,
    /// Whether the interval excludes zero.
    pub verdict: Verdict,
}

/// The 97.5% quantile of Student's t distribution with `degrees` degrees of freedom: the factor of a two-sided 95%
/// interval. Infinite for zero degrees, for which no interval exists.
pub fn t_quantile_975(degrees: usize) -> f64 {
    StudentsT::new(0.0, 1.0, degrees as f64).map_or(f64::INFINITY, |t| t.inverse_cdf(0.975))
}

/// Mean, standard deviation and 95% interval of `values`.
///
/// # Errors
/// [`StatsError::Empty`] without values, [`StatsError::NotFinite`] for NaN or an infinity.
pub fn estimate(values: &[f64]) -> Result<Estimate, StatsError> {
    let scale = values.iter().fold(0.0_f64, |scale, value| scale.max(value.abs()));
    estimate_at_scale(values, scale)
}

/// The mean of `variant - baseline` over the seeds that both have; keys are seeds.
///
/// # Errors
/// [`StatsError::NoSharedSeed`], and [`StatsError::NotFinite`] for NaN or an infinity on either side.
pub fn paired_difference(
    variant: &BTreeMap<u64, f64>,
    baseline: &BTreeMap<u64, f64>,
) -> Result<PairedDifference, StatsError> {
    let pairs: Vec<(u64, f64, f64)> =
        variant.iter().filter_map(|(seed, value)| baseline.get(seed).map(|base| (*seed, *value, *base))).collect();
    if pairs.is_empty() {
        return Err(StatsError::NoSharedSeed);
    }
    let differences: Vec<f64> = pairs.iter().map(|(_, value, base)| value - base).collect();
    let scale = pairs.iter().fold(0.0_f64, |scale, (_, value, base)| scale.max(value.abs()).max(base.abs()));
    let estimate = estimate_at_scale(&differences, scale)?;
    Ok(PairedDifference {
        seeds: pairs.iter().map(|(seed, _, _)| *seed).collect(),
        verdict: verdict(&estimate),
        estimate,
    })
}

/// The mean of values that come in groups, each given as the sum of its values and their number, and its interval where groups, not
/// values, are independent: the mean is that of all values together, and its spread comes from how far the sum of each group is
/// from what the mean would give it. Where all groups have as many values this is [`estimate`] of the groups' means. Groups
/// without a value do not count.
///
/// # Errors
/// As [`estimate`].
pub fn pooled(groups: &[(f64, f64)]) -> Result<Estimate, StatsError> {
    let groups: Vec<(f64, f64)> = groups.iter().copied().filter(|(_, count)| *count > 0.0).collect();
    if let Some(index) = groups.iter().position(|(sum, _)| !sum.is_finite()) {
        return Err(StatsError::NotFinite { position: index + 1, value: groups[index].0 });
    }
    if groups.is_empty() {
        return Err(StatsError::Empty);
    }
    let n = groups.len();
    let values: f64 = groups.iter().map(|(_, count)| count).sum();
    let mean = groups.iter().map(|(sum, _)| sum).sum::<f64>() / values;
    let scale = groups.iter().fold(0.0_f64, |scale, (sum, count)| scale.max((sum / count).abs()));
    let sd = (n > 1).then(|| {
        let squares: f64 = groups.iter().map(|(sum, count)| (sum - mean * count).powi(2)).sum();
        let sd = (squares / (n - 1) as f64).sqrt() * n as f64 / values;
        if sd <= 8.0 * f64::EPSILON * scale { 0.0 } else { sd }
    });
    let half_width = sd.map(|sd| t_quantile_975(n - 1) * sd / (n as f64).sqrt());
    Ok(Estimate { n, mean, sd, half_width })
}

fn verdict(estimate: &Estimate) -> Verdict {
    match estimate.half_width {
        None => Verdict::OneSeed,
        Some(0.0) if estimate.mean == 0.0 => Verdict::IncludesZero,
        Some(0.0) => Verdict::NoSpread,
        Some(half) if estimate.mean.abs() > half => Verdict::ExcludesZero,
        Some(_) => Verdict::IncludesZero,
    }
}

/// `scale` is the size of the numbers that the values were computed from: a spread or a mean below their rounding
/// error counts as zero, so that equal differences such as 0.3 - 0.2 and 0.4 - 0.3 have no spread.
fn estimate_at_scale(values: &[f64], scale: f64) -> Result<Estimate, StatsError> {
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(StatsError::NotFinite { position: index + 1, value: values[index] });
    }
    if values.is_empty() {
        return Err(StatsError::Empty);
    }
    let n = values.len();
    let rounding = 8.0 * f64::EPSILON * scale;
    let without_rounding = |x: f64| if x.abs() <= rounding { 0.0 } else { x };
    let mean = values.iter().sum::<f64>() / n as f64;
    let sd = (n > 1).then(|| {
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        without_rounding((squares / (n - 1) as f64).sqrt())
    });
    let half_width = sd.map(|sd| t_quantile_975(n - 1) * sd / (n as f64).sqrt());
    Ok(Estimate { n, mean: without_rounding(mean), sd, half_width })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64, tolerance: f64) {
        assert!((left - right).abs() <= tolerance, "{left} is not within {tolerance} of {right}");
    }

    fn by_seed(values: &[(u64, f64)]) -> BTreeMap<u64, f64> {
        values.iter().copied().collect()
    }

    #[test]
    fn quantiles_match_the_printed_tables() {
        let table =
            [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (9, 2.2622), (29, 2.0452), (99, 1.9842)];
        for (degrees, expected) in table {
            close(t_quantile_975(degrees), expected, 5e-5);
        }
        assert!(t_quantile_975(0).is_infinite());
    }

    #[test]
    fn two_seeds_by_hand() {
        // Mean 0.9925, sd = 0.001 / √2, half width = 12.7062 · sd / √2 = 12.7062 · 0.0005.
        let estimate = estimate(&[0.992, 0.993]).unwrap();
        assert_eq!(estimate.n, 2);
        close(estimate.mean, 0.9925, 1e-12);
        close(estimate.sd.unwrap(), 0.001 / 2.0_f64.sqrt(), 1e-12);
        close(estimate.half_width.unwrap(), 12.7062 * 0.0005, 1e-7);
        let (low, high) = estimate.interval().unwrap();
        close(high - low, 2.0 * 12.7062 * 0.0005, 1e-7);
    }

    #[test]
    fn three_seeds_by_hand() {
        // 1, 2, 3: sd 1, half width 4.3027 / √3.
        let estimate = estimate(&[1.0, 2.0, 3.0]).unwrap();
        close(estimate.mean, 2.0, 1e-12);
        close(estimate.sd.unwrap(), 1.0, 1e-12);
        close(estimate.half_width.unwrap(), 4.302_653 / 3.0_f64.sqrt(), 1e-6);
    }

    #[test]
    fn one_seed_has_a_mean_and_nothing_else() {
        let estimate = estimate(&[0.5]).unwrap();
        assert_eq!(estimate, Estimate { n: 1, mean: 0.5, sd: None, half_width: None });
        assert_eq!(estimate.interval(), None);
    }

    #[test]
    fn equal_values_have_a_width_of_exactly_zero() {
        let estimate = estimate(&[0.1, 0.1, 0.1]).unwrap();
        assert_eq!(estimate.sd, Some(0.0));
        assert_eq!(estimate.half_width, Some(0.0));
    }

    #[test]
    fn nothing_and_nan_are_refused() {
        assert_eq!(estimate(&[]), Err(StatsError::Empty));
        let message = estimate(&[1.0, f64::NAN]).unwrap_err().to_string();
        assert!(message.contains("value 2 is NaN"), "{message}");
        assert!(estimate(&[f64::INFINITY]).is_err());
        let baseline = by_seed(&[(1, 1.0)]);
        assert!(paired_difference(&by_seed(&[(1, f64::NAN)]), &baseline).is_err());
    }

    #[test]
    fn groups_of_one_size_are_as_their_means() {
        let means = [0.25, 0.5, 0.75, 1.0];
        let groups = means.map(|mean| (8.0 * mean, 8.0));
        let (pooled, plain) = (pooled(&groups).unwrap(), estimate(&means).unwrap());
        close(pooled.mean, plain.mean, 1e-12);
        close(pooled.half_width.unwrap(), plain.half_width.unwrap(), 1e-12);
    }

    #[test]
    fn groups_of_different_sizes_by_hand() {
        // 1 of 1 right and 1 of 3, and a group without a value: 2 of 4; sums are 0.5 above and below what 0.5 gives them.
        let found = pooled(&[(1.0, 1.0), (0.0, 0.0), (1.0, 3.0)]).unwrap();
        assert_eq!(found.n, 2);
        close(found.mean, 0.5, 1e-12);
        close(found.half_width.unwrap(), 12.7062 * 0.25, 1e-4);
        assert_eq!(pooled(&[(3.0, 3.0), (1.0, 1.0)]).unwrap().half_width, Some(0.0));
        assert_eq!(pooled(&[(2.0, 3.0)]).unwrap().half_width, None);
        assert_eq!(pooled(&[(0.0, 0.0)]), Err(StatsError::Empty));
        assert!(pooled(&[(f64::NAN, 1.0)]).is_err());
    }

    #[test]
    fn pairs_use_only_the_seeds_that_both_have() {
        let variant = by_seed(&[(1, 0.9), (2, 0.8), (7, 0.1)]);
        let baseline = by_seed(&[(1, 0.5), (2, 0.5), (3, 0.9)]);
        let difference = paired_difference(&variant, &baseline).unwrap();
        assert_eq!(difference.seeds, [1, 2]);
        // Differences 0.4 and 0.3: mean 0.35, half width 12.7062 · 0.05.
        close(difference.estimate.mean, 0.35, 1e-12);
        close(difference.estimate.half_width.unwrap(), 12.7062 * 0.05, 1e-5);
        assert_eq!(difference.verdict, Verdict::IncludesZero);
        assert_eq!(paired_difference(&variant, &by_seed(&[(3, 0.9)])), Err(StatsError::NoSharedSeed));
    }

    #[test]
    fn pairing_removes_noise_that_the_seeds_share() {
        let baseline = by_seed(&[(1, 0.10), (2, 0.50), (3, 0.90)]);
        let variant = by_seed(&[(1, 0.15), (2, 0.56), (3, 0.95)]);
        assert_eq!(paired_difference(&variant, &baseline).unwrap().verdict, Verdict::ExcludesZero);
    }

    #[test]
    fn verdicts_without_an_interval_say_why() {
        let baseline = by_seed(&[(1, 0.2), (2, 0.3)]);
        let one = paired_difference(&by_seed(&[(1, 0.9)]), &baseline).unwrap();
        assert_eq!(one.verdict, Verdict::OneSeed);
        // 0.3 - 0.2 and 0.4 - 0.3 differ in their last bit only.
        let same = paired_difference(&by_seed(&[(1, 0.3), (2, 0.4)]), &baseline).unwrap();
        assert_eq!(same.verdict, Verdict::NoSpread);
        let equal = paired_difference(&baseline, &baseline).unwrap();
        assert_eq!((equal.verdict, equal.estimate.mean), (Verdict::IncludesZero, 0.0));
    }
}
