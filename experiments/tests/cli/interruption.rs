//! Ctrl-C and SIGKILL at any moment, and the same command again: the same numbers as if nothing had happened.
#![cfg(unix)]

use std::process::{Child, Command};

use crate::common::{Lab, TINY, wait};

/// 900 steps a run, a checkpoint every 300: long enough to be hit between two of them.
fn long() -> String {
    TINY.replace("2_240", "100_800").replace("checkpoint_every = 5", "checkpoint_every = 300")
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Starts the ablation, kills it once `ready`, and makes sure that it had not come to its end.
fn kill_once(lab: &Lab, what: &str, ready: impl Fn() -> bool) {
    let mut child = lab.start();
    wait(what, ready);
    signal(&child, "KILL");
    assert_eq!(child.wait().unwrap().code(), None, "ended before it could be killed");
    assert!(!lab.finished("shared"));
}

#[test]
fn killed_again_and_again_it_comes_to_the_same_numbers() {
    let whole = Lab::with(&long());
    whole.ablate().fine();

    let lab = Lab::with(&long());
    kill_once(&lab, "the first run has measured, before its first checkpoint", || lab.lines("windows") > 30);
    assert!(lab.state("windows").is_none(), "the kill came too late to be before the first checkpoint");

    let written = || lab.state("windows").map_or(u64::MAX, |state| state["metrics_bytes"].as_u64().unwrap());
    let length = || std::fs::metadata(lab.run_folder("windows").join("metrics.jsonl")).map_or(0, |data| data.len());
    kill_once(&lab, "the first run is past a checkpoint", || length() > written().saturating_add(2000));
    assert!(length() > written() && !lab.finished("windows"), "the kill came too late to be between checkpoints");

    kill_once(&lab, "the second run has measured", || lab.lines("shared") > 30);
    assert!(lab.finished("windows"));

    let ran = lab.ablate().fine();
    assert!(ran.err.contains("1 of 2 runs are finished and stay as they are"), "{ran:?}");
    assert!(lab.metrics() == whole.metrics());
    let results = |lab: &Lab| {
        let json = lab.csa2(&["report", "out", "--json"]).fine().json();
        let variants = json["ablations"][0]["variants"].as_array().unwrap().clone();
        variants.into_iter().map(|variant| (variant["name"].clone(), variant["values"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(results(&lab), results(&whole));
    for variant in ["windows", "shared"] {
        let folder = lab.run_folder(variant).join("checkpoint");
        let mut left: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["model-00000900.safetensors", "optimizer-00000900.safetensors", "state.json"]);
    }
}

#[test]
fn asked_to_stop_it_writes_a_checkpoint_and_goes_on_later() {
    let whole = Lab::with(&long());
    whole.ablate().fine();

    let lab = Lab::with(&long());
    for (name, lines) in [("INT", 40), ("TERM", 200)] {
        let child = lab.start();
        wait("the first run has measured", || lab.lines("windows") > lines);
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(output.stdout.is_empty());
        assert!(said.contains("stopping: every run writes a checkpoint first"), "{said}");
        assert!(said.ends_with("run the same command again to go on\n"), "{said}");
        let step = lab.state("windows").unwrap()["step"].as_u64().unwrap();
        assert!(step < 900 && !lab.finished("windows"), "step {step}");
    }
    lab.ablate().fine();
    assert!(lab.metrics() == whole.metrics());
}
