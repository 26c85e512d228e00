//! `csa2 search`.

use std::fs;
use std::path::Path;
#[cfg(unix)]
use std::process::{Command, Stdio};

use crate::common::{Lab, edited};
#[cfg(unix)]
use crate::common::{command, wait};

const SEARCH: &str = "[search]\nname = \"less\"\nmeasure = \"loss\"\nfull_to_reindex = true\n\
                      calibration = { sequences = 24, batch = 8, seed = 1 }\n";
const RUN: &str = "base/shared/seed-0";

/// A folder with a trained run of `full reindex full`, and the configuration `search.toml`.
fn trained() -> Lab {
    let lab = Lab::with(&edited("full reuse", "full reindex full"));
    lab.csa2(&["ablate", "tiny.toml", "--out", "base"]).fine();
    lab.write("search.toml", SEARCH);
    lab
}

fn bytes(lab: &Lab, name: &str) -> Vec<u8> {
    fs::read(lab.path().join(name)).unwrap()
}

#[test]
fn it_finds_mixes_and_says_them_in_every_form() {
    let lab = trained();
    let before = bytes(&lab, &format!("{RUN}/checkpoint/model-00000020.safetensors"));
    let ran = lab.csa2(&["search", "search.toml", "--from", RUN]).fine();
    assert!(
        ran.out.contains("layers = \"full reindex full\"") && ran.out.contains("layers = \"full reuse*2\""),
        "{ran:?}"
    );
    assert!(ran.out.contains("no candidate: layer 0: full to reuse: no `full` lies below it"), "{ran:?}");
    assert!(ran.err.contains("report: runs/less/report.html"), "{ran:?}");
    let json = lab.csa2(&["search", "search.toml", "--from", RUN, "--json"]).fine();
    assert!(json.err.contains("measurements are there and stay as they are"), "{json:?}");
    let found = json.json();
    assert_eq!(found, serde_json::from_slice::<serde_json::Value>(&bytes(&lab, "runs/less/search.json")).unwrap());
    let path = found["path"].as_array().unwrap();
    assert_eq!(
        (path[0]["mix"].as_str(), path.last().unwrap()["mix"].as_str()),
        (Some("full reindex full"), Some("full reuse*2"))
    );
    assert_eq!(found["stop"], "nothing-left");
    // The run's own mix on the evaluation set is what training measured at its end.
    let summary: serde_json::Value = serde_json::from_slice(&bytes(&lab, &format!("{RUN}/summary.json"))).unwrap();
    let (here, there) = (&path[0]["evaluation"]["loss"], &summary["final_values"]["loss"]);
    assert!((here.as_f64().unwrap() - there.as_f64().unwrap()).abs() < 1e-6, "{here} {there}");
    let csv = String::from_utf8(bytes(&lab, "runs/less/search.csv")).unwrap();
    assert_eq!(csv.lines().filter(|line| line.contains(",true,")).count(), path.len(), "{csv}");
    let page = String::from_utf8(bytes(&lab, "runs/less/report.html")).unwrap();
    assert!(page.contains("layers = &quot;full reuse*2&quot;") && page.matches("<svg role=\"img\"").count() == 4);
    for mark in ["src=", "@import", "url(", "<link", "<script"] {
        assert!(!page.contains(mark), "{mark}");
    }
    // A mix that was found is one that can be planned.
    lab.write("tiny.toml", edited("full reuse", path[1]["mix"].as_str().unwrap()));
    lab.csa2(&["plan", "tiny.toml"]).fine();
    assert!(before == bytes(&lab, &format!("{RUN}/checkpoint/model-00000020.safetensors")));
}

#[test]
fn limits_end_it_earlier() {
    let lab = trained();
    for (extra, stop, changes) in [("min_selecting = 2", "min-selecting", 2), ("min_selecting = 1", "nothing-left", 3)]
    {
        lab.write("search.toml", format!("{SEARCH}{extra}\n"));
        let found = lab.csa2(&["search", "search.toml", "--from", RUN, "--out", extra, "--json"]).fine().json();
        assert_eq!(found["stop"], stop);
        assert!(found["path"].as_array().unwrap().len() - 1 <= changes, "{found}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let lab = trained();
    let refused = |text: &str, from: &str| {
        lab.write("search.toml", text);
        lab.csa2(&["search", "search.toml", "--from", from, "--out", "out"]).refused()
    };
    for (text, from, expected) in [
        (SEARCH.replace("measure", "measures"), RUN, "unknown field `measures`"),
        (SEARCH.replace("[search]", "[model]\n[search]"), RUN, "unknown field `model`"),
        (SEARCH.replace("seed = 1", "seed = 1, rows = 2"), RUN, "unknown field `rows`"),
        (SEARCH.replace("full_to_reindex = true\n", ""), RUN, "missing field `full_to_reindex`"),
        (SEARCH.replace("sequences = 24", "sequences = 0"), RUN, "search.calibration.sequences = 0"),
        (format!("{SEARCH}max_worsening = -1.0\n"), RUN, "search.max_worsening = -1"),
        (format!("{SEARCH}[task]\nkind = \"mqar\"\nkeys = 7\n"), RUN, "its model has 10 token ids, the task 31"),
        (format!("{SEARCH}[task]\nkind = \"mqar\"\npairs = 0\n"), RUN, "task `mqar`: `pairs` is 0"),
        (
            format!("{SEARCH}[task]\nkind = \"text\"\nfiles = [\"none\"]\n"),
            RUN,
            "\n(Files with relative names are looked for below .)",
        ),
        (SEARCH.into(), "base/windows/seed-0", "none of its layers selects entries"),
        (SEARCH.into(), "base/shared", "holds runs, but is none; give one of them"),
        (SEARCH.into(), "nowhere", "there is no such folder"),
    ] {
        let message = refused(&text, from);
        assert!(message.contains(expected), "{expected}: {message}");
        assert!(!lab.path().join("out").exists(), "nothing is begun: {message}");
    }
    lab.write("thesis/chapter.tex", "mine");
    lab.write("search.toml", SEARCH);
    let message = lab.csa2(&["search", "search.toml", "--from", RUN, "--out", "thesis"]).refused();
    assert_eq!(message.lines().last(), Some("error: thesis: is not empty and holds no search; give another --out"));
    let ran = lab.csa2(&["search", "search.toml"]);
    assert_eq!((ran.code, &ran.out[..]), (Some(2), ""), "{ran:?}");
}

#[test]
fn another_search_or_run_in_the_way_is_named() {
    let lab = trained();
    let search = |from: &str| lab.csa2(&["search", "search.toml", "--from", from, "--out", "out"]);
    search(RUN).fine();
    let before = bytes(&lab, "out/measured.jsonl");
    lab.write("search.toml", SEARCH.replace("seed = 1", "seed = 2"));
    let message = search(RUN).refused();
    assert!(
        message.contains("holds measurements of another search. Changed:\n  the configuration (hash "),
        "{message}"
    );
    lab.write("search.toml", SEARCH);
    lab.write("tiny.toml", edited("full reuse", "full reindex full").replace("3e-3", "1e-3"));
    lab.csa2(&["ablate", "tiny.toml", "--out", "other"]).fine();
    let message = search("other/shared/seed-0").refused();
    assert!(message.contains("\n  the run's weights (hash ") && !message.contains("configuration (hash"), "{message}");
    assert!(before == bytes(&lab, "out/measured.jsonl"));
}

#[cfg(unix)]
#[test]
fn killed_or_stopped_it_comes_to_the_same_result() {
    let lab = trained();
    // Long enough to be hit on the way.
    lab.write("search.toml", SEARCH.replace("sequences = 24", "sequences = 4_000"));
    let arguments = |out: &'static str| ["search", "search.toml", "--from", RUN, "--out", out];
    lab.csa2(&arguments("whole")).fine();
    let lines = |out: &str| {
        let bytes = fs::read(lab.path().join(out).join("measured.jsonl")).unwrap_or_default();
        String::from_utf8(bytes).unwrap().matches('\n').count()
    };
    let all = lines("whole");
    for (name, after) in [("KILL", 3), ("INT", 5)] {
        let child =
            command(lab.path(), &arguments("out")).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait("it has measured", || lines("out") >= after);
        let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let output = child.wait_with_output().unwrap();
        assert!(lines("out") < all && !lab.path().join("out/search.json").exists(), "it was hit too late");
        if name == "INT" {
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(130), "{said}");
            assert!(said.ends_with("run the same command again to go on\n"), "{said}");
        }
    }
    lab.csa2(&arguments("out")).fine();
    for name in ["measured.jsonl", "search.csv"] {
        assert!(bytes(&lab, &format!("whole/{name}")) == bytes(&lab, &format!("out/{name}")), "{name}");
    }
}

#[test]
fn the_configuration_that_comes_with_the_repository_is_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/search.toml");
    let text = fs::read_to_string(&path).unwrap();
    let lab = trained();
    lab.write("search.toml", &text);
    lab.csa2(&["search", "search.toml", "--from", RUN, "--out", "out"]).fine();
    // What stands there to be uncommented can be.
    lab.write(
        "search.toml",
        text.replace("# max_worsening", "max_worsening").replace("# min_selecting", "min_selecting"),
    );
    let found = lab.csa2(&["search", "search.toml", "--from", RUN, "--out", "less", "--json"]).fine().json();
    assert_eq!((&found["max_worsening"], &found["min_selecting"]), (&0.05.into(), &2.into()));
}

#[test]
fn an_imported_model_needs_a_task() {
    let moe = include_str!("../moe.toml");
    let lab = Lab::with(&moe.replace("swa full@2 reuse", "swa full@2 reindex full"));
    lab.csa2(&["ablate", "tiny.toml", "--out", "base"]).fine();
    lab.csa2(&["export", RUN, "--out", "exported"]).fine();
    lab.csa2(&["import", "exported", "--out", "imported"]).fine();
    lab.write("search.toml", SEARCH);
    let search = || lab.csa2(&["search", "search.toml", "--from", "imported", "--out", "out", "--json"]);
    let message = search().refused();
    assert!(message.contains("imported: has no task (it was imported)"), "{message}");
    assert!(message.contains("say in [task] what to measure it on"), "{message}");
    let message = lab.csa2(&["overlap", "imported"]).refused();
    assert!(message.contains("give one by --task"), "{message}");
    let task = &moe[moe.find("[task]").unwrap()..moe.find("[model]").unwrap()];
    lab.write("search.toml", format!("{SEARCH}{task}"));
    lab.write("task.toml", task);
    let imported = search().fine().json();
    let own = lab.csa2(&["search", "search.toml", "--from", RUN, "--out", "own", "--json"]).fine().json();
    let losses = |found: &serde_json::Value| {
        let path = found["path"].as_array().unwrap().clone();
        path.into_iter().map(|point| (point["mix"].clone(), point["calibration"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(losses(&imported), losses(&own));
    assert_eq!(imported["path"][0]["mix"], "swa full@2 reindex full");
    assert_eq!(losses(&imported).last().unwrap().0, "swa full@2 reuse*2");
    let pairs = |arguments: &[&str]| lab.csa2(arguments).fine().json()["pairs"].clone();
    let imported = pairs(&["overlap", "imported", "--task", "task.toml", "--json"]);
    assert_eq!(imported, pairs(&["overlap", RUN, "--json"]));
}
