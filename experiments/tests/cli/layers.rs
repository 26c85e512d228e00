//! `csa2 probe` on layers that were imported without their model.

use std::collections::BTreeMap;
use std::fs;

use csa2_model::checkpoint::{Weight, encode};
use csa2_train::random;
use rand_distr::{Distribution, StandardNormal};
use serde_json::Value;

use crate::common::Lab;

const WIDTH: usize = 16;

/// A folder in Hugging Face's form, and layers 0 to 4 of it, one run each way.
fn lab() -> Lab {
    let mix = "layers = \"swa full@2+pool reuse reindex reuse\"\nmodel.pool = { blocks = 2, block_size = 2 }";
    let lab = Lab::with(&include_str!("../moe.toml").replace("layers = \"swa full@2 reuse\"", mix));
    lab.ablate().fine();
    lab.csa2(&["export", "out/shared/seed-0", "--out", "model"]).fine();
    for (layers, out) in [("1,2,3", "held"), ("2", "reuse"), ("1,4", "pair"), ("0", "window")] {
        lab.csa2(&["import", "model", "--out", out, "--layers", layers, "--attention-only"]).fine();
    }
    lab
}

/// A file of inputs for these layers.
fn inputs(layers: &[usize], dims: &[usize], values: &[f32]) -> Vec<u8> {
    let weight = Weight { dims: dims.to_vec(), values: values.to_vec() };
    let tensors: BTreeMap<String, Weight> =
        layers.iter().map(|layer| (format!("layers.{layer}.attn_input"), weight.clone())).collect();
    encode(&tensors).unwrap()
}

/// What is drawn for the sequences of a probe.
fn drawn(sequences: usize, tokens: usize) -> Vec<f32> {
    let of = |number: usize| {
        let mut rng = random::stream(0, random::INPUTS, number as u64);
        (0..tokens * WIDTH).map(move |_| StandardNormal.sample(&mut rng)).collect::<Vec<f32>>()
    };
    (0..sequences).flat_map(of).collect()
}

#[test]
fn layers_alone_are_measured() {
    let lab = lab();
    let told = lab.csa2(&["probe", "held", "--tokens", "40", "--json"]).fine().json();
    let layers = told["layers"].as_array().unwrap();
    let numbers: Vec<(u64, &str)> =
        layers.iter().map(|layer| (layer["layer"].as_u64().unwrap(), layer["mode"].as_str().unwrap())).collect();
    assert_eq!(numbers, [(1, "full"), (2, "reuse"), (3, "reindex")]);
    assert_eq!((&told["sequences"], &told["queries_per_sequence"]), (&Value::from(4), &Value::from(2)));
    assert!(told["evaluation_sequences"].is_null());
    assert!(told["task"].as_str().unwrap().contains("drawn inputs"), "{told}");
    assert!(told["mix"].as_str().unwrap().ends_with("(held: 1 full, 2 reuse, 3 reindex)"), "{told}");
    for layer in layers {
        // A window of 4, K 2 and the sink, all late enough to have them.
        assert!((layer["measures"]["entries"]["mean"].as_f64().unwrap() - 7.0).abs() < 1e-12);
        for head in layer["heads"].as_array().unwrap() {
            let mean = |name: &str| head["measures"][name]["mean"].as_f64().unwrap();
            // The layer's own operator saw the same numbers as the mathematics.
            assert!(mean("operator_difference") < 1e-5, "{head}");
            assert!(mean("asymmetry") < 1e-12 && mean("asymmetry_unrotated") > 1e-3, "{head}");
        }
    }
    assert_eq!(told["diversity"].as_array().unwrap().len(), 1, "layers 1 and 2 share an address");
    let page = fs::read_to_string(lab.path().join("held/probe/report.html")).unwrap();
    assert!(page.contains("They are no text"), "the report says what the inputs are");

    // The same inputs from a file: the same numbers.
    lab.write("inputs.safetensors", inputs(&[1, 2, 3], &[4, 40, WIDTH], &drawn(4, 40)));
    let given =
        lab.csa2(&["probe", "held", "--inputs", "inputs.safetensors", "--out", "given", "--json"]).fine().json();
    assert_eq!((&given["layers"], &given["diversity"]), (&told["layers"], &told["diversity"]));
    assert_eq!(given["evaluation_sequences"], 4);
    assert!(given["task"].as_str().unwrap().contains("inputs.safetensors"), "{given}");
    // One sequence, without an axis for it.
    lab.write("one.safetensors", inputs(&[1, 2, 3], &[40, WIDTH], &drawn(1, 40)));
    let one = lab.csa2(&["probe", "held", "--inputs", "one.safetensors", "--out", "one", "--json"]).fine().json();
    assert_eq!((&one["sequences"], &one["evaluation_sequences"]), (&Value::from(1), &Value::from(1)));
}

#[test]
fn layers_that_cannot_be_probed() {
    let lab = lab();
    let numbers = drawn(1, 8);
    let mut broken = numbers.clone();
    broken[3] = f32::NAN;
    lab.write("narrow", inputs(&[1, 2, 3], &[16, 8], &numbers));
    lab.write("few", inputs(&[1, 3], &[8, WIDTH], &numbers));
    lab.write("many", inputs(&[0, 1, 2, 3], &[8, WIDTH], &numbers));
    lab.write("broken", inputs(&[1, 2, 3], &[8, WIDTH], &broken));
    lab.write("text", "no tensors");
    lab.write("task.toml", "[task]\nkind = \"mqar\"\n");
    for (arguments, expected) in [
        (&["reuse"][..], "holds layer 2 (reuse), but not layer 1, whose content it reads; import the two together"),
        (&["pair"], "holds layer 4 (reuse), but not layer 3, whose address it reads"),
        (&["window"], "no layer of the mix `swa full@2+pool reuse reindex reuse (held: 0 swa)` reads selected entries"),
        (&["held", "--task", "task.toml"], "--task: the run holds layers' attention alone"),
        (
            &["held", "--tokens", "8", "--inputs", "few"],
            "--tokens: the sequences of --inputs have lengths of their own",
        ),
        (&["held", "--tokens", "4096"], "give fewer by --tokens"),
        (&["held", "--inputs", "nothing"], "--inputs nothing: "),
        (&["held", "--inputs", "text"], "--inputs text: "),
        (&["held", "--inputs", "narrow"], "`layers.1.attn_input` is not [sequences, tokens, 16] or [tokens, 16]"),
        (&["held", "--inputs", "few"], "has no `layers.2.attn_input`"),
        (&["held", "--inputs", "many"], "`layers.0.attn_input` belongs to no layer that the run holds"),
        (&["held", "--inputs", "broken"], "`layers.1.attn_input`, number 4, is NaN"),
        (&["out/shared/seed-0", "--tokens", "8"], "--tokens: is for runs that hold layers' attention alone"),
        (&["out/shared/seed-0", "--inputs", "few"], "--inputs: is for runs that hold layers' attention alone"),
    ] {
        let message = lab.csa2(&[&["probe"], arguments].concat()).refused();
        assert!(message.contains(expected), "{expected}: {message}");
    }
    assert!(!lab.path().join("held/probe").exists(), "nothing is begun");
    // Weights that are damaged.
    let folder = lab.path().join("held/checkpoint");
    let weights = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let weights = weights.into_iter().find(|path| path.extension().is_some_and(|e| e == "safetensors")).unwrap();
    let mut bytes = fs::read(&weights).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&weights, bytes).unwrap();
    let message = lab.csa2(&["probe", "held", "--tokens", "16"]).refused();
    assert!(message.contains("layers.3.attn.wq_b.weight: number") && message.contains("is NaN"), "{message}");
}

/// A stretching that no number holds is an error with a reason, not a panic.
#[test]
fn frequencies_beyond_all_numbers_are_refused() {
    let lab = lab();
    let path = lab.path().join("model/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let compress = &mut config["text_config"]["rope_parameters"]["compress"];
    compress["rope_type"] = "yarn".into();
    compress["factor"] = 1e-300.into();
    compress["original_max_position_embeddings"] = 16.into();
    compress["beta_fast"] = 32.0.into();
    compress["beta_slow"] = 1.0.into();
    fs::write(&path, config.to_string()).unwrap();
    lab.csa2(&["import", "model", "--out", "stretched", "--layers", "1", "--attention-only"]).fine();
    let message = lab.csa2(&["probe", "stretched", "--tokens", "16"]).refused();
    assert!(message.contains("rotary frequencies") && message.contains("must be finite"), "{message}");
}
