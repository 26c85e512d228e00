//! `csa2 eval`.

use std::fs;

use serde_json::Value;

use crate::common::{Lab, TINY, command, run};

const SHARED: &str = "out/shared/seed-0";

/// A run of `full reuse` without a pool, K 2.
fn lab() -> Lab {
    let lab = Lab::with(TINY);
    lab.ablate().fine();
    lab
}

#[test]
fn a_run_measures_what_it_measured_at_its_end() {
    let lab = lab();
    let told = lab.csa2(&["eval", SHARED, "--json"]).fine().json();
    let summary: Value =
        serde_json::from_slice(&fs::read(lab.run_folder("shared").join("summary.json")).unwrap()).unwrap();
    let at_end = summary["final_values"].as_object().unwrap();
    let values = told["values"].as_object().unwrap();
    assert!(values.len() >= 3, "{values:?}");
    for (name, value) in values {
        assert_eq!(*value, at_end[name], "{name}");
    }
    assert_eq!((&told["pool_mismatch"], &told["step"]), (&Value::Null, &Value::from(20)));
    let text = lab.csa2(&["eval", SHARED]).fine().out;
    assert!(text.contains("no candidate pool") && text.contains("accuracy"), "{text}");
    assert!(!text.contains("mismatch"), "{text}");
}

/// Sequences of 14 tokens, a window of 4, two layers in the decoder: a replay of 7 tokens is exact, one of 4 need not be.
#[test]
fn a_bounded_replay_is_a_switch() {
    let lab = lab();
    let switched = |more: &[&str]| {
        let told = lab.csa2(&[&["eval", SHARED, "--json", "--replay", "7"], more].concat()).fine().json();
        told["rows"].as_array().unwrap().clone()
    };
    let rows = switched(&["--switch", "replay=4", "--context", "40"]);
    let find = |setting: &str, context: u64| {
        rows.iter().find(|row| row["setting"] == setting && row["context"] == context).unwrap().clone()
    };
    for context in [rows[0]["context"].as_u64().unwrap(), 40] {
        let (whole, exact, rough) = (find("as trained", context), find("replay=7", context), find("replay=4", context));
        let loss = |row: &Value| row["all"]["loss"]["mean"].as_f64().unwrap();
        assert!((loss(&whole) - loss(&exact)).abs() < 1e-6, "{whole} {exact}");
        assert!((loss(&whole) - loss(&rough)).abs() > 1e-9, "{whole} {rough}");
        assert!(whole["replay"].is_null());
        let told = rough["replay"].as_str().unwrap();
        assert!(told.contains("do not go through the decoder (layers 0 to 1 of 2)"), "{told}");
        assert!(told.contains("% of its operations; a replay is exact from"), "{told}");
    }
    let page = fs::read_to_string(lab.path().join(SHARED).join("eval/report.html")).unwrap();
    assert!(page.contains("do not go through the decoder"));
    for (switch, expected) in [
        ("replay=3", "would not be whole behind a replay of 3; replay at least 4"),
        ("replay=4x2", "a replay is a number of tokens"),
    ] {
        let ran = lab.csa2(&["eval", SHARED, "--switch", switch]);
        assert!(ran.code.is_some_and(|code| code != 0) && ran.err.contains(expected), "{ran:?}");
    }
}

#[test]
fn another_pool_is_refused_unless_it_is_meant_and_then_told() {
    // A pool that a reindex layer searches in.
    let mix = TINY.replace(
        "layers = \"full reuse\"",
        "layers = \"full+pool reindex\"\nmodel.pool = { blocks = 2, block_size = 1 }",
    );
    assert_ne!(mix, TINY);
    let lab = Lab::with(&mix);
    lab.ablate().fine();
    let wider = ["eval", SHARED, "--pool", "4x1"];
    let refused = lab.csa2(&wider).refused();
    for part in
        ["a candidate pool of 2x1 (layer 0)", "a candidate pool of 4x1 (layer 0)", "--pool-override", "posttrain"]
    {
        assert!(refused.contains(part), "{refused}");
    }
    let none = lab.csa2(&["eval", SHARED, "--layers", "full reindex"]).refused();
    assert!(none.contains("measure them with no candidate pool"), "{none}");
    let meant = |more: &[&str]| lab.csa2(&[&wider[..], &["--pool-override"], more].concat()).fine();
    let told = meant(&["--json"]).json();
    let mismatch =
        "weights trained with a candidate pool of 2x1 (layer 0), measured with a candidate pool of 4x1 (layer 0)";
    assert_eq!(told["pool_mismatch"], mismatch);
    let text = meant(&[]);
    assert!(text.out.contains(mismatch) && text.err.contains(mismatch), "{text:?}");
    // The pool is really another one: its own recall says so.
    let own = lab.csa2(&["eval", SHARED, "--json"]).fine().json();
    let recall = |told: &Value| told["values"]["pool_recall/layer 1"].as_f64().unwrap();
    assert!(recall(&told) > recall(&own), "{} {}", recall(&told), recall(&own));
    let idle = lab.csa2(&["eval", SHARED, "--pool-override"]).refused();
    assert!(idle.contains("the pool is the one that the weights were trained with"), "{idle}");
}

/// `[measured, tokens, sequences, …]` of every line of the table on standard output.
fn table(out: &str) -> Vec<Vec<&str>> {
    let rows = out.lines().skip_while(|line| !line.contains('═')).skip(1).take_while(|line| !line.contains('─'));
    rows.map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect()
}

#[test]
fn lengths_and_switches_are_told_in_every_form_and_come_out_the_same_again() {
    let mix = TINY.replace("layers = \"full reuse\"", "layers = \"full reindex\"");
    assert_ne!(mix, TINY);
    let lab = Lab::with(&mix);
    lab.ablate().fine();
    let asked = |more: &[&str]| {
        let asked = ["eval", SHARED, "--context", "28,56", "--switch", "pool=2x1", "--pool-override"];
        lab.csa2(&[&asked[..], more].concat()).fine()
    };
    let ran = asked(&[]);
    let mismatch = "weights trained with no candidate pool, measured with a candidate pool of 2x1 (layer 0)";
    assert!(ran.err.contains(&format!("note: pool=2x1 †: {mismatch}")), "{ran:?}");
    assert!(ran.err.ends_with(&format!("report: {SHARED}/eval/report.html\n")), "{ran:?}");
    assert!(ran.out.contains("model   full reindex, no candidate pool") && ran.out.contains(mismatch), "{ran:?}");
    let rows: Vec<[&str; 3]> = table(&ran.out).iter().map(|cells| [cells[0], cells[1], cells[2]]).collect();
    let expected = [
        ["as trained", "14*", "16"],
        ["as trained", "28", "16"],
        ["as trained", "56", "16"],
        ["pool=2x1 †", "14*", "16"],
        ["pool=2x1 †", "28", "16"],
        ["pool=2x1 †", "56", "16"],
    ];
    assert_eq!(rows, expected, "{ran:?}");
    let read = |folder: &str, name: &str| fs::read_to_string(lab.path().join(folder).join(name)).unwrap();
    let own = format!("{SHARED}/eval");
    let page = read(&own, "report.html");
    // Accuracy by length, and at each of three lengths loss by position and accuracy by distance.
    assert_eq!(page.matches("<svg role=\"img\"").count(), 1 + 3 * 2);
    assert!(page.contains(mismatch) && page.contains("at 2 times that (28)"), "{page}");
    let told = asked(&["--json", "--out", "again"]).json();
    assert_eq!(told["pool_mismatch"], Value::Null);
    assert_eq!(told["rows"][4]["pool_mismatch"], mismatch);
    assert_eq!(told["command"], format!("csa2 eval {SHARED} --pool-override --context 28,56 --switch pool=2x1"));
    for name in ["eval.json", "eval.csv", "report.html"] {
        assert_eq!(read("again", name), read(&own, name), "{name}");
    }
    assert_eq!(serde_json::from_str::<Value>(&read(&own, "eval.json")).unwrap(), told);
    // A folder of the same weights is written again; the run is still a run.
    lab.csa2(&["eval", SHARED]).fine();
    assert_ne!(read("again", "eval.csv"), read(&own, "eval.csv"));
    lab.csa2(&["report", "out"]).fine();
    lab.ablate().fine();
}

#[test]
fn what_cannot_be_is_refused() {
    let lab = lab();
    lab.write("needle.toml", "[task]\nkind = \"needle\"\n");
    lab.write("odd.toml", "[task]\nkind = \"needle\"\n[model]\n");
    lab.write("text.toml", "[task]\nkind = \"text\"\nfiles = [\"nothing/*.txt\"]\n");
    lab.write("thesis/chapter.tex", "mine");
    lab.csa2(&["eval", SHARED, "--out", "first"]).fine();
    for (arguments, expected) in [
        (&["eval", "nobody"][..], "nobody"),
        (&["eval", SHARED, "--pool", "2x1"], "no layer of `full reuse` builds a pool; say with --layers"),
        (&["eval", SHARED, "--layers", "full full"], "differ in more than their pools"),
        (&["eval", SHARED, "--layers", "ful"], "unknown mode `ful`"),
        (&["eval", SHARED, "--task", "needle.toml"], "its model has 10 token ids, the task 64"),
        (&["eval", SHARED, "--task", "odd.toml"], "unknown field `model`"),
        (&["eval", SHARED, "--data", "nowhere"], "--data: the task `mqar` reads no files"),
        (&["eval", SHARED, "--task", "text.toml"], "looked for below ."),
        (&["eval", SHARED, "--layers", "full+pool reuse", "--pool", "0x1", "--pool-override"], "`pool.blocks = 0`"),
        (
            &["eval", SHARED, "--context", "96,11"],
            "--context 11: task `mqar`: sequences of 11 tokens cannot be: `region` 8 and `queries` 4",
        ),
        (&["eval", SHARED, "--context", "70000"], "--context 70000: the task's sequences have 70000 tokens"),
        (&["eval", SHARED, "--context", "2000000"], "--context 2000000: "),
        (
            &["eval", SHARED, "--switch", "pool=off"],
            "--switch pool=off: no layer of `full reuse` builds a candidate pool",
        ),
        (
            &["eval", SHARED, "--switch", "pool=2x1", "--pool-override"],
            "--switch pool=2x1: no `reindex` layer of `full reuse` searches",
        ),
        (
            &["eval", SHARED, "--switch", "quantization=off"],
            "--switch quantization=off: the run has no quantization to switch off",
        ),
        (
            &["eval", SHARED, "--switch", "quantization=on"],
            "--switch quantization=on: the run's configuration names no formats",
        ),
        (&["eval", SHARED, "--switch", "quantization=fp4/none/none"], "16 numbers share a scale"),
        (
            &[
                "eval",
                SHARED,
                "--layers",
                "full+pool reuse",
                "--pool",
                "2x1",
                "--pool-override",
                "--switch",
                "pool=off",
            ],
            "the pool is already told by --layers and --pool",
        ),
        (
            &["eval", SHARED, "--sequences", "17"],
            "--sequences 17: with sequences of 14 tokens the evaluation set has 16",
        ),
        (&["eval", SHARED, "--out", "thesis"], "thesis: is not empty and holds no evaluation"),
        (&["eval", SHARED, "--out", "odd.toml"], "odd.toml: is no folder; give another --out"),
        (&["eval", "out/windows/seed-0", "--out", "first"], "first/eval.json: is the evaluation of another run"),
    ] {
        let message = run(&mut command(lab.path(), arguments)).refused();
        assert!(message.contains(expected), "{expected}: {message}");
        assert!(!lab.run_folder("shared").join("eval").exists(), "{message}");
    }
    for arguments in [
        ["--context", "0"],
        ["--context", "1e3"],
        ["--context", "8,,9"],
        ["--switch", "replay=on"],
        ["--switch", "pool"],
        ["--sequences", "0"],
        ["--batch", "0"],
    ] {
        let ran = lab.csa2(&[&["eval", SHARED][..], &arguments].concat());
        assert_eq!((ran.code, &ran.out[..]), (Some(2), ""), "{ran:?}");
    }
}

#[test]
fn a_configuration_that_was_changed_is_not_the_one_of_the_checkpoint() {
    let mix = TINY.replace(
        "layers = \"full reuse\"",
        "layers = \"full+pool reindex\"\nmodel.pool = { blocks = 2, block_size = 1 }",
    );
    let lab = Lab::with(&mix);
    lab.ablate().fine();
    let path = lab.run_folder("shared").join("config.toml");
    let right = fs::read_to_string(&path).unwrap();
    for (from, to) in [("blocks = 2", "blocks = 4"), ("topk = 2", "topk = 1")] {
        assert!(right.contains(from), "{right}");
        fs::write(&path, right.replace(from, to)).unwrap();
        let message = lab.csa2(&["eval", SHARED]).refused();
        assert!(message.contains("its [model] is another") && message.contains("put it back"), "{message}");
    }
    fs::write(&path, right).unwrap();
    lab.csa2(&["eval", SHARED]).fine();
}

#[test]
fn damaged_weights_are_no_result() {
    let lab = lab();
    let folder = lab.run_folder("shared").join("checkpoint");
    let weights = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let weights = weights.into_iter().find(|path| path.extension().is_some_and(|e| e == "safetensors")).unwrap();
    let mut bytes = fs::read(&weights).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&weights, bytes).unwrap();
    let message = lab.csa2(&["eval", SHARED]).refused();
    assert!(message.contains(SHARED), "{message}");
}
