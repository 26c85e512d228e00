//! Axes of the charts: their range, their ticks and where a value lies on them.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, KeyPointWeight, Ranged};

use crate::report::format;

/// Ticks that an axis aims at.
const TICKS: f64 = 5.0;

/// A range of costs wider than this factor is drawn on a logarithmic axis.
const LOG_FACTOR: f64 = 20.0;

/// Factor that an axis of [`Axis::powers`] holds at least.
const LEAST_FACTOR: f64 = 4.0;

/// One axis. Positions are values themselves on a linear axis and their decimal logarithms on a logarithmic one.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Position of the lower end.
    pub low: f64,
    /// Position of the upper end.
    pub high: f64,
    /// Positions with a label.
    pub ticks: Vec<(f64, String)>,
    /// Where zero is drawn on a logarithmic axis, which has no place for it.
    pub zero: Option<f64>,
    logarithmic: bool,
}

impl Axis {
    /// A linear axis around `values` that does not leave `bounds`, with plain decimal labels.
    pub fn linear(values: &[f64], bounds: (f64, f64)) -> Self {
        let (low, high) = padded(values, bounds);
        let step = nice_step(low, high);
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        Self::with_ticks(low, high, step, |tick| format!("{tick:.decimals$}"))
    }

    /// A linear axis from `low` to the largest of `values`, with labels such as 250k.
    pub fn counting(low: f64, values: &[f64]) -> Self {
        let most = values.iter().copied().fold(low, f64::max);
        let high = if most > low { most } else { low + 1.0 };
        Self::with_ticks(low, high, nice_step(low, high), format::count)
    }

    /// An axis for a cost that may be zero: linear from zero, or logarithmic where the positive values span a factor of
    /// more than 20, with a place of its own for zero.
    pub fn cost(values: &[f64]) -> Self {
        let (least, most) = extent(values.iter().copied().filter(|value| *value > 0.0)).unwrap_or((1.0, 1.0));
        if most / least <= LOG_FACTOR {
            let high = most * 1.08;
            let mut axis = Self::with_ticks(0.0, high, nice_step(0.0, high), format::count);
            axis.low = -0.04 * high;
            return axis;
        }
        Self::logarithmic(least, most, values.contains(&0.0))
    }

    /// An axis for positive values, logarithmic where they span a factor of more than 20.
    pub fn positive(values: &[f64]) -> Self {
        match extent(values.iter().copied().filter(|value| *value > 0.0)) {
            Some((least, most)) if most / least > LOG_FACTOR => Self::logarithmic(least, most, false),
            _ => Self::linear(values, (0.0, f64::INFINITY)),
        }
    }

    /// A logarithmic axis for positive values.
    pub fn powers(values: &[f64]) -> Self {
        let (least, most) = extent(values.iter().copied().filter(|value| *value > 0.0)).unwrap_or((1.0, 1.0));
        // Wide enough to hold a tick or two.
        let wider = (LEAST_FACTOR / (most / least)).max(1.0).sqrt();
        Self::logarithmic(least / wider, most * wider, false)
    }

    /// A logarithmic axis for lengths of context, each of which has a label; where there are many, some labels are left out.
    pub fn contexts(lengths: &[u64]) -> Self {
        let values: Vec<f64> = lengths.iter().map(|&length| length as f64).collect();
        let every = lengths.len().div_ceil(10).max(1);
        // The longest always has its label.
        let labelled = lengths.iter().rev().step_by(every);
        let ticks = labelled.map(|&length| ((length as f64).log10(), format::context(length))).collect();
        Self { ticks, ..Self::powers(&values) }
    }

    /// An axis with a place for each of `labels`: 0, 1, 2, …; where there are many, some labels are left out.
    pub fn categories(labels: &[String]) -> Self {
        let every = labels.len().div_ceil(10).max(1);
        let ticks = labels.iter().enumerate().step_by(every).map(|(index, label)| (index as f64, label.clone()));
        let last = labels.len().saturating_sub(1) as f64;
        Self { low: -0.4, high: last + 0.4, ticks: ticks.collect(), zero: None, logarithmic: false }
    }

    /// An axis with `count` rows from top to bottom: row 0 at position 0, row 1 at -1, …; without labels.
    pub fn rows(count: usize) -> Self {
        Self { low: 0.5 - count as f64, high: 0.5, ticks: Vec::new(), zero: None, logarithmic: false }
    }

    fn with_ticks(low: f64, high: f64, step: f64, label: impl Fn(f64) -> String) -> Self {
        let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
        let ticks = (first..=last).map(|index| index as f64 * step).map(|tick| (tick, label(tick)));
        Self { low, high, ticks: ticks.collect(), zero: None, logarithmic: false }
    }

    fn logarithmic(least: f64, most: f64, with_zero: bool) -> Self {
        let (low, high) = (least.log10(), most.log10());
        let pad = 0.06 * (high - low);
        let zero = with_zero.then_some(low - 0.2 * (high - low));
        let factors: &[f64] = match high - low {
            2.5.. => &[1.0],
            1.0.. => &[1.0, 3.0],
            _ => &[1.0, 2.0, 5.0],
        };
        let mut ticks: Vec<(f64, String)> = zero.iter().map(|zero| (*zero, "0".to_owned())).collect();
        for decade in low.floor() as i32..=high.ceil() as i32 {
            for factor in factors {
                let value = factor * 10.0_f64.powi(decade);
                let position = value.log10();
                if position >= low - pad && position <= high + pad {
                    ticks.push((position, log_label(value)));
                }
            }
        }
        Self { low: zero.unwrap_or(low) - pad, high: high + pad, ticks, zero, logarithmic: true }
    }

    /// Position of `value`, kept within the axis.
    pub fn at(&self, value: f64) -> f64 {
        let position = match self.zero {
            Some(zero) if value <= 0.0 => zero,
            _ if self.logarithmic => value.max(f64::MIN_POSITIVE).log10(),
            _ => value,
        };
        position.clamp(self.low, self.high)
    }

    /// Whether `value` lies inside the axis.
    pub fn holds(&self, value: f64) -> bool {
        self.logarithmic || (value >= self.low && value <= self.high)
    }

    /// Where the axis breaks between zero and its logarithmic part.
    pub fn break_at(&self) -> Option<f64> {
        let zero = self.zero?;
        let next = self.ticks.iter().map(|(position, _)| *position).filter(|position| *position > zero);
        let next = next.fold(self.high, f64::min);
        Some(zero + 0.4 * (next - zero))
    }

    /// The label of the tick at `position`, empty where there is none.
    pub fn label(&self, position: f64) -> String {
        let near = 1e-9 * (self.high - self.low);
        let tick = self.ticks.iter().find(|(tick, _)| (tick - position).abs() <= near);
        tick.map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

/// What the drawing library asks of an axis; its values are positions.
impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, position: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (position - self.low) / (self.high - self.low);
        (f64::from(from) + share * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight() {
            KeyPointWeight::Bold => self.ticks.iter().map(|(position, _)| *position).collect(),
            KeyPointWeight::Any => Vec::new(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// The axis of a metric: it shows every value, and of the intervals as much as leaves the values readable.
pub fn metric_axis(values: &[f64], intervals: &[(f64, f64)]) -> Axis {
    let Some((low, high)) = extent(values.iter().copied()) else {
        return Axis::linear(&[], (0.0, 1.0));
    };
    // Shares such as accuracy stay within 0 and 1, and other metrics that are never negative above 0.
    let bounds =
        (if low >= 0.0 { 0.0 } else { f64::NEG_INFINITY }, if high <= 1.0 && low >= 0.0 { 1.0 } else { f64::INFINITY });
    let reach = (0.5 * (high - low)).max(0.002 * high.abs());
    let mut shown = values.to_vec();
    for (from, to) in intervals {
        shown.push(from.max(low - reach));
        shown.push(to.min(high + reach));
    }
    // Shares that fill most of their range are shown in the whole of it.
    if bounds == (0.0, 1.0) && high - low > 0.5 {
        shown.extend([0.0, 1.0]);
    }
    Axis::linear(&shown, bounds)
}

/// Least and largest of finite values.
pub fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |range: Option<(f64, f64)>, value| {
        Some(range.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
    })
}

fn padded(values: &[f64], (least, most): (f64, f64)) -> (f64, f64) {
    let (low, high) = extent(values.iter().copied()).unwrap_or((0.0, 1.0));
    let pad = if high > low { 0.06 * (high - low) } else { (0.05 * high.abs()).max(0.05) };
    // A little room beyond the bound keeps markers on it whole.
    let slack = 0.3 * pad;
    ((low - pad).max(least - slack), (high + pad).min(most + slack))
}

/// 1, 2 or 5 times a power of ten that gives about [`TICKS`] ticks.
fn nice_step(low: f64, high: f64) -> f64 {
    let rough = ((high - low) / TICKS).max(f64::MIN_POSITIVE);
    let power = 10.0_f64.powf(rough.log10().floor());
    let factor = match rough / power {
        share if share < 1.5 => 1.0,
        share if share < 3.5 => 2.0,
        share if share < 7.5 => 5.0,
        _ => 10.0,
    };
    factor * power
}

fn log_label(value: f64) -> String {
    if value >= 1.0 { format::count(value) } else { format!("{value:.*}", (-value.log10()).ceil() as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn linear_ticks_are_round_and_inside() {
        let axis = Axis::linear(&[0.0, 1.0], (0.0, 1.0));
        assert_eq!(labels(&axis), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert!(axis.low > -0.05 && axis.high < 1.05);
        assert_eq!(labels(&Axis::counting(0.0, &[480_000.0])), ["0", "100k", "200k", "300k", "400k"]);
        let narrow = Axis::linear(&[0.991, 0.993], (0.0, 1.0));
        assert!(labels(&narrow).contains(&"0.9920"), "{:?}", labels(&narrow));
    }

    #[test]
    fn costs_become_logarithmic_with_a_place_for_zero() {
        let linear = Axis::cost(&[0.0, 20.0, 40.0]);
        assert!((linear.at(20.0) - 20.0).abs() < 1e-12 && linear.break_at().is_none());
        let log = Axis::cost(&[0.0, 10.0, 1000.0]);
        assert_eq!(labels(&log), ["0", "10", "30", "100", "300", "1000"]);
        assert!(log.at(0.0) < log.break_at().unwrap() && log.break_at().unwrap() < log.at(10.0));
        assert!(log.at(10.0) < log.at(1000.0));
    }

    #[test]
    fn powers_have_ticks_however_near_values_are() {
        assert_eq!(labels(&Axis::powers(&[0.5, 213.0])), ["1", "10", "100"]);
        assert_eq!(labels(&Axis::powers(&[120.0, 130.0])), ["100", "200"]);
        assert!(Axis::powers(&[]).high > Axis::powers(&[]).low);
        let axis = Axis::contexts(&[4096, 16384, 524_288]);
        assert_eq!(labels(&axis), ["512K", "16K", "4K"]);
        assert!(axis.low < axis.at(4096.0) && axis.at(16384.0) < axis.at(524_288.0));
        let many: Vec<u64> = (0..20).map(|power| 1 << power).collect();
        assert_eq!(labels(&Axis::contexts(&many)).len(), 10);
    }

    #[test]
    fn windows_alone_cost_nothing_and_still_have_an_axis() {
        let axis = Axis::cost(&[0.0, 0.0]);
        assert!(axis.low < axis.at(0.0) && axis.at(0.0) < axis.high);
    }

    #[test]
    fn a_wide_interval_does_not_squeeze_the_values() {
        let axis = metric_axis(&[0.9, 0.8], &[(-2.0, 3.0)]);
        assert!(axis.low > 0.7 && axis.high < 1.01, "{axis:?}");
        assert!(!axis.holds(-2.0) && axis.holds(0.85));
    }

    #[test]
    fn equal_values_and_none_still_give_a_range() {
        for values in [&[3.0, 3.0][..], &[0.0][..], &[][..]] {
            let axis = Axis::linear(values, (f64::NEG_INFINITY, f64::INFINITY));
            assert!(axis.high > axis.low && !axis.ticks.is_empty(), "{axis:?}");
        }
    }
}
