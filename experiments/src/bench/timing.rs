//! How long something takes: warm-up, repetitions, median and spread.

use std::time::Instant;

use burn::tensor::Device;

use super::BenchError;

/// How often something is repeated: until both are reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// At least so many repetitions,
    pub repetitions: usize,
    /// and at least so many seconds of them.
    pub seconds: f64,
}

impl Effort {
    /// For figures that are to be kept.
    pub const FULL: Self = Self { repetitions: 5, seconds: 1.0 };
    /// For seeing that everything runs.
    pub const QUICK: Self = Self { repetitions: 2, seconds: 0.05 };
}

/// Seconds of one repetition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Half of the repetitions took longer.
    pub median: f64,
    /// One in ten was quicker.
    pub p10: f64,
    /// One in ten took longer.
    pub p90: f64,
    /// How many there were.
    pub repetitions: usize,
}

impl Timing {
    /// Of the seconds of at least one repetition.
    pub fn of(seconds: &[f64]) -> Self {
        Self {
            median: median(seconds),
            p10: quantile(seconds, 0.1),
            p90: quantile(seconds, 0.9),
            repetitions: seconds.len(),
        }
    }
}

/// Runs once to warm up, then as often as `effort` asks for. Returns the seconds of every repetition, up to the moment when
/// the device has nothing left to do, and what it returned.
pub(super) fn repeat<T>(
    effort: Effort,
    device: &Device,
    mut run: impl FnMut() -> Result<T, BenchError>,
) -> Result<(Vec<f64>, Vec<T>), BenchError> {
    run()?;
    device.sync()?;
    let started = Instant::now();
    let (mut seconds, mut results) = (Vec::new(), Vec::new());
    while seconds.len() < effort.repetitions.max(1) || started.elapsed().as_secs_f64() < effort.seconds {
        let start = Instant::now();
        let result = run()?;
        device.sync()?;
        seconds.push(start.elapsed().as_secs_f64());
        results.push(result);
    }
    Ok((seconds, results))
}

/// Runs `one` and `other` in turn, so that both meet the same machine, and returns the seconds of each.
pub(super) fn in_turn(
    effort: Effort,
    device: &Device,
    mut one: impl FnMut(),
    mut other: impl FnMut(),
) -> Result<[Vec<f64>; 2], BenchError> {
    let once = |run: &mut dyn FnMut()| -> Result<f64, BenchError> {
        let start = Instant::now();
        run();
        device.sync()?;
        Ok(start.elapsed().as_secs_f64())
    };
    let (_, pairs) = repeat(effort, device, || Ok([once(&mut one)?, once(&mut other)?]))?;
    Ok([0, 1].map(|which| pairs.iter().map(|pair| pair[which]).collect()))
}

pub(super) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value below which a `share` of the sorted values lies, between neighbours in proportion.
pub(super) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let timing = Timing::of(&[5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(timing, Timing { median: 3.0, p10: 1.4, p90: 4.6, repetitions: 5 });
        assert_eq!(Timing::of(&[2.0]), Timing { median: 2.0, p10: 2.0, p90: 2.0, repetitions: 1 });
        assert!((median(&[1.0, 2.0]) - 1.5).abs() < 1e-12);
    }

    #[test]
    fn both_the_count_and_the_time_are_reached() {
        let mut calls = 0;
        let effort = Effort { repetitions: 3, seconds: 0.0 };
        let (seconds, results) = repeat(effort, &Device::flex(), || {
            calls += 1;
            Ok(calls)
        })
        .unwrap();
        // The first call is the warm-up.
        assert_eq!((seconds.len(), results), (3, vec![2, 3, 4]));
        let effort = Effort { repetitions: 1, seconds: 0.02 };
        let (seconds, _) = repeat(effort, &Device::flex(), || {
            std::thread::sleep(std::time::Duration::from_millis(1));
            Ok(())
        })
        .unwrap();
        assert!(seconds.len() > 1 && seconds.iter().sum::<f64>() > 0.015);
    }
}
