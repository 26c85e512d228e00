//! Quantized variants, before anything is trained.

use super::*;

/// Vectors as wide as every format needs them.
const WIDE: &str = "model.head_dim = 32\nmodel.index_dim = 32\n";

/// The message for the second variant of [`TINY`] with further lines.
fn wrong(lines: &str) -> String {
    let message = with(lines).err().unwrap_or_else(|| panic!("{lines:?} was accepted"));
    message.strip_prefix("tiny.toml: variant \"shared\": ").unwrap().to_string()
}

#[test]
fn dimensions_that_groups_do_not_divide_are_refused() {
    let mut found = String::new();
    for part in ["main_kv", "index", "window"] {
        for format in ["fp4", "fp8"] {
            writeln!(found, "{}", wrong(&format!("model.quantization.{part} = \"{format}\""))).unwrap();
        }
    }
    // Where the base is quantized, the variant that changes the dimension is at fault.
    let base = edited("head_dim = 8", "head_dim = 32\nquantization.main_kv = \"fp4\"");
    let message = load(&base.replace(SHARED, &format!("{SHARED}model.head_dim = 24\n"))).err().unwrap();
    writeln!(found, "{message}").unwrap();
    insta::assert_snapshot!(found, @r#"
    model: `quantization.main_kv = "fp4"`: 16 numbers share a scale, which does not divide head_dim = 8; make head_dim a multiple of 16, or choose another format
    model: `quantization.main_kv = "fp8"`: 32 numbers share a scale, which does not divide head_dim = 8; make head_dim a multiple of 32, or choose another format
    model: `quantization.index = "fp4"`: 32 numbers share a scale, which does not divide index_dim = 8; make index_dim a multiple of 32, or choose another format
    model: `quantization.index = "fp8"`: 32 numbers share a scale, which does not divide index_dim = 8; make index_dim a multiple of 32, or choose another format
    model: `quantization.window = "fp4"`: 16 numbers share a scale, which does not divide head_dim = 8; make head_dim a multiple of 16, or choose another format
    model: `quantization.window = "fp8"`: 32 numbers share a scale, which does not divide head_dim = 8; make head_dim a multiple of 32, or choose another format
    tiny.toml: variant "shared": model: `quantization.main_kv = "fp4"`: 16 numbers share a scale, which does not divide head_dim = 24; make head_dim a multiple of 16, or choose another format
    "#);
    // No layer of a window's mix has main KV or an index.
    assert!(
        load(&edited(
            "layers = \"swa*2\"",
            "layers = \"swa*2\"\nmodel.quantization = { main_kv = \"fp4\", index = \"fp4\" }"
        ))
        .is_ok()
    );
}

#[test]
fn a_step_from_which_nothing_changes_is_refused() {
    let mut found = String::new();
    for lines in [
        "train.quantize_from = 5".to_string(),
        format!("{WIDE}model.quantization = {{ index = \"none\" }}\ntrain.quantize_from = 5"),
        format!("{WIDE}model.quantization.index = \"fp4\"\ntrain.quantize_from = 21"),
        format!("{WIDE}model.quantization.index = \"fp4\"\ntrain.quantize_from = -1"),
        format!("{WIDE}model.quantization.index = \"fp5\""),
        format!("{WIDE}model.quantization.queries = \"fp4\""),
    ] {
        writeln!(found, "{}", wrong(&lines)).unwrap();
    }
    insta::assert_snapshot!(found, @r"
    `train.quantize_from = 5`: the model has no quantization to switch on; set model.quantization (main_kv, index or window), or leave quantize_from out
    `train.quantize_from = 5`: the model has no quantization to switch on; set model.quantization (main_kv, index or window), or leave quantize_from out
    `train.quantize_from = 21`: the run has 20 steps; at 20 only the evaluation at its end is quantized
    `train.quantize_from`: invalid value: integer `-1`, expected u64
    `model.quantization.index`: unknown variant `fp5`, expected one of `none`, `fp8`, `fp4`
    `model.quantization`: unknown field `queries`, expected one of `main_kv`, `index`, `window`
    ");
    for step in [0, 1, 20] {
        let lines = format!("{WIDE}model.quantization.index = \"fp4\"\ntrain.quantize_from = {step}");
        assert_eq!(with(&lines).unwrap().run.train.quantize_from, step);
    }
}

#[test]
fn what_is_quantized_and_from_when_decides_the_run() {
    let hash = |lines: &str| with(&format!("{WIDE}{lines}")).unwrap().hash("flex", 1, None).unwrap();
    let plain = hash("");
    assert_eq!(hash("model.quantization = { window = \"none\" }\ntrain.quantize_from = 0"), plain);
    let mut hashes = vec![plain];
    for part in ["main_kv", "index", "window"] {
        for format in ["fp4", "fp8"] {
            let quantization = format!("model.quantization.{part} = \"{format}\"");
            hashes.push(hash(&quantization));
            assert_eq!(hash(&format!("{quantization}\ntrain.quantize_from = 0")), hashes[hashes.len() - 1]);
            hashes.push(hash(&format!("{quantization}\ntrain.quantize_from = 7")));
        }
    }
    let different: std::collections::BTreeSet<&String> = hashes.iter().collect();
    assert_eq!(different.len(), hashes.len(), "{hashes:?}");
}
