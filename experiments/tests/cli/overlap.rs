//! `csa2 overlap`.

use std::fs;

use crate::common::{Lab, edited};

const RUN: &str = "base/shared/seed-0";

fn trained() -> Lab {
    let lab = Lab::with(&edited("full reuse", "full reindex full@2"));
    lab.csa2(&["ablate", "tiny.toml", "--out", "base"]).fine();
    lab
}

#[test]
fn layers_are_compared_in_every_form() {
    let lab = trained();
    let ran = lab.csa2(&["overlap", RUN]).fine();
    assert!(
        ran.out.contains("0 full") && ran.out.contains("2 full@2") && ran.out.contains("16 of 16 sequences"),
        "{ran:?}"
    );
    assert!(ran.out.contains("compared by the tokens that their entries stand for"), "{ran:?}");
    assert!(ran.err.ends_with(&format!("report: {RUN}/overlap/report.html\n")), "{ran:?}");
    let read = |name: &str| fs::read_to_string(lab.path().join(RUN).join("overlap").join(name)).unwrap();
    let (csv, page) = (read("overlap.csv"), read("report.html"));
    assert_eq!(csv.lines().count(), 1 + 9 * 2 * 2, "{csv}");
    assert!(csv.contains("\n1 reindex,1 reindex,true,choosing,iou,1,0,"), "{csv}");
    assert_eq!(page.matches("<svg role=\"img\"").count(), 4);
    for mark in ["src=", "@import", "url(", "<link", "<script"] {
        assert!(!page.contains(mark), "{mark}");
    }
    // Again into the same folder, and of fewer sequences.
    let found = lab.csa2(&["overlap", RUN, "--json", "--sequences", "3", "--seed", "7", "--batch", "2"]).fine().json();
    assert_eq!((&found["sequences"], found["pairs"].as_array().unwrap().len()), (&3.into(), 9));
    assert_eq!(found["command"], format!("csa2 overlap {RUN} --sequences 3 --seed 7"));
    assert_eq!(found, serde_json::from_str::<serde_json::Value>(&read("overlap.json")).unwrap());
    // Results of the run are still those of a run.
    lab.csa2(&["report", "base"]).fine();
    lab.csa2(&["ablate", "tiny.toml", "--out", "base"]).fine();
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let lab = trained();
    lab.write("task.toml", "[task]\nkind = \"mqar\"\nlayers = 3\n");
    lab.write("thesis/chapter.tex", "mine");
    for (arguments, expected) in [
        (&["overlap", "base/windows/seed-0"][..], "no layer of the mix `swa*2` selects entries"),
        (&["overlap", "nowhere"], "nowhere: there is no such folder"),
        (&["overlap", "base"], "base: holds runs, but is none"),
        (&["overlap", "tiny.toml"], "tiny.toml: is no folder"),
        (&["overlap", RUN, "--sequences", "17"], "--sequences 17: the run's evaluation set has 16"),
        (&["overlap", RUN, "--task", "task.toml"], "unknown field `layers`"),
        (&["overlap", RUN, "--task", "tiny.toml"], "unknown field `ablation`"),
        (&["overlap", RUN, "--out", "thesis"], "thesis: is not empty and holds no overlap"),
        (&["overlap", RUN, "--out", "task.toml"], "task.toml: is no folder; give another --out"),
    ] {
        let message = lab.csa2(arguments).refused();
        assert!(message.contains(expected), "{expected}: {message}");
        assert!(!lab.path().join(RUN).join("overlap").exists(), "{message}");
    }
    for arguments in [&["overlap"][..], &["overlap", RUN, "--sequences", "0"], &["overlap", RUN, "--batch", "0"]] {
        let ran = lab.csa2(arguments);
        assert_eq!((ran.code, &ran.out[..]), (Some(2), ""), "{ran:?}");
    }
    // Weights that are no numbers.
    let state: serde_json::Value =
        serde_json::from_slice(&fs::read(lab.path().join(RUN).join("checkpoint/state.json")).unwrap()).unwrap();
    let path = lab.path().join(RUN).join("checkpoint").join(state["model"].as_str().unwrap());
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let message = lab.csa2(&["overlap", RUN]).refused();
    assert!(message.contains("is NaN; all must be finite"), "{message}");
}
