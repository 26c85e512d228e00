//! Running the binary as a user does.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub const TINY: &str = include_str!("../tiny.toml");

/// [`TINY`] with `from` replaced by `to`.
pub fn edited(from: &str, to: &str) -> String {
    assert!(TINY.contains(from), "nothing to replace: {from}");
    TINY.replace(from, to)
}

/// What a command said and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Standard output and error where the command went well.
    pub fn fine(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// The message where the command refused; no refusal is a panic or leaves something on standard output.
    pub fn refused(self) -> String {
        assert_eq!((self.code, &self.out[..]), (Some(1), ""), "{self:?}");
        assert!(self.err.starts_with("error: ") || self.err.contains("\nerror: "), "{self:?}");
        assert!(!self.err.contains("panicked"), "{self:?}");
        self.err
    }

    /// The whole standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The binary with `arguments`, in `folder`.
pub fn command<A: AsRef<OsStr>>(folder: &Path, arguments: &[A]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_csa2"));
    command.current_dir(folder).args(arguments).stdin(Stdio::null());
    command
}

pub fn run(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A folder to work in.
pub struct Lab(TempDir);

impl Lab {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A folder with the configuration `tiny.toml`.
    pub fn with(text: &str) -> Self {
        let lab = Self::new();
        lab.write("tiny.toml", text);
        lab
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub fn csa2(&self, arguments: &[&str]) -> Ran {
        run(&mut command(self.path(), arguments))
    }

    /// `csa2 ablate tiny.toml --out out` with one run at a time.
    pub fn ablate(&self) -> Ran {
        self.csa2(&["ablate", "tiny.toml", "--out", "out", "--jobs", "1"])
    }

    /// Starts [`ablate`](Self::ablate) and leaves it running.
    pub fn start(&self) -> Child {
        let arguments = ["ablate", "tiny.toml", "--out", "out", "--jobs", "1"];
        command(self.path(), &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub fn run_folder(&self, variant: &str) -> PathBuf {
        self.path().join("out").join(variant).join("seed-0")
    }

    /// The measurements of every run, by path.
    pub fn metrics(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let paths = ["windows", "shared"].map(|variant| self.run_folder(variant).join("metrics.jsonl"));
        let name = |path: &Path| path.strip_prefix(self.path()).unwrap().to_path_buf();
        paths.iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
    }

    /// How many lines `variant` has measured so far.
    pub fn lines(&self, variant: &str) -> usize {
        let bytes = fs::read(self.run_folder(variant).join("metrics.jsonl")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).lines().count()
    }

    /// The last checkpoint of `variant`.
    pub fn state(&self, variant: &str) -> Option<Value> {
        let bytes = fs::read(self.run_folder(variant).join("checkpoint/state.json")).ok()?;
        Some(serde_json::from_slice(&bytes).unwrap())
    }

    pub fn finished(&self, variant: &str) -> bool {
        self.run_folder(variant).join("summary.json").exists()
    }
}

/// Waits until `ready`.
pub fn wait(what: &str, ready: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_mins(2);
    while !ready() {
        assert!(Instant::now() < end, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
