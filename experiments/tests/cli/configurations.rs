//! The configurations that come with the repository, and the examples that help texts give.

use std::path::{Path, PathBuf};

use crate::common::{Lab, Ran, command, run};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn tomls_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(tomls_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn plan(path: &Path) -> Ran {
    run(command(&repository(), &["plan"]).arg(path))
}

#[test]
fn every_configuration_can_be_planned() {
    let paths = tomls_below(&repository().join("configs"));
    assert!(paths.iter().any(|path| path.ends_with("configs/quickstart.toml")), "{paths:?}");
    for path in paths {
        // A post-training says what changes in a run; what it is then, the run decides. A search has no model at all.
        let text = std::fs::read_to_string(&path).unwrap();
        if ["\n[posttrain]\n", "\n[search]\n"].iter().any(|table| text.contains(table)) {
            continue;
        }
        let ran = plan(&path);
        if ran.code == Some(1) && ran.err.contains("but no file is found at") {
            println!("not run: {} has no corpus on this machine", path.display());
            continue;
        }
        let ran = ran.fine();
        assert!(ran.out.contains("\nCache: ") && ran.err.is_empty(), "{}: {ran:?}", path.display());
    }
}

#[test]
fn the_examples_of_plan_work() {
    let help = Lab::new().csa2(&["plan", "--help"]).fine().out;
    let examples: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  csa2 plan ")).collect();
    assert!(examples.len() >= 3, "{help}");
    for example in examples {
        let arguments = example.split(" | ").next().unwrap();
        let line = format!("'{}' plan {arguments}", env!("CARGO_BIN_EXE_csa2"));
        run(std::process::Command::new("sh").current_dir(repository()).args(["-c", &line])).fine();
    }
}
