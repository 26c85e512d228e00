//! `csa2 bench` with shapes that take no time.

use serde_json::{Value, json};

use crate::common::{Lab, TINY};

const READOUT: [&str; 8] =
    ["bench", "readout", "--seq=6", "--entries=6", "--heads=2", "--dim=3", "--topk=2", "--quick"];

fn bench(arguments: &[&str]) -> Value {
    let arguments = [&["bench"], arguments, &["--quick", "--json", "--threads=1"]].concat();
    Lab::new().csa2(&arguments).fine().json()
}

fn keys(value: &Value) -> String {
    value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_table_has_every_column() {
    let ran = Lab::new().csa2(&READOUT).fine();
    for part in [
        "case",
        "pass",
        "time",
        "10 to 90%",
        "GFLOP/s",
        "GB/s",
        "share of",
        "matmul",
        "Medians.",
        "readout small, changed: B1 S6 H2 d3 N6 K2 W128\n",
    ] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    for pass in [" forward ", " forward+backward "] {
        let line = ran.out.lines().find(|line| line.contains(pass)).unwrap_or_else(|| panic!("{pass}: {}", ran.out));
        assert!(line.contains("readout small, changed") && line.contains('%') && line.contains(" us"), "{line}");
    }
    assert!(ran.err.contains("readout small, changed, forward: B1 S6 H2 d3 N6 K2 W128\n"), "{ran:?}");
}

#[test]
fn json_names_every_figure() {
    let document = bench(&["readout", "--seq=6", "--entries=3", "--ratio=2", "--dim=3", "--topk=2", "--window=0"]);
    assert_eq!(keys(&document), "matmul_size peaks ratios results run");
    assert_eq!(keys(&document["run"]), "backend device program quick release threads");
    assert_eq!((&document["run"]["threads"], &document["run"]["quick"]), (&json!(1), &json!(true)));
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    for result in results {
        assert_eq!(
            keys(result),
            "bytes case flops form gflops_per_second gigabytes_per_second matmul_after matmul_before \
             matmul_gflops_per_second operator parts pass repetitions seconds shape share_of_matmul tokens_per_second"
        );
        for rate in ["gflops_per_second", "gigabytes_per_second", "matmul_gflops_per_second", "share_of_matmul"] {
            assert!(result[rate].as_f64().is_some_and(|rate| rate > 0.0), "{rate}: {result}");
        }
        let seconds = |name: &str| result["seconds"][name].as_f64().unwrap();
        assert!(seconds("p10") <= seconds("median") && seconds("median") <= seconds("p90"), "{result}");
    }
    let shape = json!({"batch": 1, "seq": 6, "heads": 8, "dim": 3, "entries": 3, "topk": 2, "window": 0, "ratio": 2});
    assert_eq!(results[0]["shape"], shape);
    // Pairs with a selected entry: 0 + 1 + 1 + 2 + 2 + 2.
    assert_eq!(results[0]["flops"], 4.0 * 8.0 * 3.0 * 8.0);
    assert_eq!(results[1]["flops"], 14.0 * 8.0 * 3.0 * 8.0);
}

#[test]
fn every_operator_is_measured() {
    let select = bench(&["select", "--seq=5", "--entries=40", "--topk=3", "--pool-blocks=2", "--pool-size=4"]);
    assert_eq!(select["results"][0]["shape"]["pool_blocks"], 2);
    let kl = bench(&["kl", "--seq=5", "--entries=5", "--topk=3", "--index-dim=7"]);
    let passes: Vec<&Value> = kl["results"].as_array().unwrap().iter().map(|result| &result["pass"]).collect();
    assert_eq!(passes, ["forward", "forward+backward"]);
    let query = bench(&["query", "--entries=9", "--topk=20", "--window=0", "--batch=2"]);
    assert!(query["results"][0]["tokens_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{query}");

    let geometry = bench(&["geometry", "--case=reach", "--case=membership", "--dim=4", "--entries=9", "--points=6"]);
    assert_eq!(geometry["results"].as_array().map(Vec::len), Some(2));
    assert_eq!(geometry["results"][1]["shape"], json!({"dim": 4, "entries": 9, "points": 6}));
    assert_eq!(keys(&geometry["results"][0]["parts"]), "decomposition points");

    let lab = Lab::with(TINY);
    let step = ["bench", "step", "--config", "tiny.toml", "--variant", "shared", "--quick", "--json"];
    let step = lab.csa2(&step).fine().json();
    let result = &step["results"][0];
    assert_eq!(
        (&result["case"], &result["flops"], &result["share_of_matmul"]),
        (&json!("shared"), &Value::Null, &Value::Null)
    );
    assert_eq!(keys(&result["parts"]), "backward forward optimizer");
    assert_eq!((&result["shape"]["batch"], &result["shape"]["layers"]), (&json!(8), &json!(2)));
    let all = lab.csa2(&["bench", "step", "--config", "tiny.toml", "--quick"]).fine();
    assert!(all.out.contains("step windows: B8 S") && all.out.contains("optimizer "), "{all:?}");
}

#[test]
fn memory_is_measured_where_the_system_tells() {
    let long = ["readout", "--case=long", "--seq=512", "--entries=512", "--topk=32"];
    let document = bench(&long);
    let peak = &document["peaks"][0];
    assert_eq!(document["results"], json!([]));
    assert_eq!(keys(peak), "bytes case form inputs_outputs_gradients operator pass ratio reason shape");
    if cfg!(target_os = "linux") {
        // At least the inputs, the outputs and their gradients are there at once.
        assert!(peak["ratio"].as_f64().is_some_and(|ratio| (0.8..20.0).contains(&ratio)), "{peak}");
    } else {
        assert!(peak["reason"].is_string() || peak["ratio"].is_f64(), "{peak}");
    }
    // The shape of another case is one shape all the same.
    let small = ["readout", "--case=long", "--seq=1024", "--entries=1024", "--topk=64"];
    assert_eq!(bench(&small)["peaks"][0]["shape"]["seq"], 1024);
    let text = Lab::new().csa2(&[&["bench"], &long[..], &["--quick"]].concat()).fine().out;
    assert!(text.starts_with("readout long, changed, B1 S512 H8 d128 N512 K32 W128: peak of memory"), "{text}");
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let lab = Lab::with(TINY);
    for (arguments, part) in [
        (&["readout", "--seq=0"][..], "error: --seq 0: it must be 1 or more\n"),
        (&["readout", "--topk=0"], "error: --topk 0: an address of no entries selects nothing"),
        (&["readout", "--case=x"], "error: readout has no case \"x\"; there are: small, wide, long\n"),
        (&["readout", "--seq=3000000000"], "error: --seq 3000000000: row numbers have 32 bits"),
        (&["readout", "--seq=2000000000", "--entries=2000000000"], "alone take "),
        (&["select", "--pool-blocks=0", "--pool-size=8"], "error: --pool-blocks 0: a pool of nothing"),
        (&["select", "--pool-blocks=8", "--pool-size=0"], "error: --pool-size 0: a pool of nothing"),
        (&["kl", "--index-heads=0"], "error: --index-heads 0: "),
        (&["query", "--entries=0"], "error: --entries 0: "),
        (&["geometry", "--points=0"], "error: --points 0: it must be 1 or more\n"),
        (&["geometry", "--case=x"], "error: geometry has no case \"x\"; there are: reach, membership\n"),
        (&["step", "--config=none.toml"], "none.toml: cannot be read"),
        (
            &["step", "--config=tiny.toml", "--variant=x"],
            "error: tiny.toml: no variant \"x\"; there are: windows, shared\n",
        ),
    ] {
        let message = lab.csa2(&[&["bench"], arguments].concat()).refused();
        assert!(message.contains(part), "{message}");
    }
    for arguments in [
        &["readout", "--seq=-1"][..],
        &["readout", "--seq=many"],
        &["select", "--window=3"],
        &["select", "--pool-size=3"],
        &["step", "--variant=x"],
        &["--threads=0"],
        &["--backend=abacus"],
        &["write"],
    ] {
        let ran = lab.csa2(&[&["bench"], arguments].concat());
        assert_eq!((ran.code, &ran.out[..]), (Some(2), ""), "{ran:?}");
        assert!(ran.err.starts_with("error: "), "{ran:?}");
    }
}

#[test]
fn a_prompt_is_read_whole_and_with_replays() {
    let lab = Lab::new();
    let told = lab.csa2(&["bench", "prefill", "--context", "1K", "--quick", "--json"]).fine().json();
    let cases: Vec<&str> =
        told["results"].as_array().unwrap().iter().map(|row| row["case"].as_str().unwrap()).collect();
    assert_eq!(cases, ["whole", "replay of 128", "replay of 636"]);
    assert_eq!(told["ratios"].as_array().unwrap().len(), 2);
    assert_eq!(lab.csa2(&["bench", "prefill", "--context", "0"]).code, Some(2));
}
