//! What an indexer learns from: over which entries it is compared (the scope), and with whose attention (the teacher).

use burn::tensor::{Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::{Attention, Context, IndexQuery, Phase, Shared};
use crate::ops::{self, NO_ENTRY};

/// The entries over which an indexer's distribution is compared with its teacher's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// The selected entries.
    #[default]
    Topk,
    /// The entries of the candidate pool that the layer searches in; every visible entry where it searches everything.
    Pool,
    /// Every visible entry.
    Visible,
}

/// Whose attention teaches an indexer. Always from detached queries and latents, with window and sink in the denominator, summed
/// over heads, averaged over the layers named here, then renormalised over the scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Teacher {
    /// The layer's own.
    #[default]
    Own,
    /// That of every layer that reads the selection: the layer itself and its followers.
    Served,
    /// As [`Teacher::Served`]; besides, a layer that builds a candidate pool is taught by the `reindex` layers that search in it.
    /// An extension of csa2: no report has it.
    PoolServed,
}

/// How an indexer's loss is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IndexLoss {
    /// Over which entries.
    pub scope: Scope,
    /// By whom.
    pub teacher: Teacher,
}

/// An indexer's loss in the making: later layers may still have something to teach.
#[derive(Clone, Debug)]
pub struct Lesson {
    /// The layer that learns.
    pub(super) layer: usize,
    /// Whether that layer builds a candidate pool.
    pub(super) builds_pool: bool,
    pub(super) asked: IndexQuery,
    /// Index keys `[B, N, d_I]`.
    pub(super) keys: Tensor<3>,
    /// The scope `[B, S, R]`.
    pub(super) range: Tensor<3, Int>,
    /// Attention of the teachers so far on the scope `[B, S, R]`, summed, and how many there are.
    pub(super) mass: Tensor<3>,
    pub(super) teachers: usize,
    /// Queries that see an entry, over the batch.
    pub(super) asking: usize,
}

impl Lesson {
    /// The layer that learns.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// Adds what another layer attends to.
    pub(super) fn taught(&mut self, mass: Tensor<3>) {
        self.mass = self.mass.clone() + mass;
        self.teachers += 1;
    }

    /// Mean KL(teacher ‖ student) over the queries that see an entry (0 if none does), `[1]`.
    pub fn loss(self) -> Tensor<1> {
        let mean = if self.teachers == 1 { self.mass } else { self.mass.mul_scalar(1.0 / self.teachers as f64) };
        let losses = ops::index_kl(self.asked.q, self.keys, self.asked.weights, mean, self.range);
        // Not `div_scalar`: its gradient goes through f32 in Burn 0.22.1.
        losses.sum().mul_scalar(1.0 / self.asking.max(1) as f64)
    }
}

/// What a selection is worth, for measurements: attention as it would be if every visible entry were read.
#[derive(Clone, Debug)]
pub struct SelectionTrace {
    /// The layer that selects.
    pub layer: usize,
    /// Its compression ratio.
    pub ratio: usize,
    /// The layer's own attention on every visible entry `[B, S, N]`, summed over heads, 0 where an entry is not visible.
    pub mass: Tensor<3>,
    /// The selected entries `[B, S, K]`.
    pub topk: Tensor<3, Int>,
    /// The entries of the candidate pool that the layer searched in `[B, S, P]`, where it did.
    pub pool: Option<Tensor<3, Int>>,
}

/// The entries of candidate blocks: from `pool` `[B, S, P]` of blocks of `size` entries to `[B, S, P size]` entry numbers,
/// [`NO_ENTRY`] for those that the query does not see; `visible` `[1, S, 1]` says how many entries that is.
pub(super) fn pool_entries(pool: Tensor<3, Int>, size: usize, visible: Tensor<3, Int>) -> Tensor<3, Int> {
    let [batch, seq, blocks] = pool.dims();
    let device = pool.device();
    let inside: Vec<i32> = (0..size as i32).collect();
    let inside = Tensor::<4, Int>::from_data(TensorData::new(inside, [1, 1, 1, size]), &device);
    let absent = pool.clone().lower_elem(0).unsqueeze_dim::<4>(3).repeat_dim(3, size);
    let first = pool.mul_scalar(size as i32).unsqueeze_dim::<4>(3).repeat_dim(3, size);
    let entries = first + inside.repeat_dim(0, batch).repeat_dim(1, seq).repeat_dim(2, blocks);
    let entries = entries.mask_fill(absent, NO_ENTRY).reshape([batch, seq, blocks * size]);
    let limit = visible.repeat_dim(0, batch).repeat_dim(2, blocks * size);
    let unseen = entries.clone().greater_equal(limit);
    entries.mask_fill(unseen, NO_ENTRY)
}

/// What a layer has attended with, to ask how much it puts on other entries.
pub(super) struct Seat<'a> {
    /// `[B, S, H, d]`.
    pub(super) q: &'a Tensor<4>,
    /// `[B, P, d]`.
    pub(super) window: &'a Tensor<3>,
    /// `[B, max(N, 1), d]`.
    pub(super) main: &'a Tensor<3>,
    /// Over window, sink and the entries read `[B, S, H]`.
    pub(super) lse: &'a Tensor<3>,
    /// The entries read `[B, S, K]`.
    pub(super) topk: &'a Tensor<3, Int>,
    /// Tokens in a window.
    pub(super) width: usize,
}

impl Attention {
    /// The layer's attention on the entries of `range` `[B, S, R]`, summed over heads, as if it read exactly these beside its
    /// window. `read` says that it does.
    fn mass(&self, seat: &Seat<'_>, range: Tensor<3, Int>, read: bool) -> Tensor<3> {
        let scale = self.plan.scale;
        let lse = if read {
            seat.lse.clone()
        } else {
            let [window, main] = [seat.window, seat.main].map(|latents| latents.clone().detach());
            let (q, sink) = (seat.q.clone().detach(), self.attn_sink.val().detach());
            ops::readout(q, window, main, sink, range.clone(), seat.width, scale).1
        };
        ops::attention_mass(seat.q.clone(), seat.main.clone(), lse, range, scale)
    }

    /// Every visible entry of every query.
    fn visible(&self, seat: &Seat<'_>, cx: &Context) -> Tensor<3, Int> {
        cx.visible(self.plan.ratio).repeat_dim(0, seat.topk.dims()[0])
    }

    /// The entries of the pool that the layer searches in, if it does.
    fn searched(&self, shared: &Shared, cx: &Context) -> Option<Tensor<3, Int>> {
        // While every visible entry is attended there is no search.
        let (pool, size) = (shared.pool.clone()?, self.plan.reads?.block_size);
        (cx.phase == Phase::Sparse).then(|| pool_entries(pool, size, cx.seen(self.plan.ratio)))
    }

    /// What this layer adds to the lessons of layers below, whose selection or pool it uses.
    pub(super) fn teach(&self, seat: &Seat<'_>, kind: IndexLoss, shared: &mut Shared, cx: &Context) {
        if kind.teacher == Teacher::Own || self.plan.ratio == 0 {
            return;
        }
        if !self.plan.mode.has_indexer() {
            if let Some(lesson) = shared.lessons.last_mut() {
                // A `stale` layer reads its own content at the same places.
                lesson.taught(self.mass(seat, lesson.range.clone(), kind.scope == Scope::Topk));
            }
        } else if kind.teacher == Teacher::PoolServed
            && self.plan.reads.is_some()
            && cx.phase == Phase::Sparse
            && let Some(lesson) = shared.lessons.iter_mut().rev().find(|lesson| lesson.builds_pool)
        {
            lesson.taught(self.mass(seat, lesson.range.clone(), false));
        }
    }

    /// The indexer's loss, or a lesson for which later layers must be waited.
    pub(super) fn learn(
        &self,
        seat: &Seat<'_>,
        kind: IndexLoss,
        asked: IndexQuery,
        keys: Tensor<3>,
        shared: &mut Shared,
        cx: &Context,
    ) -> Option<Tensor<1>> {
        let searched = self.searched(shared, cx);
        let (range, read) = match (kind.scope, searched) {
            (Scope::Topk, _) => (seat.topk.clone(), true),
            (Scope::Pool, Some(entries)) => (entries, false),
            (Scope::Pool | Scope::Visible, _) => (self.visible(seat, cx), cx.phase == Phase::Dense),
        };
        let [batch, seq, _] = range.dims();
        let lesson = Lesson {
            layer: self.plan.index,
            builds_pool: self.plan.builds.is_some(),
            asked,
            keys,
            mass: self.mass(seat, range.clone(), read),
            range,
            teachers: 1,
            asking: batch * seq.min((cx.start() + seq + 1).saturating_sub(self.plan.ratio)),
        };
        if kind.teacher == Teacher::Own {
            return Some(lesson.loss());
        }
        shared.lessons.push(lesson);
        None
    }

    /// What the layer's selection is worth to the layer itself.
    pub(super) fn selection(&self, seat: &Seat<'_>, shared: &Shared, cx: &Context) -> SelectionTrace {
        let mass = self.mass(seat, self.visible(seat, cx), cx.phase == Phase::Dense);
        SelectionTrace {
            layer: self.plan.index,
            ratio: self.plan.ratio,
            mass,
            topk: seat.topk.clone(),
            pool: self.searched(shared, cx),
        }
    }
}
