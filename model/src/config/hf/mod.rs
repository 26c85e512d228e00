//! The Hugging Face form of a configuration: the `text_config` of a `deepseek_v41` model's `config.json`.
//!
//! What that form cannot say stands under a key of our own, `csa2`, so that a model that is written comes back whole.

mod keys;
mod rope;
#[cfg(test)]
mod tests;
mod unsupported;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::keys::Keys;
use self::rope::Rope;
use self::unsupported::Unsupported;
use super::{
    ConfigError, FfnConfig, ModelConfig, Part, PoolConfig, QuantizationConfig, Residual, ScoreFunction, Values,
};
use crate::mix::{IdLists, IdsError, LayerPlan, MixError, Mode};
use crate::ops::{HYPER_EPS, SINKHORN_ROUNDS};

/// Keys that do not change what the network computes. How the weights are stored is read from the tensors themselves.
const HARMLESS: [&str; 16] = [
    "_name_or_path",
    "architectures",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "max_position_embeddings",
    "model_type",
    "output_router_logits",
    "pad_token_id",
    "quantization_config",
    "router_aux_loss_coef",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// What stands beside the harmless ones outside a `text_config`: the language model, and what only concerns images.
const OUTER: [&str; 3] = ["text_config", "vision_config", "image_token_id"];

/// The key of what the Hugging Face form cannot say.
const OWN: &str = "csa2";

/// What a Hugging Face `config.json` says.
#[derive(Clone, Debug, PartialEq)]
pub struct HfConfig {
    /// The language model.
    pub model: ModelConfig,
    /// Parts that csa2 does not have, each with a key that asks for it.
    pub unsupported: BTreeMap<Part, String>,
    /// Rows and columns of a quantized matrix that share a scale, where it is said.
    pub weight_block: Option<[usize; 2]>,
    /// Whether it says how cached vectors are quantized; only files that csa2 wrote do.
    pub says_quantization: bool,
}

/// What `quantization_config` may say besides the blocks' sizes.
const STORAGE: [(&str, &str); 4] =
    [("quant_method", "fp8"), ("activation_scheme", "dynamic"), ("scale_fmt", "ue8m0"), ("expert_dtype", "fp4")];

/// What stands under [`OWN`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    quantization: QuantizationConfig,
    sink_init: f64,
}

impl HfConfig {
    /// Reads a `config.json`: its `text_config` where there is one, itself where there is none. Parts that csa2 does not have
    /// are refused unless `skip_unsupported`.
    ///
    /// # Errors
    /// A key that is missing, of another type, or unknown and so perhaps a change of what the network computes; lists that
    /// contradict each other; values that [`ModelConfig::validate`] refuses.
    pub fn read(config: &Value, skip_unsupported: bool) -> Result<Self, ConfigError> {
        let outer = config.get("text_config").map(|_| config);
        let mut keys = match config.get("text_config") {
            Some(text) => Keys::open(text, "text_config")?,
            None => Keys::open(config, "")?,
        };
        let mut unsupported = Unsupported::take(&mut keys)?;
        if outer.and_then(|outer| outer.get("vision_config")).is_some_and(|vision| !vision.is_null()) {
            unsupported.parts.entry(Part::Vision).or_insert_with(|| "`vision_config`".into());
        }
        if !skip_unsupported {
            unsupported.refuse()?;
        }
        if let Some(outer) = outer {
            check_outer(outer)?;
        }
        let weight_block = weight_block(&mut keys, outer)?;
        let own = own(&mut keys)?;
        let says_quantization = own.is_some();
        let model = model(keys, unsupported.draft_layers, own)?;
        Ok(Self { model, unsupported: unsupported.parts, weight_block, says_quantization })
    }
}

impl ModelConfig {
    /// Reads the language model of a Hugging Face `config.json`, see [`HfConfig::read`].
    ///
    /// A file that csa2 did not write says nothing about fake quantization or the sinks' start, so both are at their defaults.
    ///
    /// # Errors
    /// As [`HfConfig::read`]; parts that csa2 does not have are refused.
    pub fn from_hf(config: &Value) -> Result<Self, ConfigError> {
        HfConfig::read(config, false).map(|read| read.model)
    }

    /// Writes a whole Hugging Face `config.json`.
    ///
    /// # Errors
    /// As [`to_hf`](Self::to_hf).
    pub fn to_hf_file(&self) -> Result<Value, ConfigError> {
        let mut text = self.to_hf()?;
        text["model_type"] = json!("deepseek_v41_text");
        Ok(json!({
            "architectures": ["DeepseekV41ForCausalLM"],
            "model_type": "deepseek_v41",
            "dtype": "float32",
            "tie_word_embeddings": false,
            "text_config": text,
        }))
    }

    /// Writes the `text_config` of a Hugging Face `config.json`.
    ///
    /// # Errors
    /// What that form cannot say: `stale` and `dense` layers, several pools, no vocabulary size, projections without a rank,
    /// a dense feed-forward, other than one shared expert, plain residuals.
    pub fn to_hf(&self) -> Result<Value, ConfigError> {
        self.validate()?;
        let ids = self.layers.to_ids()?;
        let needed = |key, value: Option<usize>| {
            value.ok_or(ConfigError::NotInHf { key, value: "none".into(), right: "there it must be a number" })
        };
        let FfnConfig::Moe { experts, active, shared, width, route_scale, swiglu_limit, score } = self.ffn else {
            return Err(not_in_hf("ffn.kind", "dense", "there it is always a mixture of experts"));
        };
        if shared != 1 {
            return Err(not_in_hf("ffn.shared", &shared.to_string(), "there it is always 1"));
        }
        let Residual::Hyper { streams } = self.residual else {
            return Err(not_in_hf("residual", "plain", "there it is always hyper-connections"));
        };
        if self.values != Values::Rotated {
            return Err(not_in_hf("values", self.values.name(), "there they are always rotated"));
        }
        let mut text = json!({
            "num_hidden_layers": self.layers.len(),
            "compress_ratios": ids.compress_ratios,
            "kv_source_layer_ids": ids.kv_source_layer_ids,
            "index_source_layer_ids": ids.index_source_layer_ids,
            // Left out, Transformers would take the last source.
            "candidate_source_layer_id": ids.candidate_source_layer_id.map_or(json!(-1), |id| json!(id)),
            "vocab_size": needed("vocab_size", self.vocab_size)?,
            "hidden_size": self.d_model,
            "num_attention_heads": self.heads,
            "head_dim": self.head_dim,
            "qk_rope_head_dim": self.rope_dim,
            "q_lora_rank": needed("query_rank", self.query_rank)?,
            "o_groups": self.output_groups,
            "o_lora_rank": needed("output_rank", self.output_rank)?,
            "sliding_window": self.window,
            "index_topk": self.topk,
            "index_n_heads": self.index_heads,
            "index_head_dim": self.index_dim,
            "rope_parameters": self.rope_parameters(),
            "rms_norm_eps": self.norm_eps,
            "n_routed_experts": experts,
            "num_experts_per_tok": active,
            "n_shared_experts": shared,
            "moe_intermediate_size": width,
            "routed_scaling_factor": route_scale,
            "swiglu_limit": swiglu_limit.unwrap_or(0.0),
            "scoring_func": score.name(),
            "topk_method": "noaux_tc",
            "norm_topk_prob": true,
            "gate_temp": 1.0,
            "hc_mult": streams,
            "hc_sinkhorn_iters": SINKHORN_ROUNDS,
            "hc_eps": HYPER_EPS,
            // Left out, Transformers would have some.
            "engram_layer_ids": [],
            "num_nextn_predict_layers": 0,
            OWN: Own { quantization: self.quantization, sink_init: self.sink_init },
        });
        if let Some(pool) = self.pool {
            text["candidate_topk_blocks"] = json!(pool.blocks);
            text["candidate_block_size"] = json!(pool.block_size);
        }
        Ok(text)
    }
}

fn not_in_hf(key: &'static str, value: &str, right: &'static str) -> ConfigError {
    ConfigError::NotInHf { key, value: value.into(), right }
}

/// The language model, once the keys of everything else are taken.
fn model(mut keys: Keys, draft_layers: usize, own: Option<Own>) -> Result<ModelConfig, ConfigError> {
    for key in HARMLESS {
        keys.ignore(key);
    }
    fixed_keys(&mut keys)?;
    let layers = layers(&mut keys, draft_layers)?;
    let pool = pool(&mut keys, &layers)?;
    let (head_dim, rope_dim) = (keys.size("head_dim")?, keys.size("qk_rope_head_dim")?);
    // A head of no channels is refused below; here it only must not divide.
    let part = (head_dim > 0).then(|| rope_dim as f64 / head_dim as f64);
    let rope = Rope::read(&mut keys, part)?;
    let config = ModelConfig {
        layers,
        vocab_size: Some(keys.size("vocab_size")?),
        d_model: keys.size("hidden_size")?,
        heads: keys.size("num_attention_heads")?,
        head_dim,
        rope_dim,
        query_rank: Some(keys.size("q_lora_rank")?),
        output_groups: keys.size("o_groups")?,
        output_rank: Some(keys.size("o_lora_rank")?),
        window: keys.size("sliding_window")?,
        topk: keys.size("index_topk")?,
        index_heads: keys.size("index_n_heads")?,
        index_dim: keys.size("index_head_dim")?,
        pool,
        rope_theta: rope.theta,
        compress_rope_theta: rope.compress_theta,
        yarn: rope.yarn,
        norm_eps: keys.number("rms_norm_eps")?,
        sink_init: own.as_ref().map_or(0.0, |own| own.sink_init),
        ffn: FfnConfig::Moe {
            experts: keys.size("n_routed_experts")?,
            active: keys.size("num_experts_per_tok")?,
            shared: keys.size("n_shared_experts")?,
            width: keys.size("moe_intermediate_size")?,
            route_scale: keys.number("routed_scaling_factor")?,
            swiglu_limit: swiglu_limit(&mut keys)?,
            score: score(&mut keys)?,
        },
        residual: Residual::Hyper { streams: keys.size("hc_mult")? },
        values: Values::Rotated,
        quantization: own.map_or_else(QuantizationConfig::default, |own| own.quantization),
    };
    keys.finish()?;
    config.validate()?;
    Ok(config)
}

/// Refuses keys beside a `text_config` that may change what the network computes.
fn check_outer(outer: &Value) -> Result<(), ConfigError> {
    let mut keys = Keys::open(outer, "")?;
    keys.fixed("model_type", &json!("deepseek_v41"))?;
    keys.fixed("tie_word_embeddings", &json!(false))?;
    for key in HARMLESS.iter().chain(&OUTER) {
        keys.ignore(key);
    }
    keys.finish()
}

/// Keys whose only supported value is the released one; leaving them out means that value.
fn fixed_keys(keys: &mut Keys) -> Result<(), ConfigError> {
    keys.fixed("topk_method", &json!("noaux_tc"))?;
    keys.fixed("norm_topk_prob", &json!(true))?;
    keys.fixed("gate_temp", &json!(1.0))?;
    keys.fixed("router_jitter_noise", &json!(0.0))?;
    keys.fixed("hc_eps", &json!(HYPER_EPS))?;
    keys.fixed("hc_sinkhorn_iters", &json!(SINKHORN_ROUNDS))?;
    keys.fixed("hidden_act", &json!("silu"))?;
    keys.fixed("attention_bias", &json!(false))?;
    keys.fixed("attention_dropout", &json!(0.0))?;
    keys.fixed("num_key_value_heads", &json!(1))?;
    keys.fixed("tie_word_embeddings", &json!(false))
}

/// What csa2 wrote under its own key, where it did.
fn own(keys: &mut Keys) -> Result<Option<Own>, ConfigError> {
    let Some(value) = keys.optional(OWN) else { return Ok(None) };
    keys.ignore(OWN);
    Own::deserialize(&value).map(Some).map_err(|error| keys.refuse(OWN, &value, &format!("what csa2 writes: {error}")))
}

/// `quantization_config.weight_block_size`, from inside or beside the text model's configuration.
fn weight_block(keys: &mut Keys, outer: Option<&Value>) -> Result<Option<[usize; 2]>, ConfigError> {
    const KEY: &str = "quantization_config";
    let Some(found) = keys.optional(KEY).or_else(|| outer.and_then(|outer| outer.get(KEY).cloned())) else {
        return Ok(None);
    };
    if found.is_null() {
        return Ok(None);
    }
    // How weights are stored is told by the tensors themselves; what else is said here must be what csa2 reads.
    let mut inner = Keys::open(&found, KEY)?;
    for (key, value) in STORAGE {
        inner.fixed(key, &json!(value))?;
    }
    let block = match inner.optional("weight_block_size").filter(|block| !block.is_null()) {
        None => None,
        Some(block) => match <[usize; 2]>::deserialize(&block) {
            Ok(block) if !block.contains(&0) => Some(block),
            _ => return Err(inner.refuse("weight_block_size", &block, "two sizes of 1 or more")),
        },
    };
    inner.ignore("weight_block_size");
    inner.finish()?;
    Ok(block)
}

/// The gate's function; the released one where it is left out.
fn score(keys: &mut Keys) -> Result<ScoreFunction, ConfigError> {
    let all = [ScoreFunction::SqrtSoftplus, ScoreFunction::Sigmoid, ScoreFunction::Softmax];
    let Some(found) = keys.optional("scoring_func") else { return Ok(ScoreFunction::default()) };
    keys.ignore("scoring_func");
    let known = all.into_iter().find(|score| found == json!(score.name()));
    known.ok_or_else(|| keys.refuse("scoring_func", &found, "\"sqrtsoftplus\", \"sigmoid\" or \"softmax\""))
}

/// 0 stands for no limit, as in Transformers.
fn swiglu_limit(keys: &mut Keys) -> Result<Option<f64>, ConfigError> {
    if keys.optional("swiglu_limit").is_none() {
        return Ok(None);
    }
    Ok(Some(keys.number("swiglu_limit")?).filter(|&limit| limit != 0.0))
}

/// Ratios of draft layers, which are all 0, may follow those of the model's own layers.
fn layers(keys: &mut Keys, draft_layers: usize) -> Result<LayerPlan, ConfigError> {
    let count = keys.size("num_hidden_layers")?;
    let mut compress_ratios = keys.sizes("compress_ratios")?;
    let drafted = compress_ratios.len().saturating_sub(count);
    if drafted <= draft_layers && compress_ratios.iter().rev().take(drafted).all(|&ratio| ratio == 0) {
        compress_ratios.truncate(count);
    }
    let kv_source_layer_ids = keys.sizes("kv_source_layer_ids")?;
    let candidate_source_layer_id = candidate(keys, kv_source_layer_ids.is_empty())?;
    let index_source_layer_ids = keys.sizes("index_source_layer_ids")?;
    let ids = IdLists { compress_ratios, kv_source_layer_ids, index_source_layer_ids, candidate_source_layer_id };
    if ids.compress_ratios.len() != count {
        let error = IdsError::Length { ratios: ids.compress_ratios.len(), layers: count };
        return Err(MixError::from(error).into());
    }
    let plan = LayerPlan::from_ids(&ids)?;
    layer_types(keys, &plan)?;
    Ok(plan)
}

/// The layer that builds the pool; a number below 0 says that none does. What leaving it out means is not clear (Transformers
/// says none and takes the last source), so it must be said where there is a source.
fn candidate(keys: &mut Keys, no_source: bool) -> Result<Option<usize>, ConfigError> {
    const KEY: &str = "candidate_source_layer_id";
    const RIGHT: &str = "the number of the layer that builds the candidate pool, or -1 for none";
    match keys.optional(KEY) {
        None if no_source => Ok(None),
        None => Err(ConfigError::HfMissing { key: keys.name(KEY), expected: RIGHT }),
        Some(value) if value.as_i64().is_some_and(|id| id < 0) => {
            keys.ignore(KEY);
            Ok(None)
        }
        Some(_) => keys.size(KEY).map(Some),
    }
}

/// `layer_types` says again which layers are sources.
fn layer_types(keys: &mut Keys, plan: &LayerPlan) -> Result<(), ConfigError> {
    let name = |mode| if mode == Mode::Full { "shared_compressed_attention" } else { "sliding_attention" };
    let expected: Vec<&str> = plan.layers().iter().map(|layer| name(layer.mode)).collect();
    keys.fixed("layer_types", &json!(expected))
}

/// The pool's size, which has no effect where no layer builds one.
fn pool(keys: &mut Keys, layers: &LayerPlan) -> Result<Option<PoolConfig>, ConfigError> {
    if layers.has_pool() {
        let blocks = keys.size("candidate_topk_blocks")?;
        return Ok(Some(PoolConfig { blocks, block_size: keys.size("candidate_block_size")? }));
    }
    keys.ignore("candidate_topk_blocks");
    keys.ignore("candidate_block_size");
    Ok(None)
}
