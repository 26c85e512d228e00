//! One ablation on two backends.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::common::{Lab, TINY};

mod sessions;

/// Forty steps of every mode that shares something, with a pool.
fn ablation() -> String {
    let more = "\n[[variant]]\nname = \"pool\"\nlayers = \"full@2+pool reindex stale@2\"\n\
                model.pool = { blocks = 2, block_size = 1 }\n";
    TINY.replace("tokens = 2_240", "tokens = 4_480") + more
}

/// Every line of measurements of every run below `folder`, by path.
fn measurements(folder: &Path) -> Vec<(PathBuf, Vec<Value>)> {
    let mut found = Vec::new();
    for variant in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        let path = variant.join("seed-0/metrics.jsonl");
        if let Ok(text) = fs::read_to_string(&path) {
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            found.push((path.strip_prefix(folder).unwrap().to_path_buf(), lines));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// The same steps on the CPU and on a GPU give the same losses and accuracies.
#[test]
fn an_ablation_measures_on_wgpu_what_it_measures_on_the_cpu() {
    let lab = Lab::with(&ablation());
    let required = std::env::var("CSA2_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == "wgpu"));
    let there = lab.csa2(&["ablate", "tiny.toml", "--out", "wgpu", "--backend", "wgpu"]);
    if there.code != Some(0) && there.err.contains("backend wgpu") && !required {
        eprintln!("wgpu: no adapter: 1 case not run");
        return;
    }
    there.fine();
    lab.csa2(&["ablate", "tiny.toml", "--out", "flex", "--backend", "flex"]).fine();
    let [there, here] = ["wgpu", "flex"].map(|name| measurements(&lab.path().join(name)));
    assert_eq!(there.len(), 3);
    for ((path, there), (other, here)) in there.iter().zip(&here) {
        assert_eq!((path, there.len()), (other, here.len()));
        assert!(here.len() >= 40, "{}", path.display());
        for (there, here) in there.iter().zip(here) {
            let (values, expected) = (there["values"].as_object().unwrap(), here["values"].as_object().unwrap());
            assert!(values.keys().eq(expected.keys()), "{there} {here}");
            for (name, value) in values {
                let (value, expected) = (value.as_f64().unwrap(), expected[name].as_f64().unwrap());
                let close = (value - expected).abs() <= 1e-3 * expected.abs().max(1.0);
                assert!(close, "{}, {name}: {value} on wgpu, {expected} on the CPU; {here}", path.display());
            }
        }
    }
}

/// What a GPU's operators cannot hold is refused before anything is written.
#[test]
fn two_backends_long_vectors_are_refused_where_they_do_not_fit() {
    let lab = Lab::with(&TINY.replace("head_dim = 8", "head_dim = 2048"));
    let message = lab.csa2(&["ablate", "tiny.toml", "--out", "out", "--backend", "wgpu"]).refused();
    let expected = "backend wgpu: variant \"windows\": `model.head_dim = 2048`: vectors have at most 1024 channels there; \
                    use shorter ones, or the backend flex";
    assert!(message.contains(expected), "{message}");
    assert!(!lab.path().join("out").exists());
    let ran = lab.csa2(&["bench", "kl", "--index-dim", "1025", "--quick", "--backend", "wgpu"]);
    let no_adapter = ran.err.contains("there is no device that it can use");
    assert!(ran.code == Some(1), "{ran:?}");
    assert!(no_adapter || ran.err.contains("--index-dim 1025: vectors have at most"), "{ran:?}");
}
