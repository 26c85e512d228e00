//! Standard output and error that nobody reads, or that cannot be written.
#![cfg(unix)]

use std::fs::OpenOptions;
use std::process::Stdio;

use crate::common::{Lab, TINY, command, run};

#[test]
fn a_reader_that_has_gone_away_is_no_error() {
    let lab = Lab::with(TINY);
    let mut child =
        command(lab.path(), &["plan", "tiny.toml"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), String::new()));
    let line = format!("'{}' plan tiny.toml | head -n 1", env!("CARGO_BIN_EXE_csa2"));
    let ran = run(std::process::Command::new("sh").current_dir(lab.path()).args(["-c", &line])).fine();
    assert_eq!((&ran.out[..], &ran.err[..]), ("windows: 2 layers\n", ""));
}

#[test]
fn an_ablation_whose_words_nobody_reads_goes_on() {
    let lab = Lab::with(TINY);
    let mut child = lab.start();
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(lab.finished("windows") && lab.finished("shared") && lab.path().join("out/report.html").exists());
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let Ok(full) = OpenOptions::new().write(true).open("/dev/full") else {
        println!("not run: this system has no /dev/full");
        return;
    };
    let lab = Lab::with(TINY);
    let ran = run(command(lab.path(), &["plan", "tiny.toml"]).stdout(full));
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.starts_with("error: standard output: No space left"), "{ran:?}");
}
