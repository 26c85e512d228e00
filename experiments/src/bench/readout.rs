//! The read-out: attention over a window and selected entries.

use burn::tensor::{Device, Int, Tensor};
use csa2_model::ops::{self, PoolUse, SelectSpec};

use super::{Bench, BenchError, Row, Shape, Sizes, Subject, Work, inputs};

/// Sizes of a read-out over a whole sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readout {
    /// Sequences B.
    pub batch: usize,
    /// Queries S, and rows of the window.
    pub seq: usize,
    /// Heads H.
    pub heads: usize,
    /// Dimension d of a head and of an entry.
    pub dim: usize,
    /// Entries N.
    pub entries: usize,
    /// Selected entries K of a query.
    pub topk: usize,
    /// Window W; 0 for none.
    pub window: usize,
    /// Compression ratio m: how many tokens stand behind an entry.
    pub ratio: usize,
    /// What is measured.
    pub measured: Measured,
}

/// What is measured of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// The forward pass, then forward and backward together.
    Both,
    /// The forward pass alone.
    Forward,
    /// The peak of memory of forward and backward together.
    Memory,
}

impl Shape for Readout {
    const OPERATOR: &'static str = "readout";

    fn cases() -> Vec<(&'static str, Self)> {
        let small = Self {
            batch: 1,
            seq: 1024,
            heads: 8,
            dim: 128,
            entries: 1024,
            topk: 64,
            window: 128,
            ratio: 1,
            measured: Measured::Both,
        };
        let wide =
            Self { seq: 2048, heads: 16, dim: 512, entries: 2048, topk: 512, measured: Measured::Forward, ..small };
        let long = Self { seq: 8192, entries: 8192, topk: 512, measured: Measured::Memory, ..small };
        vec![("small", small), ("wide", wide), ("long", long)]
    }

    fn sizes(&self) -> Sizes {
        vec![
            ("batch", self.batch),
            ("seq", self.seq),
            ("heads", self.heads),
            ("dim", self.dim),
            ("entries", self.entries),
            ("topk", self.topk),
            ("window", self.window),
            ("ratio", self.ratio),
        ]
    }

    /// Query, output and their two gradients; window and main with theirs; sink with its; lists; log-sum-exp.
    fn numbers(&self) -> u128 {
        let [b, s, h, d, n, k] =
            [self.batch, self.seq, self.heads, self.dim, self.entries, self.topk].map(|size| size as u128);
        4 * b * s * h * d + 2 * b * (s + n) * d + 2 * h + b * s * k + b * s * h
    }
}

impl Readout {
    /// Bytes of all inputs, outputs and gradients.
    pub fn footprint(&self) -> u128 {
        4 * self.numbers()
    }

    fn spec(&self) -> SelectSpec {
        inputs::spec(self.seq, self.entries, self.ratio, self.topk, PoolUse::None)
    }

    /// Pairs of a query and an entry, window and selected ones, of one sequence; and how many of them are selected ones.
    fn pairs(&self) -> (usize, usize) {
        let spec = self.spec();
        let selected = (0..self.seq).map(|t| self.topk.min(spec.visible(t))).sum();
        let window: usize = (0..self.seq).map(|t| self.window.min(t + 1)).sum();
        (window + selected, selected)
    }

    /// The forward pass: two multiply-adds per pair, head and channel (logit and sum), so `4 H d` operations a pair.
    pub fn forward_work(&self) -> Work {
        let (pairs, selected) = self.pairs();
        let [b, s, h, d, k] = [self.batch, self.seq, self.heads, self.dim, self.topk].map(|size| size as u128);
        let query = b * s * h * d;
        let read = query + b * s * d + b * self.entries.min(selected) as u128 * d + h + b * s * k;
        Work { flops: b * 4 * h * d * pairs as u128, bytes: 4 * (read + query + b * s * h) }
    }

    /// Forward and backward: the backward pass makes five products of the forward's size (logits again, gradients of the
    /// probabilities, of the query and, from logit and sum, of the entry), so 14/4 of the forward's operations in all. Its
    /// bytes are every input, output and incoming gradient once, and every gradient once.
    pub fn both_work(&self) -> Work {
        let forward = self.forward_work();
        let [b, s, n, h, d] = [self.batch, self.seq, self.entries, self.heads, self.dim].map(|size| size as u128);
        let gradients = 2 * b * s * h * d + b * (s + n) * d + h;
        Work { flops: forward.flops * 14 / 4, bytes: 2 * forward.bytes + 4 * gradients }
    }
}

/// The tensors of one read-out.
pub(super) struct Inputs {
    q: Tensor<4>,
    window: Tensor<3>,
    main: Tensor<3>,
    sink: Tensor<1>,
    topk: Tensor<3, Int>,
    width: usize,
}

impl Inputs {
    pub(super) fn new(shape: &Readout, device: &Device) -> Self {
        let &Readout { batch, seq, heads, dim, entries, window, .. } = shape;
        Self {
            q: inputs::leaf([batch, seq, heads, dim], device),
            window: inputs::leaf([batch, seq, dim], device),
            main: inputs::leaf([batch, entries, dim], device),
            sink: inputs::leaf([heads], device),
            topk: inputs::lists(batch, seq, shape.spec(), device),
            width: window,
        }
    }

    pub(super) fn forward(&self) -> Tensor<4> {
        let scale = (self.q.dims()[3] as f64).powf(-0.5);
        let (window, main, sink) = (self.window.clone(), self.main.clone(), self.sink.clone());
        ops::readout(self.q.clone(), window, main, sink, self.topk.clone(), self.width, scale).0
    }

    /// Forward and backward with an incoming gradient of ones, which the backward pass of a tensor starts from.
    pub(super) fn both(&self) {
        let output = self.forward();
        let _gradients = output.backward();
    }
}

/// Measures one case; memory is not timed (see [`peak`](super::peak)).
///
/// # Errors
/// When the device fails.
pub fn run(bench: &Bench, case: &str, shape: &Readout) -> Result<Vec<Row>, BenchError> {
    let subject = |pass, work| Subject {
        operator: Readout::OPERATOR,
        case: case.into(),
        pass,
        sizes: shape.sizes(),
        work: Some(work),
        tokens: None,
    };
    if shape.measured == Measured::Memory {
        return Ok(Vec::new());
    }
    let inputs = Inputs::new(shape, &bench.device);
    let mut rows = vec![bench.time(subject("forward", shape.forward_work()), || {
        let _output = inputs.forward();
        Ok(())
    })?];
    drop(inputs);
    if shape.measured == Measured::Both {
        let inputs = Inputs::new(shape, &bench.device.clone().autodiff());
        rows.push(bench.time(subject("forward+backward", shape.both_work()), || {
            inputs.both();
            Ok(())
        })?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Readout {
        Readout { seq: 4, heads: 3, dim: 5, entries: 4, topk: 2, window: 3, ..Readout::cases()[0].1 }
    }

    #[test]
    fn only_pairs_that_exist_are_counted() {
        // Window 1 + 2 + 3 + 3, selected 1 + 2 + 2 + 2.
        assert_eq!(tiny().pairs(), (16, 7));
        // No entry is complete at the first query.
        assert_eq!(Readout { entries: 2, ratio: 2, window: 0, ..tiny() }.pairs(), (4, 4));
        // Four queries at the end of ten tokens.
        assert_eq!(Readout { entries: 10, ..tiny() }.pairs(), (17, 8));
        let work = tiny().forward_work();
        assert_eq!(work.flops, 4 * 3 * 5 * 16);
        assert_eq!(work.bytes, 4 * (60 + 20 + 20 + 3 + 8 + 60 + 12));
        assert_eq!(tiny().both_work().flops, 14 * 3 * 5 * 16);
        assert_eq!(tiny().footprint(), 4 * (4 * 60 + 4 * 20 + 6 + 8 + 12));
    }

    #[test]
    fn a_case_gives_its_passes() {
        let bench = Bench::new(Device::flex(), super::super::Effort { repetitions: 1, seconds: 0.0 });
        let rows = run(&bench, "tiny", &tiny()).unwrap();
        let passes: Vec<&str> = rows.iter().map(|row| row.subject.pass).collect();
        assert_eq!(passes, ["forward", "forward+backward"]);
        for row in rows {
            assert!(row.share().unwrap() > 0.0 && row.bytes().unwrap() > 0.0, "{row:?}");
        }
    }
}
