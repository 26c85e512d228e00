//! The indexer's discrete half: scores, Top-K and the candidate pool of the Hierarchical Sparse Indexer (HSI).

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};

/// What a selection does with a candidate pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolUse {
    /// No pool: the whole visible range is searched.
    None,
    /// The whole visible range is searched, and the best `blocks` blocks of `size` entries become the pool.
    Build {
        /// How many blocks the pool keeps.
        blocks: usize,
        /// Entries in a block.
        size: usize,
    },
    /// Only entries inside the given pool are searched.
    Read {
        /// Entries in a block.
        size: usize,
    },
}

/// The settings of one selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectSpec {
    /// Compression ratio m: entry `j` is visible to the query at position `t` when `j < floor((t + 1) / m)`.
    pub ratio: usize,
    /// Position of the first query: 0 for a whole sequence, the number of tokens before it when one is continued.
    pub start: usize,
    /// Entries that exist (rows of the key tensor beyond them are padding).
    pub entries: usize,
    /// K, the length of a Top-K row.
    pub topk: usize,
    /// The pool, if any.
    pub pool: PoolUse,
}

impl SelectSpec {
    /// How many entries the query in row `row` sees, the one at position `start + row`.
    pub fn visible(&self, row: usize) -> usize {
        ((self.start + row + 1) / self.ratio).min(self.entries)
    }
}

/// What [`index_select`] returns.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Row numbers of the chosen entries `[B, S, K]`, ascending, [`NO_ENTRY`](super::NO_ENTRY) at the end.
    pub topk: Tensor<3, Int>,
    /// The pool's blocks `[B, S, blocks]`, ascending, [`NO_ENTRY`](super::NO_ENTRY) at the end; only when one is built.
    pub pool: Option<Tensor<3, Int>>,
}

/// Backends that can select.
#[backend_extension(Autodiff, Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"))]
pub trait SelectBackend: Backend {
    /// `q` `[B, S, H_I, d_I]`, `keys` `[B, N, d_I]`, `weights` `[B, S, H_I]`, `pool` `[B, S, P]` (read only with
    /// [`PoolUse::Read`]). Returns Top-K `[B, S, K]` and the pool `[B, S, blocks]` (`[1, 1, 1]` unless one is built).
    fn index_select(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        pool: IntTensor<Self>,
        spec: SelectSpec,
    ) -> (IntTensor<Self>, IntTensor<Self>);
}

/// Chooses, for every query, the K visible entries with the best index score
/// `score[t, j] = sum_h weights[t, h] * relu(q[t, h] . keys[j])` (report 2.3), listed in ascending position.
///
/// Ties: the lowest position wins, at the K-th place and in the choice of blocks. A row whose scores hold a NaN is
/// filled with [`NAN_ROW`](super::NAN_ROW). No gradient flows through a selection.
///
/// `pool` must be given exactly when `spec.pool` reads one.
pub fn index_select(
    q: Tensor<4>,
    keys: Tensor<3>,
    weights: Tensor<3>,
    pool: Option<Tensor<3, Int>>,
    spec: SelectSpec,
) -> Selection {
    debug_assert_eq!(pool.is_some(), matches!(spec.pool, PoolUse::Read { .. }));
    let pool = pool.unwrap_or_else(|| Tensor::zeros([1, 1, 1], &q.device()));
    let (topk, built) = Dispatch::index_select(
        q.detach().into_dispatch(),
        keys.detach().into_dispatch(),
        weights.detach().into_dispatch(),
        pool.into_dispatch(),
        spec,
    );
    Selection {
        topk: Tensor::from_dispatch(topk),
        pool: matches!(spec.pool, PoolUse::Build { .. }).then(|| Tensor::from_dispatch(built)),
    }
}

impl<B: SelectBackend, C: CheckpointStrategy> SelectBackend for Autodiff<B, C> {
    fn index_select(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        pool: IntTensor<Self>,
        spec: SelectSpec,
    ) -> (IntTensor<Self>, IntTensor<Self>) {
        B::index_select(q.into_primitive(), keys.into_primitive(), weights.into_primitive(), pool, spec)
    }
}
