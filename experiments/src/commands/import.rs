//! `csa2 import`.

use std::path::PathBuf;
use std::process::ExitCode;

use csa2_model::config::{ModelConfig, Part, QuantizationConfig};
use csa2_train::runs::{self, ImportError, ImportOptions, Imported};
use serde_json::{Value, json};

use super::Failure;
use super::transfer::{Progress, columns, counted, lines, size};
use crate::evaluation::switch::parse_named_formats as parse_formats;
use crate::say::say;

/// Arguments of `csa2 import`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  csa2 import models/tiny --out runs/tiny\n  csa2 import DeepSeek-V4.1-Flash --out runs/flash --skip-unsupported --layers 2,3,20,24 --attention-only --cache-formats fp4/fp4/fp8\n\nThe folder holds config.json and model.safetensors, or the files that model.safetensors.index.json names, with the tensors' official names or those of Transformers. FP8 and FP4 weights with their scales are understood. Weights are kept as 32-bit floats."
)]
pub struct Args {
    /// Folder of the checkpoint
    folder: PathBuf,
    /// Folder for the run; it must not exist or be empty
    #[arg(long)]
    out: PathBuf,
    /// Leave out the parts that csa2 does not have (n-gram memory, vision, draft layers) instead of refusing them
    #[arg(long)]
    skip_unsupported: bool,
    /// Take these layers alone, such as 2,3,20,24
    #[arg(long, value_delimiter = ',', requires = "attention_only")]
    layers: Option<Vec<usize>>,
    /// Take nothing of the layers but their attention; files that hold none of it need not be there
    #[arg(long, requires = "layers")]
    attention_only: bool,
    /// Number formats of main KV, index and window, such as fp4/fp4/fp8 (the released model's), where config.json does not say them; each is
    /// none, fp8 or fp4 (default: none)
    #[arg(long, value_name = "FORMATS", value_parser = parse_formats)]
    cache_formats: Option<QuantizationConfig>,
    /// Print what was done as one JSON document
    #[arg(long)]
    json: bool,
}

/// Imports the folder and tells what was read.
///
/// # Errors
/// When anything of the folder is missing, left over or does not fit, or when the run cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let stop = super::stop_on_interrupt("stopping: nothing is left of the run")?;
    let options = ImportOptions {
        skip_unsupported: args.skip_unsupported,
        attention_layers: args.layers.as_deref(),
        formats: args.cache_formats,
    };
    let mut progress = Progress::new();
    let imported = runs::import(&args.folder, &args.out, options, &stop, &mut |written, all| progress.at(written, all));
    progress.finish();
    let imported = match imported {
        Err(ImportError::Interrupted) => {
            say(&ImportError::Interrupted.to_string());
            return Ok(ExitCode::from(super::INTERRUPTED));
        }
        other => other?,
    };
    if args.json {
        super::print(&format!("{}\n", serde_json::to_string_pretty(&as_json(args, &imported))?))?;
    } else {
        super::print(&text(args, &imported))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(args: &Args, imported: &Imported) -> String {
    let Imported { model, naming, shards, storage, says_quantization, tensors, bytes, .. } = imported;
    let files = if shards.opened < shards.all {
        format!("{} of {}", shards.opened, counted(shards.all, "file"))
    } else {
        counted(shards.all, "file")
    };
    let what = match &args.layers {
        Some(layers) => format!("attention of {} out of {}", counted(layers.len(), "layer"), model.layers.len()),
        None => counted(model.layers.len(), "layer"),
    };
    let rows: Vec<Vec<String>> = storage
        .iter()
        .map(|(name, amount)| vec![name.clone(), counted(amount.tensors, "tensor"), size(amount.bytes)])
        .collect();
    let mut groups = vec![
        ("model", vec![format!("{what}: {}", model.layers)]),
        ("read", vec![format!("{}: {files}, {}", args.folder.display(), naming.describe())]),
        ("", columns(&rows, &[1, 2])),
    ];
    let skipped = skipped(imported);
    if !skipped.is_empty() {
        groups.push(("left out", columns(&skipped, &[1, 2])));
    }
    groups.push(("cache", vec![cache(model, *says_quantization, args.cache_formats.is_some())]));
    groups.push((
        "run",
        vec![format!("{}: {}, {} as F32", args.out.display(), counted(*tensors, "tensor"), size(*bytes))],
    ));
    lines(&groups)
}

/// Parts that were left out, with their tensors or the key that asks for them.
fn skipped(imported: &Imported) -> Vec<Vec<String>> {
    let row = |part: Part| {
        let key = imported.unsupported.get(&part);
        let name = part.describe().to_string();
        match (imported.skipped.get(&part), key) {
            (Some(skipped), _) => {
                let example = format!("such as {}", skipped.example);
                Some(vec![name, counted(skipped.tensors, "tensor"), size(skipped.bytes), example])
            }
            (None, Some(key)) => Some(vec![name, "no tensor".into(), size(0), format!("asked for by {key}")]),
            (None, None) => None,
        }
    };
    Part::ALL.into_iter().filter_map(row).collect()
}

/// How cached vectors are quantized.
fn cache(model: &ModelConfig, says: bool, asked: bool) -> String {
    let quantization = model.quantization;
    let (main, index, window) = (quantization.main_kv.name(), quantization.index.name(), quantization.window.name());
    let formats = format!("main KV {main}, index {index}, window {window}");
    if says {
        return format!("{formats}, as config.json says");
    }
    if asked {
        return format!("{formats}, as --cache-formats says");
    }
    format!(
        "{formats}: config.json does not say how cached vectors are quantized, so they are not; --cache-formats says it"
    )
}

fn as_json(args: &Args, imported: &Imported) -> Value {
    let Imported { model, naming, shards, storage, says_quantization, tensors, bytes, .. } = imported;
    let storage: Vec<Value> = storage
        .iter()
        .map(|(name, amount)| json!({"stored": name, "tensors": amount.tensors, "bytes": amount.bytes}))
        .collect();
    let left_out: Vec<Value> = Part::ALL
        .into_iter()
        .filter(|part| imported.skipped.contains_key(part) || imported.unsupported.contains_key(part))
        .map(|part| {
            let skipped = imported.skipped.get(&part);
            json!({
                "part": part.describe(),
                "tensors": skipped.map_or(0, |skipped| skipped.tensors),
                "bytes": skipped.map_or(0, |skipped| skipped.bytes),
                "key": imported.unsupported.get(&part),
            })
        })
        .collect();
    json!({
        "run": args.out.display().to_string(),
        "from": args.folder.display().to_string(),
        "names": naming.describe(),
        "files": {"opened": shards.opened, "all": shards.all},
        "layers": model.layers.to_string(),
        "attention_layers": args.layers,
        "read": storage,
        "left_out": left_out,
        "quantization": model.quantization,
        "quantization_stated": says_quantization,
        "tensors": tensors,
        "bytes": bytes,
    })
}
