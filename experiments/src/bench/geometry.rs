//! Geometry of the read-out: queries that reach targets, and points in or outside of a hull; plain Rust in f64, on one thread.

use std::time::Instant;

use burn::tensor::{Device, Tensor};

use super::{Bench, BenchError, Row, Shape, Sizes, Subject, inputs};
use crate::geometry::{Entries, Family, Membership, Precision, Reach, ReadOut};

/// How far an output may be from its target.
const RESIDUAL: f64 = 1e-8;

/// What is asked of every point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Which query reaches it; all points are inside.
    Reach,
    /// Whether it is in the hull, and how far outside; every other point is inside.
    Membership,
}

/// Sizes of some questions about one hull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Dimension d of an entry.
    pub dim: usize,
    /// Entries n.
    pub entries: usize,
    /// Points asked about.
    pub points: usize,
    /// What is asked.
    pub question: Question,
}

impl Shape for Geometry {
    const OPERATOR: &'static str = "geometry";

    fn cases() -> Vec<(&'static str, Self)> {
        let reach = Self { dim: 512, entries: 640, points: 100, question: Question::Reach };
        vec![("reach", reach), ("membership", Self { question: Question::Membership, ..reach })]
    }

    fn sizes(&self) -> Sizes {
        vec![("dim", self.dim), ("entries", self.entries), ("points", self.points)]
    }

    fn numbers(&self) -> u128 {
        // The entries and what is made of them, of 8 bytes: some copies of the matrix, and a square one.
        let [d, n, points] = [self.dim, self.entries, self.points].map(|size| size as u128);
        2 * (8 * n * d + 3 * d * d + points * d)
    }
}

/// The entries, and the points asked about.
struct Inputs {
    entries: Entries,
    points: Vec<Vec<f64>>,
}

impl Inputs {
    /// Entries of unit variance; a point inside is their mean under weights `e^x`, x of unit variance, and one outside has unit variance,
    /// which is far out: an entry is as far from the mean.
    fn new(shape: &Geometry, device: &Device) -> Result<Self, BenchError> {
        let &Geometry { dim, entries: n, points, question } = shape;
        let entries = Entries::new(rows(inputs::normal([n, dim], device))?, dim)?;
        let weights: Vec<f64> = rows(inputs::normal([points, n], device))?.into_iter().map(f64::exp).collect();
        let outside = rows(inputs::normal([points, dim], device))?;
        let readout = ReadOut::attention(entries.clone())?;
        let mut all = Vec::with_capacity(points);
        for (at, weights) in weights.chunks_exact(n).enumerate() {
            let sum: f64 = weights.iter().sum();
            let weights: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
            let inside = question == Question::Reach || at.is_multiple_of(2);
            all.push(if inside { readout.mean(&weights)? } else { outside[at * dim..(at + 1) * dim].into() });
        }
        Ok(Self { entries, points: all })
    }
}

/// Reads a tensor's numbers.
fn rows(tensor: Tensor<2>) -> Result<Vec<f64>, BenchError> {
    Ok(tensor.try_into_data()?.iter::<f64>().collect())
}

/// Measures one case: the hull's decomposition and all points; every answer is checked.
///
/// # Errors
/// When the device fails, or an answer is not what it must be.
pub fn run(bench: &Bench, case: &str, shape: &Geometry) -> Result<Row, BenchError> {
    let inputs = Inputs::new(shape, &bench.device)?;
    let subject = Subject {
        operator: Geometry::OPERATOR,
        case: case.into(),
        pass: "f64, host",
        sizes: shape.sizes(),
        work: None,
        tokens: None,
    };
    bench.time_parts(subject, ["decomposition", "points"], || {
        let start = Instant::now();
        let family = Family::new(ReadOut::attention(inputs.entries.clone())?, Precision::DEFAULT)?;
        let decomposed = start.elapsed().as_secs_f64();
        for (at, point) in inputs.points.iter().enumerate() {
            match shape.question {
                Question::Reach => check_reach(at, &family.reach(point)?)?,
                Question::Membership => check_membership(at, &family.hull().locate(point)?)?,
            }
        }
        Ok([decomposed, start.elapsed().as_secs_f64() - decomposed])
    })
}

fn check_reach(at: usize, found: &Reach) -> Result<(), BenchError> {
    match found {
        Reach::Reached { residual, .. } if *residual <= RESIDUAL => Ok(()),
        other => Err(BenchError::Answer(format!("target {at} is in the interior, and the answer is {}", short(other)))),
    }
}

fn check_membership(at: usize, found: &Membership) -> Result<(), BenchError> {
    match found {
        Membership::Undecided { least, most } => {
            Err(BenchError::Answer(format!("point {at} is undecided: its distance is between {least} and {most}")))
        }
        Membership::Outside { distance, .. } if at.is_multiple_of(2) => {
            Err(BenchError::Answer(format!("point {at} is inside, and the answer is a distance of {distance}")))
        }
        _ => Ok(()),
    }
}

fn short(found: &Reach) -> String {
    match found {
        Reach::Reached { residual, .. } => format!("an output {residual} away"),
        Reach::OutsideOrBoundary { distance, .. } => format!("outside or on the boundary, at a distance of {distance}"),
        Reach::Undecided { reason, .. } => format!("undecided: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Effort;

    #[test]
    fn both_questions_are_timed_and_answers_checked() {
        let bench = Bench::new(Device::flex(), Effort { repetitions: 1, seconds: 0.0 });
        for (case, shape) in Geometry::cases() {
            let row = run(&bench, case, &Geometry { dim: 3, entries: 7, points: 5, ..shape }).unwrap();
            let parts: f64 = row.parts.iter().map(|(_, seconds)| seconds).sum();
            assert!(row.parts.len() == 2 && parts > 0.0 && parts <= row.timing.median * 1.01, "{row:?}");
        }
        let (query, far) = (vec![0.0], vec![1.0]);
        assert!(check_reach(0, &Reach::Reached { query: query.clone(), residual: 1e-9 }).is_ok());
        assert!(check_reach(0, &Reach::Reached { query, residual: 2e-8 }).is_err());
        let outside = Membership::Outside { weights: far.clone(), distance: 1.0, direction: far };
        assert!(check_membership(1, &outside).is_ok() && check_membership(2, &outside).is_err());
        assert!(check_membership(1, &Membership::Undecided { least: 0.0, most: 1.0 }).is_err());
    }
}
