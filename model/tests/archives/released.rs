//! The released storage: every number comes out exactly, whatever the files and the names.

use std::path::Path;

use csa2_model::checkpoint::{Archive, Naming, Options, Selection};
use csa2_model::config::ModelConfig;
use safetensors::Dtype;

use crate::common::random::named;
use crate::folder::{Numbers, Raw, Tensors, checkpoint, config, floats, fp8, in_transformers, plain, sharded, single};

/// Everything that is read of a whole model.
fn read(folder: &Path, config: &ModelConfig, options: Options) -> Result<Numbers, String> {
    let archive = Archive::open(folder).map_err(|error| error.to_string())?;
    let selection = Selection::whole(&archive, config, options).map_err(|error| error.to_string())?;
    let mut numbers = Numbers::new();
    for (place, spec) in selection.specs().enumerate() {
        let values = selection.decode(place).map_err(|error| error.to_string())?;
        assert_eq!(values.len(), spec.shape.iter().product::<usize>());
        numbers.insert(spec.name.clone(), values.into_iter().map(f64::from).collect());
    }
    Ok(numbers)
}

/// The first line of the refusal of one file with these tensors.
fn refusal(tensors: &Tensors, options: Options) -> String {
    let folder = single(tensors);
    let message = read(folder.path(), &config(), options).unwrap_err();
    let lines: Vec<&str> = message.lines().collect();
    assert!(lines[0].ends_with(" does not fit this model:"), "{message}");
    assert_eq!(lines.len(), 2, "{message}");
    lines[1].trim_start().to_string()
}

/// [`checkpoint`] with one tensor replaced, or removed.
fn changed(name: &str, raw: Option<Raw>) -> Tensors {
    let (mut tensors, _) = checkpoint(&config(), 32);
    assert!(tensors.remove(name).is_some() || raw.is_some(), "{name}");
    tensors.extend(raw.map(|raw| (name.to_string(), raw)));
    tensors
}

#[test]
fn every_number_comes_out_exactly() {
    let config = config();
    for block in [32, 128] {
        let (tensors, numbers) = checkpoint(&config, block);
        assert!(numbers.values().flatten().any(|x| x.abs() > 1e30) && numbers.len() > 100);
        for tensors in [tensors.clone(), in_transformers(&tensors)] {
            for folder in [single(&tensors), sharded(&tensors, 3)] {
                assert_eq!(read(folder.path(), &config, Options::default()), Ok(numbers.clone()));
                let options = Options { block: Some([block; 2]), ..Options::default() };
                assert_eq!(read(folder.path(), &config, options), Ok(numbers.clone()));
            }
        }
    }
}

#[test]
fn plain_floats_come_out_exactly() {
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
        let (tensors, numbers) = plain(&config(), dtype);
        assert_eq!(read(single(&tensors).path(), &config(), Options::default()), Ok(numbers));
    }
}

#[test]
fn what_was_read_is_told_by_storage() {
    let config = config();
    let (tensors, _) = checkpoint(&config, 32);
    let folder = sharded(&in_transformers(&tensors), 2);
    let archive = Archive::open(folder.path()).unwrap();
    assert_eq!((archive.naming(), archive.shards().opened, archive.shards().all), (Naming::Transformers, 2, 2));
    let selection = Selection::whole(&archive, &config, Options::default()).unwrap();
    let stored: Vec<&str> = selection.storage().keys().map(String::as_str).collect();
    assert_eq!(stored, ["BF16", "E2M1, a scale per 32", "F32", "F8_E4M3, a scale per 32 x 32"]);
    // Every byte of every tensor is counted once, scales with their weights.
    let bytes: u64 = selection.storage().values().map(|amount| amount.bytes).sum();
    assert_eq!(bytes, tensors.values().map(|raw| raw.bytes.len() as u64).sum::<u64>());
    let count: usize = selection.storage().values().map(|amount| amount.tensors).sum();
    assert_eq!(count, selection.specs().count());
    assert_eq!(selection.storage()["E2M1, a scale per 32"].tensors, 7 * 3 * 3);
}

#[test]
fn a_few_attention_layers_alone() {
    let config = config();
    let (mut tensors, numbers) = checkpoint(&config, 32);
    // What lies beside is not looked at.
    tensors.retain(|name, _| !name.ends_with("embed.weight"));
    tensors.insert("layers.0.attn.strange".into(), floats(&mut named("", 1), Dtype::F64, &[2]).0);
    let folder = single(&tensors);
    let archive = Archive::open(folder.path()).unwrap();
    let selection = Selection::attention(&archive, &config, &[5, 1], Options::default()).unwrap();
    let names: Vec<&str> = selection.specs().map(|spec| spec.name.as_str()).collect();
    let inside = |name: &&String| name.starts_with("layers.1.attn.") || name.starts_with("layers.5.attn.");
    assert_eq!(names, numbers.keys().filter(inside).collect::<Vec<_>>());
    for (place, name) in names.iter().enumerate() {
        let values: Vec<f64> = selection.decode(place).unwrap().into_iter().map(f64::from).collect();
        assert_eq!(values, numbers[*name]);
    }
    let refused = |layers: &[usize]| {
        Selection::attention(&archive, &config, layers, Options::default()).err().unwrap().to_string()
    };
    assert_eq!(refused(&[1, 7]), "there is no layer 7: the model has 7 layers (0 to 6)");
    assert!(refused(&[0]).contains("\n  layers.0.attn.strange: unexpected, this model has no such tensor"));
}

#[test]
fn only_the_files_that_hold_what_is_wanted_are_needed() {
    let (tensors, numbers) = checkpoint(&config(), 32);
    let folder = sharded(&tensors, tensors.len());
    let wanted = |name: &str| name.starts_with("layers.3.attn.");
    for (at, (name, _)) in tensors.iter().enumerate() {
        if !wanted(name) {
            let shard = format!("model-{:05}-of-{:05}.safetensors", at + 1, tensors.len());
            std::fs::remove_file(folder.path().join(shard)).unwrap();
        }
    }
    let archive = Archive::open_part(folder.path(), wanted).unwrap();
    let selection = Selection::attention(&archive, &config(), &[3], Options::default()).unwrap();
    assert_eq!(archive.shards().all, tensors.len());
    assert_eq!(archive.shards().opened, tensors.keys().filter(|name| wanted(name)).count());
    assert_eq!(selection.specs().count(), numbers.keys().filter(|name| wanted(name)).count());
    assert!(Archive::open(folder.path()).err().unwrap().to_string().contains("which is not in this folder"));
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    const WEIGHT: &str = "layers.1.attn.wq_b.weight";
    const SCALE: &str = "layers.1.attn.wq_b.scale";
    const EXPERT: &str = "layers.1.ffn.experts.2.w1.weight";
    let raw = |dtype, shape: &[usize]| {
        let size = match dtype {
            Dtype::F64 | Dtype::I64 => 8,
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::BF16 => 2,
            _ => 1,
        };
        Some(Raw { dtype, shape: shape.to_vec(), bytes: vec![0; size * shape.iter().product::<usize>()] })
    };
    for (name, raw, message) in [
        (WEIGHT, None, "layers.1.attn.wq_b.weight: missing, expected [40, 33]"),
        (
            WEIGHT,
            raw(Dtype::F8_E4M3, &[33, 40]),
            "layers.1.attn.wq_b.weight: has shape [33, 40] as F8_E4M3, expected [40, 33]",
        ),
        (
            WEIGHT,
            raw(Dtype::BF16, &[40, 33]),
            "layers.1.attn.wq_b.weight: has a scale, but is stored as BF16, which needs none",
        ),
        (
            WEIGHT,
            raw(Dtype::I8, &[40, 33]),
            "layers.1.attn.wq_b.weight: stored as I8, expected F32, F16 or BF16, or F8_E4M3 with a scale",
        ),
        (
            WEIGHT,
            raw(Dtype::F8_E5M2, &[40, 33]),
            "layers.1.attn.wq_b.weight: stored as F8_E5M2, expected F32, F16 or BF16, or F8_E4M3 with a scale",
        ),
        (SCALE, None, "layers.1.attn.wq_b.weight: has no scale beside it"),
        (SCALE, raw(Dtype::F32, &[2, 2]), "layers.1.attn.wq_b.weight: its scale is stored as F32, expected F8_E8M0"),
        (
            SCALE,
            raw(Dtype::F8_E8M0, &[2, 1]),
            "layers.1.attn.wq_b.weight: its scales [2, 1] are neither those of blocks of 32 x 32 nor of 128 x 128",
        ),
        (
            "layers.0.attn.kv_norm.weight",
            raw(Dtype::F64, &[10]),
            "layers.0.attn.kv_norm.weight: stored as F64, expected F32, F16 or BF16",
        ),
        (
            "layers.0.hc_attn_fn",
            raw(Dtype::F8_E4M3, &[8, 128]),
            "layers.0.hc_attn_fn: stored as F8_E4M3, expected F32, F16 or BF16",
        ),
        (
            EXPERT,
            raw(Dtype::I8, &[32, 64]),
            "layers.1.ffn.experts.2.w1.weight: has shape [32, 64] as I8, expected [32, 32]",
        ),
        (
            EXPERT,
            raw(Dtype::U8, &[32, 32]),
            "layers.1.ffn.experts.2.w1.weight: stored as U8, expected F32, F16 or BF16, F8_E4M3 with a scale, or packed I8 with a \
             scale",
        ),
        (
            "layers.1.ffn.experts.2.w1.scale",
            raw(Dtype::F8_E8M0, &[32, 1]),
            "layers.1.ffn.experts.2.w1.weight: its scale has shape [32, 1], expected [32, 2]",
        ),
        (
            "layers.1.ffn.experts.3.w1.weight",
            raw(Dtype::I8, &[32, 32]),
            "layers.1.ffn.experts.3.w1.weight: unexpected, this model has no such tensor",
        ),
        ("norm.scale", raw(Dtype::F8_E8M0, &[1]), "norm.scale: unexpected, this model has no such tensor"),
        (
            "layers.0.attn.compressor.wkv.weight",
            raw(Dtype::BF16, &[10, 64]),
            "layers.0.attn.compressor.wkv.weight: unexpected, this model has no such tensor",
        ),
    ] {
        assert_eq!(refusal(&changed(name, raw), Options::default()), message, "{name}");
    }
}

#[test]
fn blocks_that_the_configuration_states_must_fit() {
    let (tensors, _) = checkpoint(&config(), 32);
    let folder = single(&tensors);
    let options = Options { block: Some([128, 128]), ..Options::default() };
    let message = read(folder.path(), &config(), options).unwrap_err();
    assert!(message.contains("are not those of blocks of 128 x 128"), "{message}");
    // A block that is in no released checkpoint is taken where the configuration says so, and only there.
    let (weight, scale, numbers) = fp8(&mut named("block", 1), [40, 33], 16);
    let mut tensors = plain(&config(), Dtype::BF16).0;
    tensors.insert("layers.1.attn.wq_b.weight".into(), weight);
    tensors.insert("layers.1.attn.wq_b.scale".into(), scale);
    let options = Options { block: Some([16, 16]), ..Options::default() };
    assert_eq!(read(single(&tensors).path(), &config(), options).unwrap()["layers.1.attn.wq_b.weight"], numbers);
    assert!(refusal(&tensors, Options::default()).contains("neither those of blocks of 32 x 32 nor of 128 x 128"));
}

#[test]
fn numbers_that_are_none_are_named_with_their_place() {
    type Change = fn(&mut Tensors);
    let changes: [(Change, &str); 6] = [
        (
            |t| t.get_mut("layers.1.attn.wq_b.scale").unwrap().bytes[3] = 255,
            "layers.1.attn.wq_b.weight: scale 1 of row 1 is the byte 255, which is not a number",
        ),
        (
            |t| t.get_mut("layers.1.ffn.experts.2.w1.scale").unwrap().bytes[5] = 255,
            "layers.1.ffn.experts.2.w1.weight: scale 1 of row 2 is the byte 255, which is not a number",
        ),
        (
            |t| t.get_mut("layers.1.attn.wq_b.weight").unwrap().bytes[34] = 0xff,
            "layers.1.attn.wq_b.weight: number 1 of row 1 is NaN",
        ),
        (
            |t| {
                t.get_mut("layers.1.attn.wq_b.weight").unwrap().bytes[0] = 0x7e;
                t.get_mut("layers.1.attn.wq_b.scale").unwrap().bytes[0] = 254;
            },
            "layers.1.attn.wq_b.weight: number 0 of row 0 is inf",
        ),
        (
            |t| t.get_mut("norm.weight").unwrap().bytes[4..6].copy_from_slice(&0xff80_u16.to_le_bytes()),
            "norm.weight: number 2 of row 0 is -inf",
        ),
        (
            |t| t.get_mut("layers.0.attn.attn_sink").unwrap().bytes[12..].copy_from_slice(&f32::NAN.to_le_bytes()),
            "layers.0.attn.attn_sink: number 3 of row 0 is NaN",
        ),
    ];
    for (change, message) in changes {
        let (mut tensors, _) = checkpoint(&config(), 32);
        change(&mut tensors);
        assert_eq!(refusal(&tensors, Options::default()), message);
    }
}

#[test]
fn long_lists_of_problems_are_cut_short() {
    let (mut tensors, _) = checkpoint(&config(), 32);
    tensors.retain(|name, _| !name.contains("attn."));
    let message = read(single(&tensors).path(), &config(), Options::default()).unwrap_err();
    assert_eq!(message.lines().count(), 22);
    let missing: usize =
        (0..7).map(|layer| csa2_model::checkpoint::attention_tensors(&config(), layer).unwrap().len()).sum();
    assert_eq!(message.lines().last().unwrap().trim(), format!("and {} more", missing - 20));
}
