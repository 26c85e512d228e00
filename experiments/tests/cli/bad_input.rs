//! Configurations that cannot be: exit code 1, one message that says where and what, and no folder of results.

use crate::common::{Lab, TINY, command, edited, run};

const TEXT: &str = "kind = \"text\"\nfiles = [\"corpus\"]\nseq_len = 16\ndocument_bytes = 256\nvalidation_share = 0.5\n\
                    eval_sequences = 8\n";

/// [`TINY`] on the files below `corpus`.
fn text_task() -> String {
    let start = TINY.find("kind = \"mqar\"").unwrap();
    let end = TINY.find("\n[model]").unwrap();
    format!("{}{TEXT}{}", &TINY[..start], &TINY[end..])
}

/// What `csa2 ablate` says of a configuration; `csa2 plan` must say the same.
fn refused_in(lab: &Lab) -> String {
    let message = lab.ablate().refused();
    assert!(!lab.path().join("out").exists(), "{message}");
    assert_eq!(lab.csa2(&["plan", "tiny.toml"]).refused(), message);
    message
}

fn refused(from: &str, to: &str) -> String {
    refused_in(&Lab::with(&edited(from, to)))
}

#[test]
fn unknown_keys() {
    assert!(refused("[task]", "[tesk]").contains("tiny.toml: TOML parse error at line 6, column 2\n"));
    let message = refused("[train]", "[train]\nlearning_rat = 1");
    assert!(message.contains("tiny.toml: variant \"windows\": `train`: unknown field `learning_rat`, expected one of"));
    let message = refused("layers = \"full reuse\"", "layers = \"full reuse\"\ntopk = 3");
    assert!(message.contains("tiny.toml: TOML parse error at line 43, column 1\n"), "{message}");
    assert!(message.contains("unknown field `topk`, expected one of `name`, `note`, `from`, `layers`"), "{message}");
    let message = refused("layers = \"full reuse\"", "layers = \"full reuse\"\nmodel.top_k = 3");
    assert!(message.contains("variant \"shared\": `model`: unknown field `top_k`"), "{message}");
}

#[test]
fn wrong_types_and_numbers_beyond_reason() {
    for (from, to, part) in [
        ("batch = 8", "batch = \"8\"", "`train.batch`: invalid type: string \"8\", expected usize"),
        ("window = 4", "window = -4", "`model.window`: invalid value: integer `-4`, expected usize"),
        ("window = 4", "window = 4.5", "`model.window`: invalid type: floating point `4.5`"),
        ("seeds = [0]", "seeds = [-1]", "line 4, column 10"),
        ("2_240", "1e18", "`train.tokens`: invalid type: floating point"),
        ("2_240", "99999999999999999999", "line 29, column 10"),
        ("3e-3", "nan", "`train.learning_rate = NaN`: it must be above 0"),
        ("3e-3", "inf", "`train.learning_rate = inf`"),
        ("d_model = 16", "d_model = 16\nrope_theta = nan", "`rope_theta = NaN`: it must be a positive, finite number"),
        ("batch = 8", "batch = 1_000_000_000", "`train.batch = 1000000000`: a step needs 1 to 1048576 sequences"),
        ("width = 16", "width = 16_000_000_000_000", "`ffn.width = 16000000000000`: it is too large"),
        ("d_model = 16\nheads = 2", "d_model = 640000\nheads = 4000", "at most 17 billion; make it smaller"),
        ("gap = 2", "gap = 1_000_000", "csa2 trains on at most 65536 tokens"),
        ("\"full reuse\"", "\"full*99999999999999999999\"", "column 6"),
    ] {
        let message = refused(from, to);
        assert!(message.contains(part), "{to}: {message}");
    }
}

#[test]
fn sizes_that_no_network_has() {
    for (from, to, part) in [
        ("window = 4", "window = 0", "model: `window = 0`: a token must see at least itself; set window to 1 or more"),
        ("topk = 2", "topk = 0", "model: `topk = 0`: an address of no entries selects nothing; set topk to 1 or more"),
        (
            "head_dim = 8",
            "head_dim = 9",
            "model: `head_dim = 9`: a head's channels turn in pairs; set head_dim to an even",
        ),
        (
            "head_dim = 8",
            "head_dim = 2",
            "model: `rope_dim = 4`: the rotary part is larger than the head it belongs to",
        ),
    ] {
        let message = refused(from, to);
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_mix_that_breaks_a_rule_has_its_column_and_caret() {
    let message = refused("full reuse", "full reindx*2");
    assert_eq!(
        message,
        "error: tiny.toml: variant \"shared\": `model.layers`: layer mix, column 6: unknown mode `reindx`\n    \
         full reindx*2\n         ^\nthe modes are swa, full, reindex, reuse, stale, dense, in small letters\n"
    );
    let message = refused("full reuse", "swa reuse full");
    assert!(message.contains("`model.layers`: layer 1 (`reuse`) has no `full` layer below it"), "{message}");
}

#[test]
fn names_that_are_no_folders_or_not_unique() {
    for (from, to, part) in [
        ("\"tiny\"", "\"../tiny\"", "ablation.name is \"../tiny\"; a name becomes a folder"),
        ("\"shared\"", "\"a/b\"", "a variant's name is \"a/b\"; a name becomes a folder"),
        ("\"shared\"", "\"..\"", "a variant's name is \"..\"; a name becomes a folder"),
        ("\"shared\"", "\"report.html\"", "a variant's name is \"report.html\", which is a file of the results"),
        ("\"shared\"", "\"windows\"", "has two variants named \"windows\""),
    ] {
        let message = refused(from, to);
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn files_that_are_no_configuration() {
    let lab = Lab::new();
    lab.write("empty.toml", "");
    lab.write("bytes.toml", [0, 0xff, 0xfe]);
    lab.write("deep.toml", format!("a = {}", "[".repeat(100_000)));
    std::fs::create_dir(lab.path().join("folder.toml")).unwrap();
    for (name, part) in [
        ("none.toml", "none.toml: cannot be read: No such file"),
        ("folder.toml", "folder.toml: cannot be read: Is a directory"),
        ("empty.toml", "empty.toml: TOML parse error at line 1, column 1"),
        ("bytes.toml", "bytes.toml: is not UTF-8 text"),
        ("deep.toml", "deep.toml: TOML parse error at line 1, column "),
    ] {
        for command in ["ablate", "plan"] {
            let message = lab.csa2(&[command, name]).refused();
            assert!(message.contains(part) && message.len() < 300_000, "{message}");
        }
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("loop.toml", lab.path().join("loop.toml")).unwrap();
        let message = lab.csa2(&["ablate", "loop.toml"]).refused();
        assert!(message.contains("loop.toml: cannot be read: Too many levels of symbolic links"), "{message}");
    }
    assert!(!lab.path().join("runs").exists());
}

#[test]
fn corpora_that_cannot_be_used() {
    let lab = Lab::with(&text_task());
    let message = refused_in(&lab);
    assert!(message.contains("`files` has the entry `corpus`, but no file is found at "), "{message}");
    std::fs::create_dir(lab.path().join("corpus")).unwrap();
    assert!(refused_in(&lab).contains("but no file is found at "));
    lab.write("corpus/empty", "");
    assert!(refused_in(&lab).contains("the corpus is empty: 1 file(s) found, 0 bytes in all"));
    lab.write("corpus/one", "few bytes");
    assert!(refused_in(&lab).contains("no document is left for "));
    lab.write("corpus/packed.gz", "not gzip");
    assert!(refused_in(&lab).contains("cannot decompress "));
}

#[test]
fn sequences_longer_than_the_data() {
    let lab = Lab::with(&text_task().replace("seq_len = 16", "seq_len = 5000"));
    lab.write("corpus/bytes", (0..3000_u32).map(|n| (n * n % 251) as u8).collect::<Vec<u8>>());
    let message = refused_in(&lab);
    assert!(message.contains("task `text`: `seq_len` is 5000, but the training data are only "), "{message}");
    assert!(message.contains("add files"), "{message}");
}

#[test]
fn bytes_that_are_no_text_are_learnt_all_the_same() {
    let lab = Lab::with(&text_task().replace("2_240", "1_280"));
    for part in 0..8_u32 {
        let bytes: Vec<u8> = (0..1000).map(|n| ((n * n + part * 31) % 256) as u8).collect();
        assert!(String::from_utf8(bytes.clone()).is_err());
        lab.write(&format!("corpus/sub/{part}.bin"), bytes);
    }
    let ran = lab.csa2(&["ablate", "tiny.toml", "--out", "out", "--json"]).fine();
    let first = &ran.json()["ablations"][0];
    assert_eq!(first["record"]["metric"]["name"], "bits_per_byte");
    for variant in first["variants"].as_array().unwrap() {
        let bits = variant["mean"].as_f64().unwrap();
        assert!((1.0..9.0).contains(&bits), "{variant}");
    }
}

#[test]
fn tasks_that_are_judged_differently_are_not_ranked_together() {
    let message = refused("layers = \"full reuse\"", "layers = \"full reuse\"\ntask.kind = \"twohop\"");
    assert!(message.contains("variant \"shared\": its task `twohop` is not judged as the task `mqar`"), "{message}");
}

#[test]
fn arguments_that_cannot_be() {
    let lab = Lab::with(TINY);
    for arguments in [
        &["ablate"][..],
        &["ablate", "tiny.toml", "--threads", "0"],
        &["ablate", "tiny.toml", "--threads", "65535"],
        &["ablate", "tiny.toml", "--jobs", "0"],
        &["ablate", "tiny.toml", "--jobs", "-1"],
        &["ablate", "tiny.toml", "--jobs", "99999999999"],
        &["ablate", "tiny.toml", "--backend", "abacus"],
        &["ablate", "tiny.toml", "--out", ""],
        &["plan", "tiny.toml", "--dot", "--json"],
        &["report"],
        &["unknown"],
    ] {
        let ran = lab.csa2(arguments);
        assert_eq!((ran.code, &ran.out[..]), (Some(2), ""), "{ran:?}");
        assert!(ran.err.starts_with("error: "), "{ran:?}");
    }
    let message = lab.csa2(&["plan", "tiny.toml", "--variant", "none"]).refused();
    assert_eq!(message, "error: tiny.toml: no variant \"none\"; there are: windows, shared\n");
}

#[test]
fn an_unknown_restriction_of_registers_is_refused() {
    let lab = Lab::with(TINY);
    let mut ablate = command(lab.path(), &["ablate", "tiny.toml", "--out", "out"]);
    let message = run(ablate.env("CSA2_REGISTERS", "wide")).refused();
    let expected = "CSA2_REGISTERS is \"wide\"; it can be widest, avx2 or none; unset it for the widest";
    assert!(message.contains(expected), "{message}");
    assert!(!lab.path().join("out").exists());
    run(ablate.env("CSA2_REGISTERS", "none")).fine();
}
