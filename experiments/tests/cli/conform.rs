//! `csa2 conform` on the project's golden cases, on copies that are wrong, and on folders that hold no cases.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::common::Lab;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/goldens")
}

/// A folder `cases` with copies of golden cases.
fn with(names: &[&str]) -> Lab {
    let lab = Lab::new();
    for name in names {
        for ending in ["json", "safetensors"] {
            let file = format!("{name}.{ending}");
            lab.write(&format!("cases/{file}"), fs::read(goldens().join(&file)).unwrap());
        }
    }
    lab
}

fn cases(json: &Value) -> &[Value] {
    json["cases"].as_array().unwrap()
}

#[test]
fn the_projects_golden_cases_pass() {
    let lab = Lab::new();
    let folder = goldens();
    let folder = folder.to_str().unwrap();
    let json = lab.csa2(&["conform", folder, "--json"]).fine().json();
    let count = cases(&json).len();
    assert_eq!(
        (json["passed"].as_u64(), &json["failed"], &json["not_run"]),
        (Some(count as u64), &json!(0), &json!(0))
    );
    for case in cases(&json) {
        assert_eq!((&case["result"], &case["error"]), (&json!("passed"), &Value::Null), "{case}");
        let comparisons = case["comparisons"].as_array().unwrap();
        assert!(!comparisons.is_empty() && comparisons.iter().all(|one| one["compared"].as_u64() > Some(0)), "{case}");
        assert_eq!((&case["not_run"], &case["not_compared"]), (&json!([]), &json!([])), "{case}");
    }
    for prefix in
        ["a_", "b_attn_grad", "b_attn", "b_block", "c_trace", "c_model", "d_", "e_", "f_", "g_grad", "h_", "k_"]
    {
        assert!(cases(&json).iter().any(|case| case["family"] == prefix), "{prefix}");
    }

    let text = lab.csa2(&["conform", folder]).fine().out;
    for case in cases(&json) {
        let name = format!("{} ", case["name"].as_str().unwrap());
        assert_eq!(text.lines().filter(|line| line.starts_with(&name)).count(), 1, "{name}: {text}");
    }
    assert!(text.ends_with(&format!("\n{count} passed, 0 failed, 0 not run\n")), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
}

#[test]
fn a_number_that_is_off_is_told_with_its_place() {
    let lab = with(&["a_sparse_attn_basic", "b_attn_window"]);
    let path = lab.path().join("cases/b_attn_window.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let expected = SafeTensors::deserialize(&bytes).unwrap().tensor("cap.q").unwrap().data().as_ptr() as usize;
    let start = expected - bytes.as_ptr() as usize;
    bytes[start..start + 4].copy_from_slice(&7.0_f32.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let ran = lab.csa2(&["conform", "cases"]);
    assert_eq!((ran.code, &ran.err[..]), (Some(1), ""), "{ran:?}");
    assert!(ran.out.contains("\na_sparse_attn_basic  ok "), "{}", ran.out);
    assert!(ran.out.contains("\nb_attn_window        FAILED "), "{}", ran.out);
    assert!(ran.out.contains("\nb_attn_window: cap.q[0, 0, 0, 0] (flex): found "), "{}", ran.out);
    assert!(ran.out.contains(", expected 7; off by ") && ran.out.contains("; 1 of 10496 differ\n"), "{}", ran.out);
    assert!(ran.out.ends_with("\n1 passed, 1 failed, 0 not run\n"), "{}", ran.out);
    let ran = lab.csa2(&["conform", "cases", "--json"]);
    assert_eq!(ran.code, Some(1));
    let json = ran.json();
    assert_eq!((&json["failed"], &json["cases"][1]["result"]), (&json!(1), &json!("failed")));
    let comparisons = json["cases"][1]["comparisons"].as_array().unwrap();
    let failed: Vec<&Value> = comparisons.iter().filter(|one| one["passed"] == false).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!((&failed[0]["name"], &failed[0]["worst"]["expected"]), (&json!("cap.q"), &json!(7.0)));
    assert_eq!((&failed[0]["worst"]["place"], &failed[0]["differing"]), (&json!([0, 0, 0, 0]), &json!(1)));
    assert!(failed[0]["relative"].as_f64() > failed[0]["tolerance"].as_f64());
}

#[test]
fn cases_are_chosen_by_prefix() {
    let lab = with(&["a_sparse_attn_basic", "a_sparse_attn_dup", "e_quant"]);
    let names = |arguments: &[&str]| -> Vec<String> {
        let json = lab.csa2(&[&["conform", "cases", "--json"], arguments].concat()).fine().json();
        cases(&json).iter().map(|case| case["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&["--only", "a_sparse_attn_d", "--only", "e"]), ["a_sparse_attn_dup", "e_quant"]);
    assert_eq!(names(&["--only", "a"]), ["a_sparse_attn_basic", "a_sparse_attn_dup"]);
    let message = lab.csa2(&["conform", "cases", "--only", "e", "--only", "f_"]).refused();
    let there = "a_sparse_attn_basic, a_sparse_attn_dup, e_quant";
    assert_eq!(message, format!("error: --only f_: no case has a name that begins so; there are: {there}\n"));
    assert_eq!(lab.csa2(&["conform", "cases", "--only", ""]).code, Some(2));
}

#[test]
fn folders_without_cases() {
    let lab = Lab::new();
    lab.write("file", "x");
    lab.write("folder/notes.txt", "x");
    let refused = |folder: &str| lab.csa2(&["conform", folder]).refused();
    assert!(refused("nowhere").starts_with("error: nowhere: No such file or directory"));
    assert!(refused("file").starts_with("error: file: Not a directory"));
    assert!(refused("folder").starts_with("error: folder: no golden case there; a case is NAME.safetensors beside"));
    assert_eq!(lab.csa2(&["conform"]).code, Some(2));
}

#[cfg(unix)]
#[test]
fn a_folder_that_may_not_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let lab = with(&["e_quant"]);
    let folder = lab.path().join("cases");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read_dir(&folder).is_ok() {
        println!("not run: this user may read everything");
        return;
    }
    let message = lab.csa2(&["conform", "cases"]).refused();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(message.starts_with("error: cases: Permission denied"), "{message}");
}

#[test]
fn broken_cases_fail_by_name_and_the_others_run() {
    let lab = with(&["e_quant", "a_sparse_attn_basic", "b_attn_window", "d_candidate_blocks", "f_compressor"]);
    let path = |file: &str| lab.path().join("cases").join(file);
    let whole = fs::read(path("a_sparse_attn_basic.safetensors")).unwrap();
    fs::write(path("a_sparse_attn_basic.safetensors"), &whole[..whole.len() - 1]).unwrap();
    fs::write(path("b_attn_window.json"), "{").unwrap();
    fs::remove_file(path("d_candidate_blocks.json")).unwrap();
    fs::remove_file(path("f_compressor.safetensors")).unwrap();
    // A header, and a tensor, of 2^60 bytes.
    fs::write(path("a_header.safetensors"), (1_u64 << 60).to_le_bytes()).unwrap();
    let header = r#"{"x":{"dtype":"U8","shape":[1152921504606846976],"data_offsets":[0,1152921504606846976]}}"#;
    fs::write(path("a_tensor.safetensors"), [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat())
        .unwrap();
    fs::write(path("a_tensor.json"), "{}").unwrap();
    fs::write(path("a_header.json"), "{}").unwrap();
    fs::write(path("new_kind.safetensors"), &whole).unwrap();
    fs::create_dir(path("h_folder.safetensors")).unwrap();
    let ran = lab.csa2(&["conform", "cases"]);
    assert_eq!((ran.code, &ran.err[..]), (Some(1), ""), "{ran:?}");
    for line in [
        "a_header: a_header.safetensors: not a whole safetensors file: ",
        "a_sparse_attn_basic: a_sparse_attn_basic.safetensors: not a whole safetensors file: ",
        "a_tensor: a_tensor.safetensors: not a whole safetensors file: ",
        "b_attn_window: b_attn_window.json: not JSON: EOF ",
        "d_candidate_blocks: d_candidate_blocks.json: No such file or directory",
        "f_compressor: f_compressor.safetensors: No such file or directory",
        "h_folder: h_folder.safetensors: Is a directory",
        "new_kind: no family of cases has a name like this; there are: a_, b_attn_grad, ",
    ] {
        assert!(ran.out.contains(&format!("\n{line}")), "{line}: {}", ran.out);
    }
    assert!(ran.out.ends_with("\n1 passed, 8 failed, 0 not run\n"), "{}", ran.out);
}

#[test]
fn geometry_of_an_unknown_kind_fails() {
    let lab = with(&["k_angles", "k_hull_3"]);
    lab.write("cases/k_angles.json", "{\"kind\": \"areas\"}");
    let ran = lab.csa2(&["conform", "cases"]);
    assert_eq!((ran.code, &ran.err[..]), (Some(1), ""), "{ran:?}");
    let line = "\nk_angles: key `kind` is \"areas\"; there are: readout, hull, family, angles, max_probability\n";
    assert!(ran.out.contains(line), "{}", ran.out);
    assert!(ran.out.ends_with("\n1 passed, 1 failed, 0 not run\n"), "{}", ran.out);
    let only = lab.csa2(&["conform", "cases", "--only", "k_h"]).fine().out;
    assert!(only.ends_with("\n1 passed, 0 failed, 0 not run\n"), "{only}");
}

/// On a GPU the f32 comparisons run there; what is left to the CPU is said.
#[cfg(feature = "wgpu")]
#[test]
fn two_backends_conform() {
    let lab = Lab::new();
    let required = std::env::var("CSA2_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == "wgpu"));
    let folder = goldens();
    let arguments = ["conform", folder.to_str().unwrap(), "--backend", "wgpu", "--json"];
    let ran = lab.csa2(&arguments);
    if ran.code != Some(0) && ran.err.contains("backend wgpu") && !required {
        eprintln!("wgpu: no adapter: 1 case not run");
        return;
    }
    let json = ran.fine().json();
    assert_eq!((&json["failed"], &json["not_run"]), (&json!(0), &json!(0)));
    for case in cases(&json) {
        let on = |place: &str| case["comparisons"].as_array().unwrap().iter().filter(|one| one["on"] == place).count();
        // Geometry is plain Rust, whatever the backend.
        let expected = if case["family"] == "k_" { "host" } else { "wgpu" };
        assert!(on(expected) > 0 && (on("wgpu") == 0) == (expected == "host"), "{case}");
    }
    let text = lab.csa2(&["conform", arguments[1], "--backend", "wgpu", "--only", "a_"]).fine().out;
    assert!(text.contains("\non the CPU: a_sparse_attn_basic: f64.o, f64.dq, "), "{text}");
}
