//! What source layers hand down: an explicit value that travels through the forward pass.

use burn::tensor::{Int, Tensor};

use super::{Lesson, SelectionTrace};

/// The global entries that a `full` layer has made.
#[derive(Clone, Debug)]
pub struct Content {
    /// Main latents as they are read, rotated and quantized `[B, max(N, 1), d]`.
    pub main: Tensor<3>,
    /// Index keys, rotated and quantized `[B, max(N, 1), d_I]`; none where content comes without an index (`stale`).
    pub index_keys: Option<Tensor<3>>,
    /// N, the entries that exist; a row beyond them is padding.
    pub entries: usize,
}

/// The entries that a `full` or `reindex` layer has chosen.
#[derive(Clone, Debug)]
pub struct Address {
    /// Row numbers of the content `[B, S, K]`, ascending, `ops::NO_ENTRY` at the end.
    pub topk: Tensor<3, Int>,
}

/// Everything that later layers may read of earlier ones. A layer replaces what it makes freshly and leaves the rest, so
/// that "the nearest below" needs no search. `C` is what content is (see [`Memory`](super::Memory)).
#[derive(Clone, Debug)]
pub struct Shared<C = Content> {
    /// Of the nearest `full` below.
    pub content: Option<C>,
    /// Of the nearest `full` or `reindex` below.
    pub address: Option<Address>,
    /// Of the nearest `full` below, where that builds one: blocks per query `[B, S, blocks]`.
    pub pool: Option<Tensor<3, Int>>,
    /// Indexers' losses that later layers have a part in, first layer first.
    pub lessons: Vec<Lesson>,
    /// What the selections so far are worth, where the context asks for it.
    pub selections: Vec<SelectionTrace>,
}

impl<C> Default for Shared<C> {
    fn default() -> Self {
        Self { content: None, address: None, pool: None, lessons: Vec::new(), selections: Vec::new() }
    }
}

impl<C> Shared<C> {
    /// A `full` layer starts anew: nothing of the layers below is read any more.
    pub(super) fn restart(&mut self, content: Option<C>) {
        (self.content, self.address, self.pool) = (content, None, None);
    }
}
