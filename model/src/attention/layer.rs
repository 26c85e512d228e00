//! One attention layer of any mode: which of content, address and query it makes freshly, and which it reads.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor};

use super::values::Unrotated;
use super::{
    Address, Ask, Compressor, Content, Context, InTensors, IndexQuery, Indexer, LayerCache, Memory, OutputProjection,
    Phase, Query, Seat, Shared, WindowKv,
};
use crate::config::{ModelConfig, PoolConfig, QuantizationConfig};
use crate::mix::{Mode, PlannedLayer};
use crate::ops::{NO_ENTRY, PoolUse};
use crate::quant::Format;

/// An attention layer.
///
/// | mode | compressor | indexer | index keys |
/// |---|---|---|---|
/// | `swa`, `reuse`, `dense` | - | - | - |
/// | `full` | own | own | own |
/// | `reindex` | - | own | of its `full` |
/// | `stale` | own | - | - |
#[derive(Module, Debug)]
pub struct Attention {
    query: Query,
    window: WindowKv,
    compressor: Option<Compressor>,
    indexer: Option<Indexer>,
    /// One sink logit per head `[H]`: a virtual entry with vector 0.
    pub(super) attn_sink: Param<Tensor<1>>,
    output: OutputProjection,
    #[module(skip)]
    pub(super) plan: LayerFacts,
}

/// What a layer knows of its place in the plan.
#[derive(Clone, Debug)]
pub(super) struct LayerFacts {
    pub(super) index: usize,
    pub(super) mode: Mode,
    pub(super) ratio: usize,
    window: usize,
    topk: usize,
    pub(super) scale: f64,
    /// The pool that this layer builds.
    pub(super) builds: Option<PoolConfig>,
    /// The pool that this layer searches in.
    pub(super) reads: Option<PoolConfig>,
    /// How the main KV that this layer makes is stored.
    main_kv: Option<Format>,
    values: Unrotated,
}

/// What a layer returns.
#[derive(Clone, Debug)]
pub struct AttentionOutput {
    /// `[B, S, d_model]`.
    pub output: Tensor<3>,
    /// Mean KL of the indexer over the queries that have an entry, `[1]`; only where the context asks for it.
    pub index_loss: Option<Tensor<1>>,
    /// Intermediate values; only where the context asks for them.
    pub trace: Option<Trace>,
}

/// What a layer has computed when its read-out is done, `C` being what content is (see [`Memory`]). Names as in [`Trace`].
#[allow(missing_docs, reason = "as in Trace")]
#[derive(Debug)]
pub struct Pass<'a, C> {
    pub qr: Tensor<3>,
    pub q: Tensor<4>,
    pub latent: Option<Tensor<3>>,
    pub content: Option<C>,
    pub index_query: Option<IndexQuery>,
    pub topk: Tensor<3, Int>,
    pub readout: Tensor<4>,
    pub readout_back: &'a Tensor<4>,
    pub lse: Tensor<3>,
}

/// Intermediate values of a layer. Where values are not rotated ([`Values::Unrotated`](crate::config::Values)), `q`, `window`, the content
/// and `readout` have `d + d_r` channels, the last ones 0 in a query and unrotated in the others.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The query's low-rank form `[B, S, rank]`.
    pub qr: Tensor<3>,
    /// The rotated query `[B, S, H, d]`.
    pub q: Tensor<4>,
    /// The window latents as they are read, rotated and quantized `[B, S, d]`.
    pub window: Tensor<3>,
    /// The latents before rotation `[B, max(N, 1), d]`, where the layer has a compressor.
    pub latent: Option<Tensor<3>>,
    /// The content that was read, where the layer reads any.
    pub content: Option<Content>,
    /// Index query and head weights, where the layer has an indexer.
    pub index_query: Option<IndexQuery>,
    /// The entries that were read `[B, S, K]`.
    pub topk: Tensor<3, Int>,
    /// The candidate pool in force here, in blocks per query `[B, S, blocks]`, where there is one.
    pub pool: Option<Tensor<3, Int>>,
    /// The read-out before it is turned back `[B, S, H, d]`.
    pub readout: Tensor<4>,
    /// The read-out turned back `[B, S, H, d]`; of values that are not rotated, their mean.
    pub readout_back: Tensor<4>,
    /// The read-out's log-sum-exp `[B, S, H]`.
    pub lse: Tensor<3>,
}

impl Attention {
    /// The layer `layer` of a model, with uninitialised weights (see [`initialize`](crate::init::initialize)).
    pub fn new(config: &ModelConfig, layer: &PlannedLayer, device: &Device) -> Self {
        let own_content = matches!(layer.mode, Mode::Full | Mode::Stale);
        let own_address = matches!(layer.mode, Mode::Full | Mode::Reindex);
        Self {
            query: Query::new(config, device),
            window: WindowKv::new(config, device),
            compressor: own_content.then(|| Compressor::new(config, layer.ratio, device)),
            indexer: own_address.then(|| Indexer::new(config, layer.mode == Mode::Full, device)),
            attn_sink: Param::from_tensor(Tensor::zeros([config.heads], device)),
            output: OutputProjection::new(config, device),
            plan: LayerFacts {
                index: layer.index,
                mode: layer.mode,
                ratio: layer.ratio,
                window: config.window,
                topk: config.topk,
                scale: (config.head_dim as f64).powf(-0.5),
                builds: config.pool.filter(|_| layer.builds_pool),
                reads: config.pool.filter(|_| layer.pool_from.is_some()),
                main_kv: QuantizationConfig::latent_format(config.quantization.main_kv),
                values: Unrotated::of(config),
            },
        }
    }

    /// The layer's mode.
    pub fn mode(&self) -> Mode {
        self.plan.mode
    }

    /// The layer's number.
    pub fn layer(&self) -> usize {
        self.plan.index
    }

    /// Tokens that an entry stands for; 0 where the layer reads none.
    pub fn ratio(&self) -> usize {
        self.plan.ratio
    }

    /// Tokens of a window, the asking one included; `dense` layers have no such bound.
    pub fn window(&self) -> usize {
        self.plan.window
    }

    /// What inner products of query and entry are multiplied with: `1 / sqrt(d)`.
    pub fn scale(&self) -> f64 {
        self.plan.scale
    }

    /// Logits of the sinks `[H]`.
    pub fn sinks(&self) -> Tensor<1> {
        self.attn_sink.val()
    }

    /// The forward pass from the normalised input `x` `[B, S, d_model]`. Reads from `shared` what the mode reuses and leaves
    /// there what it makes freshly.
    ///
    /// # Panics
    /// When `shared` lacks what the mode reads; a validated [`LayerPlan`](crate::mix::LayerPlan) run in order never lacks it.
    pub fn forward(&self, x: Tensor<3>, shared: &mut Shared, cx: &Context) -> AttentionOutput {
        self.forward_cached(x, shared, cx, None)
    }

    /// As [`forward`](Self::forward); with a past, for the tokens behind those that `past` has seen, which it then has seen too.
    ///
    /// # Panics
    /// As [`forward`](Self::forward), or when `past` is of another layer.
    pub fn forward_cached(
        &self,
        x: Tensor<3>,
        shared: &mut Shared,
        cx: &Context,
        past: Option<&mut LayerCache>,
    ) -> AttentionOutput {
        let past = past.map(std::slice::from_mut);
        self.forward_in(x, shared, cx, &mut InTensors::new(past, self.plan.index, cx))
    }

    /// As [`forward`](Self::forward), where entries lie in `memory`: the same steps, whatever that is.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    pub fn forward_in<M: Memory>(
        &self,
        x: Tensor<3>,
        shared: &mut Shared<M::Content>,
        cx: &Context,
        memory: &mut M,
    ) -> AttentionOutput {
        let [batch, seq, _] = x.dims();
        memory.enter(self.plan.index);
        let rope = cx.tokens(self.plan.ratio);
        let (qr, q) = self.query.forward(x.clone(), rope);
        let q = self.plan.values.asked(q);
        let width = (self.plan.mode != Mode::Dense).then_some(self.plan.window);
        memory.window(self.window.forward(x.clone(), rope, cx), width);

        let latent = (self.compressor.as_ref())
            .and_then(|compressor| Some(compressor.forward(memory.groups(x.clone(), self.plan.ratio)?)));
        let content = self.content(latent.clone(), shared, cx, memory);
        let index_query = self.indexer.as_ref().map(|indexer| indexer.query(x, qr.clone(), rope, cx));
        let topk = self.address(index_query.as_ref(), content.as_ref(), [batch, seq], shared, cx, memory);

        let sink = self.attn_sink.val();
        let (readout, lse) = memory.readout(q.clone(), content.as_ref(), sink, topk.clone(), self.plan.scale);
        let readout_back = self.plan.values.mean(&readout).unwrap_or_else(|| rope.rotate_back(readout.clone()));
        let pass = Pass { qr, q, latent, content, index_query, topk, readout, readout_back: &readout_back, lse };
        let (index_loss, trace) = memory.observe(self, pass, shared, cx);
        let output = self.output.forward(readout_back);
        AttentionOutput { output, index_loss, trace }
    }

    /// Stores the layer's entries of `x` `[B, S, d_model]` in `memory` and does nothing else: what a bounded replay needs of the tokens
    /// that it leaves out. A layer that makes no entries stores none.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    pub fn store_in<M: Memory>(&self, x: Tensor<3>, cx: &Context, memory: &mut M) {
        memory.enter(self.plan.index);
        let latent = (self.compressor.as_ref())
            .and_then(|compressor| Some(compressor.forward(memory.groups(x, self.plan.ratio)?)));
        let _content = self.content(latent, &mut Shared::default(), cx, memory);
    }

    /// What is asked of a pass in tensors besides its output.
    pub(super) fn observe(
        &self,
        memory: &InTensors<'_>,
        pass: Pass<'_, Content>,
        shared: &mut Shared,
        cx: &Context,
    ) -> (Option<Tensor<1>>, Option<Trace>) {
        let Pass { qr, q, latent, content, index_query, topk, readout, readout_back, lse } = pass;
        let ((window, width), main) = (memory.latents(), memory.main());
        let seat = Seat { q: &q, window, main, lse: &lse, topk: &topk, width };
        let index_loss = cx.index_loss.and_then(|kind| {
            self.teach(&seat, kind, shared, cx);
            let keys = content.as_ref()?.index_keys.clone()?;
            self.learn(&seat, kind, index_query.clone()?, keys, shared, cx)
        });
        if cx.selections && index_query.is_some() {
            shared.selections.push(self.selection(&seat, shared, cx));
        }
        let trace = cx.trace.then(|| {
            let (pool, window, readout_back) = (shared.pool.clone(), window.clone(), readout_back.clone());
            Trace { qr, q, window, latent, content, index_query, topk, pool, readout, readout_back, lse }
        });
        (index_loss, trace)
    }

    /// The entries that this layer reads, made here or taken from below.
    fn content<M: Memory>(
        &self,
        latent: Option<Tensor<3>>,
        shared: &mut Shared<M::Content>,
        cx: &Context,
        memory: &mut M,
    ) -> Option<M::Content> {
        let ratio = self.plan.ratio;
        match (self.plan.mode, &self.compressor) {
            (Mode::Swa | Mode::Dense, _) => None,
            (_, None) => shared.content.clone(),
            (mode, Some(_)) => {
                let rope = cx.entries(ratio);
                let made = latent.map(|latent| Content {
                    main: self
                        .plan
                        .values
                        .stored(&latent, cx.stored(rope.rotate_vectors(latent.clone()), self.plan.main_kv)),
                    index_keys: self.indexer.as_ref().and_then(|indexer| indexer.keys(latent, rope, cx)),
                    entries: cx.new_entries(ratio),
                });
                let content = memory.content(made);
                if mode == Mode::Full {
                    shared.restart(content.clone());
                }
                content
            }
        }
    }

    /// The entries that every query attends, chosen here or taken from below.
    fn address<M: Memory>(
        &self,
        index_query: Option<&IndexQuery>,
        content: Option<&M::Content>,
        [batch, seq]: [usize; 2],
        shared: &mut Shared<M::Content>,
        cx: &Context,
        memory: &mut M,
    ) -> Tensor<3, Int> {
        let device = self.attn_sink.val().device();
        if matches!(self.plan.mode, Mode::Swa | Mode::Dense) {
            return Tensor::full([batch, seq, 1], NO_ENTRY, &device);
        }
        let Some(asked) = index_query else {
            let address = shared.address.as_ref().expect("a validated plan has an address below every reader");
            return address.topk.clone();
        };
        let content = content.expect("a validated plan has content below every reader");
        let topk = if cx.phase == Phase::Dense {
            cx.visible(self.plan.ratio).repeat_dim(0, batch)
        } else {
            let (pool_use, pool) = match (self.plan.builds, self.plan.reads) {
                (Some(pool), _) => {
                    let blocks = cx.pool_blocks.unwrap_or(pool.blocks);
                    (PoolUse::Build { blocks, size: pool.block_size }, None)
                }
                (None, Some(pool)) => (PoolUse::Read { size: pool.block_size }, shared.pool.clone()),
                (None, None) => (PoolUse::None, None),
            };
            let ask = Ask { ratio: self.plan.ratio, topk: self.plan.topk, pool: pool_use };
            let selection = memory.select(asked, content, pool, ask);
            if selection.pool.is_some() {
                shared.pool = selection.pool;
            }
            selection.topk
        };
        shared.address = Some(Address { topk: topk.clone() });
        topk
    }
}
