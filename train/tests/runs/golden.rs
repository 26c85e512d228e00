//! The golden model as a checkpoint of either naming: imported, it computes the golden logits.

use std::collections::BTreeMap;
use std::path::PathBuf;

use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::folder::{Raw, WHOLE, export, import, load, logits, write};

/// The golden file, and what its JSON says.
fn golden() -> (Vec<u8>, Value) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/goldens");
    let about = std::fs::read(folder.join("c_model10_s64.json")).unwrap();
    (std::fs::read(folder.join("c_model10_s64.safetensors")).unwrap(), serde_json::from_slice(&about).unwrap())
}

fn numbers(file: &SafeTensors, name: &str) -> Vec<f64> {
    let view = file.tensor(name).unwrap();
    let of = |b: &[u8]| match view.dtype() {
        Dtype::F32 => f64::from(f32::from_le_bytes(b.try_into().unwrap())),
        Dtype::I32 => f64::from(i32::from_le_bytes(b.try_into().unwrap())),
        Dtype::F64 => f64::from_le_bytes(b.try_into().unwrap()),
        other => panic!("{name} is {other:?}"),
    };
    view.data().chunks_exact(view.dtype().bitsize() / 8).map(of).collect()
}

#[test]
fn the_golden_model_comes_in_under_both_namings_and_goes_out_again() {
    let (bytes, about) = golden();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let official: BTreeMap<String, Raw> = file
        .iter()
        .filter_map(|(name, view)| {
            let name = name.strip_prefix("weights.")?;
            Some((name.to_string(), (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        })
        .collect();
    let renamed = |(name, raw): (&String, &Raw)| match name.as_str() {
        "head.weight" => ("lm_head.weight".to_string(), raw.clone()),
        name => (format!("model.{name}"), raw.clone()),
    };
    let transformers: BTreeMap<String, Raw> = official.iter().map(renamed).collect();
    let tokens: Vec<i32> = numbers(&file, "input_ids").into_iter().map(|id| id as i32).collect();
    let expected = numbers(&file, "f64.logits");
    let text = &about["hf_text_config"];

    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    write(&at("official"), text, &official);
    write(&at("transformers"), &json!({"model_type": "deepseek_v41", "text_config": text}), &transformers);
    for name in ["official", "transformers"] {
        let run = at(&format!("{name}-run"));
        let imported = import(&at(name), &run, WHOLE).unwrap();
        assert!(!imported.says_quantization);
        export(&run, &at(&format!("{name}-again")), 100_000).unwrap();
        let again = at(&format!("{name}-again-run"));
        import(&at(&format!("{name}-again")), &again, WHOLE).unwrap();
        for run in [run, again] {
            let (config, model) = load(&run);
            let found = logits(&config, &model, &tokens, 2);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                let difference = (f64::from(*found) - expected).abs();
                assert!(difference <= 1e-4 * expected.abs().max(1.0), "{found} against {expected}");
            }
        }
    }
}
