//! The indexer's loss: how far its distribution over a range of entries is from its teacher's.

use burn::backend::autodiff::{
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};

/// Backends that can compute the indexer's loss and its gradients.
///
/// Shapes: `q` `[B, S, H_I, d_I]`, `keys` `[B, N, d_I]`, `weights` `[B, S, H_I]`, `teacher` and `range` `[B, S, R]`,
/// loss `[B, S]`.
#[backend_extension(Autodiff, Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"))]
pub trait IndexKlBackend: Backend {
    /// See [`index_kl`].
    fn index_kl(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        teacher: FloatTensor<Self>,
        range: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Gradients for `q`, `keys` and `weights`, given `grad` `[B, S]`.
    fn index_kl_backward(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        teacher: FloatTensor<Self>,
        range: IntTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// KL(teacher ‖ student) of every query, `[B, S]`.
///
/// The student is the softmax, over the entries listed in `range`, of the index scores
/// `sum_h weights[t, h] * relu(q[t, h] . keys[j])`; the teacher is `teacher` renormalised to 1 over the same entries and
/// takes no gradient. Rows without an entry, or whose teacher has no mass, give 0. An entry without teacher mass adds 0.
///
/// The technical report states no loss for the indexer: this one is csa2's choice, the usual distillation of
/// sparse-attention indexers.
pub fn index_kl(
    q: Tensor<4>,
    keys: Tensor<3>,
    weights: Tensor<3>,
    teacher: Tensor<3>,
    range: Tensor<3, Int>,
) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::index_kl(
        q.into_dispatch(),
        keys.into_dispatch(),
        weights.into_dispatch(),
        teacher.detach().into_dispatch(),
        range.into_dispatch(),
    ))
}

#[derive(Clone, Debug)]
struct KlState<B: Backend> {
    q: FloatTensor<B>,
    keys: FloatTensor<B>,
    weights: FloatTensor<B>,
    teacher: FloatTensor<B>,
    range: IntTensor<B>,
}

#[derive(Debug)]
struct KlBackward;

impl<B: IndexKlBackend> Backward<B, 3> for KlBackward {
    type State = KlState<B>;

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let s = ops.state;
        let (dq, dkeys, dweights) = B::index_kl_backward(s.q, s.keys, s.weights, s.teacher, s.range, grad);
        for (parent, gradient) in ops.parents.into_iter().zip([dq, dkeys, dweights]) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: IndexKlBackend, C: CheckpointStrategy> IndexKlBackend for Autodiff<B, C> {
    fn index_kl(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        teacher: FloatTensor<Self>,
        range: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let (q, q_node) = q.into_parts();
        let (keys, keys_node) = keys.into_parts();
        let (weights, weights_node) = weights.into_parts();
        let teacher = teacher.into_primitive();
        let loss = B::index_kl(q.clone(), keys.clone(), weights.clone(), teacher.clone(), range.clone());
        match KlBackward.prepare::<C>([q_node, keys_node, weights_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(KlState { q, keys, weights, teacher, range }, loss),
            OpsKind::UnTracked(prep) => prep.finish(loss),
        }
    }

    fn index_kl_backward(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        teacher: FloatTensor<Self>,
        range: IntTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        // First-order gradients only: the results are constants of the outer graph.
        let (dq, dkeys, dweights) = B::index_kl_backward(
            q.into_primitive(),
            keys.into_primitive(),
            weights.into_primitive(),
            teacher.into_primitive(),
            range,
            grad.into_primitive(),
        );
        (FloatTensor::<Self>::new(dq), FloatTensor::<Self>::new(dkeys), FloatTensor::<Self>::new(dweights))
    }
}
