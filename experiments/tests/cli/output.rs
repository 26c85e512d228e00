//! What the commands print.

use serde_json::{Value, json};

use crate::common::{Lab, TINY, edited};

const RELEASED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/models/deepseek-v4.1-flash.toml");

#[test]
fn the_released_layout_is_counted_as_in_the_report() {
    let plan = Lab::new().csa2(&["plan", RELEASED]).fine().out;
    for part in [
        "\n2 swa, 4 full, 4 reindex, 30 reuse\n",
        "\nCache: 890 bytes per token\n",
        "\nFrom 4K to 1M tokens: x1.28 weighted",
        "read-out and head as BF16 (x1)",
    ] {
        assert!(plan.contains(part), "{plan}");
    }
}

#[test]
fn a_plan_is_also_a_graph_and_json() {
    let lab = Lab::new();
    let dot = lab.csa2(&["plan", RELEASED, "--dot"]).fine().out;
    assert!(dot.starts_with("digraph csa2 {\n") && dot.ends_with("}\n"), "{dot}");
    assert!(dot.contains("28 [label = \"28  reindex\"") && dot.contains("20 -> 28 ["), "{dot}");
    let plans = lab.csa2(&["plan", RELEASED, "--json"]).fine().json();
    assert_eq!(plans.as_array().map(Vec::len), Some(1));
    assert_eq!(plans[0]["modes"], json!({"swa": 2, "full": 4, "reindex": 4, "reuse": 30, "stale": 0, "dense": 0}));
    assert_eq!(plans[0]["bytes_per_token"]["total"]["value"], 890.0);
    let tiny = Lab::with(TINY);
    let plans = tiny.csa2(&["plan", "tiny.toml", "--json"]).fine().json();
    let names: Vec<&Value> = plans.as_array().unwrap().iter().map(|plan| &plan["name"]).collect();
    assert_eq!(names, ["windows", "shared"]);
    let one = tiny.csa2(&["plan", "tiny.toml", "--variant", "shared"]).fine().out;
    assert!(one.starts_with("shared: 2 layers\nfull reuse\n") && !one.contains("windows: "), "{one}");
}

#[test]
fn an_ablation_prints_its_table_and_leaves_its_report() {
    let lab = Lab::with(TINY);
    let ran = lab.ablate().fine();
    assert!(ran.err.starts_with("2 runs to do, 1 at a time, 1 thread each, on flex; results in out\n"), "{ran:?}");
    assert!(ran.err.contains("\nshared, seed 0: accuracy 0."), "{ran:?}");
    for part in ["accuracy", "difference to", "windows", "shared", "1 seed", "bytes/", "tokens/"] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    for file in ["report.html", "table.md", "table.csv"] {
        assert!(lab.path().join("out").join(file).exists());
    }
}

#[test]
fn json_is_all_that_is_on_standard_output() {
    let lab = Lab::with(&edited("seeds = [0]", "seeds = [0, 1, 2]"));
    let ran = lab.csa2(&["ablate", "tiny.toml", "--out", "out", "--json"]).fine();
    let json = ran.json();
    let ablation = &json["ablations"][0];
    assert_eq!(ablation["record"]["name"], "tiny");
    assert_eq!(ablation["record"]["seeds"], json!([0, 1, 2]));
    let variants = ablation["variants"].as_array().unwrap();
    assert_eq!(variants.len(), 2);
    for variant in variants {
        assert_eq!((&variant["n"], &variant["missing"]), (&json!(3), &json!([])));
        assert!(variant["mean"].is_f64() && variant["half_width"].is_f64() && variant["tokens_per_second"].is_f64());
        assert!(variant["cost"]["parameters"].is_u64(), "{variant}");
        let baseline = variant["name"] == "windows";
        assert_eq!(variant["verdict"] == "baseline", baseline);
        assert_eq!(variant["difference"].is_null(), baseline);
    }
    // A report of the same runs says the same.
    assert_eq!(lab.csa2(&["report", "out", "--json"]).fine().json(), json);
}

#[test]
fn a_report_tells_what_is_missing_and_joins_several() {
    let lab = Lab::with(TINY);
    lab.ablate().fine();
    std::fs::remove_dir_all(lab.run_folder("shared")).unwrap();
    std::fs::create_dir_all(lab.path().join("out/shared/seed-9")).unwrap();
    let json = lab.csa2(&["report", "out", "--json"]).fine().json();
    let shared = &json["ablations"][0]["variants"][1];
    assert_eq!(shared["missing"], json!([{"seed": 0, "reason": "not started"}]));
    assert_eq!((&shared["mean"], &shared["verdict"]), (&Value::Null, &Value::Null));
    assert_eq!(json["ablations"][0]["strays"], json!(["shared/seed-9"]));

    lab.write("other.toml", edited("\"tiny\"", "\"other\"").replace("batch = 8", "batch = 4"));
    lab.csa2(&["ablate", "other.toml", "--out", "second"]).fine();
    let ran = lab.csa2(&["report", "out", "second", "--out", "joint/deep"]).fine();
    assert!(ran.out.contains("All ablations"), "{ran:?}");
    let page = std::fs::read_to_string(lab.path().join("joint/deep/report.html")).unwrap();
    assert!(page.contains("tiny") && page.contains("other"));
    let json = lab.csa2(&["report", "out", "second", "--out", "joint", "--json"]).fine().json();
    let names: Vec<&Value> = json["ablations"].as_array().unwrap().iter().map(|a| &a["record"]["name"]).collect();
    assert_eq!(names, ["tiny", "other"]);
}

#[test]
fn backends_are_listed_with_what_is_missing() {
    let lab = Lab::new();
    let text = lab.csa2(&["backends"]).fine().out;
    assert!(text.starts_with("flex   compiled in, present: ") && text.contains("\n       device: "), "{text}");
    let json = lab.csa2(&["backends", "--json"]).fine().json();
    let backends = json["backends"].as_array().unwrap();
    let names: Vec<&str> = backends.iter().map(|b| b["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["flex", "wgpu", "cuda"]);
    let flex = &backends[0];
    assert_eq!((&flex["compiled"], &flex["present"], &flex["missing"]), (&json!(true), &json!(true), &Value::Null));
    assert!(flex["device"].as_str().is_some_and(|device| device.contains(std::env::consts::ARCH)), "{flex}");
    for backend in &backends[1..] {
        // Only a build that has the backend can tell whether the machine has a device for it.
        assert_eq!(backend["present"].is_null(), backend["compiled"] == false, "{backend}");
        assert_eq!(backend["missing"].is_null(), backend["present"] == true, "{backend}");
        assert_eq!(backend["device"].is_null(), backend["present"] != true, "{backend}");
    }
}

#[test]
fn every_command_has_help_with_an_example() {
    let lab = Lab::new();
    for command in ["ablate", "plan", "report", "bench", "import", "export", "backends"] {
        let help = lab.csa2(&[command, "--help"]).fine().out;
        assert!(help.contains("Example") && help.contains(&format!("\n  csa2 {command}")), "{help}");
        assert!(lab.csa2(&["--help"]).fine().out.contains(&format!("\n  {command} ")));
    }
    assert!(lab.csa2(&["--help"]).fine().out.contains("\n  csa2 ablate configs/quickstart.toml\n"));
    assert!(lab.csa2(&["--version"]).fine().out.starts_with("csa2 "));
    assert_eq!(lab.csa2(&[]).code, Some(2));
}
