//! Parts that csa2 does not have: told by their names, refused, and left out only when asked.

use csa2_model::checkpoint::{Archive, Options, Selection, Skipped};
use csa2_model::config::Part;
use safetensors::Dtype;

use crate::common::random::named;
use crate::folder::{Raw, Tensors, checkpoint, config, floats, in_transformers, single};

const SKIP: Options = Options { block: None, skip_unsupported: true };

fn raw(shape: &[usize]) -> Raw {
    floats(&mut named("part", 1), Dtype::BF16, shape).0
}

fn select(tensors: &Tensors, options: Options) -> Result<Vec<(Part, Skipped)>, String> {
    let archive = Archive::open(single(tensors).path()).unwrap();
    let selection = Selection::whole(&archive, &config(), options).map_err(|error| error.to_string())?;
    Ok(selection.skipped().iter().map(|(part, skipped)| (*part, skipped.clone())).collect())
}

/// A checkpoint with every part that csa2 does not have.
fn with_parts() -> Tensors {
    let (mut tensors, _) = checkpoint(&config(), 32);
    for (name, shape) in [
        ("layers.1.engram.embed.weight", &[5, 4][..]),
        ("layers.1.engram.embed.scale", &[5]),
        ("vision.blocks.0.attn.wqkv.weight", &[2, 2]),
        ("aligner.w1.weight", &[3]),
        ("image_newline", &[4]),
        ("layers.2.ffn.gate.bias_vl", &[3]),
        ("mtp.0.ffn.experts.0.w1.weight", &[2]),
        ("layers.7.attn.wq_a.weight", &[6]),
    ] {
        tensors.insert(name.into(), raw(shape));
    }
    tensors
}

#[test]
fn parts_are_refused_by_name_and_left_out_when_asked() {
    let message = select(&with_parts(), Options::default()).unwrap_err();
    let lines: Vec<&str> = message.lines().skip(1).map(str::trim_start).collect();
    let expected = [
        "aligner.w1.weight: vision and 3 more tensors, which csa2 does not have; --skip-unsupported leaves this part out",
        "layers.1.engram.embed.scale: n-gram memory and 1 more tensors, which csa2 does not have; --skip-unsupported leaves this part out",
        "layers.7.attn.wq_a.weight: draft layers and 1 more tensors, which csa2 does not have; --skip-unsupported leaves this part out",
    ];
    assert_eq!(lines, expected);
    let skipped = select(&with_parts(), SKIP).unwrap();
    let expected = [
        (Part::NgramMemory, 2, 2 * 25, "layers.1.engram.embed.scale"),
        (Part::Vision, 4, 2 * 14, "aligner.w1.weight"),
        (Part::Draft, 2, 2 * 8, "layers.7.attn.wq_a.weight"),
    ];
    let expected =
        expected.map(|(part, tensors, bytes, name)| (part, Skipped { tensors, bytes, example: name.into() }));
    assert_eq!(skipped, expected);
}

#[test]
fn unknown_names_are_refused_all_the_same() {
    for name in
        ["layers.1.engrams.weight", "visions.weight", "layers.1.ffn.gate.bias_v", "layers.x.attn.wq_a.weight", "mtp"]
    {
        let mut tensors = with_parts();
        tensors.insert(name.into(), raw(&[2]));
        let message = select(&tensors, SKIP).unwrap_err();
        assert!(message.ends_with(&format!("\n  {name}: unexpected, this model has no such tensor")), "{message}");
    }
}

#[test]
fn a_routing_bias_of_zeros_is_nothing() {
    let (mut tensors, _) = checkpoint(&config(), 32);
    let zeros = |shape: &[usize]| Raw { bytes: vec![0; 2 * shape.iter().product::<usize>()], ..raw(shape) };
    for layer in 0..7 {
        tensors.insert(format!("layers.{layer}.ffn.gate.bias_vl"), zeros(&[3]));
    }
    assert_eq!(select(&in_transformers(&tensors), Options::default()), Ok(vec![]));
    // A zero with a sign is still a zero; one number that is none is not.
    tensors.get_mut("layers.3.ffn.gate.bias_vl").unwrap().bytes[3] = 0x80;
    assert_eq!(select(&tensors, Options::default()), Ok(vec![]));
    tensors.get_mut("layers.3.ffn.gate.bias_vl").unwrap().bytes[2] = 1;
    assert!(select(&tensors, Options::default()).unwrap_err().contains("layers.3.ffn.gate.bias_vl: vision, which"));
    assert_eq!(select(&tensors, SKIP).unwrap().len(), 1);
    tensors.insert("layers.3.ffn.gate.bias_vl".into(), zeros(&[4]));
    assert!(select(&tensors, Options::default()).unwrap_err().contains("layers.3.ffn.gate.bias_vl: vision, which"));
}
