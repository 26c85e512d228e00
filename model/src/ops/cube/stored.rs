//! Selection and read-out over stored vectors: the kernels of the operators over tensors, reading words.

use burn::backend::tensor::IntTensor;
use burn_cubecl::CubeBackend;

use super::Float;
use super::packed::{Layout, Rows};
use super::readout::{Past, forward};
use super::select::select;
use super::shared::{dims, rows, single};
use crate::ops::SelectSpec;
use crate::ops::stored::{StoredBackend, StoredReadout};
use crate::quant::Format;

impl StoredBackend for CubeBackend {
    fn stored_select(
        q: Float,
        weights: Float,
        keys: IntTensor<Self>,
        pool: IntTensor<Self>,
        format: Option<Format>,
        spec: SelectSpec,
    ) -> (IntTensor<Self>, IntTensor<Self>) {
        let (q, keys, weights) = (rows(q), rows(keys), single(weights));
        let keys = Rows { tensor: &keys, count: spec.entries, layout: Layout::Words(format) };
        select(&q, keys, &weights, pool, spec)
    }

    fn stored_readout(
        q: Float,
        sink: Float,
        past: IntTensor<Self>,
        new: IntTensor<Self>,
        main: IntTensor<Self>,
        topk: IntTensor<Self>,
        asked: StoredReadout,
    ) -> (Float, Float) {
        let (q, sink, past, new, main) = (rows(q), single(sink), rows(past), rows(new), rows(main));
        let [_, queries, _, _] = dims(&q);
        let StoredReadout { first, start, width, since, entries, .. } = asked;
        let end = first + queries;
        let window = |tensor, count| Rows { tensor, count, layout: Layout::Words(asked.window) };
        let past = Past {
            window: window(&past, start.min(width.unwrap_or(start))),
            near: window(&new, end.saturating_sub(start)),
            main: Rows { tensor: &main, count: entries, layout: Layout::Words(asked.main) },
            first,
            since,
            start,
            // Without a limit, a position is its own remainder, and all are read.
            ring: width.unwrap_or(end),
        };
        forward(&q, sink, topk, &past, width.unwrap_or(end), asked.scale)
    }
}
