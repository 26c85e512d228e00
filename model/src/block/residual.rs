//! The block: attention and a feed-forward part, each reading the normalised residual stream and writing to it.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::{FeedForward, HyperMix, RmsNorm, Routing, Stream};
use crate::attention::{Attention, AttentionOutput, Context, InTensors, Memory, Shared, Trace};
use crate::config::{ModelConfig, Residual};
use crate::mix::PlannedLayer;

/// With a plain residual, `x + attn(norm(x))`, then `x + ffn(norm(x))`. With hyper-connections both parts read and write
/// several streams (see [`Stream`]); what a part reads was decided by the part before.
#[derive(Module, Debug)]
pub struct Block {
    attn_norm: RmsNorm,
    attn: Attention,
    ffn_norm: RmsNorm,
    ffn: FeedForward,
    hc_attn: Option<HyperMix>,
    hc_ffn: Option<HyperMix>,
}

/// What a block returns.
#[derive(Clone, Debug)]
pub struct BlockOutput {
    /// The residual stream.
    pub stream: Stream,
    /// See [`AttentionOutput::index_loss`].
    pub index_loss: Option<Tensor<1>>,
    /// Where the tokens went, where there are experts.
    pub routing: Option<Routing>,
    /// Intermediate values; only where the context asks for them.
    pub trace: Option<BlockTrace>,
}

/// Intermediate values of a block.
#[derive(Clone, Debug)]
pub struct BlockTrace {
    /// Those of attention.
    pub attn: Trace,
    /// What attention read, normalised `[B, S, d_model]`.
    pub attn_input: Tensor<3>,
    /// What attention gave `[B, S, d_model]`.
    pub attn_output: Tensor<3>,
    /// The residual stream between attention and the feed-forward part.
    pub middle: Stream,
    /// What the feed-forward part read, normalised `[B, S, d_model]`.
    pub ffn_input: Tensor<3>,
    /// What the feed-forward part gave `[B, S, d_model]`.
    pub ffn_output: Tensor<3>,
    /// Where the tokens went, where there are experts.
    pub routing: Option<Routing>,
    /// The residual stream after the block.
    pub output: Stream,
}

impl Block {
    /// The block of layer `layer`, weights uninitialised.
    pub fn new(config: &ModelConfig, layer: &PlannedLayer, device: &Device) -> Self {
        let mix = || match config.residual {
            Residual::Plain => None,
            Residual::Hyper { streams } => Some(HyperMix::new(config, streams, device)),
        };
        Self {
            attn_norm: RmsNorm::new(config.d_model, config.norm_eps, device),
            attn: Attention::new(config, layer, device),
            ffn_norm: RmsNorm::new(config.d_model, config.norm_eps, device),
            ffn: FeedForward::new(config, device),
            hc_attn: mix(),
            hc_ffn: mix(),
        }
    }

    /// The block's attention layer.
    pub fn attention(&self) -> &Attention {
        &self.attn
    }

    /// The block's feed-forward part.
    pub fn feed_forward(&self) -> &FeedForward {
        &self.ffn
    }

    /// What mixes the streams after attention and after the feed-forward part, where there are several.
    pub fn mixes(&self) -> Option<[&HyperMix; 2]> {
        Some([self.hc_attn.as_ref()?, self.hc_ffn.as_ref()?])
    }

    /// The block with the load of its experts balanced (see [`Gate::balanced`](super::Gate::balanced)); a block without
    /// experts stays as it is.
    #[must_use]
    pub fn balanced(mut self, load: &[usize], speed: f64) -> Self {
        self.ffn = match self.ffn {
            FeedForward::Moe(moe) => FeedForward::Moe(moe.balanced(load, speed)),
            dense @ FeedForward::Dense(_) => dense,
        };
        self
    }

    /// From the residual stream to the next.
    pub fn forward(&self, stream: Stream, shared: &mut Shared, cx: &Context) -> BlockOutput {
        self.forward_in(stream, shared, cx, &mut InTensors::new(None, 0, cx))
    }

    /// Stores the entries that attention makes of the stream, and nothing else (see [`Attention::store_in`]).
    pub fn store_in<M: Memory>(&self, stream: &Stream, cx: &Context, memory: &mut M) {
        self.attn.store_in(self.attn_norm.forward(stream.read()), cx, memory);
    }

    /// As [`forward`](Self::forward), where entries lie in `memory` (see [`Attention::forward_in`]).
    pub fn forward_in<M: Memory>(
        &self,
        stream: Stream,
        shared: &mut Shared<M::Content>,
        cx: &Context,
        memory: &mut M,
    ) -> BlockOutput {
        let read = self.attn_norm.forward(stream.read());
        // What is not kept can be overwritten.
        let attn_input = cx.trace.then(|| read.clone());
        let AttentionOutput { output, index_loss, trace } = self.attn.forward_in(read, shared, cx, memory);
        let attn_output = cx.trace.then(|| output.clone());
        let stream = stream.write(output, self.hc_attn.as_ref());
        let middle = cx.trace.then(|| stream.clone());
        let read = self.ffn_norm.forward(stream.read());
        let ffn_input = cx.trace.then(|| read.clone());
        let (output, routing) = self.ffn.forward(read);
        let ffn_output = cx.trace.then(|| output.clone());
        let stream = stream.write(output, self.hc_ffn.as_ref());
        let trace = (|| {
            Some(BlockTrace {
                attn: trace?,
                attn_input: attn_input?,
                attn_output: attn_output?,
                middle: middle?,
                ffn_input: ffn_input?,
                ffn_output: ffn_output?,
                routing: routing.clone(),
                output: stream.clone(),
            })
        })();
        BlockOutput { stream, index_loss, routing, trace }
    }
}
