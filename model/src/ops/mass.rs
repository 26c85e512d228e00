//! How much attention a layer's own query puts on listed entries: the indexer's teacher.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};

/// Backends that can compute the attention mass.
#[backend_extension(Autodiff, Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"))]
pub trait MassBackend: Backend {
    /// See [`attention_mass`].
    fn attention_mass(
        q: FloatTensor<Self>,
        main: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        range: IntTensor<Self>,
        scale: f64,
    ) -> FloatTensor<Self>;
}

/// `mass[t, r] = sum_h exp(scale * (q[t, h] . main[range[t, r]]) - lse[t, h])`, 0 where `range` holds no entry.
///
/// With the read-out's log-sum-exp, which has the window and the sink in it, this is the main attention's own weight
/// on each listed entry, summed over heads. Everything is detached: a teacher takes no gradient.
///
/// Shapes: `q` `[B, S, H, d]`, `main` `[B, N, d]`, `lse` `[B, S, H]`, `range` and result `[B, S, R]`.
pub fn attention_mass(q: Tensor<4>, main: Tensor<3>, lse: Tensor<3>, range: Tensor<3, Int>, scale: f64) -> Tensor<3> {
    Tensor::<3>::from_dispatch(Dispatch::attention_mass(
        q.detach().into_dispatch(),
        main.detach().into_dispatch(),
        lse.detach().into_dispatch(),
        range.into_dispatch(),
        scale,
    ))
    .detach()
}

impl<B: MassBackend, C: CheckpointStrategy> MassBackend for Autodiff<B, C> {
    fn attention_mass(
        q: FloatTensor<Self>,
        main: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        range: IntTensor<Self>,
        scale: f64,
    ) -> FloatTensor<Self> {
        FloatTensor::<Self>::new(B::attention_mass(
            q.into_primitive(),
            main.into_primitive(),
            lse.into_primitive(),
            range,
            scale,
        ))
    }
}
