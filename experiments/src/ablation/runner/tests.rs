//! Runs of tiny ablations, and what may lie in the way of them.

mod failures;
mod quantization;
mod stages;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;

use super::*;
use crate::ablation::testing::{TINY, edited, write};
use crate::results::metrics_path;

/// A configuration that takes long enough to be stopped on the way: 600 steps, a checkpoint every 100.
fn long() -> String {
    edited("2_240", "67_200").replace("checkpoint_every = 5", "checkpoint_every = 100").replace("full reuse", "full")
}

/// A folder for the configuration and one for the results.
struct Lab {
    folder: TempDir,
    options: RunnerOptions,
}

impl Lab {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = RunnerOptions {
            out: folder.path().join("out"),
            fresh: false,
            jobs: 2,
            threads: 1,
            backend: "flex",
            device: Device::flex(),
            command: "csa2 ablate tiny.toml".into(),
        };
        Self { folder, options }
    }

    fn out(&self) -> &Path {
        &self.options.out
    }

    fn run_until(&self, text: &str, stop: &AtomicBool) -> Result<Ended, String> {
        let config = AblationConfig::load(&write(self.folder.path(), text)).unwrap();
        let place = self.folder.path().display().to_string();
        run(&config, &self.options, stop).map_err(|error| error.to_string().replace(&place, "LAB"))
    }

    fn run(&self, text: &str) -> Result<Ended, String> {
        self.run_until(text, &AtomicBool::new(false))
    }

    fn done(&self, text: &str) {
        assert_eq!(self.run(text), Ok(Ended::Done));
    }

    /// Runs until `variant` has measured `lines` lines in this call, then asks to stop.
    fn interrupted_after(&self, text: &str, variant: &str, lines: usize) {
        let (stop, path) = (Arc::new(AtomicBool::new(false)), metrics_path(&self.dir(variant, 0)));
        let (asked, end) = (stop.clone(), Instant::now() + Duration::from_mins(1));
        let watch = std::thread::spawn(move || {
            let enough = || fs::read_to_string(&path).is_ok_and(|text| text.lines().count() >= lines);
            while !enough() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            asked.store(true, Ordering::Relaxed);
        });
        assert_eq!(self.run_until(text, &stop), Ok(Ended::Interrupted));
        watch.join().unwrap();
    }

    fn dir(&self, variant: &str, seed: u64) -> PathBuf {
        run_dir(self.out(), variant, seed)
    }

    fn metrics(&self, variant: &str, seed: u64) -> Vec<u8> {
        fs::read(metrics_path(&self.dir(variant, seed))).unwrap()
    }

    fn summary(&self, variant: &str, seed: u64) -> RunSummary {
        read_summary(&summary_path(&self.dir(variant, seed))).unwrap()
    }

    /// Every file of a run that is not the configuration, with its time and bytes.
    fn files(&self, variant: &str, seed: u64) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
        files(&self.dir(variant, seed))
    }
}

/// Every file below `folder` with its time and bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), (entry.metadata().unwrap().modified().unwrap(), fs::read(&path).unwrap()));
        }
    }
    found
}

#[test]
fn every_run_is_done_once() {
    let lab = Lab::new();
    let text = edited("seeds = [0]", "seeds = [0, 1]");
    lab.done(&text);
    let runs = [("windows", 0), ("windows", 1), ("shared", 0), ("shared", 1)];
    for (variant, seed) in runs {
        let summary = lab.summary(variant, seed);
        assert_eq!((summary.status, summary.steps, summary.tokens), (Status::Finished, 20, 2240));
        assert_eq!((&summary.variant[..], summary.seed, &summary.backend[..]), (variant, seed, "flex"));
        assert!(summary.final_values["accuracy"] > 0.0 && summary.seconds > 0.0);
        // One line before training, one a step, one every five steps.
        assert_eq!(String::from_utf8(lab.metrics(variant, seed)).unwrap().lines().count(), 25);
    }
    let before: Vec<_> = runs.iter().map(|&(variant, seed)| lab.files(variant, seed)).collect();
    lab.done(&text);
    let after: Vec<_> = runs.iter().map(|&(variant, seed)| lab.files(variant, seed)).collect();
    assert_eq!(before, after);
}

#[test]
fn the_resolved_configuration_lies_beside_its_results() {
    let lab = Lab::new();
    lab.done(TINY);
    let text = fs::read_to_string(lab.dir("shared", 0).join("config.toml")).unwrap();
    let config = AblationConfig::load(&write(lab.folder.path(), TINY)).unwrap();
    let hash = lab.summary("shared", 0).config_hash;
    assert!(text.starts_with(&format!("# Resolved configuration, hash {hash}, of variant \"shared\".\n")), "{text}");
    assert_eq!(toml::from_str::<csa2_train::config::RunConfig>(&text).unwrap(), config.variants[1].run);
}

#[test]
fn results_do_not_depend_on_how_many_run_at_a_time() {
    let (mut one, mut many) = (Lab::new(), Lab::new());
    let text = edited("seeds = [0]", "seeds = [0, 5]");
    (one.options.jobs, many.options.jobs) = (1, 1000);
    one.done(&text);
    many.done(&text);
    for (variant, seed) in [("windows", 0), ("windows", 5), ("shared", 0), ("shared", 5)] {
        assert!(one.metrics(variant, seed) == many.metrics(variant, seed), "{variant}, seed {seed}");
    }
}

#[test]
fn seeds_and_variants_join_and_words_may_change() {
    let lab = Lab::new();
    lab.done(TINY);
    let before = (lab.files("windows", 0), lab.files("shared", 0));
    let more = "[[variant]]\nname = \"dense\"\nlayers = \"dense\"\nnote = \"joins\"\n\n[[variant]]\nname = \"windows\"";
    let text = edited("seeds = [0]", "seeds = [3, 0]\ntitle = \"T\"\nbaseline = \"shared\"")
        .replace("[[variant]]\nname = \"windows\"", more);
    lab.done(&text);
    assert_eq!((lab.files("windows", 0), lab.files("shared", 0)), before);
    for variant in ["windows", "shared", "dense"] {
        assert_eq!(lab.summary(variant, 3).status, Status::Finished);
    }
    assert_ne!(lab.metrics("windows", 3), lab.metrics("windows", 0));
    let record = crate::results::read_ablation(&ablation_path(lab.out())).unwrap();
    assert_eq!((&record.title[..], &record.baseline[..], record.seeds), ("T", "shared", vec![3, 0]));
}

#[test]
fn a_changed_configuration_is_refused_and_nothing_is_touched() {
    let lab = Lab::new();
    lab.done(TINY);
    let hash = lab.summary("shared", 0).config_hash;
    let before = files(lab.out());
    let message = lab.run(&edited("full reuse", "full full")).unwrap_err();
    let now = message.split("now ").nth(1).unwrap()[..16].to_string();
    assert_ne!(now, hash);
    assert_eq!(
        message,
        format!(
            "LAB/out: holds results of another configuration. Changed:\n  \
             variant \"shared\" (hash {hash}, now {now}): layers \"full reuse\", now \"full*2\"\n\
             (A hash covers a variant's configuration, its data, the backend and --threads.)\n\
             Run with --fresh to start anew (what is there is moved aside), or give the ablation another name."
        )
    );
    let message = lab.run(&edited("batch = 8", "batch = 4")).unwrap_err();
    assert!(message.contains("\n  variant \"windows\" (hash ") && message.contains("\n  variant \"shared\" (hash "));
    let gone = TINY.replace("name = \"shared\"", "name = \"other\"");
    assert!(
        lab.run(&gone).unwrap_err().contains("variant \"shared\" has results, but is no longer in the configuration")
    );
    let renamed = edited("\"tiny\"", "\"huge\"");
    assert!(lab.run(&renamed).unwrap_err().contains("the ablation's name, from \"tiny\" to \"huge\""));
    assert_eq!(files(lab.out()), before);
    let mut lab = lab;
    lab.options.threads = 2;
    assert!(lab.run(TINY).unwrap_err().contains("variant \"windows\" (hash "));
}

#[test]
fn a_variant_that_has_not_begun_may_change() {
    let lab = Lab::new();
    lab.done(TINY);
    fs::remove_dir_all(lab.out().join("shared")).unwrap();
    let before = lab.files("windows", 0);
    lab.done(&edited("full reuse", "full full"));
    assert_eq!(lab.files("windows", 0), before);
    assert_eq!(lab.summary("shared", 0).status, Status::Finished);
}

#[test]
fn fresh_moves_results_aside() {
    let mut lab = Lab::new();
    lab.done(TINY);
    let before: Vec<_> = files(lab.out()).into_values().collect();
    // Whatever the second: its name is taken.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    for second in now..now + 120 {
        let taken = lab.folder.path().join(format!("out.before-{second}"));
        fs::create_dir(&taken).unwrap();
        fs::write(taken.join("older"), "results").unwrap();
    }
    lab.options.fresh = true;
    lab.done(&edited("full reuse", "full"));
    let folders = fs::read_dir(lab.folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let aside: Vec<PathBuf> = folders.filter(|path| path.to_string_lossy().ends_with("-2")).collect();
    assert_eq!(aside.len(), 1);
    assert_eq!(files(&aside[0]).into_values().collect::<Vec<_>>(), before);
    assert_eq!(lab.summary("shared", 0).status, Status::Finished);
}

#[test]
fn a_place_that_holds_something_else_is_left_alone() {
    let mut lab = Lab::new();
    fs::create_dir(lab.out()).unwrap();
    fs::write(lab.out().join("thesis.tex"), "x").unwrap();
    for fresh in [false, true] {
        lab.options.fresh = fresh;
        assert_eq!(lab.run(TINY).unwrap_err(), "LAB/out: is not empty and holds no ablation; give another --out");
        assert_eq!(files(lab.out()).len(), 1);
    }
    lab.options.out = lab.out().join("thesis.tex");
    assert_eq!(lab.run(TINY).unwrap_err(), "LAB/out/thesis.tex: is no folder; give another --out");
    lab.options.out = lab.out().join("below");
    assert!(lab.run(TINY).unwrap_err().starts_with("LAB/out/thesis.tex/below: cannot be written: "));
    assert_eq!(fs::read(lab.folder.path().join("out/thesis.tex")).unwrap(), b"x");
}

#[test]
fn what_a_killed_writer_left_is_cleared_away() {
    let lab = Lab::new();
    fs::create_dir(lab.out()).unwrap();
    for name in [".lock", ".partial-Xy12"] {
        fs::write(lab.out().join(name), "").unwrap();
    }
    lab.done(TINY);
    let left = lab.dir("shared", 0).join("checkpoint/.partial-Xy12");
    fs::write(&left, "half of a checkpoint").unwrap();
    fs::remove_file(summary_path(&lab.dir("shared", 0))).unwrap();
    fs::remove_file(Store::new(&lab.dir("shared", 0)).state_path()).unwrap();
    lab.done(TINY);
    assert!(!left.exists() && !lab.out().join(".partial-Xy12").exists());
}

#[test]
fn a_folder_is_one_process_at_a_time() {
    let mut lab = Lab::new();
    lab.done(TINY);
    let lock = fs::File::open(lab.out().join(".lock")).unwrap();
    lock.lock().unwrap();
    for fresh in [false, true] {
        lab.options.fresh = fresh;
        let message = lab.run(TINY).unwrap_err();
        assert_eq!(message, "LAB/out: another csa2 is running this ablation; wait for it or give another --out");
    }
    drop(lock);
    lab.done(TINY);
}

#[test]
fn a_stopped_ablation_goes_on_to_the_same_numbers() {
    let (whole, parts) = (Lab::new(), Lab::new());
    whole.done(&long());
    for lines in [60, 250] {
        parts.interrupted_after(&long(), "shared", lines);
        let state = Store::new(&parts.dir("shared", 0)).state().unwrap().unwrap();
        assert!(state.step > 0 && state.step < 600, "stopped at step {}", state.step);
        assert_eq!(state.metrics_bytes, parts.metrics("shared", 0).len() as u64);
        assert!(!summary_path(&parts.dir("shared", 0)).exists());
    }
    parts.done(&long());
    for variant in ["windows", "shared"] {
        assert!(parts.metrics(variant, 0) == whole.metrics(variant, 0), "{variant}");
        assert_eq!(parts.summary(variant, 0).final_values, whole.summary(variant, 0).final_values);
        assert_eq!(parts.summary(variant, 0).steps, 600);
    }
}

#[test]
fn a_stop_before_the_first_run_starts_none() {
    let lab = Lab::new();
    assert_eq!(lab.run_until(TINY, &AtomicBool::new(true)), Ok(Ended::Interrupted));
    assert!(!lab.out().join("windows").exists());
    lab.done(TINY);
}

#[test]
fn budgets_beyond_64_bits_do_not_wrap() {
    let text = edited("2_240", "9_000_000_000_000_000_000").replace("seeds = [0]", "seeds = [0, 1]");
    let lab = Lab::new();
    let config = AblationConfig::load(&write(lab.folder.path(), &text)).unwrap();
    let hashes = ["a".to_string(), "b".to_string()];
    let todo = todo(&config, &hashes, lab.out()).unwrap();
    assert_eq!((todo.total, todo.before, todo.kept, todo.queue.len()), (u64::MAX, 0, 0, 4));
}
