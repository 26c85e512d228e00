//! Folders of results that cannot be used, are used already, or run full: nothing that is there is lost.

use std::fs;
#[cfg(target_os = "linux")]
use std::path::{Path, PathBuf};

use crate::common::{Lab, TINY, command, edited, run};

#[test]
fn without_out_results_go_to_runs_under_the_ablations_name() {
    let lab = Lab::with(TINY);
    let ran = lab.csa2(&["ablate", "tiny.toml"]).fine();
    assert!(ran.err.ends_with("report: runs/tiny/report.html\n"), "{ran:?}");
    assert!(lab.path().join("runs/tiny/shared/seed-0/summary.json").exists());
}

#[test]
fn results_of_another_configuration_stay_as_they_are() {
    let lab = Lab::with(TINY);
    lab.ablate().fine();
    let before = (lab.metrics(), fs::read(lab.path().join("out/ablation.json")).unwrap());
    lab.write("tiny.toml", edited("topk = 2", "topk = 3"));
    let message = lab.ablate().refused();
    for part in [
        "error: out: holds results of another configuration. Changed:\n  variant \"windows\" (hash ",
        "\n  variant \"shared\" (hash ",
        "Run with --fresh to start anew (what is there is moved aside), or give the ablation another name.\n",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(before == (lab.metrics(), fs::read(lab.path().join("out/ablation.json")).unwrap()));
    let ran = lab.csa2(&["ablate", "tiny.toml", "--out", "out", "--fresh"]).fine();
    let aside = ran.err.lines().find_map(|line| line.strip_prefix("moved out to ")).unwrap();
    assert!(
        fs::read(lab.path().join(aside).join("windows/seed-0/metrics.jsonl")).unwrap()
            == *before.0.values().last().unwrap()
    );
}

#[test]
fn another_name_or_another_folder_is_another_ablation() {
    let lab = Lab::with(TINY);
    lab.ablate().fine();
    let before = lab.metrics();
    lab.write("tiny.toml", edited("topk = 2", "topk = 3").replace("\"tiny\"", "\"other\""));
    assert!(lab.ablate().refused().contains("the ablation's name, from \"tiny\" to \"other\""));
    lab.csa2(&["ablate", "tiny.toml"]).fine();
    assert!(before == lab.metrics());
}

#[test]
fn places_that_are_no_folder_or_hold_something_else() {
    let lab = Lab::with(TINY);
    lab.write("file", "mine");
    lab.write("thesis/chapter.tex", "mine");
    for (out, part) in [
        ("file", "file: is no folder; give another --out"),
        ("file/below", "file/below: cannot be written: Not a directory"),
        ("thesis", "thesis: is not empty and holds no ablation; give another --out"),
    ] {
        for fresh in [&[][..], &["--fresh"]] {
            let message = lab.csa2(&[&["ablate", "tiny.toml", "--out", out], fresh].concat()).refused();
            assert!(message.contains(part), "{message}");
        }
    }
    assert_eq!(fs::read(lab.path().join("file")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(lab.path().join("thesis")).unwrap().count(), 1);
    lab.ablate().fine();
    assert!(lab.csa2(&["report", "out", "--out", "file"]).refused().contains("file: cannot be written: "));
    assert!(lab.csa2(&["report", "thesis"]).refused().contains("thesis/ablation.json: cannot be read: No such file"));
    assert!(lab.csa2(&["report", "out", "out"]).refused().contains("several ablations need --out"));
}

#[test]
fn the_working_folder_itself_cannot_be_moved_aside() {
    let (configuration, lab) = (Lab::with(TINY), Lab::new());
    let path = configuration.path().join("tiny.toml");
    let ablate = |more: &[&str]| run(command(lab.path(), &["ablate", "--out", "."]).arg(&path).args(more));
    ablate(&[]).fine();
    let message = ablate(&["--fresh"]).refused();
    assert!(
        message.contains("error: .: cannot be moved aside: ") && message.contains("give another --out"),
        "{message}"
    );
    assert!(lab.path().join("shared/seed-0/summary.json").exists());
}

#[test]
fn damaged_results_are_named() {
    let lab = Lab::with(TINY);
    lab.ablate().fine();
    let shared = lab.run_folder("shared");
    let summary = fs::read(shared.join("summary.json")).unwrap();
    fs::write(shared.join("summary.json"), "garbage").unwrap();
    for message in [lab.ablate().refused(), lab.csa2(&["report", "out"]).refused()] {
        assert!(message.contains("error: out/shared/seed-0/summary.json, line 1: expected value"), "{message}");
    }
    fs::remove_file(shared.join("summary.json")).unwrap();
    let model = shared.join("checkpoint/model-00000020.safetensors");
    let whole = fs::read(&model).unwrap();
    fs::write(&model, &whole[..1000]).unwrap();
    let message = lab.ablate().refused();
    assert!(message.contains("model-00000020.safetensors: not a whole safetensors file"), "{message}");
    assert!(message.contains("remove out/shared/seed-0 to train this run from its start"), "{message}");
    fs::write(&model, &whole).unwrap();
    fs::write(shared.join("summary.json"), summary).unwrap();
    fs::write(shared.join("metrics.jsonl"), "garbage\n{}\n").unwrap();
    let message = lab.csa2(&["report", "out"]).refused();
    assert!(message.contains("error: out/shared/seed-0/metrics.jsonl, line 1: "), "{message}");
    // A finished run counts by its summary, also where its measurements are gone.
    fs::remove_file(shared.join("metrics.jsonl")).unwrap();
    assert_eq!(lab.csa2(&["report", "out", "--json"]).fine().json()["ablations"][0]["variants"][0]["n"], 1);
    fs::write(lab.path().join("out/ablation.json"), "{").unwrap();
    let message = lab.ablate().refused();
    assert!(message.contains("error: out/ablation.json, line 1: EOF") && message.contains("--fresh"), "{message}");
    lab.csa2(&["ablate", "tiny.toml", "--out", "out", "--fresh"]).fine();
}

#[test]
fn a_run_that_diverges_makes_the_command_fail_and_the_others_count() {
    let wild = "train.learning_rate = 1000\nlayers = \"full reuse\"";
    let lab = Lab::with(&edited("layers = \"full reuse\"", wild));
    let ran = lab.csa2(&["ablate", "tiny.toml", "--out", "out", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.ends_with("error: 1 run has no result; the report gives the reason\n"), "{ran:?}");
    let json = ran.json();
    let (windows, shared) = (&json["ablations"][0]["variants"][0], &json["ablations"][0]["variants"][1]);
    assert_eq!((&windows["n"], &windows["missing"]), (&1.into(), &serde_json::json!([])));
    let reason = shared["missing"][0]["reason"].as_str().unwrap();
    // Which layer overflows first hangs on the last digit of the arithmetic.
    for part in ["failed: step ", "is not finite; first seen in ", "the last good checkpoint is that of step 5 (out/"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert!(fs::read_to_string(lab.path().join("out/report.html")).unwrap().contains("is not finite"));
}

/// A file system in memory, unmounted when dropped.
#[cfg(target_os = "linux")]
struct Mount(PathBuf);

#[cfg(target_os = "linux")]
impl Mount {
    /// None where this process may not mount one.
    fn new(place: &Path, options: &str) -> Option<Self> {
        fs::create_dir(place).unwrap();
        let mounted = run(std::process::Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(place));
        (mounted.code == Some(0)).then(|| Self(place.to_path_buf()))
    }

    fn remount(&self, options: &str) {
        run(std::process::Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.0)).fine();
    }
}

#[cfg(target_os = "linux")]
impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_loses_nothing() {
    let whole = Lab::with(TINY);
    whole.ablate().fine();
    // Too small for the record, for the first checkpoint, for the second run, for the report.
    for size in ["4k", "40k", "120k", "200k"] {
        let lab = Lab::with(TINY);
        let Some(mount) = Mount::new(&lab.path().join("out"), &format!("size={size}")) else {
            println!("not run: this process may not mount a small file system");
            return;
        };
        let message = lab.ablate().refused();
        assert!(message.contains(": no space left on the disk; free some and run the same command again"), "{message}");
        mount.remount("size=16m");
        lab.ablate().fine();
        assert!(lab.metrics() == whole.metrics(), "{size}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_place_that_cannot_be_written_is_named() {
    let lab = Lab::with(TINY);
    let Some(_mount) = Mount::new(&lab.path().join("out"), "ro,size=1m") else {
        println!("not run: this process may not mount a read-only file system");
        return;
    };
    let message = lab.ablate().refused();
    assert!(message.contains("out/.lock: cannot be written: Read-only file system"), "{message}");
    let message = lab.csa2(&["ablate", "tiny.toml", "--out", "out/below"]).refused();
    assert!(message.contains("out/below: cannot be written: Read-only file system"), "{message}");
}
