//! The whole network: embedding, blocks, final norm, head.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear};
use burn::tensor::{Device, Int, Tensor};
use thiserror::Error;

use crate::attention::{Cache, Context, InTensors, LayerCache, Memory, SelectionTrace, Shared};
use crate::block::{Block, BlockTrace, RmsNorm, Stream, linear};
use crate::config::{ConfigError, ModelConfig, Residual};

/// Why a configuration cannot be built.
#[derive(Debug, Error)]
pub enum BuildError {
    /// The configuration itself is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An auxiliary head behind a layer that the mix does not have.
    #[error("the task's auxiliary head reads layer {layer}, but the mix has {layers} layers (0 to {})", layers - 1)]
    Hint {
        /// The layer asked for.
        layer: usize,
        /// How many layers there are.
        layers: usize,
    },
}

/// A decoder-only language model over token ids.
#[derive(Module, Debug)]
pub struct Model {
    embed: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
    hint: Option<HintHead>,
    #[module(skip)]
    residual: Residual,
}

/// A second head that reads the residual stream inside the network: it predicts an intermediate step of the task.
#[derive(Module, Debug)]
struct HintHead {
    norm: RmsNorm,
    head: Linear,
    layer: usize,
}

/// What a forward pass returns.
#[derive(Clone, Debug)]
pub struct ModelOutput {
    /// `[B, S, vocabulary]`.
    pub logits: Tensor<3>,
    /// The auxiliary head's logits `[B, S, vocabulary]`, where the model has one.
    pub hint: Option<Tensor<3>>,
    /// Layer number and mean KL `[1]` of every layer with an indexer, first layer first, where the context asks for them.
    pub index_losses: Vec<(usize, Tensor<1>)>,
    /// The layers' intermediate values, where the context asks for them.
    pub traces: Vec<BlockTrace>,
    /// Layer number and tokens that each expert got, of every layer with experts.
    pub loads: Vec<(usize, Vec<usize>)>,
    /// What the selections are worth, where the context asks for it.
    pub selections: Vec<SelectionTrace>,
}

/// Finds out, without building anything, whether a configuration can be built; `hint` as in [`Model::new`]. Returns the number
/// of token ids.
///
/// # Errors
/// When the configuration is wrong, lacks the vocabulary size, or `hint` names no layer.
pub fn check(config: &ModelConfig, hint: Option<usize>) -> Result<usize, BuildError> {
    config.validate()?;
    let vocabulary = config.vocab_size.ok_or_else(|| ConfigError::Missing {
        key: "vocab_size",
        wrong: "the embedding needs it".into(),
        right: "set it, or train on a task, which sets it".into(),
    })?;
    let layers = config.layers.len();
    match hint.filter(|&layer| layer >= layers) {
        Some(layer) => Err(BuildError::Hint { layer, layers }),
        None => Ok(vocabulary),
    }
}

impl Model {
    /// A model with uninitialised weights (see [`initialize`](crate::init::initialize)). `hint` names the layer behind which
    /// the task's auxiliary head reads.
    ///
    /// # Errors
    /// When the configuration is wrong, lacks the vocabulary size, or `hint` names no layer.
    pub fn new(config: &ModelConfig, hint: Option<usize>, device: &Device) -> Result<Self, BuildError> {
        let vocabulary = check(config, hint)?;
        let norm = || RmsNorm::new(config.d_model, config.norm_eps, device);
        Ok(Self {
            embed: EmbeddingConfig::new(vocabulary, config.d_model)
                .with_initializer(burn::module::Initializer::Zeros)
                .init(device),
            layers: config.layers.layers().iter().map(|layer| Block::new(config, layer, device)).collect(),
            norm: norm(),
            head: linear(config.d_model, vocabulary, device),
            hint: hint.map(|layer| HintHead { norm: norm(), head: linear(config.d_model, vocabulary, device), layer }),
            residual: config.residual,
        })
    }

    /// The blocks, first layer first.
    pub fn layers(&self) -> &[Block] {
        &self.layers
    }

    /// From token ids `[B, S]` to logits.
    pub fn forward(&self, tokens: Tensor<2, Int>, cx: &Context) -> ModelOutput {
        self.forward_watched(tokens, cx, |_, _| {})
    }

    /// As [`forward`](Self::forward); `watch` is shown the residual stream after every layer.
    pub fn forward_watched(
        &self,
        tokens: Tensor<2, Int>,
        cx: &Context,
        watch: impl FnMut(usize, &Stream),
    ) -> ModelOutput {
        self.run(tokens, cx, None, watch)
    }

    /// The tokens `[B, S]` behind those that `past` has seen, which it then has seen too; `cx` is made for these
    /// ([`Context::continued`]). Gives the logits that one pass over the whole sequence gives.
    ///
    /// # Panics
    /// When `past` is of another model, or `cx` starts elsewhere.
    pub fn forward_cached(&self, tokens: Tensor<2, Int>, past: &mut Cache, cx: &Context) -> ModelOutput {
        assert_eq!(past.length, cx.start(), "the context starts behind the past");
        assert_eq!(past.layers.len(), self.layers.len(), "the past is of this model");
        past.length += tokens.dims()[1];
        self.run(tokens, cx, Some(&mut past.layers), |_, _| {})
    }

    /// The residual stream `[B, S, ...]` behind the last layer, where entries lie in `memory`; `watch` is shown the stream after
    /// every layer. [`Model::read`] makes logits of it.
    pub fn forward_in<M: Memory>(
        &self,
        tokens: Tensor<2, Int>,
        cx: &Context,
        memory: &mut M,
        watch: impl FnMut(usize, &Stream),
    ) -> Stream {
        self.forward_below(self.layers.len(), tokens, cx, memory, watch)
    }

    /// As [`forward_in`](Self::forward_in), through the layers below `end` alone; the layer `end` itself stores its entries of the stream
    /// and does nothing else.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn encode_in<M: Memory>(&self, end: usize, tokens: Tensor<2, Int>, cx: &Context, memory: &mut M) {
        let stream = self.forward_below(end, tokens, cx, memory, |_, _| {});
        self.layers[end].store_in(&stream, cx, memory);
    }

    fn forward_below<M: Memory>(
        &self,
        end: usize,
        tokens: Tensor<2, Int>,
        cx: &Context,
        memory: &mut M,
        mut watch: impl FnMut(usize, &Stream),
    ) -> Stream {
        let mut stream = Stream::start(self.embed.forward(tokens), self.residual);
        let mut shared = Shared::default();
        for (number, block) in self.layers[..end].iter().enumerate() {
            stream = block.forward_in(stream, &mut shared, cx, memory).stream;
            watch(number, &stream);
        }
        stream
    }

    /// Logits of what [`Stream::read`] gives behind the last layer, from `[B, S, d_model]` to `[B, S, vocabulary]`.
    pub fn read(&self, x: Tensor<3>) -> Tensor<3> {
        self.head.forward(self.norm.forward(x))
    }

    fn run(
        &self,
        tokens: Tensor<2, Int>,
        cx: &Context,
        past: Option<&mut Vec<LayerCache>>,
        mut watch: impl FnMut(usize, &Stream),
    ) -> ModelOutput {
        let mut memory = InTensors::new(past.map(Vec::as_mut_slice), 0, cx);
        let mut stream = Stream::start(self.embed.forward(tokens), self.residual);
        let mut shared = Shared::default();
        let (mut hint, mut index_losses, mut traces, mut loads) = (None, Vec::new(), Vec::new(), Vec::new());
        for (number, block) in self.layers.iter().enumerate() {
            let out = block.forward_in(stream, &mut shared, cx, &mut memory);
            stream = out.stream;
            watch(number, &stream);
            index_losses.extend(out.index_loss.map(|loss| (number, loss)));
            traces.extend(out.trace);
            loads.extend(out.routing.map(|routing| (number, routing.load)));
            if let Some(head) = self.hint.as_ref().filter(|head| head.layer == number) {
                hint = Some(head.head.forward(head.norm.forward(stream.read())));
            }
        }
        let logits = self.read(stream.read());
        index_losses.extend(shared.lessons.into_iter().map(|lesson| (lesson.layer(), lesson.loss())));
        ModelOutput { logits, hint, index_losses, traces, loads, selections: shared.selections }
    }

    /// The model with the load of its experts balanced, by the loads that a forward pass gave (see
    /// [`Gate::balanced`](crate::block::Gate::balanced)).
    #[must_use]
    pub fn balanced(mut self, loads: &[(usize, Vec<usize>)], speed: f64) -> Self {
        let load = |number: usize| loads.iter().find(|(layer, _)| *layer == number).map(|(_, load)| load);
        let layers = self.layers.into_iter().enumerate();
        self.layers = layers
            .map(|(number, block)| match load(number) {
                Some(load) => block.balanced(load, speed),
                None => block,
            })
            .collect();
        self
    }
}
