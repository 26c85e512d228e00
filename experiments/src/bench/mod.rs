//! How fast the operators, a training step and decoding are on one backend: what `csa2 bench` measures.
//!
//! Every figure stands beside the backend's own f32 matrix product ([`MATMUL`] cubed), timed before and after it in the same
//! run, so that a figure means the same on another machine or on a loaded one. Operations are the useful ones only: pairs of
//! a query and an entry that exist, not what an implementation masks out. Bytes are the least that must move: every input
//! that is needed read once, every output written once.

pub mod decode;
mod error;
pub mod geometry;
mod inputs;
mod json;
pub mod kl;
pub mod peak;
pub mod prefill;
pub mod query;
pub mod readout;
pub mod select;
mod shape;
pub mod step;
mod table;
mod timing;

use burn::tensor::{Device, Distribution, Tensor};
use serde::Serialize;

pub use error::BenchError;
pub use json::render as render_json;
pub use shape::{Shape, Sizes, chosen, free_memory};
pub use table::render as render_text;
pub use timing::{Effort, Timing};

use crate::say::say;

/// Rows and columns of the matrices whose product sets the scale.
pub const MATMUL: usize = 1024;

/// What an operation needs, whatever the implementation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Floating-point operations; a multiply-add counts as two.
    pub flops: u128,
    /// The least bytes that must move.
    pub bytes: u128,
}

/// The backend's matrix product around one measurement, in operations per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matmul {
    /// Median of the repetitions before it.
    pub before: f64,
    /// Median of the repetitions after it.
    pub after: f64,
    /// Median of both together: what ratios are taken to.
    pub rate: f64,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// `readout`, `select`, ...
    pub operator: &'static str,
    /// Name in the table of cases.
    pub case: String,
    /// `forward`, `forward+backward`, `step` or `token`.
    pub pass: &'static str,
    /// The shape.
    pub sizes: Sizes,
    /// What it needs; none where it is not counted.
    pub work: Option<Work>,
    /// Tokens that one repetition deals with, where a rate in tokens means something.
    pub tokens: Option<usize>,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What was measured.
    pub subject: Subject,
    /// How long it took.
    pub timing: Timing,
    /// The backend's matrix product meanwhile.
    pub matmul: Matmul,
    /// Median seconds of its parts, where it has any.
    pub parts: Vec<(&'static str, f64)>,
}

impl Row {
    /// Operations per second.
    pub fn flops(&self) -> Option<f64> {
        self.subject.work.map(|work| work.flops as f64 / self.timing.median)
    }

    /// Bytes per second.
    pub fn bytes(&self) -> Option<f64> {
        self.subject.work.map(|work| work.bytes as f64 / self.timing.median)
    }

    /// Operations per second as a share of the matrix product's.
    pub fn share(&self) -> Option<f64> {
        self.flops().map(|flops| flops / self.matmul.rate)
    }

    /// Tokens per second.
    pub fn tokens(&self) -> Option<f64> {
        self.subject.tokens.map(|tokens| tokens as f64 / self.timing.median)
    }
}

/// One measurement over another, of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// What is compared, as a sentence without its number.
    pub what: String,
    /// The one over the other; of times, the larger case's over the smaller one's.
    pub value: f64,
}

/// Everything that a run has measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Times.
    pub rows: Vec<Row>,
    /// Peaks of memory.
    pub peaks: Vec<peak::Peak>,
    /// Comparisons between cases.
    pub ratios: Vec<Ratio>,
}

/// Where and how things are measured.
pub struct Bench {
    /// Where, without automatic differentiation.
    pub device: Device,
    /// How often.
    pub effort: Effort,
    matrices: [Tensor<2>; 2],
}

impl Bench {
    /// Makes the matrices of the yardstick.
    pub fn new(device: Device, effort: Effort) -> Self {
        device.seed(0);
        let matrix = || Tensor::random([MATMUL, MATMUL], Distribution::Normal(0.0, 1.0), &device);
        Self { matrices: [matrix(), matrix()], device, effort }
    }

    /// Times `run`, which leaves no work undone on the device's queue that it does not time: the clock stops after a sync.
    ///
    /// # Errors
    /// What `run` fails with, or a failure of the device.
    pub fn time(&self, subject: Subject, mut run: impl FnMut() -> Result<(), BenchError>) -> Result<Row, BenchError> {
        self.time_parts(subject, [], || run().map(|()| []))
    }

    /// As [`time`](Self::time); every repetition says how many seconds each of the `names` took.
    ///
    /// # Errors
    /// What `run` fails with, or a failure of the device.
    pub fn time_parts<const N: usize>(
        &self,
        subject: Subject,
        names: [&'static str; N],
        run: impl FnMut() -> Result<[f64; N], BenchError>,
    ) -> Result<Row, BenchError> {
        say(&format!("{} {}, {}: {}", subject.operator, subject.case, subject.pass, shape::line(&subject.sizes)));
        let before = self.matmul()?;
        let (seconds, parts) = timing::repeat(self.effort, &self.device, run)?;
        let after = self.matmul()?;
        let part = |index: usize| timing::median(&parts.iter().map(|part| part[index]).collect::<Vec<_>>());
        let rate = |seconds: &[f64]| 2.0 * (MATMUL as f64).powi(3) / timing::median(seconds);
        let matmul = Matmul {
            before: rate(&before),
            after: rate(&after),
            rate: rate(&[before.clone(), after.clone()].concat()),
        };
        let parts = names.into_iter().enumerate().map(|(index, name)| (name, part(index))).collect();
        Ok(Row { subject, timing: Timing::of(&seconds), matmul, parts })
    }

    /// A row of seconds that were measured in turns with others'; the matrix product is timed behind them.
    fn timed(&self, subject: Subject, seconds: &[f64]) -> Result<Row, BenchError> {
        let after = 2.0 * (MATMUL as f64).powi(3) / timing::median(&self.matmul()?);
        let matmul = Matmul { before: after, after, rate: after };
        Ok(Row { subject, timing: Timing::of(seconds), matmul, parts: Vec::new() })
    }

    /// Seconds of some matrix products.
    fn matmul(&self) -> Result<Vec<f64>, BenchError> {
        let [a, b] = &self.matrices;
        let effort = Effort { seconds: 0.0, ..self.effort };
        Ok(timing::repeat(effort, &self.device, || {
            let _product = a.clone().matmul(b.clone());
            Ok(())
        })?
        .0)
    }
}
