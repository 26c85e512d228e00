//! Runs that fail by themselves, and files that were damaged.

use csa2_model::checkpoint;

use super::*;

#[test]
fn a_run_that_diverges_is_told_and_the_others_go_on() {
    let lab = Lab::new();
    let text = edited(
        "name = \"shared\"",
        "name = \"wild\"\ntrain.learning_rate = 1000\nlayers = \"swa*2\"\n\n[[variant]]\nname = \"shared\"",
    );
    lab.done(&text);
    assert_eq!(
        (lab.summary("windows", 0).status, lab.summary("shared", 0).status),
        (Status::Finished, Status::Finished)
    );
    let summary = lab.summary("wild", 0);
    assert_eq!(summary.status, Status::Failed);
    let failure = summary.failure.unwrap().replace(&lab.folder.path().display().to_string(), "LAB");
    // Where it overflows first hangs on the last digit of the arithmetic; that it does after the checkpoint does not.
    let steps = summary.steps;
    assert!((6..10).contains(&steps), "{failure}");
    assert!(failure.starts_with(&format!("step {steps}: the ")), "{failure}");
    assert!(failure.contains(" is not finite; first seen in "), "{failure}");
    let last = "; the last good checkpoint is that of step 5 (LAB/out/wild/seed-0/checkpoint/state.json)";
    assert!(failure.ends_with(last), "{failure}");
    assert_eq!(summary.tokens, steps * 112);
    // Its checkpoint is good, and another call finds the same.
    let before = (lab.files("windows", 0), lab.metrics("wild", 0));
    lab.done(&text);
    assert_eq!((lab.files("windows", 0), lab.metrics("wild", 0)), before);
    assert_eq!(lab.summary("wild", 0).status, Status::Failed);
}

#[test]
fn what_diverges_is_told_by_its_place() {
    for (from, to, place) in [
        (
            "batch = 8",
            "batch = 8\nindex_loss = 1e308",
            "the loss is not finite; first seen in the indexer's loss of layer 0 (full); ",
        ),
        (
            "kind = \"mqar\"\npairs = 2\nkeys = 4\nvalues = 4",
            "kind = \"twohop\"\nchains = 2\nhint_weight = 1e308",
            "the loss is not finite; first seen in the auxiliary head; ",
        ),
        ("d_model = 16", "d_model = 16\nsink_init = 1e300", "first seen in the residual stream after layer 0 (full); "),
    ] {
        let lab = Lab::new();
        lab.done(&edited(from, to));
        let failure = lab.summary("shared", 0).failure.unwrap();
        assert!(failure.starts_with("step 0: ") && failure.contains(place), "{failure}");
        assert!(failure.ends_with("there is no checkpoint before it"), "{failure}");
    }
}

#[test]
fn index_scores_that_are_not_numbers_are_told_by_their_layer() {
    let lab = Lab::new();
    lab.done(TINY);
    let dir = lab.dir("shared", 0);
    // As if the run had been killed between its last checkpoint and its end, with one broken number in the indexer.
    fs::remove_file(summary_path(&dir)).unwrap();
    let path = dir.join("checkpoint/model-00000020.safetensors");
    let mut weights = checkpoint::decode(&fs::read(&path).unwrap(), "model").unwrap();
    let name = weights.keys().find(|name| name.ends_with("indexer.weights_proj.weight")).unwrap().clone();
    weights.get_mut(&name).unwrap().values[0] = f32::NAN;
    fs::write(&path, checkpoint::encode(&weights).unwrap()).unwrap();
    lab.done(TINY);
    let failure = lab.summary("shared", 0).failure.unwrap();
    let expected = "step 20: the evaluation's loss is not finite; first seen in the index scores of layer 0 (full); ";
    assert!(failure.starts_with(expected), "{failure}");
}

#[test]
fn damaged_files_are_named_with_a_way_out() {
    let lab = Lab::new();
    lab.done(TINY);
    let (dir, whole) = (lab.dir("shared", 0), lab.metrics("shared", 0));
    let (summary, state) = (summary_path(&dir), Store::new(&dir).state_path());
    for garbage in ["", "garbage", "{}"] {
        fs::write(&summary, garbage).unwrap();
        let message = lab.run(TINY).unwrap_err();
        assert!(message.starts_with("LAB/out/shared/seed-0/summary.json, line "), "{message}");
        assert!(message.contains("Remove this summary and run the same command again"), "{message}");
    }
    fs::remove_file(&summary).unwrap();
    let model = dir.join("checkpoint/model-00000020.safetensors");
    let optimizer = dir.join("checkpoint/optimizer-00000020.safetensors");
    for path in [&state, &model, &optimizer] {
        let good = fs::read(path).unwrap();
        for damaged in [Some(&good[..good.len() / 2]), Some(b"garbage"), Some(b""), None] {
            fs::remove_file(path).unwrap();
            if let Some(bytes) = damaged {
                fs::write(path, bytes).unwrap();
            } else if path == &state {
                continue; // Without a state there is no checkpoint: the run would start again.
            }
            let message = lab.run(TINY).unwrap_err();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(message.starts_with("variant \"shared\", seed 0: ") && message.contains(&name), "{message}");
            assert!(message.ends_with("remove LAB/out/shared/seed-0 to train this run from its start"), "{message}");
            fs::write(path, b"").unwrap();
        }
        fs::write(path, good).unwrap();
    }
    fs::write(metrics_path(&dir), &whole[..40]).unwrap();
    assert!(lab.run(TINY).unwrap_err().contains("metrics.jsonl: has 40 bytes, but the checkpoint beside it"));
    fs::remove_dir_all(&dir).unwrap();
    lab.done(TINY);
    assert_eq!(lab.metrics("shared", 0), whole, "trained afresh to the same numbers");
}

#[test]
fn a_summary_that_was_lost_is_written_again_without_training() {
    let lab = Lab::new();
    lab.done(TINY);
    let (metrics, summary) = (lab.metrics("shared", 0), lab.summary("shared", 0));
    fs::remove_file(summary_path(&lab.dir("shared", 0))).unwrap();
    lab.done(TINY);
    assert_eq!(lab.metrics("shared", 0), metrics);
    let again = lab.summary("shared", 0);
    assert_eq!((again.final_values, again.steps, again.tokens), (summary.final_values, 20, 2240));
}
