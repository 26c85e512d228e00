//! The indexer's loss over the selected entries, and its gradients.

use burn::tensor::{Device, Distribution, Int, Tensor};
use csa2_model::ops::{self, PoolUse, SelectSpec};

use super::{Bench, BenchError, Row, Shape, Sizes, Subject, Work, inputs};

/// Sizes of an indexer's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kl {
    /// Sequences B.
    pub batch: usize,
    /// Queries S.
    pub seq: usize,
    /// Indexer heads `H_I`.
    pub index_heads: usize,
    /// Dimension `d_I` of an indexer head.
    pub index_dim: usize,
    /// Entries N.
    pub entries: usize,
    /// Entries K over which student and teacher are compared.
    pub topk: usize,
    /// Compression ratio m.
    pub ratio: usize,
}

impl Shape for Kl {
    const OPERATOR: &'static str = "kl";

    fn cases() -> Vec<(&'static str, Self)> {
        let small = Self { batch: 1, seq: 1024, index_heads: 8, index_dim: 64, entries: 1024, topk: 64, ratio: 1 };
        vec![("small", small), ("long", Self { seq: 4096, entries: 4096, topk: 256, ..small })]
    }

    fn sizes(&self) -> Sizes {
        vec![
            ("batch", self.batch),
            ("seq", self.seq),
            ("index-heads", self.index_heads),
            ("index-dim", self.index_dim),
            ("entries", self.entries),
            ("topk", self.topk),
            ("ratio", self.ratio),
        ]
    }

    fn numbers(&self) -> u128 {
        let [b, s, h, d, n, k] =
            [self.batch, self.seq, self.index_heads, self.index_dim, self.entries, self.topk].map(|size| size as u128);
        2 * (b * s * (h * d + h + 1) + b * n * d) + 2 * b * s * k
    }
}

impl Kl {
    fn spec(&self) -> SelectSpec {
        inputs::spec(self.seq, self.entries, self.ratio, self.topk, PoolUse::None)
    }

    /// Pairs of a query and an entry of its range, in one sequence.
    fn pairs(&self) -> usize {
        let spec = self.spec();
        (0..self.seq).map(|t| self.topk.min(spec.visible(t))).sum()
    }

    /// The forward pass: the scores of the range, `2 H_I d_I` operations a pair. The softmax is not counted.
    pub fn forward_work(&self) -> Work {
        let pairs = self.pairs();
        let [b, s, h, d, k] =
            [self.batch, self.seq, self.index_heads, self.index_dim, self.topk].map(|size| size as u128);
        let keys = b * self.entries.min(pairs) as u128 * d;
        Work { flops: b * 2 * h * d * pairs as u128, bytes: 4 * (b * s * (h * d + h + 2 * k + 1) + keys) }
    }

    /// Forward and backward: the backward pass makes the products again (`2 H_I d_I` a pair), then the gradients of query
    /// and key (`2 H_I d_I` each), but only where the relu let a product through: half of the pairs with the inputs used
    /// here, whose products are as often negative as positive. So `6 H_I d_I` operations a pair in all. Its bytes are every
    /// input and incoming gradient once, and every gradient once.
    pub fn both_work(&self) -> Work {
        let forward = self.forward_work();
        let [b, s, h, d] = [self.batch, self.seq, self.index_heads, self.index_dim].map(|size| size as u128);
        let gradients = b * s * (h * d + h) + b * self.entries as u128 * d;
        Work { flops: 3 * forward.flops, bytes: 2 * forward.bytes + 4 * gradients }
    }
}

/// The tensors of one loss.
struct Inputs {
    q: Tensor<4>,
    keys: Tensor<3>,
    weights: Tensor<3>,
    teacher: Tensor<3>,
    range: Tensor<3, Int>,
}

impl Inputs {
    fn new(shape: &Kl, device: &Device) -> Self {
        let &Kl { batch, seq, index_heads, index_dim, entries, topk, .. } = shape;
        Self {
            q: inputs::leaf([batch, seq, index_heads, index_dim], device),
            keys: inputs::leaf([batch, entries, index_dim], device),
            weights: inputs::leaf([batch, seq, index_heads], device),
            teacher: Tensor::random([batch, seq, topk], Distribution::Uniform(0.01, 1.0), device),
            range: inputs::lists(batch, seq, shape.spec(), device),
        }
    }

    fn forward(&self) -> Tensor<2> {
        let (q, keys, weights) = (self.q.clone(), self.keys.clone(), self.weights.clone());
        ops::index_kl(q, keys, weights, self.teacher.clone(), self.range.clone())
    }
}

/// Measures one case.
///
/// # Errors
/// When the device fails.
pub fn run(bench: &Bench, case: &str, shape: &Kl) -> Result<Vec<Row>, BenchError> {
    let subject = |pass, work| Subject {
        operator: Kl::OPERATOR,
        case: case.into(),
        pass,
        sizes: shape.sizes(),
        work: Some(work),
        tokens: None,
    };
    let inputs = Inputs::new(shape, &bench.device);
    let forward = bench.time(subject("forward", shape.forward_work()), || {
        let _loss = inputs.forward();
        Ok(())
    })?;
    drop(inputs);
    let inputs = Inputs::new(shape, &bench.device.clone().autodiff());
    let both = bench.time(subject("forward+backward", shape.both_work()), || {
        let loss = inputs.forward();
        let _gradients = loss.backward();
        Ok(())
    })?;
    Ok(vec![forward, both])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Effort;

    #[test]
    fn only_pairs_of_the_range_are_counted() {
        let shape = Kl { seq: 4, index_heads: 3, index_dim: 5, entries: 4, topk: 2, ..Kl::cases()[0].1 };
        assert_eq!(shape.forward_work().flops, 2 * 3 * 5 * 7);
        assert_eq!(shape.both_work().flops, 6 * 3 * 5 * 7);
        let bench = Bench::new(Device::flex(), Effort { repetitions: 1, seconds: 0.0 });
        assert_eq!(run(&bench, "tiny", &shape).unwrap().len(), 2);
    }
}
