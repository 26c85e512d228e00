//! Where what a layer makes comes to lie, and who reads it there: the one difference between training and decoding.

use std::fmt::Debug;

use burn::tensor::{Int, Tensor};

use super::{Attention, Content, Context, IndexQuery, LayerCache, Pass, Shared, Trace};
use crate::ops::{self, PoolUse, SelectSpec, Selection};

/// What an indexer asks of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Compression ratio of the entries.
    pub ratio: usize,
    /// K.
    pub topk: usize,
    /// What to do with a candidate pool.
    pub pool: PoolUse,
}

/// Holds window latents and entries for one pass through the layers, from the first up. [`InTensors`] keeps them as tensors, for
/// training and for whole sequences; a decoder keeps them packed.
///
/// `B` and `S` are as in the pass; a decoder may lay the tokens of several sequences one behind the other.
pub trait Memory {
    /// What a `full` layer hands to the layers above that read its entries.
    type Content: Clone + Debug;

    /// The pass has reached the layer at this place in the stack. Called before everything else of that layer.
    fn enter(&mut self, layer: usize);

    /// Takes a compressor's inputs `[B, S, d_model]`; gives those whose group of `ratio` tokens is complete, together with those
    /// that have waited for them. None: there is nothing to compress.
    fn groups(&mut self, x: Tensor<3>, ratio: usize) -> Option<Tensor<3>>;

    /// Takes the layer's window latents `[B, S, d]`. A query reads `width` of them, its own included; all, where that is none.
    fn window(&mut self, latents: Tensor<3>, width: Option<usize>);

    /// Takes the layer's new entries, if there are any; gives all, to be read from here on.
    fn content(&mut self, made: Option<Content>) -> Option<Self::Content>;

    /// Chooses entries, and builds a pool where that is asked for.
    ///
    /// # Panics
    /// When the content has no index keys; that of a `full` layer has.
    fn select(
        &mut self,
        asked: &IndexQuery,
        content: &Self::Content,
        pool: Option<Tensor<3, Int>>,
        ask: Ask,
    ) -> Selection;

    /// The read-out of queries `q` `[B, S, H, d]` over the layer's window and the entries `topk` `[B, S, K]` of `content`, if any:
    /// output `[B, S, H, d]` and log-sum-exp `[B, S, H]`.
    fn readout(
        &mut self,
        q: Tensor<4>,
        content: Option<&Self::Content>,
        sink: Tensor<1>,
        topk: Tensor<3, Int>,
        scale: f64,
    ) -> (Tensor<4>, Tensor<3>);

    /// What else is asked of a pass: an indexer's loss, intermediate values. Nothing, where entries are not tensors.
    fn observe(
        &self,
        layer: &Attention,
        pass: Pass<'_, Self::Content>,
        shared: &mut Shared<Self::Content>,
        cx: &Context,
    ) -> (Option<Tensor<1>>, Option<Trace>) {
        let _ = (layer, pass, shared, cx);
        (None, None)
    }
}

/// Everything in tensors.
#[derive(Debug)]
pub struct InTensors<'a> {
    /// The past of the layers from `first` on, where a sequence is continued.
    past: Option<&'a mut [LayerCache]>,
    first: usize,
    layer: usize,
    /// Tokens before the pass.
    start: usize,
    /// Of the layer at hand: latents `[B, P, d]`, and how many a query reads.
    window: Option<(Tensor<3>, usize)>,
    /// The entries that the layer at hand has read `[B, max(N, 1), d]`.
    main: Option<Tensor<3>>,
}

impl<'a> InTensors<'a> {
    /// For a pass in this context over the layers from `first` on; `past` is that of the same layers.
    pub fn new(past: Option<&'a mut [LayerCache]>, first: usize, cx: &Context) -> Self {
        Self { past, first, layer: first, start: cx.start(), window: None, main: None }
    }

    fn past(&mut self) -> Option<&mut LayerCache> {
        let at = self.layer - self.first;
        self.past.as_mut().map(|past| &mut past[at])
    }

    /// The window latents `[B, P, d]` of the layer at hand, and how many of them a query reads.
    pub(super) fn latents(&self) -> (&Tensor<3>, usize) {
        let (window, width) = self.window.as_ref().expect("a layer hands over its window before anything is read");
        (window, *width)
    }

    /// The entries that the layer at hand has read `[B, max(N, 1), d]`; of a layer without any, one row of zeros.
    pub(super) fn main(&self) -> &Tensor<3> {
        self.main.as_ref().expect("a layer reads before it is observed")
    }
}

impl Memory for InTensors<'_> {
    type Content = Content;

    fn enter(&mut self, layer: usize) {
        (self.layer, self.window, self.main) = (layer, None, None);
    }

    fn groups(&mut self, x: Tensor<3>, ratio: usize) -> Option<Tensor<3>> {
        match self.past() {
            // The compressor leaves out an incomplete group by itself.
            None => Some(x),
            Some(past) => past.groups(x, ratio),
        }
    }

    fn window(&mut self, latents: Tensor<3>, width: Option<usize>) {
        let read = width.unwrap_or(self.start + latents.dims()[1]);
        let latents = match self.past() {
            None => latents,
            // A later query of an unlimited window reads everything.
            Some(past) => past.window(latents, width.unwrap_or(usize::MAX)),
        };
        self.window = Some((latents, read));
    }

    fn content(&mut self, made: Option<Content>) -> Option<Content> {
        match self.past() {
            None => made,
            Some(past) => past.content(made),
        }
    }

    fn select(&mut self, asked: &IndexQuery, content: &Content, pool: Option<Tensor<3, Int>>, ask: Ask) -> Selection {
        let keys = content.index_keys.clone().expect("content of a `full` layer has index keys");
        let Ask { ratio, topk, pool: pool_use } = ask;
        let spec = SelectSpec { ratio, start: self.start, entries: content.entries, topk, pool: pool_use };
        ops::index_select(asked.q.clone(), keys, asked.weights.clone(), pool, spec)
    }

    fn readout(
        &mut self,
        q: Tensor<4>,
        content: Option<&Content>,
        sink: Tensor<1>,
        topk: Tensor<3, Int>,
        scale: f64,
    ) -> (Tensor<4>, Tensor<3>) {
        let (window, width) = self.latents();
        let (window, width) = (window.clone(), width);
        let main = match content {
            Some(content) => content.main.clone(),
            None => Tensor::zeros([window.dims()[0], 1, window.dims()[2]], (&window.device(), window.dtype())),
        };
        self.main = Some(main.clone());
        ops::readout(q, window, main, sink, topk, width, scale)
    }

    fn observe(
        &self,
        layer: &Attention,
        pass: Pass<'_, Content>,
        shared: &mut Shared,
        cx: &Context,
    ) -> (Option<Tensor<1>>, Option<Trace>) {
        layer.observe(self, pass, shared, cx)
    }
}
