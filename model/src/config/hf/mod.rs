//! The Hugging Face form of a configuration: the `text_config` of a `deepseek_v41` model's `config.json`.

mod keys;
mod rope;

use serde_json::{Value, json};

use self::keys::Keys;
use self::rope::Rope;
use super::{ConfigError, FfnConfig, ModelConfig, PoolConfig, QuantizationConfig, Residual, ScoreFunction};
use crate::mix::{IdLists, IdsError, LayerPlan, MixError};
use crate::ops::{HYPER_EPS, SINKHORN_ROUNDS};

/// Keys that do not change what the network computes. How the weights are stored is read from the tensors themselves.
const HARMLESS: [&str; 13] = [
    "_name_or_path",
    "architectures",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "max_position_embeddings",
    "model_type",
    "pad_token_id",
    "quantization_config",
    "torch_dtype",
    "transformers_version",
];

impl ModelConfig {
    /// Reads a Hugging Face `config.json`: its `text_config` where there is one, itself where there is none.
    ///
    /// That form says nothing about fake quantization or the sinks' start, so both are at their defaults.
    ///
    /// # Errors
    /// A key that is missing, of another type, or unknown and so perhaps a change of what the network computes; lists that
    /// contradict each other; values that [`ModelConfig::validate`] refuses.
    pub fn from_hf(config: &Value) -> Result<Self, ConfigError> {
        let mut keys = match config.get("text_config") {
            Some(text) => Keys::open(text, "text_config")?,
            None => Keys::open(config, "")?,
        };
        for key in HARMLESS {
            keys.ignore(key);
        }
        fixed_keys(&mut keys)?;
        let layers = layers(&mut keys)?;
        let pool = pool(&mut keys, &layers)?;
        let (head_dim, rope_dim) = (keys.size("head_dim")?, keys.size("qk_rope_head_dim")?);
        // A head of no channels is refused below; here it only must not divide.
        let part = (head_dim > 0).then(|| rope_dim as f64 / head_dim as f64);
        let rope = Rope::read(&mut keys, part)?;
        let config = Self {
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
            sink_init: 0.0,
            ffn: FfnConfig::Moe {
                experts: keys.size("n_routed_experts")?,
                active: keys.size("num_experts_per_tok")?,
                shared: keys.size("n_shared_experts")?,
                width: keys.size("moe_intermediate_size")?,
                route_scale: keys.number("routed_scaling_factor")?,
                swiglu_limit: keys.optional("swiglu_limit").map(|_| keys.number("swiglu_limit")).transpose()?,
                score: score(&mut keys)?,
            },
            residual: Residual::Hyper { streams: keys.size("hc_mult")? },
            quantization: QuantizationConfig::default(),
        };
        keys.finish()?;
        config.validate()?;
        Ok(config)
    }

    /// Writes the `text_config` of a Hugging Face `config.json`.
    ///
    /// That form has no place for fake quantization and the sinks' start; they are left out.
    ///
    /// # Errors
    /// What that form cannot say: `stale` and `dense` layers, several pools, no vocabulary size, projections without a rank,
    /// a dense feed-forward, plain residuals.
    pub fn to_hf(&self) -> Result<Value, ConfigError> {
        self.validate()?;
        let ids = self.layers.to_ids()?;
        let needed = |key, value: Option<usize>| {
            value.ok_or(ConfigError::NotInHf { key, value: "none".into(), right: "there it must be a number" })
        };
        let FfnConfig::Moe { experts, active, shared, width, route_scale, swiglu_limit, score } = self.ffn else {
            return Err(not_in_hf("ffn.kind", "dense", "there it is always a mixture of experts"));
        };
        let Residual::Hyper { streams } = self.residual else {
            return Err(not_in_hf("residual", "plain", "there it is always hyper-connections"));
        };
        Ok(json!({
            "num_hidden_layers": self.layers.len(),
            "compress_ratios": ids.compress_ratios,
            "kv_source_layer_ids": ids.kv_source_layer_ids,
            "index_source_layer_ids": ids.index_source_layer_ids,
            "candidate_source_layer_id": ids.candidate_source_layer_id,
            "candidate_topk_blocks": self.pool.map(|pool| pool.blocks),
            "candidate_block_size": self.pool.map(|pool| pool.block_size),
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
            "swiglu_limit": swiglu_limit,
            "scoring_func": score.name(),
            "norm_topk_prob": true,
            "gate_temp": 1.0,
            "hc_mult": streams,
            "hc_sinkhorn_iters": SINKHORN_ROUNDS,
            "hc_eps": HYPER_EPS,
        }))
    }
}

fn not_in_hf(key: &'static str, value: &str, right: &'static str) -> ConfigError {
    ConfigError::NotInHf { key, value: value.into(), right }
}

/// Keys whose only supported value is the released one; leaving them out means that value.
fn fixed_keys(keys: &mut Keys) -> Result<(), ConfigError> {
    keys.fixed("norm_topk_prob", &json!(true))?;
    keys.fixed("gate_temp", &json!(1.0))?;
    keys.fixed("hc_eps", &json!(HYPER_EPS))?;
    keys.fixed("hc_sinkhorn_iters", &json!(SINKHORN_ROUNDS))?;
    keys.fixed("hidden_act", &json!("silu"))?;
    keys.fixed("attention_bias", &json!(false))?;
    keys.fixed("attention_dropout", &json!(0.0))?;
    keys.fixed("num_key_value_heads", &json!(1))?;
    keys.fixed("tie_word_embeddings", &json!(false))
}

/// The gate's function; the released one where it is left out.
fn score(keys: &mut Keys) -> Result<ScoreFunction, ConfigError> {
    let all = [ScoreFunction::SqrtSoftplus, ScoreFunction::Sigmoid, ScoreFunction::Softmax];
    let Some(found) = keys.optional("scoring_func") else { return Ok(ScoreFunction::default()) };
    keys.ignore("scoring_func");
    let known = all.into_iter().find(|score| found == json!(score.name()));
    known.ok_or_else(|| keys.refuse("scoring_func", &found, "\"sqrtsoftplus\", \"sigmoid\" or \"softmax\""))
}

fn layers(keys: &mut Keys) -> Result<LayerPlan, ConfigError> {
    let count = keys.size("num_hidden_layers")?;
    let candidate = keys.optional("candidate_source_layer_id");
    let ids = IdLists {
        compress_ratios: keys.sizes("compress_ratios")?,
        kv_source_layer_ids: keys.sizes("kv_source_layer_ids")?,
        index_source_layer_ids: keys.sizes("index_source_layer_ids")?,
        candidate_source_layer_id: candidate.map(|_| keys.size("candidate_source_layer_id")).transpose()?,
    };
    if ids.compress_ratios.len() != count {
        let error = IdsError::Length { ratios: ids.compress_ratios.len(), layers: count };
        return Err(MixError::from(error).into());
    }
    Ok(LayerPlan::from_ids(&ids)?)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn text_config() -> Value {
        json!({
            "candidate_block_size": 4, "candidate_source_layer_id": 5, "candidate_topk_blocks": 3,
            "compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 1, 1], "gate_temp": 1.0, "hc_eps": 1e-06, "hc_mult": 4,
            "hc_sinkhorn_iters": 20, "head_dim": 32, "hidden_size": 32, "index_head_dim": 16, "index_n_heads": 4,
            "index_source_layer_ids": [2, 5, 7, 9], "index_topk": 8, "kv_source_layer_ids": [2, 5],
            "moe_intermediate_size": 16, "n_routed_experts": 4, "n_shared_experts": 1, "norm_topk_prob": true,
            "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 10, "o_groups": 2, "o_lora_rank": 8,
            "q_lora_rank": 16, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-20,
            "rope_parameters": {
                "compress": {
                    "attention_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0,
                    "original_max_position_embeddings": 32, "partial_rotary_factor": 0.25, "rope_theta": 160_000.0,
                    "rope_type": "yarn"
                },
                "main": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"}
            },
            "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "sliding_window": 8, "swiglu_limit": 10.0,
            "vocab_size": 96
        })
    }

    fn message(change: impl FnOnce(&mut Value)) -> String {
        let mut value = text_config();
        change(&mut value);
        ModelConfig::from_hf(&value).expect_err("must be refused").to_string()
    }

    fn remove(value: &mut Value, key: &str) {
        value.as_object_mut().unwrap().remove(key);
    }

    #[test]
    fn both_ways() {
        let config = ModelConfig::from_hf(&text_config()).unwrap();
        assert_eq!(config.layers.to_string(), "swa*2 full@2 reuse*2 full+pool (reuse reindex)*2");
        assert_eq!((config.norm_eps, config.window, config.topk, config.rope_dim), (1e-20, 8, 8, 8));
        assert_eq!(config.yarn.map(|yarn| (yarn.factor, yarn.original_length)), Some((16.0, 32)));
        assert_eq!(config.to_hf().unwrap(), text_config());
    }

    #[test]
    fn the_text_config_of_a_larger_file_is_taken() {
        let mut text = text_config();
        text["model_type"] = json!("deepseek_v41_text");
        text["max_position_embeddings"] = json!(1_048_576);
        let whole = json!({"architectures": ["X"], "vision_config": {}, "text_config": text});
        assert_eq!(ModelConfig::from_hf(&whole), ModelConfig::from_hf(&text_config()));
        let error = ModelConfig::from_hf(&json!({"text_config": 3})).unwrap_err().to_string();
        assert_eq!(error, "config.json has `text_config` = 3; it must be an object");
        assert!(ModelConfig::from_hf(&json!([])).unwrap_err().to_string().contains("the whole file"));
    }

    #[test]
    fn released_preset_comes_back_but_for_its_quantization() {
        let preset = ModelConfig::deepseek_v41_flash().unwrap();
        let back = ModelConfig::from_hf(&preset.to_hf().unwrap()).unwrap();
        assert_eq!(ModelConfig { quantization: preset.quantization, ..back }, preset);
    }

    #[test]
    fn without_a_pool_its_sizes_have_no_effect() {
        let mut value = text_config();
        value["candidate_source_layer_id"] = Value::Null;
        let config = ModelConfig::from_hf(&value).unwrap();
        assert_eq!(config.pool, None);
        assert_eq!(ModelConfig::from_hf(&config.to_hf().unwrap()), Ok(config));
    }

    #[test]
    fn without_yarn() {
        let mut value = text_config();
        value["rope_parameters"]["compress"] = json!({"rope_type": "default", "rope_theta": 160_000});
        let config = ModelConfig::from_hf(&value).unwrap();
        assert_eq!(config.yarn, None);
        assert_eq!(ModelConfig::from_hf(&config.to_hf().unwrap()), Ok(config));
    }

    #[test]
    fn unknown_keys_are_refused_by_name() {
        assert_eq!(
            message(|v| v["logit_softcap"] = json!(30.0)),
            "config.json has `logit_softcap` = 30.0, which is not known here and may change what the network computes; \
             remove it if it does not"
        );
        assert!(
            message(|v| v["rope_parameters"]["compress"]["mscale"] = json!(1.0))
                .contains("`rope_parameters.compress.mscale`")
        );
        assert!(message(|v| v["rope_parameters"]["third"] = json!({})).contains("`rope_parameters.third`"));
    }

    #[test]
    fn values_that_only_the_released_model_has() {
        assert_eq!(
            message(|v| v["scoring_func"] = json!("linear")),
            "config.json has `scoring_func` = \"linear\"; it must be \"sqrtsoftplus\", \"sigmoid\" or \"softmax\""
        );
        assert!(message(|v| v["hc_sinkhorn_iters"] = json!(5)).contains("it must be 20, all that is supported"));
        assert!(message(|v| v["tie_word_embeddings"] = json!(true)).contains("it must be false"));
        assert!(
            message(|v| v["rope_parameters"]["compress"]["rope_type"] = json!("linear"))
                .contains("it must be \"default\"")
        );
        assert!(
            message(|v| v["rope_parameters"]["main"]["partial_rotary_factor"] = json!(0.5)).contains("it must be 0.25")
        );
    }

    #[test]
    fn missing_keys_and_wrong_types() {
        assert_eq!(
            message(|v| remove(v, "o_groups")),
            "config.json has no `o_groups`; it is needed, as a whole number"
        );
        assert_eq!(
            message(|v| v["head_dim"] = json!(32.5)),
            "config.json has `head_dim` = 32.5; it must be a whole number"
        );
        assert_eq!(
            message(|v| v["compress_ratios"] = json!("0 2")),
            "config.json has `compress_ratios` = \"0 2\"; it must be a list of whole numbers"
        );
        assert!(
            message(|v| v["swiglu_limit"] = json!("ten")).contains("`swiglu_limit` = \"ten\"; it must be a number")
        );
    }

    #[test]
    fn contradictions_are_named() {
        assert_eq!(
            message(|v| v["num_hidden_layers"] = json!(11)),
            "`compress_ratios` has 10 entries but there are 11 layers; it must hold one ratio per layer"
        );
        assert!(
            message(|v| v["index_source_layer_ids"] = json!([2, 7, 9]))
                .starts_with("layer 5 is in `kv_source_layer_ids` but not")
        );
        assert!(message(|v| v["sliding_window"] = json!(0)).contains("`window = 0`"));
        assert!(message(|v| v["head_dim"] = json!(0)).starts_with("`head_dim = 0`"));
    }

    #[test]
    fn what_has_no_hugging_face_form() {
        let message = |change: fn(&mut ModelConfig)| {
            let mut config = ModelConfig::from_hf(&text_config()).unwrap();
            change(&mut config);
            config.to_hf().expect_err("must be refused").to_string()
        };
        assert_eq!(
            message(|c| c.residual = Residual::Plain),
            "`residual` = plain has no Hugging Face form: there it is always hyper-connections"
        );
        assert!(message(|c| c.ffn = FfnConfig::Dense { width: 8 }).contains("always a mixture of experts"));
        assert!(message(|c| c.query_rank = None).contains("`query_rank` = none"));
        assert!(message(|c| (c.output_groups, c.output_rank) = (1, None)).contains("`output_rank` = none"));
        assert!(message(|c| c.vocab_size = None).contains("`vocab_size` = none"));
        assert!(message(|c| (c.layers, c.pool) = ("dense".parse().unwrap(), None)).contains("no id-list form"));
    }
}
