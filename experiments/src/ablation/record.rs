//! From a configuration to what `ablation.json` says of it.

use std::collections::BTreeMap;

use csa2_train::config::TrainConfig;
use csa2_train::tasks::{Metric, Task};
use csa2_train::trainable::Trainable;

use super::{AblationConfig, Variant, searched};
use crate::results::{AblationRecord, CostRecord, MetricRecord, SCHEMA, VariantRecord};

/// What the report needs to know of the ablation. `hashes` are those of the variants, in their order.
pub fn record(config: &AblationConfig, hashes: &[String], command: String) -> AblationRecord {
    let first = &config.variants[0];
    let section = &config.section;
    let mut notes = Vec::new();
    let tasks: std::collections::BTreeSet<String> = config.variants.iter().map(|v| v.task.describe()).collect();
    if tasks.len() > 1 {
        notes.push(format!(
            "The variants differ in their task: {}.",
            tasks.iter().cloned().collect::<Vec<_>>().join("; ")
        ));
    }
    if config.variants.iter().any(|variant| variant.run.train.dense > 0.0) {
        notes.push("In the dense phase at the start of training every visible entry is attended; the final values are measured after it, with addresses chosen by the indexer.".into());
    }
    for variant in &config.variants {
        if let Some(from) = &variant.from {
            let tokens = variant.run.train.tokens;
            notes.push(format!(
                "\"{}\" starts from the weights of \"{from}\" with the same seed and trains {tokens} tokens more.",
                variant.name
            ));
        }
    }
    notes.extend(config.variants.iter().flat_map(|variant| otherwise(&variant.name, &variant.run.train)));
    notes.extend(config.variants.iter().filter_map(pointless_pool));
    AblationRecord {
        schema: SCHEMA,
        name: section.name.clone(),
        title: section.title.clone().unwrap_or_else(|| section.name.clone()),
        question: section.question.clone(),
        task: first.task.describe(),
        baseline: config.baseline().into(),
        variants: config
            .variants
            .iter()
            .zip(hashes)
            .map(|(v, hash)| VariantRecord {
                // Of an ablation that measures its weights in one model alone there is nothing to compare.
                searches: if config.evaluations.is_empty() {
                    BTreeMap::new()
                } else {
                    searched::of_variant(v, section.decode_context)
                },
                ..variant_record(v, hash, section.decode_context)
            })
            .collect(),
        seeds: section.seeds.clone(),
        budget_tokens: first.run.train.tokens,
        metric: metric(&*first.task),
        evaluations: config.evaluations.clone(),
        command: Some(command),
        notes,
    }
}

/// A remark on a pool in which no layer searches: that is legal and changes nothing.
pub fn pointless_pool(variant: &Variant) -> Option<String> {
    let layers = &variant.run.model.layers;
    let searched = layers.layers().iter().any(|layer| layer.pool_from.is_some());
    (layers.has_pool() && !searched).then(|| {
        format!(
            "\"{}\": the candidate pool of `{layers}` changes nothing, for no `reindex` layer reads the content of its `full` layer.",
            variant.name
        )
    })
}

/// How a task is judged, for the report.
pub fn metric(task: &dyn Task) -> MetricRecord {
    let metric = task.metric();
    let plain = match metric {
        Metric::Accuracy => "accuracy",
        Metric::BitsPerByte => "bits per byte",
    };
    let (name, label) = match task.metric_tag() {
        Some(tag) => (format!("{}/{tag}", metric.name()), format!("{plain}, {tag}")),
        None => (metric.name().to_string(), plain.to_string()),
    };
    MetricRecord { name, label, higher_is_better: metric.higher_is_better() }
}

fn variant_record(variant: &Variant, hash: &str, decode_context: u64) -> VariantRecord {
    let cost = &variant.cost;
    VariantRecord {
        name: variant.name.clone(),
        layers: variant.run.model.layers.to_string(),
        note: variant.note.clone(),
        overrides: variant.overrides.clone(),
        config_hash: hash.into(),
        cost: CostRecord {
            parameters: u64::try_from(cost.parameters().total()).unwrap_or(u64::MAX),
            bytes_per_token: cost.bytes_per_token().total.to_f64(),
            window_bytes: u64::try_from(cost.window_bytes()).unwrap_or(u64::MAX),
            decode_context,
            decode_flops: cost.decode_flops(decode_context).weighted(),
        },
        searches: BTreeMap::new(),
    }
}

/// What a variant trains otherwise than all of it, as it is measured.
fn otherwise(name: &str, train: &TrainConfig) -> Vec<String> {
    let part = match train.trainable {
        Trainable::Everything => None,
        Trainable::Attention => Some("attention layers with their indexers"),
        Trainable::Indexers => Some("indexers"),
    };
    let part = part.map(|part| format!("\"{name}\" trains its {part} alone."));
    let pool = train.pool_from.map(|start| {
        format!(
            "The pool of \"{name}\" starts with {} blocks and shrinks to its size over a share of {} of the steps; the learning curve measures it as \
             large as it is then.",
            start.blocks, start.until
        )
    });
    let formats = (train.quantize_from > 0)
        .then(|| format!("\"{name}\" computes with its number formats from step {} on.", train.quantize_from));
    part.into_iter().chain(pool).chain(formats).collect()
}
