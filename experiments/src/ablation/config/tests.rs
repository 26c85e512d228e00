mod quantization;
mod stages;

use std::fmt::Write as _;

use csa2_train::tasks::TaskConfig;

use super::*;
use crate::ablation::testing::{TINY, edited, load, write};

const SHARED: &str = "layers = \"full reuse\"\n";

/// The second variant of [`TINY`] with further lines.
fn with(lines: &str) -> Result<Variant, String> {
    load(&edited(SHARED, &format!("{SHARED}{lines}\n"))).map(|mut config| config.variants.remove(1))
}

/// The message that [`TINY`] with `from` replaced by `to` gets.
fn refused(from: &str, to: &str) -> String {
    load(&edited(from, to)).err().unwrap_or_else(|| panic!("{from:?} as {to:?} was accepted"))
}

fn hash_of(text: &str) -> String {
    load(text).unwrap().variants[1].hash("flex", 1, None).unwrap()
}

#[test]
fn variants_start_from_the_base_and_change_it_key_by_key() {
    let variant = with("model.topk = 3\nmodel.ffn.width = 24\ntrain.learning_rate = 0.5\ntask.gap = 4").unwrap();
    let (base, run) = (load(TINY).unwrap().variants.remove(1).run, variant.run);
    assert_eq!((run.model.topk, run.train.learning_rate, variant.task.seq_len()), (3, 0.5, 16));
    assert_eq!(toml::to_string(&run.model.ffn).unwrap(), "kind = \"dense\"\nwidth = 24\n");
    assert_eq!((base.model.topk, base.train.learning_rate), (2, 3e-3));
    let mut back = run.clone();
    back.model.topk = 2;
    back.model.ffn.clone_from(&base.model.ffn);
    back.train.learning_rate = 3e-3;
    back.task = base.task.clone();
    assert_eq!(back, base, "nothing else changed");
}

#[test]
fn overrides_are_listed_flat_and_without_the_mix() {
    let variant = with("note = \"why\"\nmodel.topk = 3\nmodel.ffn.width = 24\ntrain.betas = [0.5, 0.9]").unwrap();
    let listed: Vec<(&str, &str)> = variant.overrides.iter().map(|(key, value)| (&key[..], &value[..])).collect();
    assert_eq!(listed, [("model.ffn.width", "24"), ("model.topk", "3"), ("train.betas", "[0.5, 0.9]")]);
    assert_eq!(variant.note.as_deref(), Some("why"));
    assert!(with("").unwrap().overrides.is_empty());
}

#[test]
fn layers_is_short_for_the_models() {
    let long = load(&edited(SHARED, "model.layers = \"full reuse\"\n")).unwrap();
    assert_eq!(long.variants[1].run, with("").unwrap().run);
    assert_eq!(long.variants[1].run.model.layers.to_string(), "full reuse");
    let base = edited("d_model = 16", "d_model = 16\nlayers = \"dense\"").replace(SHARED, "");
    let config = load(&base).unwrap();
    let mixes: Vec<String> = config.variants.iter().map(|variant| variant.run.model.layers.to_string()).collect();
    assert_eq!(mixes, ["swa*2", "dense"]);
    assert_eq!(
        with("model.layers = \"swa\"").err().unwrap(),
        "tiny.toml: variant \"shared\": has `layers` and `model.layers`; keep one"
    );
    assert_eq!(
        refused(SHARED, ""),
        "tiny.toml: variant \"shared\": has no `layers`, and neither has [model]; write the mix, such as \
         layers = \"swa full reuse*2\""
    );
}

#[test]
fn another_kind_replaces_the_whole_table() {
    // No key of the base's task would be known to the other kind.
    let text = edited("layers = \"swa*2\"", "layers = \"swa*2\"\ntask = { kind = \"twohop\", chains = 2 }")
        .replace(SHARED, &format!("{SHARED}task.kind = \"twohop\"\n"));
    let config = load(&text).unwrap();
    for (variant, chains) in config.variants.iter().zip([2, 6]) {
        let TaskConfig::Twohop(task) = &variant.run.task else { panic!("{:?}", variant.run.task) };
        assert_eq!((task.chains, task.symbols), (chains, 16));
    }
    assert!(with("task = { kind = \"mqar\", gap = 3 }").unwrap().task.seq_len() == 15, "the same kind is merged");
    let mut base = Table::new();
    base.insert("ffn".into(), toml::from_str::<Value>("kind = \"dense\"\nwidth = 8").unwrap());
    merge(&mut base, toml::from_str("ffn = { kind = \"moe\", experts = 2 }").unwrap());
    assert_eq!(base["ffn"].to_string(), "{ experts = 2, kind = \"moe\" }");
}

#[test]
fn the_vocabulary_is_the_tasks() {
    assert_eq!(with("").unwrap().run.model.vocab_size, Some(10));
    assert!(with("model.vocab_size = 10").is_ok());
    assert_eq!(
        with("model.vocab_size = 11").err().unwrap(),
        "tiny.toml: variant \"shared\": `model.vocab_size = 11`, but the task `mqar` has 10 token ids; leave it out, the \
         task sets it"
    );
}

#[test]
fn the_baseline_is_the_first_unless_named() {
    assert_eq!(load(TINY).unwrap().baseline(), "windows");
    assert_eq!(load(&edited("seeds", "baseline = \"shared\"\nseeds")).unwrap().baseline(), "shared");
}

#[test]
fn the_hash_stays_where_the_run_is_the_same() {
    let hash = hash_of(TINY);
    assert_eq!(hash.len(), 16);
    for (from, to) in [
        ("seeds = [0]", "seeds = [7, 8]\ntitle = \"T\"\nquestion = \"Q\"\ndecode_context = 9\nbaseline = \"shared\""),
        ("name = \"tiny\"", "name = \"other\""),
        ("name = \"shared\"", "name = \"renamed\"\nnote = \"why\""),
        ("window = 4\ntopk = 2", "topk = 2\nwindow = 4"),
        ("pairs = 2\nkeys = 4", "keys = 4\npairs = 2"),
        ("3e-3", "0.003"),
        ("\"full reuse\"", "\"full@1  reuse*1\""),
        ("batch = 8", "batch = 8\nwarmup = 0.05\ndense = 0"),
        ("d_model = 16", "d_model = 16\nvocab_size = 10\nresidual = \"plain\""),
    ] {
        assert_eq!(hash_of(&edited(from, to)), hash, "{to}");
    }
    assert_eq!(hash_of(&TINY.replace('\n', "\r\n")), hash);
}

#[test]
fn the_hash_changes_with_everything_that_decides_the_run() {
    let mut hashes = vec![hash_of(TINY)];
    for (from, to) in [
        ("full reuse", "full full"),
        ("gap = 2", "gap = 3"),
        ("eval_sequences = 16", "eval_sequences = 17"),
        ("window = 4", "window = 5"),
        ("width = 16", "width = 17"),
        ("d_model = 16", "d_model = 16\nsink_init = 1.0"),
        ("tokens = 2_240", "tokens = 2_352"),
        ("batch = 8", "batch = 4"),
        ("3e-3", "3.0001e-3"),
        ("batch = 8", "batch = 8\nindex_loss = 0"),
        ("evaluate_every = 5", "evaluate_every = 6"),
        ("log_every = 1", "log_every = 2"),
    ] {
        hashes.push(hash_of(&edited(from, to)));
    }
    let variant = with("").unwrap();
    hashes.extend([variant.hash("wgpu", 1, None).unwrap(), variant.hash("flex", 2, None).unwrap()]);
    let different: std::collections::BTreeSet<&String> = hashes.iter().collect();
    assert_eq!(different.len(), hashes.len(), "{hashes:?}");
}

#[test]
fn the_hash_follows_the_data_and_not_where_they_lie() {
    let hash = |bytes: &[u8]| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("corpus"), bytes).unwrap();
        let task = "task = { kind = \"text\", files = [\"corpus\"], seq_len = 16, document_bytes = 256, \
                    validation_share = 0.5 }";
        let text = edited("layers = \"swa*2\"", &format!("layers = \"swa*2\"\n{task}"))
            .replace(SHARED, &format!("{SHARED}{task}\n"));
        let config = AblationConfig::load(&write(folder.path(), &text)).unwrap();
        config.variants[1].hash("flex", 1, None).unwrap()
    };
    let bytes: Vec<u8> = (0..9000_u32).map(|n| (n * n % 251) as u8).collect();
    let mut other = bytes.clone();
    other[4000] ^= 1;
    assert_eq!(hash(&bytes), hash(&bytes));
    assert_ne!(hash(&bytes), hash(&other));
}

#[test]
fn variants_with_one_task_share_it() {
    let config = load(TINY).unwrap();
    assert!(Arc::ptr_eq(&config.variants[0].task, &config.variants[1].task));
    let other = load(&edited(SHARED, &format!("{SHARED}task.gap = 3\n"))).unwrap();
    assert!(!Arc::ptr_eq(&other.variants[0].task, &other.variants[1].task));
}

#[test]
fn what_the_parser_finds_is_told_with_its_line() {
    for (from, to, line, message) in [
        (
            "[task]",
            "[tusk]",
            6,
            "unknown field `tusk`, expected one of `ablation`, `task`, `model`, `train`, `variant`",
        ),
        ("seeds", "sedes = 1\nseeds", 4, "unknown field `sedes`, expected one of `name`, `title`, `question`"),
        (SHARED, "layer = 1\n", 42, "unknown field `layer`, expected one of `name`, `note`, `from`, `layers`"),
        ("seeds = [0]", "seeds = [-1]", 4, "invalid value: integer `-1`, expected u64"),
        ("seeds = [0]", "seeds = 0", 4, "invalid type: integer `0`, expected a sequence"),
        ("seeds = [0]\n", "", 2, "missing field `seeds`"),
        ("name = \"shared\"\n", "", 40, "missing field `name`"),
        ("window = 4", "window = 4\nwindow = 5", 23, "duplicate key"),
        ("window = 4", "window = 1e", 22, "invalid exponent"),
        ("2_240", "99999999999999999999", 29, "invalid type: integer `99999999999999999999` as i128"),
        ("[[variant]]\nname = \"windows\"", "[variant]\nname = \"windows\"", 40, "duplicate key"),
    ] {
        let found = refused(from, to);
        let place = format!("tiny.toml: TOML parse error at line {line}, column ");
        assert!(found.starts_with(&place) && found.contains(message), "{found}");
    }
    assert!(load("").err().unwrap().ends_with("missing field `ablation`"));
    let plain = load("ablation = 5\ntask = {}\nmodel = {}\ntrain = {}").err().unwrap();
    assert!(plain.ends_with("invalid type: integer `5`, expected the table [ablation]"), "{plain}");
}

#[test]
fn what_is_wrong_in_a_merged_table_is_told_with_its_key() {
    for (from, to, message) in [
        ("log_every", "log_evry", "\"windows\": `train`: unknown field `log_evry`, expected one of `tokens`, `batch`"),
        ("width = 16", "wide = 16", "\"windows\": `model.ffn`: unknown field `wide`, expected `width`"),
        ("gap = 2", "gop = 2", "\"windows\": `task`: task `mqar`: unknown field `gop`, expected one of `pairs`"),
        ("\"mqar\"", "\"mqr\"", "\"windows\": `task`: unknown task kind `mqr`; known kinds are `mqar`"),
        ("kind = \"mqar\"\n", "", "\"windows\": `task`: the task has no `kind`; known kinds are"),
        ("batch = 8", "batch = \"8\"", "\"windows\": `train.batch`: invalid type: string \"8\", expected usize"),
        ("heads = 2\nhead", "heads = 2.5\nhead", "`model.heads`: invalid type: floating point `2.5`, expected usize"),
        ("window = 4\n", "", "\"windows\": `model`: missing field `window`"),
        (SHARED, "layers = \"full reuse\"\nmodel.topkk = 2", "\"shared\": `model`: unknown field `topkk`"),
        (SHARED, "layers = \"full reuse\"\ntrain.betas = 1", "\"shared\": `train.betas`: invalid type: integer `1`"),
    ] {
        let found = refused(from, to);
        assert!(found.starts_with("tiny.toml: variant ") && found.contains(message), "{found}");
    }
}

#[test]
fn values_that_cannot_be_are_named_with_what_would_be_right() {
    let mut found = String::new();
    for (from, to) in [
        ("window = 4", "window = 0"),
        ("topk = 2", "topk = 0"),
        ("head_dim = 8", "head_dim = 7"),
        ("rope_dim = 4", "rope_dim = 12"),
        ("d_model = 16", "d_model = 640000000000"),
        ("d_model = 16\nheads = 2", "d_model = 640000\nheads = 4000"),
        ("d_model = 16", "d_model = 16\nsink_init = nan"),
        ("d_model = 16", "d_model = 16\npool = { blocks = 4, block_size = 4 }"),
        (
            "{ kind = \"dense\", width = 16 }",
            "{ kind = \"moe\", experts = 2, active = 3, shared = 0, width = 8, route_scale = 1.0 }",
        ),
        ("pairs = 2", "pairs = 5"),
        ("gap = 2", "gap = 1000000"),
        ("topk = 2", "topk = 1000000"),
        ("3e-3", "nan"),
        ("3e-3", "-inf"),
        ("2_240", "1"),
        ("batch = 8", "batch = 0"),
        ("batch = 8", "batch = 1000000000"),
        ("checkpoint_every = 5", "checkpoint_every = 0"),
    ] {
        let message = refused(from, to);
        writeln!(
            found,
            "{}\n    {}",
            to.replace('\n', ", "),
            message.strip_prefix("tiny.toml: variant \"windows\": ").unwrap()
        )
        .unwrap();
    }
    insta::assert_snapshot!(found, @r#"
    window = 0
        model: `window = 0`: a token must see at least itself; set window to 1 or more
    topk = 0
        model: `topk = 0`: an address of no entries selects nothing; set topk to 1 or more
    head_dim = 7
        model: `head_dim = 7`: a head's channels turn in pairs; set head_dim to an even number
    rope_dim = 12
        model: `rope_dim = 12`: the rotary part is larger than the head it belongs to (head_dim = 8); set rope_dim to at most 8, or enlarge head_dim
    d_model = 640000000000
        model: `d_model = 640000000000`: it is too large; the largest size is 16777216
    d_model = 640000, heads = 4000
        the model has 82 billion parameters; training holds 16 bytes for each (weight, gradient, two moments), 1312 GB, and csa2 trains at most 17 billion; make it smaller
    d_model = 16, sink_init = nan
        model: `sink_init = NaN`: it must be a finite number; 0 is the usual start
    d_model = 16, pool = { blocks = 4, block_size = 4 }
        model: `pool = { blocks = 4, block_size = 4 }`: no layer of the mix builds a pool, so this would have no effect; write `full+pool` in layers, or remove pool
    { kind = "moe", experts = 2, active = 3, shared = 0, width = 8, route_scale = 1.0 }
        model: `ffn.active = 3`: a token cannot pass through more than the 2 routed experts; set ffn.active to at most 2
    pairs = 5
        task `mqar`: `pairs` is 5, but there are only 4 different keys; raise `keys`
    gap = 1000000
        the task's sequences have 1000012 tokens; training keeps tables of tokens times entries, and csa2 trains on at most 65536 tokens
    topk = 1000000
        `topk = 1000000`: a sequence has at most 65536 entries; set it lower
    nan
        `train.learning_rate = NaN`: it must be above 0 (and not above 1000)
    -inf
        `train.learning_rate = -inf`: it must be above 0 (and not above 1000)
    1
        `train.tokens = 1`: one step takes 112 tokens (batch x sequence length)
    batch = 0
        `train.batch = 0`: a step needs 1 to 1048576 sequences
    batch = 1000000000
        `train.batch = 1000000000`: a step needs 1 to 1048576 sequences
    checkpoint_every = 0
        `train.checkpoint_every = 0`: it is a number of steps, at least 1
    "#);
}

#[test]
fn a_mix_that_breaks_a_rule_shows_where() {
    let mut found = String::new();
    for mix in ["full reus", "reuse full", "(full reuse", "swa*0", "swa stale", "full*5000", "full+pool reindex"] {
        writeln!(found, "{}\n", refused("full reuse", mix)).unwrap();
    }
    insta::assert_snapshot!(found, @r#"
    tiny.toml: variant "shared": `model.layers`: layer mix, column 6: unknown mode `reus`
        full reus
             ^
    the modes are swa, full, reindex, reuse, stale, dense, in small letters

    tiny.toml: variant "shared": `model.layers`: layer 0 (`reuse`) has no `full` layer below it, so there is no content to read; put a `full` before it, or write `swa` for a layer that reads its window alone

    tiny.toml: variant "shared": `model.layers`: layer mix, column 1: this bracket is never closed
        (full reuse
        ^
    close the group with `)` and a count, for example `(full reuse*5)*3`

    tiny.toml: variant "shared": `model.layers`: layer mix, column 5: count 0 means no layer
        swa*0
            ^
    write a count of 1 or more, or leave the layer out

    tiny.toml: variant "shared": `model.layers`: layer 1 (`stale`) has no `full` or `reindex` layer below it, so there is no address to read; put one of them before it

    tiny.toml: variant "shared": `model.layers`: layer mix, column 6: the mix grows past 4096 layers here
        full*5000
             ^
    keep the whole mix to 4096 layers

    tiny.toml: variant "shared": model: `pool` is missing: the mix has a `full+pool` layer, which needs the pool's size; set pool = { blocks = ..., block_size = ... }, or write `full` without `+pool`
    "#);
}

#[test]
fn what_contradicts_itself_is_refused() {
    let mut found = String::new();
    let long = format!("name = \"{}\"", "я".repeat(41));
    for (from, to) in [
        ("name = \"tiny\"", "name = \"../up\""),
        ("name = \"shared\"", "name = \"a/b\""),
        ("name = \"shared\"", "name = \"\""),
        ("name = \"shared\"", "name = \"a\\u0000b\""),
        ("name = \"shared\"", &long),
        ("name = \"shared\"", "name = \"Report.html\""),
        ("name = \"shared\"", "name = \"Windows\""),
        ("seeds", "baseline = \"wind\"\nseeds"),
        ("seeds = [0]", "seeds = []"),
        ("seeds = [0]", "seeds = [3, 3]"),
        ("seeds", "decode_context = 0\nseeds"),
        (SHARED, "layers = \"full reuse\"\ntrain.tokens = 4480"),
        (SHARED, "layers = \"full reuse\"\ntask = { kind = \"twohop\" }"),
    ] {
        writeln!(found, "{}", refused(from, to)).unwrap();
    }
    let none = &TINY[..TINY.find("[[variant]]").unwrap()];
    writeln!(found, "{}", load(none).err().unwrap()).unwrap();
    insta::assert_snapshot!(found, @r#"
    tiny.toml: ablation.name is "../up"; a name becomes a folder, so it is made of letters, digits, spaces and any of -_.,+@*=(), in 1 to 80 bytes (80 plain letters), without a space, point or minus at its start or a space or point at its end
    tiny.toml: a variant's name is "a/b"; a name becomes a folder, so it is made of letters, digits, spaces and any of -_.,+@*=(), in 1 to 80 bytes (80 plain letters), without a space, point or minus at its start or a space or point at its end
    tiny.toml: a variant's name is ""; a name becomes a folder, so it is made of letters, digits, spaces and any of -_.,+@*=(), in 1 to 80 bytes (80 plain letters), without a space, point or minus at its start or a space or point at its end
    tiny.toml: a variant's name is "a\0b"; a name becomes a folder, so it is made of letters, digits, spaces and any of -_.,+@*=(), in 1 to 80 bytes (80 plain letters), without a space, point or minus at its start or a space or point at its end
    tiny.toml: a variant's name is "яяяяяяяяяяяяяяяяяяяяяяяяяяяяяяяяяяяяяяяяя"; a name becomes a folder, so it is made of letters, digits, spaces and any of -_.,+@*=(), in 1 to 80 bytes (80 plain letters), without a space, point or minus at its start or a space or point at its end
    tiny.toml: a variant's name is "Report.html", which is a file of the results; rename it
    tiny.toml: has two variants named "Windows" (case does not count); rename one
    tiny.toml: ablation.baseline = "wind" is no variant; the variants are: windows, shared
    tiny.toml: ablation.seeds is empty; one seed makes one run of every variant, three give an interval
    tiny.toml: ablation.seeds = [3, 3] names a seed twice; every seed is one run
    tiny.toml: ablation.decode_context = 0: it is a context length in tokens, at least 1
    tiny.toml: variant "shared": replaces `train.tokens`; the budget is equal for all variants, set it in [train] (a variant that starts `from` another has one of its own)
    tiny.toml: variant "shared": its task `twohop` is not judged as the task `mqar` of "windows"; an ablation ranks by one metric, so compare the two tasks in ablations of their own
    tiny.toml: has no [[variant]]; an ablation compares at least one, better two
    "#);
}

#[test]
fn names_in_any_script_are_folders() {
    for name in ["полный слой", "full + reuse, 2", "K=8 (half)", "@2*", &"a".repeat(80)] {
        let config = load(&edited("name = \"shared\"", &format!("name = \"{name}\""))).unwrap();
        assert_eq!(config.variants[1].name, name);
    }
}

#[test]
fn a_file_that_cannot_be_read_as_text_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| AblationConfig::load(path).err().unwrap().to_string();
    assert!(message(&folder.path().join("none.toml")).contains("none.toml: cannot be read: No such file"));
    assert!(message(folder.path()).contains("cannot be read: Is a directory"));
    let bytes = folder.path().join("bytes.toml");
    std::fs::write(&bytes, [0xff, 0xfe, 0]).unwrap();
    assert!(message(&bytes).contains("bytes.toml: is not UTF-8 text"));
}
