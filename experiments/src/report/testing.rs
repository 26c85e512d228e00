//! Small ablations for the tests of the report.

use std::collections::BTreeMap;

use super::{Ablation, Run, RunState, Variant};
use crate::results::{
    AblationRecord, CostRecord, MetricLine, MetricRecord, Phase, RunSummary, SCHEMA, Split, Status, VariantRecord,
};

/// A variant to be made up.
pub struct Fake {
    name: String,
    bytes_per_token: f64,
    finals: Vec<f64>,
}

impl Fake {
    /// A variant whose seeds 1, 2, … end at `finals`.
    pub fn new(name: &str, bytes_per_token: f64, finals: &[f64]) -> Self {
        Self { name: name.to_owned(), bytes_per_token, finals: finals.to_vec() }
    }
}

/// An ablation over `fakes`, ranked by accuracy against the first; a seed that a variant lacks has not started.
pub fn ablation(fakes: &[Fake]) -> Ablation {
    let count = fakes.iter().map(|fake| fake.finals.len()).max().unwrap_or(0).max(1);
    let seeds: Vec<u64> = (1..=count as u64).collect();
    let variants: Vec<Variant> = fakes.iter().map(|fake| variant(fake, &seeds)).collect();
    let record = AblationRecord {
        schema: SCHEMA,
        name: "fake".to_owned(),
        title: "A fake ablation".to_owned(),
        question: Some("Does it work?".to_owned()),
        task: "mqar, 48 tokens".to_owned(),
        baseline: fakes.first().map(|fake| fake.name.clone()).unwrap_or_default(),
        variants: variants.iter().map(|variant| variant.record.clone()).collect(),
        seeds,
        budget_tokens: 1000,
        metric: MetricRecord { name: "accuracy".to_owned(), label: "accuracy".to_owned(), higher_is_better: true },
        evaluations: Vec::new(),
        command: Some("csa2 ablate configs/fake.toml".to_owned()),
        notes: Vec::new(),
    };
    Ablation { record, variants, strays: Vec::new() }
}

fn variant(fake: &Fake, seeds: &[u64]) -> Variant {
    let record = VariantRecord {
        name: fake.name.clone(),
        layers: "swa full reuse*2".to_owned(),
        note: None,
        config_hash: "abc".to_owned(),
        overrides: BTreeMap::from([("model.layers".to_owned(), "swa full reuse*2".to_owned())]),
        cost: CostRecord {
            parameters: 184_960,
            bytes_per_token: fake.bytes_per_token,
            window_bytes: 1024,
            decode_context: 4096,
            decode_flops: 370_000.0,
        },
        searches: BTreeMap::new(),
    };
    let runs = seeds.iter().enumerate().map(|(index, seed)| run(fake, *seed, fake.finals.get(index))).collect();
    Variant { record, runs }
}

fn run(fake: &Fake, seed: u64, end: Option<&f64>) -> Run {
    let Some(end) = end else {
        return Run { seed, state: RunState::NotStarted, lines: Vec::new() };
    };
    let values = |part: f64| {
        let near = ("accuracy/distance 8-15".to_owned(), end * part);
        let far = ("accuracy/distance 16-31".to_owned(), end * part * 0.9);
        let kl = ("index_kl/layer 1".to_owned(), 1.0 / (1.0 + part));
        BTreeMap::from([("accuracy".to_owned(), end * part), near, far, kl])
    };
    let lines = (1..=4_u64)
        .map(|step| MetricLine {
            step,
            tokens: step * 250,
            split: Split::Validation,
            phase: if step == 1 { Phase::Dense } else { Phase::Sparse },
            values: values(step as f64 / 4.0),
        })
        .collect();
    let summary = RunSummary {
        schema: SCHEMA,
        variant: fake.name.clone(),
        seed,
        config_hash: "abc".to_owned(),
        status: Status::Finished,
        failure: None,
        steps: 4,
        tokens: 1000,
        final_values: values(1.0),
        evaluations: BTreeMap::new(),
        seconds: 2.0,
        tokens_per_second: 500.0,
        backend: "flex".to_owned(),
        threads: 1,
        version: "0.1.0".to_owned(),
    };
    Run { seed, state: RunState::Finished(Box::new(summary)), lines }
}
