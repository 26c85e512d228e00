//! `csa2 bench decode` at contexts that take no time.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::Lab;
#[cfg(unix)]
use crate::common::{command, wait};

const SMALL: [&str; 4] = ["bench", "decode", "--context=256..1K", "--tokens=3"];

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

#[test]
fn everything_is_measured_printed_and_written() {
    let lab = Lab::new();
    let ran = lab.csa2(&[&SMALL[..], &["--out=cost", "--json", "--threads=1"]].concat()).fine();
    let document = ran.json();
    assert!(ran.err.contains("released layout: tokens 1 to 3 at every context"), "{ran:?}");
    let folder = lab.path().join("cost");
    assert_eq!(names(&folder), ["decode.csv", "decode.json", "report.html"]);
    let written: Value = serde_json::from_slice(&fs::read(folder.join("decode.json")).unwrap()).unwrap();
    assert_eq!(written, document);

    let command = "csa2 bench decode --context 256,512,1K --tokens 3 --threads 1 --out cost";
    assert_eq!(document["run"]["command"], command);
    assert_eq!(document["contexts"], json!([256, 512, 1024]));
    let mixes = document["mixes"].as_array().unwrap();
    let modes = [&["full", "reindex", "reuse", "swa"][..], &["full"], &["dense"]];
    // An entry with its key takes 106 bytes and a window latent 132; windows are 128 long. The released layout has two makers of
    // entries at ratio 2 and one at 1, full everywhere six and four.
    let bytes = [|n: u64| 212 * n + 10 * 128 * 132, |n| 742 * n + 10 * 128 * 132, |n| 1320 * n];
    for ((mix, modes), bytes) in mixes.iter().zip(modes).zip(bytes) {
        for (row, context) in mix["rows"].as_array().unwrap().iter().zip([256, 512, 1024]) {
            assert_eq!(
                (&row["context"], &row["repetitions"], &row["bytes"]),
                (&json!(context), &json!(3), &json!(bytes(context)))
            );
            let found: Vec<&String> = row["modes"].as_object().unwrap().keys().collect();
            assert_eq!(found, modes);
            let times = |value: &Value| ["quartile", "median"].map(|name| value[name].as_f64().unwrap());
            let [quartile, median] = times(&row["token"]);
            assert!(0.0 < quartile && quartile <= median, "{row}");
            assert!(modes.iter().all(|mode| times(&row["modes"][mode])[0] > 0.0), "{row}");
        }
    }
    // Tokens that see 1025: 512 entries twice, 1025, and in the pool, which holds 2048, all of them again.
    let scored = |mix: usize| mixes[mix]["rows"][2]["scored"].as_u64().unwrap();
    assert_eq!([scored(0), scored(1), scored(2)], [2 * 512 + 2 * 1025, 6 * 512 + 4 * 1025, 0]);
    assert!(document["copying"].as_array().unwrap().iter().all(|rate| rate.as_f64().unwrap() > 0.0));
    assert_eq!(document["scoring"].as_array().map(Vec::len), Some(3 + 3));
    assert!(document["file"]["bytes"].as_u64().unwrap() > 1024 * 212);
    for growth in document["memory"].as_array().unwrap() {
        assert_eq!((&growth["start"], &growth["context"]), (&json!(128), &json!(1024)));
        if cfg!(target_os = "linux") {
            assert!(growth["bytes"].as_f64().unwrap() > 896.0 * 200.0 && growth["made_up"].is_f64(), "{growth}");
        } else {
            assert!(growth["reason"].is_string() || growth["bytes"].is_f64(), "{growth}");
        }
    }
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    assert_eq!(page.matches("<svg role=\"img\"").count(), 2);
    assert!(page.contains(command) && page.contains("dense everywhere over released layout"), "{page}");
    let lines = fs::read_to_string(folder.join("decode.csv")).unwrap().lines().count();
    assert_eq!(lines, 1 + 9);

    // What is there is not replaced.
    let message = lab.csa2(&[&SMALL[..], &["--out=cost"]].concat()).refused();
    assert!(
        message.contains("cost: is not empty and holds no measurement of decoding; give another --out"),
        "{message}"
    );
    assert_eq!(names(&folder), ["decode.csv", "decode.json", "report.html"]);
    lab.write("file", "");
    let message = lab.csa2(&[&SMALL[..], &["--out=file"]].concat()).refused();
    assert!(message.contains("file: is no folder"), "{message}");
}

#[test]
fn without_a_folder_there_is_a_table_alone() {
    let lab = Lab::new();
    let ran = lab.csa2(&["bench", "decode", "--context=300", "--quick"]).fine();
    for part in ["mix", "context", "reindex", "bytes held", "copying memory, before scoring", "full everywhere"] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    // One context grows nowhere.
    assert!(ran.out.contains("dense everywhere over released layout") && !ran.out.contains("300 over"), "{}", ran.out);
    assert!(ran.err.contains("tokens 1 to 2 at every context"), "{ran:?}");
    assert_eq!(fs::read_dir(lab.path()).unwrap().count(), 0);
}

#[test]
fn contexts_that_cannot_be_are_refused() {
    let lab = Lab::new();
    for (arguments, part) in [
        (&["--context=.."][..], "\"\" is no context"),
        (&["--context="], "\"\" is no context"),
        (&["--context=8K..4K"], "8K is not below 4K"),
        (&["--context=4K..4K"], "4K is not below 4K"),
        (&["--context=0"], "a context of 0 tokens"),
        (&["--context=5Q"], "\"5Q\" is no context; write tokens as digits, with K (1024) or M"),
        (&["--context=8K,4K"], "4K comes after 8K"),
        (&["--context=99999999999M"], "is more than 1024M"),
        (&["--tokens=0"], "invalid value '0'"),
        (&["--case=64k"], "unexpected argument '--case'"),
    ] {
        let ran = lab.csa2(&[&["bench", "decode"], arguments].concat());
        assert_eq!((ran.code, &ran.out[..]), (Some(2), ""), "{ran:?}");
        assert!(ran.err.starts_with("error: ") && ran.err.contains(part), "{ran:?}");
    }
    // What can be written may still not fit.
    let message = lab.csa2(&["bench", "decode", "--context=1K..1024M", "--tokens=1", "--out=out"]).refused();
    assert!(
        message.contains("released layout: caches for 1 x ") && message.contains(" bytes, but there are "),
        "{message}"
    );
    assert!(names(&lab.path().join("out")).is_empty());
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_it_and_nothing_is_written() {
    use std::process::{Command, Stdio};

    let lab = Lab::new();
    let arguments = ["bench", "decode", "--context=256..1K", "--tokens=100000", "--out=cost"];
    let mut child = command(lab.path(), &arguments).stderr(Stdio::piped()).spawn().unwrap();
    let folder = lab.path().join("cost");
    wait("the folder is taken", || folder.join(".lock").exists());
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(names(&folder).is_empty());
}

#[test]
fn a_model_of_ones_own_takes_the_place_of_the_released_layout() {
    let lab = Lab::with(crate::common::TINY);
    let small = ["bench", "decode", "--context=64,200", "--quick", "--threads=1"];
    let own = |more: &[&str]| lab.csa2(&[&small[..], more].concat());
    let ran = own(&["--config", "tiny.toml", "--variant=shared", "--json", "--out=cost"]).fine();
    let document = ran.json();
    let mixes = document["mixes"].as_array().unwrap();
    let told: Vec<[&str; 3]> =
        mixes.iter().map(|mix| ["key", "name", "layers"].map(|key| mix[key].as_str().unwrap())).collect();
    assert_eq!(
        told,
        [
            ["own", "shared", "full reuse"],
            ["full", "full everywhere", "full*2"],
            ["dense", "dense everywhere", "dense*2"]
        ]
    );
    assert!(mixes[0]["rows"][1]["modes"]["reuse"]["quartile"].as_f64().unwrap() > 0.0, "{ran:?}");
    let ratios: Vec<&str> =
        document["ratios"].as_array().unwrap().iter().map(|ratio| ratio["what"].as_str().unwrap()).collect();
    for start in [
        "shared, time of reuse and reindex layers, 200 over 64",
        "time of a token at 200, dense everywhere over shared",
    ] {
        assert!(ratios.contains(&start), "{start}: {ratios:?}");
    }
    if cfg!(target_os = "linux") {
        assert!(document["memory"][0]["bytes"].as_f64().unwrap() > 0.0, "{}", document["memory"]);
    }
    assert!(document["sizes"].as_str().unwrap().contains("2 heads of "), "{}", document["sizes"]);
    let page = fs::read_to_string(lab.path().join("cost/report.html")).unwrap();
    assert!(page.contains("Time of a token of shared, by mode") && !page.contains("released"), "{page}");

    for (more, expected) in [
        (&["--config", "tiny.toml"][..], "has several variants; give one by --variant: windows, shared"),
        (&["--config", "tiny.toml", "--variant=nobody"], "no variant \"nobody\"; there are: windows, shared"),
        (&["--config=nobody.toml"], "nobody.toml"),
    ] {
        let message = own(more).refused();
        assert!(message.contains(expected), "{expected}: {message}");
    }
    let ran = own(&["--variant=shared"]);
    assert!(ran.code == Some(2) && ran.err.contains("--config"), "{ran:?}");
}
