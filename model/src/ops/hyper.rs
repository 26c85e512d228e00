//! Hyper-connections: several residual streams, read and written with weights that depend on the token.

use burn::backend::autodiff::{
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// Rounds of [`sinkhorn`]: the first normalises columns alone, every later one rows and then columns.
pub const SINKHORN_ROUNDS: usize = 20;

/// Added to every sum that [`sinkhorn`] divides by, and to the numbers that it starts from.
pub const HYPER_EPS: f64 = 1e-6;

/// Backends that can mix residual streams.
#[backend_extension(Autodiff, Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"))]
pub trait HyperBackend: Backend {
    /// See [`sinkhorn`].
    fn sinkhorn(logits: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Gradient for `logits`, given that of the result.
    fn sinkhorn_backward(logits: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`hyper_read`].
    fn hyper_read(streams: FloatTensor<Self>, pre: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Gradients for `streams` and `pre`, given that of the result.
    fn hyper_read_backward(
        streams: FloatTensor<Self>,
        pre: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// See [`hyper_write`].
    fn hyper_write(
        streams: FloatTensor<Self>,
        output: FloatTensor<Self>,
        post: FloatTensor<Self>,
        comb: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Gradients for `streams`, `output`, `post` and `comb`, given that of the result.
    fn hyper_write_backward(
        streams: FloatTensor<Self>,
        output: FloatTensor<Self>,
        post: FloatTensor<Self>,
        comb: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// A nearly doubly stochastic matrix for every token, from `logits` `[R, n, n]` to the same shape: softmax over each row, plus
/// [`HYPER_EPS`]; then columns, and 19 times rows and columns, are divided by their sums plus [`HYPER_EPS`]
/// (Sinkhorn-Knopp, as the released reference code has it).
pub fn sinkhorn(logits: Tensor<3>) -> Tensor<3> {
    Tensor::from_dispatch(Dispatch::sinkhorn(logits.into_dispatch()))
}

/// What a part of the block reads: `sum_i pre_i streams_i`. `streams` `[R, n, d_model]`, `pre` `[R, n]`, result
/// `[R, d_model]`.
pub fn hyper_read(streams: Tensor<3>, pre: Tensor<2>) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::hyper_read(streams.into_dispatch(), pre.into_dispatch()))
}

/// The streams after a part of the block: stream `j` becomes `post_j output + sum_i comb_ij streams_i`.
///
/// `streams` `[R, n, d_model]`, `output` `[R, d_model]`, `post` `[R, n]`, `comb` `[R, n, n]`; result as `streams`.
pub fn hyper_write(streams: Tensor<3>, output: Tensor<2>, post: Tensor<2>, comb: Tensor<3>) -> Tensor<3> {
    let [streams, comb] = [streams, comb].map(Tensor::into_dispatch);
    let [output, post] = [output, post].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::hyper_write(streams, output, post, comb))
}

#[derive(Debug)]
struct SinkhornBackward;

impl<B: HyperBackend> Backward<B, 1> for SinkhornBackward {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(node) = parent {
            grads.register::<B>(node.id, B::sinkhorn_backward(ops.state, grad));
        }
    }
}

#[derive(Debug)]
struct ReadBackward;

impl<B: HyperBackend> Backward<B, 2> for ReadBackward {
    type State = [FloatTensor<B>; 2];

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let [streams, pre] = ops.state;
        let (dstreams, dpre) = B::hyper_read_backward(streams, pre, grad);
        for (parent, gradient) in ops.parents.into_iter().zip([dstreams, dpre]) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

#[derive(Debug)]
struct WriteBackward;

impl<B: HyperBackend> Backward<B, 4> for WriteBackward {
    type State = [FloatTensor<B>; 4];

    fn backward(self, ops: Ops<Self::State, 4>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let [streams, output, post, comb] = ops.state;
        let (dstreams, doutput, dpost, dcomb) = B::hyper_write_backward(streams, output, post, comb, grad);
        for (parent, gradient) in ops.parents.into_iter().zip([dstreams, doutput, dpost, dcomb]) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: HyperBackend, C: CheckpointStrategy> HyperBackend for Autodiff<B, C> {
    fn sinkhorn(logits: FloatTensor<Self>) -> FloatTensor<Self> {
        let (logits, node) = logits.into_parts();
        let output = B::sinkhorn(logits.clone());
        match SinkhornBackward.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(logits, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    fn hyper_read(streams: FloatTensor<Self>, pre: FloatTensor<Self>) -> FloatTensor<Self> {
        let (streams, streams_node) = streams.into_parts();
        let (pre, pre_node) = pre.into_parts();
        let output = B::hyper_read(streams.clone(), pre.clone());
        match ReadBackward.prepare::<C>([streams_node, pre_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish([streams, pre], output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    fn hyper_write(
        streams: FloatTensor<Self>,
        output: FloatTensor<Self>,
        post: FloatTensor<Self>,
        comb: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let (streams, streams_node) = streams.into_parts();
        let (output, output_node) = output.into_parts();
        let (post, post_node) = post.into_parts();
        let (comb, comb_node) = comb.into_parts();
        let written = B::hyper_write(streams.clone(), output.clone(), post.clone(), comb.clone());
        let nodes = [streams_node, output_node, post_node, comb_node];
        match WriteBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish([streams, output, post, comb], written),
            OpsKind::UnTracked(prep) => prep.finish(written),
        }
    }

    // First-order gradients only: what follows are constants of the outer graph.

    fn sinkhorn_backward(logits: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        FloatTensor::<Self>::new(B::sinkhorn_backward(logits.into_primitive(), grad.into_primitive()))
    }

    fn hyper_read_backward(
        streams: FloatTensor<Self>,
        pre: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (dstreams, dpre) =
            B::hyper_read_backward(streams.into_primitive(), pre.into_primitive(), grad.into_primitive());
        (FloatTensor::<Self>::new(dstreams), FloatTensor::<Self>::new(dpre))
    }

    fn hyper_write_backward(
        streams: FloatTensor<Self>,
        output: FloatTensor<Self>,
        post: FloatTensor<Self>,
        comb: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (dstreams, doutput, dpost, dcomb) = B::hyper_write_backward(
            streams.into_primitive(),
            output.into_primitive(),
            post.into_primitive(),
            comb.into_primitive(),
            grad.into_primitive(),
        );
        let [dstreams, doutput, dpost, dcomb] = [dstreams, doutput, dpost, dcomb].map(FloatTensor::<Self>::new);
        (dstreams, doutput, dpost, dcomb)
    }
}
