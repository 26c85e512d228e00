//! Import, export, import: the same configuration, the same weights and the same logits, bit for bit.

use std::fs;

use csa2_model::checkpoint::decode;

use crate::folder::{WHOLE, bits, config, export, import, load, logits, names, released, write};

const TOKENS: [i32; 22] = [1, 12, 3, 0, 5, 5, 7, 2, 9, 4, 11, 6, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];

#[test]
fn a_model_survives_bit_for_bit() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    write(&at("released"), &config().to_hf_file().unwrap(), &released(&config()));
    let imported = import(&at("released"), &at("run"), WHOLE).unwrap();
    assert_eq!(imported.model, config());
    assert!(imported.says_quantization && imported.skipped.is_empty() && imported.unsupported.is_empty());
    let (first_config, first) = load(&at("run"));
    assert_eq!(first_config, config());
    let expected = bits(&logits(&config(), &first, &TOKENS, 2));
    assert!(expected.iter().all(|&bits| f32::from_bits(bits).is_finite()));

    // In one file, in several, and in one a tensor: the largest alone has more bytes than the last limit.
    for (name, limit) in [("one", u64::MAX), ("some", 60_000), ("each", 1)] {
        let folder = at(&format!("{name}-folder"));
        let exported = export(&at("run"), &folder, limit).unwrap();
        let run = at(&format!("{name}-run"));
        assert_eq!(exported.tensors, imported.tensors + config().layers.len(), "a routing bias of images a layer");
        let files = names(&folder).len() - 1;
        match name {
            "one" => assert_eq!(names(&folder), ["config.json", "model.safetensors"]),
            "each" => assert_eq!((exported.files, files), (exported.tensors, exported.tensors + 1)),
            _ => {
                assert!(exported.files > 1 && files == exported.files + 1);
                for file in names(&folder).iter().filter(|file| file.ends_with(".safetensors")) {
                    let tensors = decode(&fs::read(folder.join(file)).unwrap(), file).unwrap();
                    let bytes: usize = tensors.values().map(|weight| 4 * weight.values.len()).sum();
                    assert!(bytes <= 60_000 || tensors.len() == 1, "{file}: {bytes}");
                }
            }
        }
        assert_eq!(import(&folder, &run, WHOLE).unwrap().model, config());
        let weights = |run: &std::path::Path| fs::read(run.join("checkpoint/model-00000000.safetensors")).unwrap();
        assert!(weights(&at("run")) == weights(&run), "{name}");
        let (config, model) = load(&run);
        assert_eq!(bits(&logits(&config, &model, &TOKENS, 2)), expected, "{name}");
    }
}

#[test]
fn an_exported_file_is_what_transformers_expects() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    write(&at("released"), &config().to_hf_file().unwrap(), &released(&config()));
    import(&at("released"), &at("run"), WHOLE).unwrap();
    export(&at("run"), &at("folder"), u64::MAX).unwrap();
    let bytes = fs::read(at("folder").join("model.safetensors")).unwrap();
    // The `safetensors` crate is the format's own reader.
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let about = metadata.metadata().as_ref().unwrap();
    assert_eq!(about.iter().collect::<Vec<_>>(), [(&"format".to_string(), &"pt".to_string())]);
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names = file.names();
    names.sort_unstable();
    let starts = |start: &str| names.iter().filter(|name| name.starts_with(start)).count();
    assert_eq!(starts("model.layers.") + 3, names.len());
    for name in
        ["lm_head.weight", "model.embed.weight", "model.norm.weight", "model.layers.3.attn.compressor.wkv.weight"]
    {
        assert!(names.contains(&name), "{name}");
    }
    for layer in 0..6 {
        let bias = file.tensor(&format!("model.layers.{layer}.ffn.gate.bias_vl")).unwrap();
        assert_eq!((bias.shape(), bias.data()), (&[3][..], &[0; 12][..]));
    }
}

#[test]
fn places_that_are_taken_stay_as_they_are() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    write(&at("released"), &config().to_hf_file().unwrap(), &released(&config()));
    import(&at("released"), &at("run"), WHOLE).unwrap();
    let before = fs::read(at("run").join("config.toml")).unwrap();
    for out in ["run", "released"] {
        let taken = format!("{}: is not empty; give another --out", at(out).display());
        assert_eq!(import(&at("released"), &at(out), WHOLE).unwrap_err().to_string(), taken);
        assert_eq!(export(&at("run"), &at(out), 1).unwrap_err().to_string(), taken);
    }
    assert_eq!(fs::read(at("run").join("config.toml")).unwrap(), before);
    fs::create_dir(at("empty")).unwrap();
    import(&at("released"), &at("empty"), WHOLE).unwrap();
    assert_eq!(names(lab.path()), ["empty", "released", "run"]);
}
