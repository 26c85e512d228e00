//! The tensors of a model's checkpoint, from the configuration alone: nothing is built.

use safetensors::Dtype;

use super::CheckpointError;
use super::storage::Kind;
use crate::config::{ConfigError, FfnConfig, ModelConfig, Residual};
use crate::mix::{Mode, PlannedLayer};

/// The most tensors that a checkpoint may have. The released model has 47 thousand; a configuration that asks for more than
/// this is a slip of the pen, or is meant to exhaust memory.
const MOST_TENSORS: usize = 1 << 21;

/// Rows and columns of a matrix that share a scale in the released checkpoint.
const BLOCK: usize = 32;

/// One tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Official name.
    pub name: String,
    /// Size of each axis of the numbers that it stands for.
    pub shape: Vec<usize>,
    /// What it is, as far as its storage goes.
    pub kind: Kind,
    /// Whether the released checkpoint stores it as F32 where it is not quantized; as BF16 otherwise.
    exact: bool,
}

impl TensorSpec {
    /// How the released V4.1 checkpoint stores this tensor: name, type and shape of it and, where there is one, of its scale.
    pub fn released(&self) -> Vec<(String, Dtype, Vec<usize>)> {
        let scale = |shape| (scale_name(&self.name).unwrap_or_default(), Dtype::F8_E8M0, shape);
        match (self.kind, self.shape.as_slice()) {
            (Kind::Matrix, &[rows, columns]) => vec![
                (self.name.clone(), Dtype::F8_E4M3, self.shape.clone()),
                scale(vec![rows.div_ceil(BLOCK), columns.div_ceil(BLOCK)]),
            ],
            (Kind::Expert, &[rows, columns]) => {
                vec![(self.name.clone(), Dtype::I8, vec![rows, columns / 2]), scale(vec![rows, columns / BLOCK])]
            }
            _ => {
                let dtype = if self.exact { Dtype::F32 } else { Dtype::BF16 };
                vec![(self.name.clone(), dtype, self.shape.clone())]
            }
        }
    }
}

/// The name of the scale beside a quantized matrix: `x.weight` has `x.scale`.
pub fn scale_name(weight: &str) -> Option<String> {
    weight.strip_suffix(".weight").map(|stem| format!("{stem}.scale"))
}

/// Every tensor of a model, sorted by name.
///
/// # Errors
/// When the configuration is wrong, has no vocabulary size, or asks for more tensors than any checkpoint has.
pub fn tensors(config: &ModelConfig) -> Result<Vec<TensorSpec>, CheckpointError> {
    config.validate()?;
    let vocabulary = config.vocab_size.ok_or_else(|| ConfigError::Missing {
        key: "vocab_size",
        wrong: "the embedding needs it".into(),
        right: "set it".into(),
    })?;
    check_count(config)?;
    let mut list = List::default();
    list.plain("embed.weight", &[vocabulary, config.d_model]);
    list.plain("head.weight", &[vocabulary, config.d_model]);
    list.plain("norm.weight", &[config.d_model]);
    for layer in config.layers.layers() {
        list.prefix = format!("layers.{}.", layer.index);
        list.plain("attn_norm.weight", &[config.d_model]);
        list.plain("ffn_norm.weight", &[config.d_model]);
        list.feed_forward(config);
        list.hyper_connections(config);
        list.prefix.push_str("attn.");
        list.attention(config, layer);
    }
    Ok(list.sorted())
}

/// The tensors of one attention layer, named as in the whole model and sorted by name.
///
/// # Errors
/// When the configuration is wrong, or has no such layer.
pub fn attention_tensors(config: &ModelConfig, layer: usize) -> Result<Vec<TensorSpec>, CheckpointError> {
    config.validate()?;
    let layers = config.layers.layers();
    let planned = layers.get(layer).ok_or(CheckpointError::NoLayer { layer, layers: layers.len() })?;
    let mut list = List { prefix: format!("layers.{layer}.attn."), ..List::default() };
    list.attention(config, planned);
    Ok(list.sorted())
}

/// Refuses to list more tensors than a checkpoint can have.
fn check_count(config: &ModelConfig) -> Result<(), CheckpointError> {
    let FfnConfig::Moe { experts, .. } = config.ffn else { return Ok(()) };
    let most = MOST_TENSORS / config.layers.len() / 3;
    if experts <= most {
        return Ok(());
    }
    let wrong = format!("{} layers with as many experts have more tensors than csa2 reads", config.layers.len());
    let right = format!("set it to {most} or less");
    Err(ConfigError::Value { key: "ffn.experts", value: experts.to_string(), wrong, right }.into())
}

#[derive(Default)]
struct List {
    prefix: String,
    specs: Vec<TensorSpec>,
}

impl List {
    fn push(&mut self, name: &str, shape: &[usize], kind: Kind, exact: bool) {
        self.specs.push(TensorSpec { name: format!("{}{name}", self.prefix), shape: shape.to_vec(), kind, exact });
    }

    fn plain(&mut self, name: &str, shape: &[usize]) {
        self.push(name, shape, Kind::Plain, false);
    }

    fn exact(&mut self, name: &str, shape: &[usize]) {
        self.push(name, shape, Kind::Plain, true);
    }

    fn matrix(&mut self, name: &str, shape: [usize; 2]) {
        self.push(name, &shape, Kind::Matrix, false);
    }

    /// The three matrices of a feed-forward part or of one expert.
    fn swiglu(&mut self, name: &str, kind: Kind, d_model: usize, width: usize) {
        for (matrix, shape) in [("w1", [width, d_model]), ("w2", [d_model, width]), ("w3", [width, d_model])] {
            self.push(&format!("{name}{matrix}.weight"), &shape, kind, false);
        }
    }

    fn attention(&mut self, config: &ModelConfig, layer: &PlannedLayer) {
        let ModelConfig { d_model, heads, head_dim, index_heads, index_dim, output_groups, .. } = *config;
        let inner = heads * head_dim;
        self.exact("attn_sink", &[heads]);
        if let Some(rank) = config.query_rank {
            self.matrix("wq_a.weight", [rank, d_model]);
            self.plain("q_norm.weight", &[rank]);
        }
        let query_input = config.query_rank.unwrap_or(d_model);
        self.matrix("wq_b.weight", [inner, query_input]);
        self.matrix("wkv.weight", [head_dim, d_model]);
        self.plain("kv_norm.weight", &[head_dim]);
        if let Some(rank) = config.output_rank {
            self.matrix("wo_a.weight", [output_groups * rank, inner / output_groups]);
        }
        let joined = config.output_rank.map_or(inner, |rank| output_groups * rank);
        self.matrix("wo_b.weight", [d_model, joined]);
        if layer.mode.takes_ratio() {
            self.plain("compressor.wkv.weight", &[head_dim, d_model]);
            self.plain("compressor.norm.weight", &[head_dim]);
            if layer.ratio > 1 {
                self.plain("compressor.wgate.weight", &[head_dim, d_model]);
            }
        }
        if layer.mode.has_indexer() {
            self.matrix("indexer.wq_b.weight", [index_heads * index_dim, query_input]);
            self.plain("indexer.weights_proj.weight", &[index_heads, d_model]);
        }
        if layer.mode == Mode::Full {
            self.plain("indexer.wk.weight", &[index_dim, head_dim]);
            self.plain("indexer.k_norm.weight", &[index_dim]);
        }
    }

    fn feed_forward(&mut self, config: &ModelConfig) {
        let d_model = config.d_model;
        match config.ffn {
            FfnConfig::Dense { width } => self.swiglu("ffn.", Kind::Matrix, d_model, width),
            FfnConfig::Moe { experts, shared, width, .. } => {
                self.plain("ffn.gate.weight", &[experts, d_model]);
                self.exact("ffn.gate.bias", &[experts]);
                for expert in 0..experts {
                    self.swiglu(&format!("ffn.experts.{expert}."), Kind::Expert, d_model, width);
                }
                if shared > 0 {
                    self.swiglu("ffn.shared_experts.", Kind::Matrix, d_model, shared * width);
                }
            }
        }
    }

    fn hyper_connections(&mut self, config: &ModelConfig) {
        let Residual::Hyper { streams } = config.residual else { return };
        let weights = streams * (streams + 2);
        for part in ["attn", "ffn"] {
            self.exact(&format!("hc_{part}_fn"), &[weights, streams * config.d_model]);
            self.exact(&format!("hc_{part}_base"), &[weights]);
            self.exact(&format!("hc_{part}_scale"), &[3]);
        }
    }

    fn sorted(mut self) -> Vec<TensorSpec> {
        self.specs.sort_by(|a, b| a.name.cmp(&b.name));
        self.specs
    }
}
