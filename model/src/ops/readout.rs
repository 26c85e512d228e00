//! The read-out: attention of every head over window entries and selected entries together, one softmax, with a sink.

use burn::backend::autodiff::{
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};

/// Backends that can compute the read-out and its gradients.
///
/// Shapes: `q` `[B, S, H, d]`, `window` `[B, P, d]` with `P >= S`, `main` `[B, N, d]`, `sink` `[H]`, `topk` `[B, S, K]`,
/// output `[B, S, H, d]`, log-sum-exp `[B, S, H]`. The queries are those of the last `S` rows of `window`; the window
/// entries of the query in row `t` of it are the rows `max(0, t - width + 1) ..= t`, implied by `width`, not listed.
#[backend_extension(Autodiff, Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"))]
pub trait ReadoutBackend: Backend {
    /// Output and log-sum-exp (the logarithm of the softmax denominator, sink included).
    fn readout(
        q: FloatTensor<Self>,
        window: FloatTensor<Self>,
        main: FloatTensor<Self>,
        sink: FloatTensor<Self>,
        topk: IntTensor<Self>,
        width: usize,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Gradients for `q`, `window`, `main` and `sink`, recomputing the probabilities from the log-sum-exp.
    fn readout_backward(
        q: FloatTensor<Self>,
        window: FloatTensor<Self>,
        main: FloatTensor<Self>,
        sink: FloatTensor<Self>,
        topk: IntTensor<Self>,
        output: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        width: usize,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// Attention over window and selected entries: `o = sum_j p_j c_j` with
/// `p_j = exp(l_j) / (exp(s_h) + sum_i exp(l_i))`, `l_j = scale * (q . c_j)` (report 2.2; key and value are one vector).
///
/// Returns the output `[B, S, H, d]` and the log-sum-exp `[B, S, H]`. The latter is detached: it feeds the indexer's
/// teacher, which takes no gradient. A row without any entry gives exactly 0. An index listed twice counts twice.
///
/// `topk` holds row numbers of `main` or [`NO_ENTRY`](super::NO_ENTRY), in any order. For a whole sequence `window` has one
/// row per query (`P = S`); when a sequence is continued, it starts with the rows before the first query that are still in
/// reach.
///
/// # Panics
/// When `window` has fewer rows than there are queries.
pub fn readout(
    q: Tensor<4>,
    window: Tensor<3>,
    main: Tensor<3>,
    sink: Tensor<1>,
    topk: Tensor<3, Int>,
    width: usize,
    scale: f64,
) -> (Tensor<4>, Tensor<3>) {
    let (queries, rows) = (q.dims()[1], window.dims()[1]);
    assert!(rows >= queries, "readout: {queries} queries, but only {rows} window rows");
    let (output, lse) = Dispatch::readout(
        q.into_dispatch(),
        window.into_dispatch(),
        main.into_dispatch(),
        sink.into_dispatch(),
        topk.into_dispatch(),
        width,
        scale,
    );
    (Tensor::from_dispatch(output), Tensor::<3>::from_dispatch(lse).detach())
}

#[derive(Clone, Debug)]
struct ReadoutState<B: Backend> {
    q: FloatTensor<B>,
    window: FloatTensor<B>,
    main: FloatTensor<B>,
    sink: FloatTensor<B>,
    topk: IntTensor<B>,
    output: FloatTensor<B>,
    lse: FloatTensor<B>,
    width: usize,
    scale: f64,
}

#[derive(Debug)]
struct ReadoutBackward;

impl<B: ReadoutBackend> Backward<B, 4> for ReadoutBackward {
    type State = ReadoutState<B>;

    fn backward(self, ops: Ops<Self::State, 4>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let s = ops.state;
        let (dq, dwindow, dmain, dsink) =
            B::readout_backward(s.q, s.window, s.main, s.sink, s.topk, s.output, s.lse, grad, s.width, s.scale);
        for (parent, gradient) in ops.parents.into_iter().zip([dq, dwindow, dmain, dsink]) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: ReadoutBackend, C: CheckpointStrategy> ReadoutBackend for Autodiff<B, C> {
    fn readout(
        q: FloatTensor<Self>,
        window: FloatTensor<Self>,
        main: FloatTensor<Self>,
        sink: FloatTensor<Self>,
        topk: IntTensor<Self>,
        width: usize,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (q, q_node) = q.into_parts();
        let (window, window_node) = window.into_parts();
        let (main, main_node) = main.into_parts();
        let (sink, sink_node) = sink.into_parts();
        let (output, lse) =
            B::readout(q.clone(), window.clone(), main.clone(), sink.clone(), topk.clone(), width, scale);
        let lse_out = FloatTensor::<Self>::new(lse.clone());
        let prep = ReadoutBackward.prepare::<C>([q_node, window_node, main_node, sink_node]);
        let output = match prep.compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let state = ReadoutState { q, window, main, sink, topk, output: output.clone(), lse, width, scale };
                prep.finish(state, output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        };
        (output, lse_out)
    }

    fn readout_backward(
        q: FloatTensor<Self>,
        window: FloatTensor<Self>,
        main: FloatTensor<Self>,
        sink: FloatTensor<Self>,
        topk: IntTensor<Self>,
        output: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        width: usize,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        // First-order gradients only: the results are constants of the outer graph.
        let (dq, dwindow, dmain, dsink) = B::readout_backward(
            q.into_primitive(),
            window.into_primitive(),
            main.into_primitive(),
            sink.into_primitive(),
            topk,
            output.into_primitive(),
            lse.into_primitive(),
            grad.into_primitive(),
            width,
            scale,
        );
        (
            FloatTensor::<Self>::new(dq),
            FloatTensor::<Self>::new(dwindow),
            FloatTensor::<Self>::new(dmain),
            FloatTensor::<Self>::new(dsink),
        )
    }
}
