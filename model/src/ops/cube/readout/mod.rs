//! The read-out on the device: one pass over a query's entries, forward and backward.
//!
//! Nothing of the size of all logits or all gathered entries lies in global memory. The forward pass and the gradient
//! for the query have one workgroup per query and tile of heads; it brings a few entries at a time into shared memory.
//! The gradient for the latents has one workgroup per entry, which looks for the queries that read it and adds their
//! shares in ascending order: no atomic additions, the same bits on every run.

mod forward;
mod latents;
mod query;

use burn::backend::tensor::IntTensor;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use cubecl::prelude::*;

use super::Float as FloatTensor;
use super::rows::{Strange, sorted};
use super::shared::{THREADS, address, dims, empty, float_type, grid, load_row, rows, single, workgroup};
use super::tile::Tile;
use crate::ops::ReadoutBackend;
use forward::forward_kernel;
use latents::latent_gradient;
use query::{mean_kernel, query_kernel, sink_kernel};

/// Brings the entries `first ..` of a query into `tile`: `near` rows of `window` from `from_window` on, then the listed
/// rows of `main`. Beyond `total` there are zeros.
#[cube]
fn load_entries<F: Float>(
    tile: &mut Shared<[f32]>,
    window: &[F],
    main: &[F],
    listed: &[i32],
    from_window: usize,
    from_main: usize,
    from_listed: usize,
    first: usize,
    near: usize,
    total: usize,
    dim: usize,
    #[comptime] size: Tile,
) {
    #[unroll]
    for e in 0..size.entries {
        let place = first + e;
        let at = e * comptime!(size.channels * THREADS);
        if place < near {
            load_row::<F>(tile, at, window, (from_window + place) * dim, dim, true, size.channels);
        } else {
            let mut row = from_main;
            if place < total {
                row += usize::cast_from(listed[from_listed + place - near]);
            }
            load_row::<F>(tile, at, main, row * dim, dim, place < total, size.channels);
        }
    }
}

impl ReadoutBackend for CubeBackend {
    fn readout(
        q: FloatTensor,
        window: FloatTensor,
        main: FloatTensor,
        sink: FloatTensor,
        topk: IntTensor<Self>,
        width: usize,
        scale: f64,
    ) -> (FloatTensor, FloatTensor) {
        let (q, window, main, sink) = (rows(q), rows(window), rows(main), single(sink));
        let [batch, seq, heads, dim] = dims(&q);
        let [_, positions, _] = dims(&window);
        let [_, entries, _] = dims(&main);
        let list = sorted(topk, entries, Strange::NotANumber, false);
        let [_, _, topk] = dims(&list.entries);
        let output = empty(&q, [batch, seq, heads, dim], q.dtype);
        let lse = empty(&q, [batch, seq, heads], DType::F32);
        let size = Tile::new(heads, dim, false);
        let work = batch * seq * heads.div_ceil(size.heads);
        forward_kernel::launch(
            &q.client,
            grid(&q, work),
            workgroup(),
            address(&[&q, &window, &main, &list.entries]),
            q.clone().into_buffer_arg(),
            window.into_buffer_arg(),
            main.into_buffer_arg(),
            sink.into_buffer_arg(),
            list.entries.into_buffer_arg(),
            list.counts.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            lse.clone().into_buffer_arg(),
            work,
            seq,
            heads,
            dim,
            positions,
            entries,
            topk,
            width,
            scale as f32,
            f32::NAN,
            size,
            float_type(&q),
        );
        (output, lse)
    }

    fn readout_backward(
        q: FloatTensor,
        window: FloatTensor,
        main: FloatTensor,
        sink: FloatTensor,
        topk: IntTensor<Self>,
        output: FloatTensor,
        lse: FloatTensor,
        grad: FloatTensor,
        width: usize,
        scale: f64,
    ) -> (FloatTensor, FloatTensor, FloatTensor, FloatTensor) {
        let sink_type = sink.dtype;
        let (q, window, main, sink) = (rows(q), rows(window), rows(main), single(sink));
        let (output, lse, grad) = (rows(output), single(lse), rows(grad));
        let [batch, seq, heads, dim] = dims(&q);
        let [_, positions, _] = dims(&window);
        let [_, entries, _] = dims(&main);
        let list = sorted(topk, entries, Strange::NotANumber, false);
        let [_, _, topk] = dims(&list.entries);
        let client = q.client.clone();

        let mean = empty(&q, [batch, seq, heads], DType::F32);
        mean_kernel::launch(
            &client,
            grid(&q, batch * seq),
            workgroup(),
            address(&[&q]),
            output.into_buffer_arg(),
            grad.clone().into_buffer_arg(),
            mean.clone().into_buffer_arg(),
            batch * seq,
            heads,
            dim,
            float_type(&q),
        );

        let dsink = empty(&q, [heads], DType::F32);
        sink_kernel::launch(
            &client,
            grid(&q, heads),
            workgroup(),
            address(&[&lse]),
            sink.into_buffer_arg(),
            lse.clone().into_buffer_arg(),
            mean.clone().into_buffer_arg(),
            list.counts.clone().into_buffer_arg(),
            dsink.clone().into_buffer_arg(),
            batch * seq,
            heads,
        );

        let dq = empty(&q, [batch, seq, heads, dim], q.dtype);
        let size = Tile::new(heads, dim, true);
        let work = batch * seq * heads.div_ceil(size.heads);
        query_kernel::launch(
            &client,
            grid(&q, work),
            workgroup(),
            address(&[&q, &window, &main, &list.entries]),
            q.clone().into_buffer_arg(),
            grad.clone().into_buffer_arg(),
            window.clone().into_buffer_arg(),
            main.clone().into_buffer_arg(),
            list.entries.clone().into_buffer_arg(),
            list.counts.clone().into_buffer_arg(),
            lse.clone().into_buffer_arg(),
            mean.clone().into_buffer_arg(),
            dq.clone().into_buffer_arg(),
            work,
            seq,
            heads,
            dim,
            positions,
            entries,
            topk,
            width,
            scale as f32,
            f32::NAN,
            size,
            float_type(&q),
        );

        let dwindow = latent_gradient(&window, &q, &grad, &list, &lse, &mean, Some(width), scale);
        let dmain = latent_gradient(&main, &q, &grad, &list, &lse, &mean, None, scale);
        (dq, dwindow, dmain, burn_cubecl::kernel::cast(dsink, sink_type))
    }
}
