//! `csa2 posttrain`.

use std::fs;

use crate::common::{Lab, TINY, command, run};

const POOL: &str = "[posttrain]\nname = \"pool\"\nseeds = [0]\n[model]\nlayers = \"full+pool reuse\"\n\
                    pool = { blocks = 2, block_size = 1 }\n[train]\ntokens = 1_120\nbatch = 8\nlearning_rate = 3e-3\n\
                    pool_from = { blocks = 4, until = 0.5 }\n[[evaluation]]\nname = \"no pool\"\nlayers = \"full reuse\"\n";

#[test]
fn a_run_is_trained_on_and_says_where_it_came_from() {
    let lab = Lab::with(TINY);
    lab.write("pool.toml", POOL);
    run(&mut command(lab.path(), &["ablate", "tiny.toml", "--out", "base"])).fine();
    let arguments = ["posttrain", "pool.toml", "--from", "base/shared/seed-0", "--out", "post"];
    let ran = run(&mut command(lab.path(), &arguments)).fine();
    assert!(ran.out.contains("post-trained") && ran.out.contains("no pool"), "{ran:?}");
    let config = fs::read_to_string(lab.path().join("post/post-trained/seed-0/config.toml")).unwrap();
    assert!(config.contains("run = \"base/shared/seed-0\"") && config.contains("step = 20"), "{config}");
    assert!(config.contains("layers = \"full+pool reuse\""), "{config}");
    let matrix = fs::read_to_string(lab.path().join("post/matrix.csv")).unwrap();
    assert_eq!(matrix.lines().count(), 3, "{matrix}");
    // A second call has nothing to do; a run further trained is another one.
    run(&mut command(lab.path(), &arguments)).fine();
    lab.write("tiny.toml", TINY.replace("learning_rate = 3e-3", "learning_rate = 1e-3"));
    run(&mut command(lab.path(), &["ablate", "tiny.toml", "--out", "base", "--fresh"])).fine();
    let refused = run(&mut command(lab.path(), &arguments)).refused();
    assert!(refused.contains("holds results of another configuration"), "{refused}");
}

/// Half way, the weights are those of a model with the pool of the last step, and that is what commands run.
#[test]
fn a_pool_that_has_not_shrunk_to_its_end_is_the_pool_of_its_last_step() {
    let lab = Lab::with(TINY);
    lab.write("pool.toml", POOL);
    lab.csa2(&["ablate", "tiny.toml", "--out", "base"]).fine();
    lab.csa2(&["posttrain", "pool.toml", "--from", "base/shared/seed-0", "--out", "post"]).fine();
    let run = "post/post-trained/seed-0";
    assert!(lab.csa2(&["eval", run]).fine().out.contains("a candidate pool of 2x1 (layer 0)"));
    let metrics = fs::read_to_string(lab.path().join(run).join("metrics.jsonl")).unwrap();
    assert!(metrics.contains("\"pool_blocks\":4.0") && metrics.contains("\"pool_blocks\":2.0"), "{metrics}");
    let page = fs::read_to_string(lab.path().join("post/report.html")).unwrap();
    assert!(page.contains("starts with 4 blocks and shrinks"), "the report says what was done");
    // As if it had been stopped behind step 5 of 10.
    let state = lab.path().join(run).join("checkpoint/state.json");
    let text = fs::read_to_string(&state).unwrap();
    assert!(text.contains("\"step\": 10"), "{text}");
    fs::write(&state, text.replace("\"step\": 10", "\"step\": 5").replace("-00000010", "-00000005")).unwrap();
    for name in ["model", "optimizer"] {
        let file = |step: &str| lab.path().join(run).join(format!("checkpoint/{name}-{step}.safetensors"));
        fs::copy(file("00000010"), file("00000005")).unwrap();
    }
    let out = lab.csa2(&["eval", run, "--out", "half"]).fine().out;
    assert!(out.contains("a candidate pool of 3x1 (layer 0)") && !out.contains('†'), "{out}");
    let message = lab.csa2(&["eval", run, "--pool", "2x1", "--out", "end"]).refused();
    for part in ["trained with a candidate pool of 3x1", "with a candidate pool of 2x1", "--pool-override"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn another_start_is_another_post_training() {
    let lab = Lab::with(&TINY.replace("seeds = [0]", "seeds = [0, 1]"));
    lab.write("pool.toml", POOL);
    run(&mut command(lab.path(), &["ablate", "tiny.toml", "--out", "base"])).fine();
    let from = |seed: &str| {
        let folder = format!("base/shared/{seed}");
        run(&mut command(lab.path(), &["posttrain", "pool.toml", "--from", &folder, "--out", "post"]))
    };
    from("seed-0").fine();
    let refused = from("seed-1").refused();
    assert!(refused.contains("holds results of another configuration"), "{refused}");
    from("seed-0").fine();
}

#[test]
fn what_cannot_be_is_refused() {
    let lab = Lab::with(TINY);
    run(&mut command(lab.path(), &["ablate", "tiny.toml", "--out", "base"])).fine();
    let refused = |text: &str, from: &str| {
        lab.write("pool.toml", text);
        run(&mut command(lab.path(), &["posttrain", "pool.toml", "--from", from, "--out", "post"])).refused()
    };
    let shared = "base/shared/seed-0";
    for (text, from, expected) in [
        (POOL.to_string(), "base/windows/seed-0", "differ in more than their pools"),
        (POOL.to_string(), "base/nobody/seed-0", "base/nobody/seed-0"),
        (POOL.replace("full+pool reuse", "full+pool full"), shared, "differ in more than their pools"),
        (
            POOL.replace("blocks = 2, block_size = 1", "blocks = 1, block_size = 1"),
            shared,
            "could never fill its Top-K",
        ),
        (POOL.replace("pool = { blocks = 2, block_size = 1 }\n", ""), shared, "pool"),
        (POOL.replace("blocks = 4, until", "blocks = 2, until"), shared, "it must start with more blocks"),
        (POOL.replace("seeds = [0]", "seeds = []"), shared, "posttrain.seeds is empty"),
        (POOL.replace("[posttrain]\n", "[posttrain]\nseed = 1\n"), shared, "unknown field `seed`"),
        (POOL.replace("[train]\n", "[train]\ntrainable = \"query\"\n"), shared, "unknown variant `query`"),
        (POOL.replace("[model]\n", "[model]\nd_model = 32\n"), shared, "the weights stay the same"),
    ] {
        let message = refused(&text, from);
        assert!(message.contains(expected), "{expected}: {message}");
    }
    assert!(!lab.path().join("post").exists(), "nothing is begun");
}
