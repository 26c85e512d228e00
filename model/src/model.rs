//! The whole network: embedding, blocks, final norm, head.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear};
use burn::tensor::{Device, Int, Tensor};
use thiserror::Error;

use crate::attention::{Context, Shared, Trace};
use crate::block::{Block, RmsNorm, linear};
use crate::config::{ConfigError, FfnConfig, ModelConfig, Residual};

/// Why a configuration cannot be built.
#[derive(Debug, Error)]
pub enum BuildError {
    /// The configuration itself is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A part that can be planned and costed but not built yet.
    #[error("`{key} = {value}` can be planned (`csa2 plan`) but not built yet; use `{key} = {instead}`")]
    NotBuilt {
        /// Key inside the model table.
        key: &'static str,
        /// The value found.
        value: String,
        /// What can be built.
        instead: &'static str,
    },
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
    /// Layer number and mean KL `[1]` of every layer with an indexer, where the context asks for them.
    pub index_losses: Vec<(usize, Tensor<1>)>,
    /// The layers' intermediate values, where the context asks for them.
    pub traces: Vec<Trace>,
}

/// The sizes that a model needs besides those of its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of token ids.
    pub vocabulary: usize,
    /// Inner width of the feed-forward part.
    pub width: usize,
}

/// Finds out, without building anything, whether a configuration can be built; `hint` as in [`Model::new`].
///
/// # Errors
/// When the configuration is wrong, lacks the vocabulary size, or asks for a part that cannot be built yet.
pub fn check(config: &ModelConfig, hint: Option<usize>) -> Result<Sizes, BuildError> {
    config.validate()?;
    let width = buildable(config)?;
    let vocabulary = config.vocab_size.ok_or_else(|| ConfigError::Missing {
        key: "vocab_size",
        wrong: "the embedding needs it".into(),
        right: "set it, or train on a task, which sets it".into(),
    })?;
    let layers = config.layers.len();
    match hint.filter(|&layer| layer >= layers) {
        Some(layer) => Err(BuildError::Hint { layer, layers }),
        None => Ok(Sizes { vocabulary, width }),
    }
}

/// Refuses what this version can plan but not build.
fn buildable(config: &ModelConfig) -> Result<usize, BuildError> {
    let refuse = |key, value: &str, instead| Err(BuildError::NotBuilt { key, value: value.into(), instead });
    if config.residual != Residual::Plain {
        return refuse("residual", "hyper", "\"plain\"");
    }
    match config.ffn {
        FfnConfig::Dense { width } => Ok(width),
        FfnConfig::Moe { .. } => refuse("ffn.kind", "\"moe\"", "\"dense\""),
    }
}

impl Model {
    /// A model with uninitialised weights (see [`initialize`](crate::init::initialize)). `hint` names the layer behind which
    /// the task's auxiliary head reads.
    ///
    /// # Errors
    /// When the configuration is wrong, lacks the vocabulary size, or asks for a part that cannot be built yet.
    pub fn new(config: &ModelConfig, hint: Option<usize>, device: &Device) -> Result<Self, BuildError> {
        let Sizes { vocabulary, width } = check(config, hint)?;
        let norm = || RmsNorm::new(config.d_model, config.norm_eps, device);
        Ok(Self {
            embed: EmbeddingConfig::new(vocabulary, config.d_model)
                .with_initializer(burn::module::Initializer::Zeros)
                .init(device),
            layers: config.layers.layers().iter().map(|layer| Block::new(config, layer, width, device)).collect(),
            norm: norm(),
            head: linear(config.d_model, vocabulary, device),
            hint: hint.map(|layer| HintHead { norm: norm(), head: linear(config.d_model, vocabulary, device), layer }),
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

    /// As [`forward`](Self::forward); `watch` is shown the residual stream `[B, S, d_model]` after every layer.
    pub fn forward_watched(
        &self,
        tokens: Tensor<2, Int>,
        cx: &Context,
        mut watch: impl FnMut(usize, &Tensor<3>),
    ) -> ModelOutput {
        let mut x = self.embed.forward(tokens);
        let mut shared = Shared::default();
        let (mut hint, mut index_losses, mut traces) = (None, Vec::new(), Vec::new());
        for (number, block) in self.layers.iter().enumerate() {
            let out = block.forward(x, &mut shared, cx);
            x = out.output;
            watch(number, &x);
            index_losses.extend(out.index_loss.map(|loss| (number, loss)));
            traces.extend(out.trace);
            if let Some(head) = self.hint.as_ref().filter(|head| head.layer == number) {
                hint = Some(head.head.forward(head.norm.forward(x.clone())));
            }
        }
        let logits = self.head.forward(self.norm.forward(x));
        ModelOutput { logits, hint, index_losses, traces }
    }
}
