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
use super::packed::{Layout, Rows, load_vector};
use super::rows::{Strange, sorted};
use super::shared::{THREADS, address, dims, empty, float_type, grid, rows, single, workgroup};
use super::tile::Tile;
use crate::ops::ReadoutBackend;
use forward::forward_kernel;
use latents::latent_gradient;
use query::{mean_kernel, query_kernel, sink_kernel};

/// Where the latents of a query's positions lie. Of plain numbers, that of position `p` is row `p` of `window`.
#[derive(CubeType, Clone, Copy)]
struct Ring {
    /// Of packed ones, positions from here on lie in `near`, this one first.
    start: usize,
    /// The others in `window`, at their position's remainder by this.
    width: usize,
}

/// How window and main latents lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Layouts {
    window: Layout,
    main: Layout,
}

/// Of plain numbers.
const PLAIN: Layouts = Layouts { window: Layout::Plain, main: Layout::Plain };

/// Brings the entries `first ..` of a query into `tile`: the latents of `reach` positions from `from_position` on, then the listed
/// rows of `main`. Beyond `total` there are zeros.
#[cube]
fn load_entries<R: Numeric>(
    tile: &mut Shared<[f32]>,
    window: &[R],
    near: &[R],
    main: &[R],
    listed: &[i32],
    from_position: usize,
    from_window: usize,
    from_main: usize,
    from_listed: usize,
    first: usize,
    reach: usize,
    total: usize,
    dim: usize,
    ring: Ring,
    #[comptime] size: Tile,
    #[comptime] layouts: Layouts,
) {
    #[unroll]
    for e in 0..size.entries {
        let place = first + e;
        let at = e * comptime!(size.channels * THREADS);
        if place < reach {
            let position = from_position + place;
            if comptime!(layouts.window == Layout::Plain) {
                load_vector::<R>(tile, at, window, from_window + position, dim, true, size.channels, layouts.window);
            } else if position < ring.start {
                load_vector::<R>(tile, at, window, position % ring.width, dim, true, size.channels, layouts.window);
            } else {
                load_vector::<R>(tile, at, near, position - ring.start, dim, true, size.channels, layouts.window);
            }
        } else {
            let mut row = from_main;
            if place < total {
                row += usize::cast_from(listed[from_listed + place - reach]);
            }
            load_vector::<R>(tile, at, main, row, dim, place < total, size.channels, layouts.main);
        }
    }
}

/// What a forward pass reads besides queries and lists.
pub(super) struct Past<'a> {
    /// Window latents of all positions, or packed ones of those before `near`'s.
    pub(in super::super) window: Rows<'a>,
    /// Packed window latents of the positions from `start` on.
    pub(in super::super) near: Rows<'a>,
    pub(in super::super) main: Rows<'a>,
    /// Position of the first query.
    pub(in super::super) first: usize,
    /// The first position of the window latents that are there.
    pub(in super::super) since: usize,
    pub(in super::super) start: usize,
    /// Places of the ring in which packed window latents lie.
    pub(in super::super) ring: usize,
}

/// Output `[B, S, H, d]` and log-sum-exp `[B, S, H]`. `sink` is in f32.
pub(super) fn forward(
    q: &FloatTensor,
    sink: FloatTensor,
    topk: IntTensor<CubeBackend>,
    past: &Past<'_>,
    width: usize,
    scale: f64,
) -> (FloatTensor, FloatTensor) {
    let [batch, seq, heads, dim] = dims(q);
    let list = sorted(topk, past.main.count, Strange::NotANumber, false);
    let [_, _, topk] = dims(&list.entries);
    let output = empty(q, [batch, seq, heads, dim], q.dtype);
    let lse = empty(q, [batch, seq, heads], DType::F32);
    let size = Tile::new(heads, dim, false);
    let work = batch * seq * heads.div_ceil(size.heads);
    forward_kernel::launch(
        &q.client,
        grid(q, work),
        workgroup(),
        address(&[q, past.window.tensor, past.near.tensor, past.main.tensor, &list.entries]),
        q.clone().into_buffer_arg(),
        past.window.tensor.clone().into_buffer_arg(),
        past.near.tensor.clone().into_buffer_arg(),
        past.main.tensor.clone().into_buffer_arg(),
        sink.into_buffer_arg(),
        list.entries.into_buffer_arg(),
        list.counts.into_buffer_arg(),
        output.clone().into_buffer_arg(),
        lse.clone().into_buffer_arg(),
        work,
        seq,
        heads,
        dim,
        past.first,
        past.since,
        past.start,
        past.ring,
        past.window.count,
        past.main.count,
        topk,
        width,
        scale as f32,
        f32::NAN,
        size,
        Layouts { window: past.window.layout, main: past.main.layout },
        [float_type(q), past.main.element()],
    );
    (output, lse)
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
        let [_, seq, _, _] = dims(&q);
        let latents = Rows::plain(&window);
        let first = latents.count - seq;
        let past =
            Past { window: latents, near: latents, main: Rows::plain(&main), first, since: 0, start: 0, ring: 1 };
        forward(&q, sink, topk, &past, width, scale)
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
