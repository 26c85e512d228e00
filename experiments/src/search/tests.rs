//! Whole searches of runs made by hand.

use std::fs;

use csa2_model::checkpoint::{self, Weight, tensors};
use csa2_model::model::Model;
use csa2_train::runs::Run;
use csa2_train::tasks::{Batch, NONE};
use tempfile::TempDir;

use super::*;
use crate::subject::testing::{config, random_weights, save};

const MIX: &str = "full reindex full@2 reuse full";

/// A folder with a run and room for results.
struct Lab {
    folder: TempDir,
    weights: BTreeMap<String, Weight>,
}

impl Lab {
    fn new(mix: &str, seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run = config(mix);
        let weights = random_weights(&run.model, seed);
        save(&folder.path().join("run"), &run, &weights);
        Self { folder, weights }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn search(&self, file: &SearchFile, out: &str) -> Result<Search, SearchError> {
        let options = Options {
            out: self.at(out),
            threads: 1,
            backend: "flex",
            device: Device::flex(),
            command: "csa2 search".into(),
        };
        Search::new(file.clone(), Path::new("."), &self.at("run"), options)
    }

    fn found(&self, file: &SearchFile, out: &str) -> Found {
        self.search(file, out).unwrap().run(&AtomicBool::new(false)).unwrap()
    }

    fn lines(&self, out: &str) -> Vec<u8> {
        fs::read(log::path(&self.at(out))).unwrap()
    }
}

fn file(extra: &str) -> SearchFile {
    let text = "[search]\nname = \"a\"\nmeasure = \"loss\"\nfull_to_reindex = true\n\
                calibration = { sequences = 10, batch = 4, seed = 5 }\n";
    toml::from_str(&format!("{text}{extra}")).unwrap()
}

/// The mean cross-entropy of `mix` on `batches`, by plain loops over logits. Weights are chosen by the list of tensors that the
/// changed model has.
fn loss(lab: &Lab, mix: &str, batches: &[Batch]) -> f64 {
    let model = config(mix).model;
    let names: Vec<String> = tensors(&model).unwrap().into_iter().map(|spec| spec.name).collect();
    let kept = names.iter().map(|name| (name.clone(), lab.weights[name].clone())).collect();
    let device = Device::flex();
    let network = checkpoint::load(Model::new(&model, None, &device).unwrap(), kept, "by hand").unwrap();
    let (mut sum, mut count) = (0.0, 0.0);
    for batch in batches {
        let cx = Context::new(&model, batch.len, DType::F32, &device);
        let logits = network.forward(csa2_train::evaluate::tokens(batch, &device), &cx).logits;
        let logits: Vec<f32> = logits.into_data().iter().collect();
        let rows = logits.chunks(logits.len() / batch.targets.len());
        for (row, &target) in rows.zip(&batch.targets).filter(|(_, target)| **target != NONE) {
            let total: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
            sum += total.ln() - f64::from(row[target as usize]);
            count += 1.0;
        }
    }
    sum / count
}

/// All single changes of a mix, told by its words alone.
fn neighbours(mix: &[String]) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for (place, word) in mix.iter().enumerate().skip(1) {
        let to: &[&str] = match word.split('@').next().unwrap() {
            "full" => &["reindex", "reuse"],
            "reindex" => &["reuse"],
            _ => &[],
        };
        for to in to {
            let mut other = mix.to_vec();
            other[place] = (*to).to_string();
            found.push((other.join(" "), other));
        }
    }
    found
}

#[test]
fn the_whole_way_down_is_that_of_a_recomputation() {
    let lab = Lab::new(MIX, 1);
    let found = lab.found(&file(""), "out");
    let task = config(MIX).task.build(Path::new(".")).unwrap();
    let chosen: Vec<Batch> = calibration(&*task, 5, 10, 4).collect();
    let judged = [task.eval_batch(0, 12)];
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
    let start = loss(&lab, MIX, &chosen);
    close(found.path[0].calibration["loss"], start);
    close(found.path[0].evaluation["loss"], loss(&lab, MIX, &judged));
    let mut mix: Vec<String> = MIX.split(' ').map(str::to_owned).collect();
    for (round, point) in found.rounds.iter().zip(&found.path[1..]) {
        let options = neighbours(&mix);
        let losses: Vec<f64> = options.iter().map(|(text, _)| loss(&lab, text, &chosen)).collect();
        assert_eq!(round.tried.len(), options.len());
        for (tried, ((text, _), loss)) in round.tried.iter().zip(options.iter().zip(&losses)) {
            assert_eq!(tried.change.plan, text.parse().unwrap());
            close(tried.worth.worsening, loss - start);
        }
        let best = (0..losses.len()).min_by(|&a, &b| losses[a].total_cmp(&losses[b])).unwrap();
        // Losses as near to each other as that could be taken either way.
        assert!(losses.iter().enumerate().all(|(at, loss)| at == best || loss - losses[best] > 1e-5), "{losses:?}");
        assert_eq!(round.taken, Some(best));
        close(point.calibration["loss"], losses[best]);
        close(point.evaluation["loss"], loss(&lab, &options[best].0, &judged));
        mix = options[best].1.clone();
    }
    assert_eq!((found.stop, neighbours(&mix).len()), (Stop::NothingLeft, 0));
    assert_eq!(found.path.last().unwrap().mix, "full reuse*4");
    // Scored entries at 65536 tokens, and bytes of 8 numbers of 4 bytes twice, for the main KV and the index key.
    let costs: Vec<(f64, f64)> = found.path.iter().map(|point| (point.scored_entries, point.bytes_per_token)).collect();
    assert_eq!((costs[0], *costs.last().unwrap()), ((65_536.0 * 3.5, 160.0), (65_536.0, 64.0)));
    assert_eq!(found.excluded().len(), 2);
    assert_eq!(found.csv().lines().count(), 2 + found.rounds.iter().map(|round| round.tried.len()).sum::<usize>());
}

#[test]
fn killed_anywhere_it_comes_to_the_same_result() {
    let lab = Lab::new(MIX, 2);
    let whole = lab.found(&file(""), "whole");
    let (log, json) = (lab.lines("whole"), fs::read(lab.at("whole/search.json")).unwrap());
    let ends = (0..log.len()).filter(|&at| log[at] == b'\n').map(|at| at + 1);
    for (number, cut) in ends.flat_map(|end| [end - 1, end, (end + 7).min(log.len())]).enumerate() {
        let out = format!("cut-{number}");
        fs::create_dir(lab.at(&out)).unwrap();
        fs::write(log::path(&lab.at(&out)), &log[..cut]).unwrap();
        assert_eq!(lab.found(&file(""), &out), whole, "cut at {cut}");
        assert!(lab.lines(&out) == log && fs::read(lab.at(&out).join("search.json")).unwrap() == json);
    }
}

#[test]
fn asked_to_stop_it_keeps_what_it_has() {
    let lab = Lab::new(MIX, 2);
    let search = lab.search(&file(""), "out").unwrap();
    let ended = search.run(&AtomicBool::new(true)).unwrap_err();
    assert!(matches!(ended, SearchError::Interrupted));
    assert_eq!(String::from_utf8(lab.lines("out")).unwrap().lines().count(), 1);
    assert!(!lab.at("out/search.json").exists());
    lab.found(&file(""), "out");
}

#[test]
fn measurements_of_another_search_or_run_are_refused_by_name() {
    let lab = Lab::new(MIX, 2);
    lab.found(&file("title = \"one\"\n"), "out");
    // A title changes no number.
    lab.found(&file("title = \"other\"\n"), "out");
    let refused = |file: &SearchFile| {
        let search = lab.search(file, "out").unwrap();
        search.run(&AtomicBool::new(false)).unwrap_err().to_string()
    };
    let message = refused(&file("max_worsening = 0.5\n"));
    assert!(message.contains("the configuration (hash ") && !message.contains("weights"), "{message}");
    save(&lab.at("run"), &config(MIX), &random_weights(&config(MIX).model, 3));
    let message = refused(&file(""));
    assert!(message.contains("the run's weights (hash ") && !message.contains("configuration"), "{message}");
}

#[test]
fn the_metric_decides_where_it_is_asked_to() {
    let lab = Lab::new(MIX, 4);
    let mut by_metric = file("");
    by_metric.search.measure = MeasureKind::Metric;
    let found = lab.found(&by_metric, "out");
    assert_eq!((found.measure.name.as_str(), found.other.name.as_str()), ("accuracy", "loss"));
    let start = found.path[0].calibration["accuracy"];
    for (round, point) in found.rounds.iter().zip(&found.path[1..]) {
        assert!((start - point.calibration["accuracy"] - point.worsening).abs() < 1e-12);
        let best = round.tried.iter().map(|tried| tried.worth.worsening).fold(f64::INFINITY, f64::min);
        assert!((best - point.worsening).abs() < 1e-12);
    }
}

#[test]
fn a_changed_model_has_the_runs_weights_and_no_others() {
    let lab = Lab::new(MIX, 1);
    let run = Run::open(&lab.at("run")).unwrap().weights(&Device::flex()).unwrap();
    let mix = "full reuse*2 reuse full";
    let kept = checkpoint::weights(&run.model(&config(mix).model, &Device::flex()).unwrap()).unwrap();
    let gone: Vec<&String> = lab.weights.keys().filter(|name| !kept.contains_key(*name)).collect();
    let (reindex, full) = (["wq_b", "weights_proj"], ["wkv", "wgate", "norm", "wk", "k_norm", "wq_b", "weights_proj"]);
    assert_eq!(gone.len(), reindex.len() + full.len(), "{gone:?}");
    assert!(
        gone.iter().all(|name| name.starts_with("layers.1.attn.") || name.starts_with("layers.2.attn.")),
        "{gone:?}"
    );
    assert!(kept.iter().all(|(name, weight)| lab.weights[name] == *weight));
    let more = run.model(&config("full*2 full@2 reuse full").model, &Device::flex()).unwrap_err().to_string();
    assert!(more.contains(" does not have: layers.1.attn.compressor.norm.weight, "), "{more}");
    let shorter = run.model(&config("full").model, &Device::flex()).unwrap_err().to_string();
    assert_eq!(shorter, "the mix `full` has 1 layers, that of the run has 5");
}

#[test]
fn a_run_in_which_nothing_can_change_is_refused() {
    let refused = |mix: &str, extra: &str| {
        let lab = Lab::new(mix, 1);
        lab.search(&file(extra), "out").err().unwrap().to_string()
    };
    let message = refused("swa*2", "");
    assert!(message.contains("`swa*2` has no layer that could change\n  none of its layers selects"), "{message}");
    let message = refused("full reuse", "");
    assert!(message.contains("layer 0 to reuse: no `full` lies below it"), "{message}");
    let message = refused("full reindex", "min_selecting = 2\n");
    assert!(message.contains("search.min_selecting = 2, and it has 2 selecting layers"), "{message}");
}

#[test]
fn weights_that_are_no_numbers_are_named() {
    let lab = Lab::new("full reindex", 1);
    let mut weights = lab.weights.clone();
    weights.get_mut("layers.1.attn.wq_b.weight").unwrap().values[2] = f32::NAN;
    save(&lab.at("run"), &config("full reindex"), &weights);
    let message = lab.search(&file(""), "out").err().unwrap().to_string();
    assert!(message.contains("weight `layers.1.attn.wq_b.weight`, number 3 of 256, is NaN"), "{message}");
    // Finite, and still too large to compute with.
    weights.get_mut("layers.1.attn.wq_b.weight").unwrap().values[2] = 0.0;
    weights.get_mut("head.weight").unwrap().values.iter_mut().for_each(|value| *value = 3e38);
    save(&lab.at("run"), &config("full reindex"), &weights);
    let search = lab.search(&file(""), "out").unwrap();
    let message = search.run(&AtomicBool::new(false)).unwrap_err().to_string();
    assert!(message.contains("the run's own mix has a loss of NaN on the calibration set"), "{message}");
}
