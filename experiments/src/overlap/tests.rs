//! Overlaps of runs made by hand.

use std::collections::{BTreeMap, BTreeSet};

use csa2_model::attention::Trace;
use csa2_model::checkpoint::{self, Weight};
use csa2_model::model::Model;
use csa2_train::tasks::Batch;
use tempfile::TempDir;

use super::*;
use crate::subject::testing::{config, random_weights, save};

fn options(folder: &TempDir) -> Options {
    Options {
        run: folder.path().join("run"),
        task: None,
        out: folder.path().join("out"),
        sequences: None,
        batch: 5,
        seed: 0,
        threads: 1,
        backend: "flex",
        device: Device::flex(),
        command: "csa2 overlap".into(),
    }
}

fn measured(mix: &str, weights: &BTreeMap<String, Weight>) -> Overlap {
    let folder = tempfile::tempdir().unwrap();
    save(&folder.path().join("run"), &config(mix), weights);
    measure(&options(&folder), &AtomicBool::new(false)).unwrap()
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
}

/// A layer's attention on its visible entries at position `t` of sequence `row`, summed over heads, by plain loops: one softmax
/// over window, entries and sink.
fn mass(trace: &Trace, sink: &[f32], ratio: usize, window: usize, row: usize, t: usize) -> Vec<f64> {
    let [_, seq, heads, dim] = trace.q.dims();
    let read = |data: burn::tensor::TensorData| -> Vec<f64> { data.iter::<f32>().map(f64::from).collect() };
    let q = read(trace.q.to_data());
    let local = read(trace.window.to_data());
    let content = trace.content.as_ref().unwrap();
    let (main, entries) = (read(content.main.to_data()), content.main.dims()[1]);
    let visible = (t + 1) / ratio;
    let mut sum = vec![0.0; visible];
    for (head, &sink) in sink.iter().enumerate() {
        let query = &q[((row * seq + t) * heads + head) * dim..][..dim];
        let logit = |latent: &[f64]| {
            let product: f64 = query.iter().zip(latent).map(|(a, b)| a * b).sum();
            (product / (dim as f64).sqrt()).exp()
        };
        let near = (t + 1).saturating_sub(window)..=t;
        let beside: f64 = near.map(|at| logit(&local[(row * seq + at) * dim..][..dim])).sum();
        let weights: Vec<f64> = (0..visible).map(|e| logit(&main[(row * entries + e) * dim..][..dim])).collect();
        let total = f64::from(sink).exp() + beside + weights.iter().sum::<f64>();
        sum.iter_mut().zip(&weights).for_each(|(sum, weight)| *sum += weight / total);
    }
    sum
}

#[test]
fn matrices_are_those_of_plain_loops() {
    let mix = "full@2 reuse reindex full swa reindex";
    let (run, ratios) = (config(mix), [2, 2, 1, 1]);
    let weights = random_weights(&run.model, 3);
    let overlap = measured(mix, &weights);
    let selecting = [0_usize, 2, 3, 5];
    assert_eq!(overlap.layers.iter().map(|layer| layer.layer).collect::<Vec<_>>(), selecting);
    assert_eq!(
        overlap.layers.iter().map(Selecting::name).collect::<Vec<_>>(),
        ["0 full@2", "2 reindex@2", "3 full", "5 reindex"]
    );
    assert_eq!((overlap.sequences, overlap.evaluation_sequences), (12, 12));

    let device = Device::flex();
    let task = run.task.build(Path::new(".")).unwrap();
    let batch: Batch = task.eval_batch(0, 12);
    let model = checkpoint::load(Model::new(&run.model, None, &device).unwrap(), weights.clone(), "by hand").unwrap();
    let cx = Context::new(&run.model, batch.len, DType::F32, &device).with_trace(true);
    let traces = model.forward(tokens(&batch, &device), &cx).traces;
    let chosen: Vec<Vec<i32>> =
        selecting.map(|layer| traces[layer].attn.topk.to_data().iter::<i32>().collect()).to_vec();
    // Tokens that the selection of a layer stands for.
    let stands_for = |place: usize, row: usize, t: usize| -> BTreeSet<usize> {
        let (width, ratio) = (chosen[place].len() / (batch.rows * batch.len), ratios[place]);
        let entries = &chosen[place][(row * batch.len + t) * width..][..width];
        let entries = entries.iter().filter(|&&entry| entry >= 0).map(|&entry| entry as usize);
        entries.flat_map(|entry| entry * ratio..(entry + 1) * ratio).collect()
    };
    for i in 0..4 {
        let sink = &weights[&format!("layers.{}.attn.attn_sink", selecting[i])].values;
        for j in 0..4 {
            for choosing in [false, true] {
                let (mut iou, mut share, mut queries) = (0.0, 0.0, 0.0);
                for row in 0..batch.rows {
                    for t in 0..batch.len {
                        let least = if choosing { run.model.topk } else { 0 };
                        if [i, j].iter().any(|&place| (t + 1) / ratios[place] <= least) {
                            continue;
                        }
                        let (a, b) = (stands_for(i, row, t), stands_for(j, row, t));
                        iou += a.intersection(&b).count() as f64 / a.union(&b).count() as f64;
                        let mass = mass(&traces[selecting[i]].attn, sink, ratios[i], run.model.window, row, t);
                        let on = mass.iter().enumerate().flat_map(|(entry, mass)| {
                            let tokens = entry * ratios[i]..(entry + 1) * ratios[i];
                            let (b, each) = (&b, mass / ratios[i] as f64);
                            tokens.filter(move |token| b.contains(token)).map(move |_| each)
                        });
                        share += on.sum::<f64>() / mass.iter().sum::<f64>();
                        queries += 1.0;
                    }
                }
                let pair = overlap.pair(i, j);
                let common = if choosing { pair.choosing } else { pair.all }.unwrap();
                close(common.queries as f64 * 12.0, queries);
                close(common.iou.mean, iou / queries);
                close(common.mass.mean, share / queries);
                assert_eq!(common.iou.chance.is_some(), ratios[i] == ratios[j]);
                close(common.iou.mean, if i == j { 1.0 } else { common.iou.mean });
            }
        }
    }
    // Random weights select neither the same nor nothing in common.
    let found = overlap.pair(2, 3).choosing.unwrap().iou;
    assert!(found.mean > 0.05 && found.mean < 0.95 && found.half_width.unwrap() > 0.0, "{found:?}");
    assert_eq!(overlap.csv().lines().count(), 1 + 16 * 4);
}

/// Lets layer `layer` hand its input on as it is.
fn silent(weights: &mut BTreeMap<String, Weight>, layer: usize) {
    for name in ["attn.wo_b.weight", "ffn.w2.weight"] {
        weights.get_mut(&format!("layers.{layer}.{name}")).unwrap().values.fill(0.0);
    }
}

fn copy(weights: &mut BTreeMap<String, Weight>, name: &str, from: usize, to: usize) {
    let value = weights[&format!("layers.{from}.{name}")].clone();
    weights.insert(format!("layers.{to}.{name}"), value);
}

#[test]
fn a_layer_with_the_indexer_and_input_of_another_selects_the_same() {
    let mix = "full reindex reindex";
    let mut weights = random_weights(&config(mix).model, 5);
    // All three layers see the same input. The second asks for entries as the first does, the third on its own; the third
    // attends as the first.
    silent(&mut weights, 0);
    silent(&mut weights, 1);
    for name in ["attn_norm.weight", "attn.indexer.wq_b.weight", "attn.indexer.weights_proj.weight"] {
        copy(&mut weights, name, 0, 1);
    }
    for name in ["attn_norm.weight", "attn.wq_b.weight", "attn.wkv.weight", "attn.kv_norm.weight", "attn.attn_sink"] {
        copy(&mut weights, name, 0, 2);
    }
    let overlap = measured(mix, &weights);
    let common = |i, j| overlap.pair(i, j).choosing.unwrap();
    for (i, j) in [(0, 1), (1, 0), (0, 0), (1, 1), (2, 2)] {
        close(common(i, j).iou.mean, 1.0);
    }
    assert!(common(0, 2).iou.mean < 0.95);
    close(common(0, 2).iou.mean, common(1, 2).iou.mean);
    // On equal selections lies equal attention, and equal attention lies equally on all.
    for i in 0..3 {
        close(common(i, 0).mass.mean, common(i, 1).mass.mean);
        close(common(0, i).mass.mean, common(2, i).mass.mean);
    }
    assert!((common(0, 0).mass.mean - common(0, 2).mass.mean).abs() > 1e-3);
    assert!((common(0, 0).mass.mean - common(1, 0).mass.mean).abs() > 1e-3);
}

#[test]
fn fewer_sequences_are_drawn_by_the_seed() {
    let folder = tempfile::tempdir().unwrap();
    let run = config("full reindex");
    save(&folder.path().join("run"), &run, &random_weights(&run.model, 1));
    let with = |sequences: usize, seed: u64, batch: usize| {
        let options = Options { sequences: Some(sequences), seed, batch, ..options(&folder) };
        measure(&options, &AtomicBool::new(false)).unwrap().pairs
    };
    assert_eq!(with(6, 0, 2), with(6, 0, 2));
    assert_ne!(with(6, 0, 2), with(6, 1, 2));
    assert_eq!(with(12, 0, 5), with(12, 1, 5));
    assert_eq!(with(1, 0, 1)[1].all.unwrap().iou.half_width, None);
}

#[test]
fn what_cannot_be_compared_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let saved = |mix: &str, weights: &BTreeMap<String, Weight>| save(&folder.path().join("run"), &config(mix), weights);
    let refused = |options: &Options| {
        let message = run(options, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(!options.out.exists(), "{message}");
        message
    };
    saved("swa*2", &random_weights(&config("swa*2").model, 1));
    assert!(refused(&options(&folder)).contains("no layer of the mix `swa*2` selects entries"));
    let mix = "full reindex";
    let mut weights = random_weights(&config(mix).model, 1);
    saved(mix, &weights);
    let many = Options { sequences: Some(13), ..options(&folder) };
    assert_eq!(refused(&many), "--sequences 13: the run's evaluation set has 12; ask for at most as many");
    let other = config("full").task;
    let csa2_train::tasks::TaskConfig::Mqar(sizes) = other else { panic!("mqar") };
    let larger = csa2_train::tasks::MqarConfig { keys: 9, ..sizes };
    let task = Some((csa2_train::tasks::TaskConfig::Mqar(larger), PathBuf::new()));
    let message = refused(&Options { task, ..options(&folder) });
    assert!(message.contains("its model has 10 token ids, the task 15"), "{message}");
    weights.get_mut("layers.1.attn.wq_b.weight").unwrap().values.fill(3e38);
    saved(mix, &weights);
    let message = refused(&options(&folder));
    assert!(message.contains("the attention of layer 1 (reindex) is not finite"), "{message}");
    weights.get_mut("layers.0.attn.indexer.wk.weight").unwrap().values[0] = f32::INFINITY;
    saved(mix, &weights);
    let message = refused(&options(&folder));
    assert!(message.contains("weight `layers.0.attn.indexer.wk.weight`, number 1 of 64, is inf"), "{message}");
}
