//! One decoding query of one layer: selection over N entries, then the read-out.
//!
//! The layer's projections and the model around it are not part of it; see [`decode`](super::decode) for those.

use burn::tensor::{Device, Tensor};
use csa2_model::ops;

use super::select::{Pool, RELEASED_POOL, Select};
use super::{Bench, BenchError, Row, Shape, Sizes, Subject, Work, inputs, select};

/// Sizes of one query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Sequences B, one query each.
    pub batch: usize,
    /// Heads H.
    pub heads: usize,
    /// Dimension d of a head and of an entry.
    pub dim: usize,
    /// Indexer heads `H_I`.
    pub index_heads: usize,
    /// Dimension `d_I` of an indexer head.
    pub index_dim: usize,
    /// Entries N.
    pub entries: usize,
    /// Selected entries K.
    pub topk: usize,
    /// Window W; 0 for none.
    pub window: usize,
    /// The pool that is searched; none for all entries.
    pub pool: Option<Pool>,
}

impl Shape for Query {
    const OPERATOR: &'static str = "query";

    fn cases() -> Vec<(&'static str, Self)> {
        let base = Self {
            batch: 1,
            heads: 8,
            dim: 128,
            index_heads: 8,
            index_dim: 64,
            entries: 4 << 10,
            topk: 512,
            window: 128,
            pool: None,
        };
        let whole = |entries| Self { entries, ..base };
        let pooled = |entries| Self { entries, pool: Some(RELEASED_POOL), ..base };
        vec![
            ("4k", whole(4 << 10)),
            ("16k", whole(16 << 10)),
            ("64k", whole(64 << 10)),
            ("256k", whole(256 << 10)),
            ("4k-pool", pooled(4 << 10)),
            ("16k-pool", pooled(16 << 10)),
            ("64k-pool", pooled(64 << 10)),
            ("256k-pool", pooled(256 << 10)),
        ]
    }

    fn sizes(&self) -> Sizes {
        let mut sizes = vec![
            ("batch", self.batch),
            ("heads", self.heads),
            ("dim", self.dim),
            ("index-heads", self.index_heads),
            ("index-dim", self.index_dim),
            ("entries", self.entries),
            ("topk", self.topk),
            ("window", self.window),
        ];
        if let Some(Pool { blocks, size }) = self.pool {
            sizes.extend([("pool-blocks", blocks), ("pool-size", size)]);
        }
        sizes
    }

    fn numbers(&self) -> u128 {
        let [b, h, d, n, w] = [self.batch, self.heads, self.dim, self.entries, self.window].map(|size| size as u128);
        self.selection().numbers() + 2 * b * h * d + b * (n + w.max(1)) * d + h + b * h
    }
}

impl Query {
    fn selection(&self) -> Select {
        let &Self { batch, index_heads, index_dim, entries, topk, pool, .. } = self;
        Select { batch, seq: 1, index_heads, index_dim, entries, topk, ratio: 1, pool }
    }

    /// That of the selection, and `4 H d` operations per window and selected entry; list and selected entries count once.
    pub fn work(&self) -> Work {
        let select = self.selection().work();
        let read = (self.window + self.topk.min(self.selection().pairs())) as u128;
        let [b, h, d] = [self.batch, self.heads, self.dim].map(|size| size as u128);
        Work {
            flops: select.flops + b * 4 * h * d * read,
            bytes: select.bytes + 4 * (b * (2 * h * d + read * d + h) + h),
        }
    }
}

/// The tensors of one query.
struct Inputs {
    select: select::Inputs,
    q: Tensor<4>,
    window: Tensor<3>,
    main: Tensor<3>,
    sink: Tensor<1>,
    width: usize,
}

impl Inputs {
    fn new(shape: &Query, device: &Device) -> Self {
        let &Query { batch, heads, dim, entries, window, .. } = shape;
        Self {
            select: select::Inputs::new(&shape.selection(), device),
            q: inputs::normal([batch, 1, heads, dim], device),
            // The query's own row is there even where nothing reads it.
            window: inputs::normal([batch, window.max(1), dim], device),
            main: inputs::normal([batch, entries, dim], device),
            sink: inputs::normal([heads], device),
            width: window,
        }
    }

    fn run(&self) -> Tensor<4> {
        let topk = self.select.run().topk;
        let scale = (self.q.dims()[3] as f64).powf(-0.5);
        let (window, main, sink) = (self.window.clone(), self.main.clone(), self.sink.clone());
        ops::readout(self.q.clone(), window, main, sink, topk, self.width, scale).0
    }
}

/// Measures one case.
///
/// # Errors
/// When the device fails.
pub fn run(bench: &Bench, case: &str, shape: &Query) -> Result<Row, BenchError> {
    let inputs = Inputs::new(shape, &bench.device);
    let subject = Subject {
        operator: Query::OPERATOR,
        case: case.into(),
        pass: "token",
        sizes: shape.sizes(),
        work: Some(shape.work()),
        tokens: Some(shape.batch),
    };
    bench.time(subject, || {
        let _output = inputs.run();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Effort;

    #[test]
    fn a_query_reads_window_and_selected_entries() {
        let shape = Query {
            heads: 2,
            dim: 3,
            index_heads: 1,
            index_dim: 4,
            entries: 20,
            topk: 6,
            window: 5,
            ..Query::cases()[0].1
        };
        assert_eq!(shape.work().flops, 2 * 4 * 20 + 4 * 6 * 11);
        let pooled = Query { pool: Some(Pool { blocks: 1, size: 4 }), ..shape };
        assert_eq!(pooled.work().flops, 2 * 4 * 4 + 4 * 6 * 9);
        let bench = Bench::new(Device::flex(), Effort { repetitions: 1, seconds: 0.0 });
        for shape in [shape, pooled, Query { window: 0, ..shape }] {
            assert!(run(&bench, "tiny", &shape).unwrap().tokens().unwrap() > 0.0);
            let output: Vec<f32> = Inputs::new(&shape, &bench.device).run().into_data().try_to_vec().unwrap();
            assert!(output.iter().all(|value| value.is_finite()));
        }
    }
}
