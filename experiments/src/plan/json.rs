//! The plan for programs.

use csa2_model::cost::{BytesPerToken, DecodeFlops, Parameters, Ratio};
use csa2_model::mix::Mode;
use serde_json::{Map, Value, json};

use super::PlanView;

pub(super) fn render(view: &PlanView) -> Value {
    let plan = &view.config.layers;
    let modes: Map<String, Value> =
        Mode::ALL.into_iter().map(|mode| (mode.to_string(), json!(plan.count(mode)))).collect();
    json!({
        "name": view.name,
        "mix": plan.to_string(),
        "layers": plan.layers(),
        "modes": modes,
        "decoder_start": plan.decoder_start(),
        "replay_exact_from": csa2_infer::decoder(&view.config).ok().map(|layers| csa2_infer::exact_replay(&view.config, &layers)),
        "pool": view.config.pool,
        "parameters": parameters(view.cost.parameters()),
        "active_parameters": parameters(view.cost.active_parameters()),
        "bytes_per_token": bytes(view.cost.bytes_per_token()),
        "window_bytes": whole(view.cost.window_bytes()),
        "decode_flops": decode(view),
    })
}

fn parameters(parameters: &Parameters) -> Value {
    let parts = parameters.parts().into_iter().map(|(name, count)| (key(name), whole(count)));
    let total = ("total".to_owned(), whole(parameters.total()));
    Value::Object(parts.chain([total]).collect())
}

fn bytes(bytes: &BytesPerToken) -> Value {
    json!({
        "main_kv": ratio(bytes.main_kv),
        "index_key": ratio(bytes.index_key),
        "dense": ratio(bytes.dense),
        "total": ratio(bytes.total),
    })
}

/// The rounded value, and the two numbers that give it exactly.
fn ratio(ratio: Ratio) -> Value {
    json!({
        "value": ratio.to_f64(),
        "numerator": whole(ratio.numerator()),
        "denominator": whole(ratio.denominator()),
    })
}

fn decode(view: &PlanView) -> Value {
    let weights: Map<String, Value> = (view.decode.first().map(DecodeFlops::parts).into_iter().flatten())
        .map(|(name, format, _)| (key(name), json!({"format": format.name(), "weight": format.weight()})))
        .collect();
    let contexts: Vec<Value> = view.decode.iter().map(at_context).collect();
    let growth = view.growth().map(|(weighted, unweighted)| json!({"weighted": weighted, "unweighted": unweighted}));
    json!({"weights": weights, "contexts": contexts, "growth": growth})
}

fn at_context(flops: &DecodeFlops) -> Value {
    let mut values: Map<String, Value> =
        flops.parts().into_iter().map(|(name, _, flops)| (key(name), json!(flops))).collect();
    values.insert("context".into(), json!(flops.context));
    values.insert("weighted".into(), json!(flops.weighted()));
    values.insert("unweighted".into(), json!(flops.unweighted()));
    Value::Object(values)
}

/// A whole number; one beyond 64 bits as the nearest float, since JSON readers hold no more.
fn whole(number: u128) -> Value {
    u64::try_from(number).map_or_else(|_| json!(number as f64), |number| json!(number))
}

/// A part's name as a key: `window KV` is `window_kv`.
fn key(name: &str) -> String {
    name.to_lowercase().replace([' ', '-'], "_")
}

#[cfg(test)]
mod tests {
    use csa2_model::config::ModelConfig;

    use super::*;
    use crate::plan::render_json;

    #[test]
    fn released_layout() {
        let value = render_json("released", &ModelConfig::deepseek_v41_flash().unwrap()).unwrap();
        assert_eq!(value["name"], "released");
        assert_eq!(value["modes"], json!({"swa": 2, "full": 4, "reindex": 4, "reuse": 30, "stale": 0, "dense": 0}));
        assert_eq!(
            value["layers"][28],
            json!({
                "index": 28, "mode": "reindex", "ratio": 1, "builds_pool": false,
                "content_from": 20, "address_from": 28, "pool_from": 20
            })
        );
        assert_eq!(value["bytes_per_token"]["total"], json!({"value": 890.0, "numerator": 890, "denominator": 1}));
        assert_eq!(value["pool"], json!({"blocks": 2048, "block_size": 8}));
        // Twenty windows of 128 tokens, one above the other.
        assert_eq!(value["replay_exact_from"], 1 + 20 * 127);
        assert_eq!(value["decode_flops"]["weights"]["index_scoring"], json!({"format": "FP4", "weight": 0.25}));
        assert_eq!(value["decode_flops"]["contexts"][4]["context"], 1 << 20);
        assert!(
            value["decode_flops"]["growth"]["weighted"].as_f64().is_some_and(|growth| (growth - 1.28).abs() < 0.01)
        );
    }

    #[test]
    fn keys_are_stable() {
        let value = render_json("small", &ModelConfig::small().unwrap()).unwrap();
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(
            keys(&value),
            "active_parameters bytes_per_token decode_flops decoder_start layers mix modes name parameters pool replay_exact_from window_bytes"
        );
        assert_eq!(
            keys(&value["parameters"]),
            "compressor embedding feed_forward head hyper_connections indexer norms output query router sink total window_kv"
        );
        assert_eq!(
            keys(&value["decode_flops"]["contexts"][0]),
            "context experts head index_scoring projections read_out unweighted weighted"
        );
        assert_eq!(value["pool"], Value::Null);
    }

    #[test]
    fn numbers_beyond_64_bits_become_floats() {
        assert_eq!(whole(u128::from(u64::MAX)), json!(u64::MAX));
        assert_eq!(whole(1 << 70), json!((1_u128 << 70) as f64));
    }
}
