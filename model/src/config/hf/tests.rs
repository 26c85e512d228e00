//! The form both ways, and what is refused.

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
    let mut written = text_config();
    written["topk_method"] = json!("noaux_tc");
    written["engram_layer_ids"] = json!([]);
    written["num_nextn_predict_layers"] = json!(0);
    written["csa2"] = json!({"quantization": {"main_kv": "none", "index": "none", "window": "none"}, "sink_init": 0.0});
    assert_eq!(config.to_hf().unwrap(), written);
    let file = config.to_hf_file().unwrap();
    assert_eq!(file["text_config"]["model_type"], "deepseek_v41_text");
    assert_eq!((&file["model_type"], &file["dtype"]), (&json!("deepseek_v41"), &json!("float32")));
    assert_eq!(ModelConfig::from_hf(&file), Ok(config));
}

#[test]
fn the_text_config_of_a_larger_file_is_taken() {
    let mut text = text_config();
    text["model_type"] = json!("deepseek_v41_text");
    text["max_position_embeddings"] = json!(1_048_576);
    let whole = json!({"architectures": ["X"], "vision_config": null, "text_config": text});
    assert_eq!(ModelConfig::from_hf(&whole), ModelConfig::from_hf(&text_config()));
    let error = ModelConfig::from_hf(&json!({"text_config": 3})).unwrap_err().to_string();
    assert_eq!(error, "config.json has `text_config` = 3; it must be an object");
    assert!(ModelConfig::from_hf(&json!([])).unwrap_err().to_string().contains("the whole file"));
}

/// The released `config.json`, as it is published, but for sizes of its vision tower and of parts that have none here.
fn released() -> Value {
    serde_json::from_str(include_str!("released.json")).unwrap()
}

#[test]
fn the_released_file_is_the_preset() {
    let read = HfConfig::read(&released(), true).unwrap();
    let preset = ModelConfig::deepseek_v41_flash().unwrap();
    assert_eq!(read.model, ModelConfig { quantization: QuantizationConfig::default(), ..preset.clone() });
    assert_eq!((read.weight_block, read.says_quantization), (Some([32, 32]), false));
    let parts: Vec<(Part, &str)> = read.unsupported.iter().map(|(part, key)| (*part, key.as_str())).collect();
    let expected = [
        (Part::NgramMemory, "`engram_layer_ids` = [1,14]"),
        (Part::Vision, "`vision_config`"),
        (Part::Draft, "`num_nextn_predict_layers` = 3"),
    ];
    assert_eq!(parts, expected);
    // What csa2 writes says how cached vectors are quantized.
    let back = HfConfig::read(&preset.to_hf_file().unwrap(), false).unwrap();
    assert_eq!((back.model, back.says_quantization, back.unsupported.len()), (preset, true, 0));
}

#[test]
fn parts_that_csa2_does_not_have_are_named() {
    let refused = |change: fn(&mut Value)| {
        let mut file = released();
        change(&mut file);
        HfConfig::read(&file, false).map(|read| read.unsupported).map_err(|error| error.to_string())
    };
    let message = refused(|_| ()).unwrap_err();
    assert_eq!(
        message,
        "config.json asks for what csa2 does not have: n-gram memory (`engram_layer_ids` = [1,14]), vision \
         (`vision_config`), draft layers (`num_nextn_predict_layers` = 3); `csa2 import --skip-unsupported` leaves it out"
    );
    // Without their layers the parts are not there, whatever their sizes; a vision tower beside the text model is one.
    let without = |file: &mut Value| {
        file["text_config"]["engram_layer_ids"] = json!([]);
        file["text_config"]["num_nextn_predict_layers"] = json!(0);
        file["text_config"]["compress_ratios"] =
            released()["text_config"]["compress_ratios"].as_array().unwrap()[..40].into();
    };
    let mut file = released();
    without(&mut file);
    let parts: Vec<Part> = HfConfig::read(&file, true).unwrap().unsupported.into_keys().collect();
    assert_eq!(parts, [Part::Vision]);
    let message = HfConfig::read(&file, false).unwrap_err().to_string();
    assert!(message.contains("csa2 does not have: vision (`vision_config`); "), "{message}");
    file["vision_config"] = Value::Null;
    assert_eq!(HfConfig::read(&file, false).unwrap().unsupported.len(), 0);
    // Only in a file of the text model alone do keys of images stand beside the model's own.
    assert!(self::message(|v| v["vision_config"] = json!({})).contains("vision (`vision_config` = {})"));
    assert!(self::message(|v| v["dspark_block_size"] = json!(5)).contains("draft layers (`dspark_block_size` = 5)"));
    assert!(self::message(|v| v["engram_n_heads"] = json!(8)).contains("n-gram memory (`engram_n_heads` = 8)"));
    assert!(self::message(|v| v["engram_layer_ids"] = json!(3)).contains("it must be a list of whole numbers"));
    assert!(self::message(|v| v["num_nextn_predict_layers"] = json!(-1)).contains("it must be a whole number"));
}

#[test]
fn ratios_of_draft_layers_may_follow() {
    let read = |ratios: Value, drafts: usize| {
        let mut text = text_config();
        text["compress_ratios"] = ratios;
        text["num_nextn_predict_layers"] = json!(drafts);
        HfConfig::read(&text, true).map(|read| read.model.layers.len()).map_err(|error| error.to_string())
    };
    assert_eq!(read(json!([0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0]), 2), Ok(10));
    assert_eq!(read(json!([0, 0, 2, 2, 2, 1, 1, 1, 1, 1]), 2), Ok(10));
    for (ratios, drafts) in [
        (json!([0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0, 1]), 2),
        (json!([0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0]), 1),
        (json!([0, 0, 2, 2, 2, 1, 1, 1, 1]), 2),
    ] {
        assert!(read(ratios, drafts).unwrap_err().contains("it must hold one ratio per layer"));
    }
}

#[test]
fn what_the_form_cannot_say_stands_under_a_key_of_its_own() {
    let mut config = ModelConfig::from_hf(&text_config()).unwrap();
    config.sink_init = -2.5;
    config.quantization.window = crate::config::QuantFormat::Fp8;
    assert_eq!(ModelConfig::from_hf(&config.to_hf().unwrap()), Ok(config));
    assert!(message(|v| v["csa2"] = json!({"sink_init": 0.0})).contains("missing field `quantization`"));
    assert!(
        message(|v| v["csa2"] = json!({"sink_init": 0, "quantization": {}, "pool": 1}))
            .contains("unknown field `pool`")
    );
    assert!(message(|v| v["csa2"] = json!(3)).contains("`csa2` = 3; it must be what csa2 writes"));
}

#[test]
fn the_two_forms_of_positions_must_agree() {
    let flat = |v: &mut Value| {
        v["rope_theta"] = json!(10000.0);
        v["compress_rope_theta"] = json!(160_000);
        v["rope_scaling"] = json!({
            "rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 32
        });
    };
    let mut both = text_config();
    flat(&mut both);
    let expected = ModelConfig::from_hf(&text_config());
    assert_eq!(ModelConfig::from_hf(&both), expected);
    remove(&mut both, "rope_parameters");
    assert_eq!(ModelConfig::from_hf(&both), expected);
    both["rope_scaling"] = Value::Null;
    assert_eq!(ModelConfig::from_hf(&both).map(|config| config.yarn), Ok(None));
    remove(&mut both, "compress_rope_theta");
    assert!(ModelConfig::from_hf(&both).unwrap_err().to_string().contains("no `compress_rope_theta`"));
    assert!(message(|v| v["rope_theta"] = json!(20000)).contains("`rope_theta` = 20000; it must be 10000.0"));
    assert!(
        message(|v| v["rope_scaling"] = json!({"rope_type": "default"}))
            .contains("what `rope_parameters.compress` says")
    );
    assert!(message(|v| remove(v, "rope_parameters")).contains("config.json has no `rope_parameters`"));
}

#[test]
fn blocks_of_quantized_matrices_are_two_sizes() {
    let read = |block: Value| {
        let mut text = text_config();
        text["quantization_config"] = json!({"weight_block_size": block});
        HfConfig::read(&text, false).map(|read| read.weight_block).map_err(|error| error.to_string())
    };
    assert_eq!((read(json!([128, 64])), read(Value::Null)), (Ok(Some([128, 64])), Ok(None)));
    for wrong in [json!([0, 32]), json!([32]), json!(32), json!([32, -1]), json!([32.5, 32])] {
        assert!(read(wrong).unwrap_err().contains("it must be two sizes of 1 or more"));
    }
}

#[test]
fn other_ways_of_storing_weights_are_refused() {
    let read = |key: &str, value: Value| {
        let mut file = released();
        file["quantization_config"][key] = value;
        HfConfig::read(&file, true).map(|read| read.weight_block).map_err(|error| error.to_string())
    };
    assert_eq!(read("expert_dtype", json!("fp4")), Ok(Some([32, 32])));
    for (key, value, part) in [
        ("novel", json!(7), "`quantization_config.novel` = 7, which is not known here"),
        ("quant_method", json!("gptq"), "`quantization_config.quant_method` = \"gptq\"; it must be \"fp8\""),
        ("scale_fmt", json!("float"), "it must be \"ue8m0\""),
        ("expert_dtype", json!("fp8"), "it must be \"fp4\""),
    ] {
        let message = read(key, value).unwrap_err();
        assert!(message.contains(part), "{key}: {message}");
    }
}

#[test]
fn without_a_pool_its_sizes_have_no_effect() {
    let mut value = text_config();
    value["candidate_source_layer_id"] = json!(-1);
    let config = ModelConfig::from_hf(&value).unwrap();
    assert_eq!(config.pool, None);
    let written = config.to_hf().unwrap();
    assert_eq!((&written["candidate_source_layer_id"], written.get("candidate_topk_blocks")), (&json!(-1), None));
    assert_eq!(ModelConfig::from_hf(&written), Ok(config));
    // Its absence is no statement, but where there is nothing to build a pool on.
    for change in [
        |v: &mut Value| v["candidate_source_layer_id"] = Value::Null,
        |v: &mut Value| {
            remove(v, "candidate_source_layer_id");
        },
    ] {
        assert!(message(change).contains("no `candidate_source_layer_id`; it is needed, as the number of the layer"));
    }
    value["compress_ratios"] = json!(vec![0; 10]);
    value["kv_source_layer_ids"] = json!([]);
    value["index_source_layer_ids"] = json!([]);
    remove(&mut value, "candidate_source_layer_id");
    assert_eq!(ModelConfig::from_hf(&value).unwrap().layers.to_string(), "swa*10");
}

#[test]
fn no_limit_of_activations_is_0() {
    let mut config = ModelConfig::from_hf(&text_config()).unwrap();
    let FfnConfig::Moe { swiglu_limit, .. } = &mut config.ffn else { panic!("a mixture of experts") };
    *swiglu_limit = None;
    let written = config.to_hf().unwrap();
    assert_eq!(written["swiglu_limit"], json!(0.0));
    assert_eq!(ModelConfig::from_hf(&written), Ok(config));
}

#[test]
fn layer_types_must_name_the_sources() {
    let types = |sources: &[usize]| {
        let name = |layer| if sources.contains(&layer) { "shared_compressed_attention" } else { "sliding_attention" };
        json!((0..10).map(name).collect::<Vec<_>>())
    };
    let mut value = text_config();
    value["layer_types"] = types(&[2, 5]);
    assert_eq!(ModelConfig::from_hf(&value), ModelConfig::from_hf(&text_config()));
    assert!(message(|v| v["layer_types"] = types(&[2])).contains("`layer_types` = "));
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
    let outside = |key: &str, value: Value| {
        let mut whole = ModelConfig::deepseek_v41_flash().unwrap().to_hf_file().unwrap();
        whole[key] = value;
        ModelConfig::from_hf(&whole).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(outside("transformers_version", json!("5")), Ok(()));
    for (key, value, expected) in [
        ("tie_word_embeddings", json!(true), "`tie_word_embeddings"),
        ("model_type", json!("llama"), "`model_type"),
        ("bar", json!(1), "`bar"),
    ] {
        let error = outside(key, value).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert!(
        message(|v| v["rope_parameters"]["compress"]["rope_type"] = json!("linear")).contains("it must be \"default\"")
    );
    assert!(
        message(|v| v["rope_parameters"]["main"]["partial_rotary_factor"] = json!(0.5)).contains("it must be 0.25")
    );
}

#[test]
fn missing_keys_and_wrong_types() {
    assert_eq!(message(|v| remove(v, "o_groups")), "config.json has no `o_groups`; it is needed, as a whole number");
    assert_eq!(
        message(|v| v["head_dim"] = json!(32.5)),
        "config.json has `head_dim` = 32.5; it must be a whole number"
    );
    assert_eq!(
        message(|v| v["compress_ratios"] = json!("0 2")),
        "config.json has `compress_ratios` = \"0 2\"; it must be a list of whole numbers"
    );
    assert!(message(|v| v["swiglu_limit"] = json!("ten")).contains("`swiglu_limit` = \"ten\"; it must be a number"));
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
    let two = |c: &mut ModelConfig| {
        let FfnConfig::Moe { shared, .. } = &mut c.ffn else { panic!("a mixture of experts") };
        *shared = 2;
    };
    assert!(message(two).contains("`ffn.shared` = 2 has no Hugging Face form: there it is always 1"));
    assert!(message(|c| c.values = Values::Unrotated).contains("`values` = unrotated has no Hugging Face form"));
    assert!(message(|c| c.query_rank = None).contains("`query_rank` = none"));
    assert!(message(|c| (c.output_groups, c.output_rank) = (1, None)).contains("`output_rank` = none"));
    assert!(message(|c| c.vocab_size = None).contains("`vocab_size` = none"));
    assert!(message(|c| (c.layers, c.pool) = ("dense".parse().unwrap(), None)).contains("no id-list form"));
}
