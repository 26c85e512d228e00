//! `csa2 import` and `csa2 export`: what they print, what they leave, and what they refuse.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::tensor::{DType, Device, Int, Tensor};
use csa2_model::attention::Context;
use csa2_model::checkpoint::{TensorSpec, tensors};
use csa2_model::config::{FfnConfig, ModelConfig, PoolConfig, Residual, ScoreFunction};
use csa2_train::runs::Run;
use serde_json::{Map, Value, json};

use crate::common::{Lab, TINY};

const MOE: &str = include_str!("../moe.toml");

/// A model of every mode that Transformers knows, in FP8, FP4, BF16 and F32.
fn config() -> ModelConfig {
    ModelConfig {
        layers: "swa full@2 reuse full+pool reindex".parse().unwrap(),
        vocab_size: Some(10),
        d_model: 32,
        query_rank: Some(12),
        output_groups: 2,
        output_rank: Some(6),
        pool: Some(PoolConfig { blocks: 4, block_size: 2 }),
        ffn: FfnConfig::Moe {
            experts: 2,
            active: 1,
            shared: 1,
            width: 32,
            route_scale: 1.0,
            swiglu_limit: None,
            score: ScoreFunction::default(),
        },
        residual: Residual::Hyper { streams: 2 },
        ..ModelConfig::small().unwrap()
    }
}

/// Zeros in the released storage: name, type and shape of every tensor.
fn released() -> Vec<(String, String, Vec<usize>)> {
    let entries = tensors(&config()).unwrap();
    let entries = entries.iter().flat_map(TensorSpec::released);
    entries.map(|(name, dtype, shape)| (name, format!("{dtype:?}"), shape)).collect()
}

/// Writes a file of zeros.
fn write(lab: &Lab, place: &str, tensors: &[(String, String, Vec<usize>)]) {
    let (mut header, mut at) = (Map::new(), 0);
    for (name, dtype, shape) in tensors {
        let size = match dtype.as_str() {
            "F32" => 4,
            "BF16" => 2,
            _ => 1,
        };
        let end = at + size * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let header = Value::Object(header).to_string();
    lab.write(place, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; at]].concat());
}

/// A lab with the folder `flash` in the released form, with parts that csa2 does not have.
fn with_parts() -> Lab {
    let lab = Lab::new();
    let mut form = config().to_hf_file().unwrap();
    let text = form["text_config"].as_object_mut().unwrap();
    text.remove("csa2");
    text.insert("engram_layer_ids".into(), json!([1]));
    form["vision_config"] = json!({"hidden_size": 8});
    lab.write("flash/config.json", form.to_string());
    let mut tensors = released();
    tensors.push(("layers.1.engram.embed.weight".into(), "BF16".into(), vec![100, 8]));
    tensors.push(("layers.1.engram.wkv.weight".into(), "BF16".into(), vec![8, 8]));
    write(&lab, "flash/model.safetensors", &tensors);
    lab
}

/// Bytes as the commands print them, between 1 KiB and 1 MiB.
fn kib(bytes: usize) -> String {
    format!("{:.1} KiB", bytes as f64 / 1024.0)
}

/// How many tensors of a model there are, and their bytes as F32.
fn amount(config: &ModelConfig) -> (usize, usize) {
    let specs = tensors(config).unwrap();
    (specs.len(), 4 * specs.iter().map(|spec| spec.shape.iter().product::<usize>()).sum::<usize>())
}

/// The bits of the logits that the model of a run gives.
fn logits(run: &Path) -> Vec<u32> {
    let run = Run::open(run).unwrap();
    let (config, device) = (run.model_config(), Device::flex());
    let ids: Tensor<2, Int> = Tensor::from_ints([[1, 9, 3, 0, 5, 5, 7, 2]], &device);
    let cx = Context::new(config, 8, DType::F32, &device);
    let logits = run.load(&device).unwrap().forward(ids, &cx).logits;
    logits.into_data().try_to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_trained_model_goes_out_and_comes_back_bit_for_bit() {
    let lab = Lab::with(MOE);
    lab.ablate().fine();
    let (count, bytes) = amount(Run::open(&lab.run_folder("shared")).unwrap().model_config());
    let ran = lab.csa2(&["export", "out/shared/seed-0", "--out", "models/shared"]).fine();
    // A routing bias of images for 4 experts in each of 3 layers comes on top.
    let expected = format!(
        "model   3 layers: swa full@2 reuse\n\
         run     out/shared/seed-0: checkpoint of step 20\n\
         folder  models/shared: {} tensors, {} as F32, in 1 file\n",
        count + 3,
        kib(bytes + 3 * 4 * 4)
    );
    assert_eq!((ran.out, ran.err.as_str()), (expected, ""));
    assert_eq!(names(&lab.path().join("models/shared")), ["config.json", "model.safetensors"]);

    let ran = lab.csa2(&["import", "models/shared", "--out", "back"]).fine();
    let size = kib(bytes);
    let expected = format!(
        "model  3 layers: swa full@2 reuse\n\
         read   models/shared: 1 file, Transformers' names\n       \
         F32  {count} tensors  {size}\n\
         cache  main KV none, index none, window none, as config.json says\n\
         run    back: {count} tensors, {size} as F32\n"
    );
    assert_eq!((ran.out, ran.err.as_str()), (expected, ""));
    let original = logits(&lab.run_folder("shared"));
    assert_eq!(logits(&lab.path().join("back")), original);

    let ran = lab.csa2(&["export", "back", "--out", "again", "--max-shard-size", "20KB", "--json"]).fine();
    let json = ran.json();
    let files = json["files"].as_u64().unwrap();
    assert!(files > 2, "{json}");
    assert_eq!(names(&lab.path().join("again")).len() as u64, files + 2);
    assert_eq!((&json["tensors"], &json["left_out"]), (&json!(count + 3), &json!([])));
    let ran = lab.csa2(&["import", "again", "--out", "back again", "--json"]).fine();
    assert_eq!(
        (&ran.json()["tensors"], &ran.json()["files"]),
        (&json!(count), &json!({"opened": files, "all": files}))
    );
    assert_eq!(logits(&lab.path().join("back again")), original);
}

#[test]
fn a_released_folder_tells_what_was_read_and_what_was_left_out() {
    let lab = with_parts();
    let ran = lab.csa2(&["import", "flash", "--out", "run", "--skip-unsupported"]).fine();
    // A line per way of storing: its name, tensors, and bytes with those of scales.
    let mut stored: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for spec in tensors(&config()).unwrap() {
        let entries = spec.released();
        let name = match format!("{:?}", entries[0].1).as_str() {
            "F8_E4M3" => "F8_E4M3, a scale per 32 x 32",
            "I8" => "E2M1, a scale per 32",
            "BF16" => "BF16",
            _ => "F32",
        };
        let bytes = entries.iter().map(|(_, dtype, shape)| dtype.bitsize() / 8 * shape.iter().product::<usize>());
        let sum = stored.entry(name).or_default();
        *sum = (sum.0 + 1, sum.1 + bytes.sum::<usize>());
    }
    let line = |(name, (count, bytes)): (&&str, &(usize, usize))| {
        format!("          {name:28}  {:>10}  {:>8}\n", format!("{count} tensors"), kib(*bytes))
    };
    let stored: String = stored.iter().map(line).collect();
    let (count, bytes) = amount(&config());
    let expected = format!(
        "model     5 layers: swa full@2 reuse full+pool reindex\n\
         read      flash: 1 file, official names\n\
         {stored}\
         left out  n-gram memory  2 tensors  1.7 KiB  such as layers.1.engram.embed.weight\n          \
         vision         no tensor      0 B  asked for by `vision_config`\n\
         cache     main KV none, index none, window none: config.json does not say how cached vectors are quantized, so they are \
         not; --cache-formats says it\n\
         run       run: {count} tensors, {} as F32\n",
        kib(bytes)
    );
    assert_eq!((ran.out, ran.err.as_str()), (expected, ""));
    let json = lab.csa2(&["import", "flash", "--out", "json", "--skip-unsupported", "--json"]).fine().json();
    assert_eq!(
        json["left_out"],
        json!([
            {"part": "n-gram memory", "tensors": 2, "bytes": 1728, "key": "`engram_layer_ids` = [1]"},
            {"part": "vision", "tensors": 0, "bytes": 0, "key": "`vision_config`"}
        ])
    );
    assert_eq!((&json["names"], &json["quantization_stated"]), (&json!("official names"), &json!(false)));
    assert!(logits(&lab.path().join("run")).iter().all(|&bits| bits == 0), "zeros");
}

#[test]
fn parts_that_csa2_does_not_have_are_refused() {
    let lab = with_parts();
    let message = lab.csa2(&["import", "flash", "--out", "run"]).refused();
    assert_eq!(
        message,
        "error: flash/config.json: config.json asks for what csa2 does not have: n-gram memory (`engram_layer_ids` = [1]), vision \
         (`vision_config`); `csa2 import --skip-unsupported` leaves it out\n"
    );
    let plain = config().to_hf_file().unwrap();
    lab.write("flash/config.json", plain.to_string());
    let message = lab.csa2(&["import", "flash", "--out", "run"]).refused();
    assert_eq!(
        message,
        "error: flash does not fit this model:\n  layers.1.engram.embed.weight: n-gram memory and 1 more tensors, which csa2 \
         does not have; --skip-unsupported leaves this part out\n"
    );
    assert_eq!(names(lab.path()), ["flash"]);
}

#[test]
fn attention_layers_alone() {
    let lab = with_parts();
    let arguments = ["import", "flash", "--out", "run", "--layers", "4,1", "--attention-only", "--skip-unsupported"];
    let ran = lab.csa2(&arguments).fine();
    assert!(
        ran.out.starts_with("model     attention of 2 layers out of 5: swa full@2 reuse full+pool reindex\n"),
        "{ran:?}"
    );
    assert!(ran.out.contains("run       run: 25 tensors, "), "{ran:?}");
    let run = Run::open(&lab.path().join("run")).unwrap();
    let origin = run.origin().unwrap();
    assert_eq!((origin.attention_layers.as_deref(), origin.from.as_str()), (Some(&[1, 4][..]), "flash"));
    run.attention(1, &Device::flex()).unwrap();
    let message = lab.csa2(&["export", "run", "--out", "out"]).refused();
    assert!(message.contains("run: holds nothing but the attention of layers 1, 4 (imported with --attention-only)"));
    // What the layers lack is told; what others lack is not looked at.
    let some: Vec<_> = released().into_iter().filter(|(name, _, _)| !name.ends_with("kv_norm.weight")).collect();
    write(&lab, "flash/model.safetensors", &some);
    let message =
        lab.csa2(&["import", "flash", "--out", "x", "--layers", "2", "--attention-only", "--skip-unsupported"]);
    assert_eq!(
        message.refused(),
        "error: flash does not fit this model:\n  layers.2.attn.kv_norm.weight: missing, expected [32]\n"
    );
}

/// What config.json does not tell can be said; what it does tell cannot be changed.
#[test]
fn formats_of_cached_vectors_are_said_by_hand() {
    let lab = with_parts();
    let import = |out: &str, formats: &str| {
        lab.csa2(&["import", "flash", "--out", out, "--skip-unsupported", "--cache-formats", formats])
    };
    let out = import("run", "fp8/none/fp8").fine().out;
    assert!(out.contains("main KV fp8, index none, window fp8, as --cache-formats says"), "{out}");
    let run = Run::open(&lab.path().join("run")).unwrap();
    assert_eq!(run.model_config().quantization.main_kv.name(), "fp8");
    assert!(import("x", "none/fp4/none").refused().contains("does not divide index_dim"));
    assert_eq!(import("x", "fp4").code, Some(2));
    lab.write("flash/config.json", config().to_hf_file().unwrap().to_string());
    let parts: Vec<_> = released();
    write(&lab, "flash/model.safetensors", &parts);
    assert!(import("x", "fp8/none/fp8").refused().contains("says other formats of cached vectors"));
}

#[test]
fn layers_that_cannot_be() {
    let lab = with_parts();
    let import = |more: &[&str]| lab.csa2(&[&["import", "flash", "--out", "run", "--skip-unsupported"], more].concat());
    for (layers, part) in
        [("5", "there is no layer 5: the model has 5 layers (0 to 4)"), ("1,1", "layer 1 is asked for twice")]
    {
        assert_eq!(import(&["--layers", layers, "--attention-only"]).refused(), format!("error: {part}\n"));
    }
    for more in [
        &["--layers", "1"][..],
        &["--attention-only"],
        &["--layers", "", "--attention-only"],
        &["--layers", "1,", "--attention-only"],
        &["--layers", "1-4", "--attention-only"],
        &["--layers", "-1", "--attention-only"],
        &["--layers", "99999999999999999999", "--attention-only"],
    ] {
        let ran = import(more);
        assert_eq!((ran.code, &ran.out[..]), (Some(2), ""), "{ran:?}");
        assert!(ran.err.starts_with("error: "), "{ran:?}");
    }
    assert_eq!(names(lab.path()), ["flash"]);
}

#[test]
fn folders_that_do_not_fit() {
    let lab = with_parts();
    let refused = || {
        let message = lab.csa2(&["import", "flash", "--out", "run", "--skip-unsupported"]).refused();
        assert_eq!(names(lab.path()), ["flash"]);
        message
    };
    let mut tensors = released();
    tensors.retain(|(name, _, _)| name != "norm.weight" && name != "layers.0.attn.wkv.scale");
    let embedding = tensors.iter_mut().find(|(name, _, _)| name == "embed.weight").unwrap();
    embedding.2 = vec![10, 31];
    let head = tensors.iter_mut().find(|(name, _, _)| name == "head.weight").unwrap();
    head.1 = "F8_E5M2".into();
    tensors.push(("layers.0.attn.wq_c.weight".into(), "F32".into(), vec![1]));
    write(&lab, "flash/model.safetensors", &tensors);
    assert_eq!(
        refused(),
        "error: flash does not fit this model:\n  \
         embed.weight: has shape [10, 31] as BF16, expected [10, 32]\n  \
         head.weight: stored as F8_E5M2, expected F32, F16 or BF16\n  \
         layers.0.attn.wkv.weight: has no scale beside it\n  \
         layers.0.attn.wq_c.weight: unexpected, this model has no such tensor\n  \
         norm.weight: missing, expected [32]\n"
    );
    lab.write("flash/model.safetensors", (1_u64 << 60).to_le_bytes());
    assert_eq!(
        refused(),
        "error: flash/model.safetensors: not a whole safetensors file: its header claims 1152921504606846976 bytes; a header has at \
         most 100000000\n"
    );
    fs::remove_file(lab.path().join("flash/model.safetensors")).unwrap();
    assert!(
        refused()
            .contains("flash: holds no weights: neither model.safetensors nor model.safetensors.index.json is there")
    );
    lab.write("flash/config.json", "{\"text_config\": {}}");
    assert!(refused().starts_with("error: flash/config.json: config.json has no `text_config."));
    let message = lab.csa2(&["import", "nowhere", "--out", "run"]).refused();
    assert_eq!(message, "error: nowhere/config.json: cannot be read: No such file or directory (os error 2)\n");
}

#[test]
fn places_that_are_taken() {
    let lab = with_parts();
    lab.write("file", "mine");
    for (out, part) in [
        ("flash", "error: flash: is not empty; give another --out\n"),
        ("file", "error: file: is no folder; give another --out\n"),
        ("file/below", "error: file/below: cannot be read: Not a directory (os error 20)\n"),
    ] {
        assert_eq!(lab.csa2(&["import", "flash", "--out", out, "--skip-unsupported"]).refused(), part);
    }
    assert_eq!(names(lab.path()), ["file", "flash"]);
    assert_eq!(names(&lab.path().join("flash")), ["config.json", "model.safetensors"]);
}

#[test]
fn models_without_such_a_form_are_refused_by_key() {
    let lab = Lab::with(TINY);
    lab.ablate().fine();
    let message = lab.csa2(&["export", "out/shared/seed-0", "--out", "models"]).refused();
    assert_eq!(
        message,
        "error: out/shared/seed-0/config.toml: model: `ffn.kind` = dense has no Hugging Face form: there it is always a mixture of \
         experts\n"
    );
    assert!(!lab.path().join("models").exists());
    let message = lab.csa2(&["export", "out", "--out", "models"]).refused();
    assert_eq!(message, "error: out: holds runs, but is none; give one of them, such as out/shared/seed-0\n");
    let message = lab.csa2(&["export", "nowhere", "--out", "models"]).refused();
    assert_eq!(message, "error: nowhere: there is no such folder\n");
    for size in ["0GB", "5", "5 gigabytes", "-1GB", "99999999999999999999GB"] {
        let ran = lab.csa2(&["export", "out/shared/seed-0", "--out", "models", "--max-shard-size", size]);
        assert_eq!((ran.code, &ran.out[..]), (Some(2), ""), "{ran:?}");
        assert!(ran.err.starts_with("error: "), "{ran:?}");
    }
}

#[test]
fn an_auxiliary_head_is_left_out_by_name() {
    let start = MOE.find("kind = \"mqar\"").unwrap();
    let end = MOE.find("\n[model]").unwrap();
    let task = "kind = \"twohop\"\nsymbols = 4\nchains = 2\nfillers = 2\nregion = 8\ngap = 2\nqueries = 4\neval_sequences = 16\n";
    let lab = Lab::with(&format!("{}{task}{}", &MOE[..start], &MOE[end..]));
    lab.ablate().fine();
    let ran = lab.csa2(&["export", "out/shared/seed-0", "--out", "model"]).fine();
    let expected =
        "\nleft out  hint.head.weight, hint.norm.weight (the task's auxiliary head, which no output needs)\n";
    assert!(ran.out.contains(expected), "{ran:?}");
    lab.csa2(&["import", "model", "--out", "back"]).fine();
    assert_eq!(logits(&lab.path().join("back")), logits(&lab.run_folder("shared")));
}
