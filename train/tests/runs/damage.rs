//! Interruptions, folders that do not fit, and runs that were damaged: a message with a way out, and nothing half-written.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use csa2_model::config::Part;
use csa2_train::runs::{self, ExportError, ImportError, ImportOptions, Run};
use safetensors::Dtype;
use serde_json::json;

use crate::folder::{WHOLE, config, export, import, names, released, write};

#[test]
fn what_is_interrupted_leaves_nothing() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    write(&at("released"), &config().to_hf_file().unwrap(), &released(&config()));
    for last in [0, 1, 50] {
        let (stop, mut calls) = (AtomicBool::new(last == 0), 0);
        let mut progress = |written: u64, all: u64| {
            assert!(written <= all);
            calls += 1;
            stop.store(calls == last, Ordering::Relaxed);
        };
        let error = runs::import(&at("released"), &at("run"), WHOLE, &stop, &mut progress).unwrap_err();
        assert!(matches!(error, ImportError::Interrupted), "{error}");
        assert_eq!(calls, last);
        assert_eq!(names(lab.path()), ["released"]);
    }
    import(&at("released"), &at("run"), WHOLE).unwrap();
    let run = Run::open(&at("run")).unwrap();
    let stop = AtomicBool::new(true);
    let error = runs::export(&run, &Device::flex(), &at("out"), 1, &stop, &mut |_, _| ()).unwrap_err();
    assert!(matches!(error, ExportError::Interrupted), "{error}");
    assert_eq!(names(lab.path()), ["released", "run"]);
}

#[test]
fn what_cannot_be_imported_leaves_nothing() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    let (form, weights) = (config().to_hf_file().unwrap(), released(&config()));
    let refused = || {
        let message = import(&at("folder"), &at("run"), WHOLE).unwrap_err().to_string();
        assert_eq!(names(lab.path()), ["folder"], "{message}");
        message.replace(&at("folder").display().to_string(), "FOLDER")
    };
    // A number that is none is found while the weights are being written.
    let mut changed = weights.clone();
    changed.get_mut("norm.weight").unwrap().2[2..4].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    write(&at("folder"), &form, &changed);
    assert_eq!(refused(), "FOLDER does not fit this model:\n  norm.weight: number 1 of row 0 is NaN");
    let mut changed = weights.clone();
    changed.remove("embed.weight");
    write(&at("folder"), &form, &changed);
    assert_eq!(refused(), "FOLDER does not fit this model:\n  embed.weight: missing, expected [13, 64]");

    for (text, message) in [
        ("{", "FOLDER/config.json: EOF while parsing an object at line 1 column 1"),
        ("[]", "FOLDER/config.json: config.json has `the whole file` = []; it must be an object"),
        ("{}", "FOLDER/config.json: config.json has no `compress_ratios`"),
    ] {
        fs::write(at("folder").join("config.json"), text).unwrap();
        let found = refused();
        assert!(found.starts_with(message) || text == "{}" && found.contains("config.json has no `"), "{found}");
    }
    let mut changed = form.clone();
    changed["text_config"]["logit_softcap"] = json!(30);
    write(&at("folder"), &changed, &weights);
    assert!(refused().contains("`text_config.logit_softcap` = 30, which is not known here"));
    let large = fs::File::options().write(true).open(at("folder").join("config.json")).unwrap();
    large.set_len(1 << 40).unwrap();
    assert_eq!(refused(), "FOLDER/config.json: is longer than 10000000 bytes, the most that is read");
    fs::remove_file(at("folder").join("config.json")).unwrap();
    assert!(refused().starts_with("FOLDER/config.json: there is no such file"));
    let message = import(&at("none"), &at("run"), WHOLE).unwrap_err().to_string();
    assert!(message.contains("none/config.json: cannot be read: No such file"), "{message}");
}

#[test]
fn parts_that_csa2_does_not_have_are_left_out_when_asked() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    let (mut form, mut weights) = (config().to_hf_file().unwrap(), released(&config()));
    form["text_config"]["num_nextn_predict_layers"] = json!(1);
    form["text_config"]["compress_ratios"].as_array_mut().unwrap().push(json!(0));
    form["vision_config"] = json!({"hidden_size": 8});
    for name in ["mtp.0.norm.weight", "layers.6.attn_norm.weight", "layers.1.engram.q_weight"] {
        weights.insert(name.into(), (Dtype::F32, vec![2], vec![0; 8]));
    }
    write(&at("folder"), &form, &weights);
    let message = import(&at("folder"), &at("run"), WHOLE).unwrap_err().to_string();
    assert!(
        message
            .ends_with("draft layers (`num_nextn_predict_layers` = 1); `csa2 import --skip-unsupported` leaves it out")
    );
    let imported = import(&at("folder"), &at("run"), ImportOptions { skip_unsupported: true, ..WHOLE }).unwrap();
    assert_eq!(imported.model, config());
    assert_eq!(imported.skipped.keys().copied().collect::<Vec<_>>(), [Part::NgramMemory, Part::Draft]);
    assert_eq!(imported.skipped[&Part::Draft].tensors, 2);
    assert_eq!(imported.unsupported.keys().copied().collect::<Vec<_>>(), [Part::Vision, Part::Draft]);
    let origin = Run::open(&at("run")).unwrap().origin().unwrap().clone();
    assert_eq!(origin.left_out, ["n-gram memory", "vision", "draft layers"]);
    assert_eq!((origin.tensors, origin.from), (imported.tensors, at("folder").display().to_string()));
    let config_json = fs::read(at("folder").join("config.json")).unwrap();
    let digest = <sha2::Sha256 as sha2::Digest>::digest(config_json);
    assert_eq!(origin.config_sha256, digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")));
}

#[test]
fn damaged_runs_are_named_with_a_way_out() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    let from = at("released");
    write(&from, &config().to_hf_file().unwrap(), &released(&config()));
    import(&from, &at("run"), WHOLE).unwrap();
    let refused = || {
        let error = Run::open(&at("run")).and_then(|run| run.load(&Device::flex()).map(|_| ())).unwrap_err();
        export(&at("run"), &at("out"), 1).unwrap_err();
        assert!(!at("out").exists());
        error.to_string().replace(&at("run").display().to_string(), "RUN")
    };
    let again = format!("\nThese weights cannot be used; import {} again", from.display());
    let path = at("run").join("checkpoint/model-00000000.safetensors");
    let good = fs::read(&path).unwrap();
    fs::write(&path, &good[..good.len() / 2]).unwrap();
    let message = refused();
    assert!(
        message.starts_with("RUN/checkpoint/model-00000000.safetensors: has ") && message.ends_with(&again),
        "{message}"
    );
    fs::write(&path, [&good[..9], b"x", &good[10..]].concat()).unwrap();
    let message = refused();
    assert!(
        message.contains(": not a whole safetensors file: its header is wrong: ") && message.ends_with(&again),
        "{message}"
    );
    fs::remove_file(&path).unwrap();
    let message = refused();
    assert!(
        message.starts_with("RUN/checkpoint/model-00000000.safetensors: cannot be read: ") && message.ends_with(&again)
    );
    fs::write(&path, &good).unwrap();

    let state = at("run").join("checkpoint/state.json");
    let whole = fs::read_to_string(&state).unwrap();
    fs::write(&state, whole.replace("model-00000000", "../x")).unwrap();
    let message = refused();
    assert!(
        message.starts_with("RUN/checkpoint/state.json: names ../x.safetensors") && message.ends_with(&again),
        "{message}"
    );
    fs::remove_file(&state).unwrap();
    assert_eq!(refused(), "RUN: has no checkpoint yet; train it to its first one");
    fs::write(&state, &whole).unwrap();

    let path = at("run").join("config.toml");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config.replace("d_model = 64", "d_model = 65")).unwrap();
    assert!(refused().starts_with("RUN/config.toml: its [model] is another (hash "));
    // A checkpoint of an earlier version does not know its model's configuration; what does not fit is found all the same.
    let hash = whole.lines().find(|line| line.contains("model_hash")).expect("it is recorded");
    fs::write(&state, whole.replace(&format!("{hash}\n"), "")).unwrap();
    let whole = config;
    for (edit, to, part) in [
        ("d_model = 64", "d_model = 16_000_000", "RUN/checkpoint/model-00000000.safetensors: has "),
        ("window = 3", "window = 0", "RUN/config.toml: model: `window = 0`"),
        ("window = 3", "windows = 3", "RUN/config.toml: TOML parse error at line "),
        ("vocab_size = 13", "", "RUN/config.toml: model: `vocab_size` is missing"),
        ("kind = \"imported\"", "kind = \"found\"", "RUN/config.toml: TOML parse error at line "),
        ("topk = 2", "topk = 2\nquery_norm = true", "unknown field `query_norm`"),
        ("d_model = 64", "d_model = 65", "does not fit this model:"),
        ("[origin]", "[origins]", "RUN/config.toml: TOML parse error at line "),
    ] {
        assert!(whole.contains(edit), "{edit}");
        fs::write(&path, whole.replace(edit, to)).unwrap();
        let message = refused();
        assert!(message.contains(part), "{to}: {message}");
    }
    fs::write(&path, [0xff]).unwrap();
    assert!(refused().starts_with("RUN/config.toml: is no text"));
}

#[test]
fn folders_that_are_no_runs_say_what_they_are() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    write(&at("released"), &config().to_hf_file().unwrap(), &released(&config()));
    import(&at("released"), &at("runs/some/variant/seed-0"), WHOLE).unwrap();
    let refused = |folder: &str| {
        let message = Run::open(&at(folder)).unwrap_err().to_string();
        message.replace(&lab.path().display().to_string(), "LAB")
    };
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("file"), "").unwrap();
    for (folder, message) in [
        (
            "runs/some/variant",
            "LAB/runs/some/variant: holds runs, but is none; give one of them, such as LAB/runs/some/variant/seed-0",
        ),
        ("runs/some", "LAB/runs/some: holds runs, but is none; give one of them, such as LAB/runs/some/variant/seed-0"),
        ("released", "LAB/released: is a Transformers folder, no run; `csa2 import` makes a run of it"),
        ("empty", "LAB/empty: is no run: it has no config.toml"),
        ("file", "LAB/file: is no folder; a run is a folder with config.toml and checkpoint/"),
        ("nowhere", "LAB/nowhere: there is no such folder"),
    ] {
        assert_eq!(refused(folder), message);
    }
}
