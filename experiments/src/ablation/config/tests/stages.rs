//! Variants that start from others, and models that weights are measured in besides.

use super::*;

/// [`TINY`] with further text at its end.
fn extended(text: &str) -> Result<AblationConfig, String> {
    load(&format!("{TINY}\n{text}"))
}

fn wrong(text: &str) -> String {
    extended(text).err().unwrap_or_else(|| panic!("{text:?} was accepted"))
}

const POOLED: &str = "layers = \"full+pool reuse\"\nmodel.pool = { blocks = 2, block_size = 2 }\n";

#[test]
fn a_variant_starts_from_one_before_it_with_a_budget_of_its_own() {
    let text = format!("[[variant]]\nname = \"after\"\nfrom = \"shared\"\n{POOLED}train.tokens = 1_120");
    let config = extended(&text).unwrap();
    let after = &config.variants[2];
    assert_eq!((after.from.as_deref(), after.run.train.tokens), (Some("shared"), 1120));
    assert_eq!(config.variants[1].run.train.tokens, 2240);
    // What it starts from is part of what it is.
    let hashes = config.hashes("flex", 1).unwrap();
    let other = extended(&text.replace("1_120", "1_120\ntrain.learning_rate = 1e-3")).unwrap();
    assert_eq!(other.hashes("flex", 1).unwrap()[..2], hashes[..2]);
    let base = load(&format!("{}\n{text}", edited("batch = 8", "batch = 4"))).unwrap();
    assert_ne!(base.hashes("flex", 1).unwrap()[2], hashes[2]);
    let alone = after.hash("flex", 1, None).unwrap();
    assert_ne!(alone, hashes[2]);
}

#[test]
fn evaluations_change_what_has_no_weights() {
    let text = format!(
        "[[evaluation]]\nname = \"pool 2x2\"\n{POOLED}of = [\"shared\"]\n[[evaluation]]\nname = \"K 1\"\nmodel.topk = 1"
    );
    let config = extended(&text).unwrap();
    assert_eq!(config.evaluations, ["pool 2x2", "K 1"]);
    let named = |at: usize| config.variants[at].evaluations.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>();
    assert_eq!((named(0), named(1)), (vec!["K 1"], vec!["pool 2x2", "K 1"]));
    let pooled = &config.variants[1].evaluations[0].1;
    assert_eq!((pooled.layers.to_string(), pooled.topk), ("full+pool reuse".into(), 2));
    // Hashes are of what was trained: a further measurement changes none.
    assert_eq!(config.hashes("flex", 1).unwrap(), load(TINY).unwrap().hashes("flex", 1).unwrap());
}

#[test]
fn a_mix_without_a_pool_needs_no_size_of_one() {
    let pooled = edited("layers = \"full reuse\"", POOLED);
    let text = format!("{pooled}\n[[evaluation]]\nname = \"no pool\"\nlayers = \"full reuse\"\nof = [\"shared\"]");
    let config = load(&text).unwrap();
    assert_eq!(config.variants[1].evaluations[0].1.pool, None);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let variant = |lines: &str| format!("[[variant]]\nname = \"after\"\n{lines}");
    let evaluation = |lines: &str| format!("[[evaluation]]\n{lines}");
    let mut found = String::new();
    for text in [
        variant("from = \"nobody\"\nlayers = \"full reuse\""),
        variant("from = \"after\"\nlayers = \"full reuse\""),
        variant("from = \"shared\"\nlayers = \"full full\""),
        variant("from = \"shared\"\nlayers = \"full reuse\"\nmodel.d_model = 32"),
        variant("layers = \"full reuse\"\ntrain.tokens = 1_120"),
        evaluation("name = \"\""),
        evaluation("name = \"as trained\""),
        evaluation("name = \"x\"\n[[evaluation]]\nname = \"x\""),
        evaluation("name = \"x\"\nof = [\"nobody\"]"),
        evaluation("name = \"x\"\nlayers = \"full full\"\nof = [\"shared\"]"),
        evaluation("name = \"x\"\nmodel.window = 8"),
        evaluation("name = \"x\"\nmodel.windows = 8"),
        evaluation("name = \"x\"\npool = 8"),
        evaluation("name = \"x\"\nlayers = \"full+pool reuse\"\nof = [\"shared\"]"),
        evaluation(
            "name = \"x\"\nlayers = \"full+pool reuse\"\nmodel.pool = { blocks = 0, block_size = 2 }\nof = [\"shared\"]",
        ),
    ] {
        writeln!(found, "{}", wrong(&text).trim_end()).unwrap();
    }
    insta::assert_snapshot!(found);
}
