//! Runs that hold the attention of some layers and nothing else.

use std::fs;
use std::path::Path;

use burn::tensor::{DType, Device, Tensor, TensorData};
use csa2_model::attention::{Attention, Context, Shared};
use csa2_model::checkpoint::weights;
use csa2_train::runs::{ImportOptions, Run};
use serde_json::json;

use crate::folder::{WHOLE, config, export, import, load, names, released, write};

fn layers(layers: &[usize]) -> ImportOptions<'_> {
    ImportOptions { skip_unsupported: false, attention_layers: Some(layers), formats: None }
}

/// What a layer that reads nothing from below computes.
fn output(layer: &Attention) -> Vec<u32> {
    let device = Device::flex();
    let input: Vec<f32> = (0..9 * 64).map(|n| ((n * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let input: Tensor<3> = Tensor::from_data(TensorData::new(input, [1, 9, 64]), &device);
    let cx = Context::new(&config(), 9, DType::F32, &device);
    let output = layer.forward(input, &mut Shared::default(), &cx).output;
    output.into_data().try_to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_layer_of_its_own_computes_what_it_computes_in_the_model() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    write(&at("released"), &config().to_hf_file().unwrap(), &released(&config()));
    import(&at("released"), &at("whole"), WHOLE).unwrap();
    let imported = import(&at("released"), &at("some"), layers(&[4, 1, 3])).unwrap();
    assert_eq!(imported.model, config());
    let (_, model) = load(&at("whole"));
    let (whole, some) = (Run::open(&at("whole")).unwrap(), Run::open(&at("some")).unwrap());
    let mut tensors = 0;
    for layer in [1, 3, 4] {
        let expected = weights(model.layers()[layer].attention()).unwrap();
        tensors += expected.len();
        for run in [&whole, &some] {
            let alone = run.attention(layer, &Device::flex()).unwrap();
            assert_eq!(weights(&alone).unwrap(), expected);
            // Layer 4 reads from below.
            if layer != 4 {
                assert_eq!(output(&alone), output(model.layers()[layer].attention()));
            }
        }
    }
    assert_eq!(imported.tensors, tensors);
    let origin = some.origin().unwrap();
    assert_eq!(origin.attention_layers, Some(vec![1, 3, 4]), "in order");
    let bytes = fs::metadata(at("some").join("checkpoint/model-00000000.safetensors")).unwrap().len();
    assert!(bytes < imported.bytes + 4096, "nothing else is kept: {bytes}");
}

#[test]
fn what_is_not_there_is_told() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    write(&at("released"), &config().to_hf_file().unwrap(), &released(&config()));
    import(&at("released"), &at("some"), layers(&[2, 3])).unwrap();
    let run = Run::open(&at("some")).unwrap();
    let place = at("some").display().to_string();
    assert_eq!(
        run.load(&Device::flex()).unwrap_err().to_string(),
        format!(
            "{place}: holds nothing but the attention of layers 2, 3 (imported with --attention-only), so it has no whole \
             model; import the folder without --attention-only"
        )
    );
    assert_eq!(
        run.attention(1, &Device::flex()).unwrap_err().to_string(),
        format!("{place}: holds the attention of layers 2, 3, not of layer 1 (imported with --attention-only)")
    );
    assert!(export(&at("some"), &at("out"), 1).unwrap_err().to_string().contains("holds nothing but the attention of"));
    import(&at("released"), &at("whole"), WHOLE).unwrap();
    let message = Run::open(&at("whole")).unwrap().attention(6, &Device::flex()).unwrap_err().to_string();
    assert!(message.contains("there is no layer 6: the model has 6 layers (0 to 5)"), "{message}");
    for (wanted, message) in [
        (&[1, 6][..], "there is no layer 6: the model has 6 layers (0 to 5)"),
        (&[3, 1, 3], "layer 3 is asked for twice"),
    ] {
        assert_eq!(import(&at("released"), &at("more"), layers(wanted)).unwrap_err().to_string(), message);
    }
    assert_eq!(names(lab.path()), ["released", "some", "whole"]);
}

/// Deals the tensors out to a file each, named after the tensor.
fn shard(folder: &Path) {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut map = serde_json::Map::new();
    for (name, view) in file.iter() {
        let shard = format!("{name}.safetensors");
        fs::write(folder.join(&shard), safetensors::serialize([(name, view)], None).unwrap()).unwrap();
        map.insert(name.into(), shard.into());
    }
    fs::remove_file(folder.join("model.safetensors")).unwrap();
    fs::write(folder.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
}

#[test]
fn files_that_hold_nothing_of_the_layers_need_not_be_there() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    write(&at("released"), &config().to_hf_file().unwrap(), &released(&config()));
    shard(&at("released"));
    let all = names(&at("released")).len() - 2;
    for file in names(&at("released")) {
        let json = Path::new(&file).extension().is_some_and(|extension| extension == "json");
        if !json && !file.starts_with("layers.3.attn.") {
            fs::remove_file(at("released").join(file)).unwrap();
        }
    }
    let imported = import(&at("released"), &at("run"), layers(&[3])).unwrap();
    assert_eq!((imported.shards.opened, imported.shards.all), (names(&at("released")).len() - 2, all));
    Run::open(&at("run")).unwrap().attention(3, &Device::flex()).unwrap();
    let message = import(&at("released"), &at("whole"), WHOLE).unwrap_err().to_string();
    assert!(message.contains("which is not in this folder"), "{message}");
}
