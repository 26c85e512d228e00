//! `f_*`: latents of the compressor at several ratios and lengths, its decoding steps and its gradients.

use burn::tensor::{DType, Device, Tensor};
use csa2_model::attention::Compressor;
use csa2_model::checkpoint::load;
use csa2_model::config::ModelConfig;

use crate::conform::Place;
use crate::conform::case::{Array, Case};
use crate::conform::check::Check;
use crate::conform::error::CaseError;
use crate::conform::gradient::{compare_gradients, gradient};
use crate::conform::tolerance::LAYER;

/// Compares one case.
///
/// # Errors
/// When the case is not what the family holds, or the device fails.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    let case = check.case;
    let sequences: Vec<Sequence> = case.names().filter_map(Sequence::named).collect();
    if sequences.is_empty() {
        let needed = "the case needs at least one sequence".into();
        return Err(CaseError::Missing { name: "r*.len*.x".into(), needed });
    }
    for sequence in sequences {
        let compressor = compressor(case, sequence.ratio, &place.device)?;
        whole(check, &sequence, compressor, &place.device)?;
    }
    let steps = case.find("decode").map(|_| decoding(case)).transpose()?.unwrap_or_default();
    for Steps { sequence, emits } in steps {
        let compressor = compressor(case, sequence.ratio, &place.device)?;
        decode(check, &sequence, &emits, &compressor, &place.device)?;
    }
    Ok(())
}

/// A sequence of the case.
struct Sequence {
    ratio: usize,
    length: usize,
}

impl Sequence {
    /// From the name of its input.
    fn named(name: &str) -> Option<Self> {
        let (ratio, length) = name.strip_prefix('r')?.strip_suffix(".x")?.split_once(".len")?;
        let sequence = Self { ratio: ratio.parse().ok()?, length: length.parse().ok()? };
        (sequence.name("x") == name).then_some(sequence)
    }

    fn name(&self, part: &str) -> String {
        format!("r{}.len{}.{part}", self.ratio, self.length)
    }
}

/// Tokens that come one by one behind a sequence.
struct Steps {
    sequence: Sequence,
    /// How many entries each token completes.
    emits: Vec<usize>,
}

fn decoding(case: &Case) -> Result<Vec<Steps>, CaseError> {
    let wrong = || CaseError::key("decode", "must list objects of `ratio`, `len` and `emits`, a list of 0 and 1");
    let number = |entry: &serde_json::Value, key: &str| Some(entry.get(key)?.as_u64()? as usize);
    let steps = case.value("decode")?.as_array().ok_or_else(wrong)?.iter().map(|entry| {
        let sequence = Sequence { ratio: number(entry, "ratio")?, length: number(entry, "len")? };
        let emits = entry.get("emits")?.as_array()?.iter().map(|count| count.as_u64().filter(|&count| count <= 1));
        let emits = emits.map(|count| count.map(|count| count as usize));
        Some(Steps { sequence, emits: emits.collect::<Option<_>>()? })
    });
    steps.collect::<Option<_>>().ok_or_else(wrong)
}

/// The compressor of ratio `ratio`, with the case's weights.
fn compressor(case: &Case, ratio: usize, device: &Device) -> Result<Compressor, CaseError> {
    let prefix = format!("r{ratio}.weights.");
    let [head_dim, d_model] = case.dims(&format!("{prefix}wkv.weight"))?;
    for (key, stored) in [("dim", d_model), ("head_dim", head_dim)] {
        if case.size(key)? != stored {
            return Err(CaseError::key(key, format!("is {}, but the weights have {stored}", case.size(key)?)));
        }
    }
    if ratio == 0 {
        return Err(CaseError::Format { file: prefix, wrong: "a compressor's ratio is at least 1".into() });
    }
    let config = ModelConfig { d_model, head_dim, norm_eps: case.number("norm_eps")?, ..ModelConfig::small()? };
    // A gradient is asked for wherever the device can give one.
    let compressor = Compressor::new(&config, ratio, &device.clone().autodiff());
    Ok(load(compressor, case.weights(&prefix)?, case.name())?)
}

/// Latents and gradients of a whole sequence.
fn whole(check: &mut Check, sequence: &Sequence, compressor: Compressor, device: &Device) -> Result<(), CaseError> {
    let case = check.case;
    let device = &device.clone().autodiff();
    let x = input(case, sequence, device)?.require_grad();
    let batch = x.dims()[0];
    let (latents, dim) = (sequence.name("latent"), case.size("head_dim")?);
    let there = if case.has(&latents) { case.dims::<3>(&latents)?[1] } else { 0 };
    let entries = compressor.entries(sequence.length);
    count(check, &sequence.name("entries"), &[entries], &[there]);
    if there == 0 || entries == 0 {
        return Ok(());
    }
    let latent = compressor.forward(x.clone());
    check.tensor(&latents, latent.clone(), LAYER)?;
    let weight = case.tensor(&sequence.name("grad_latent"), [batch, entries, dim], device, DType::F32)?;
    let grads = (latent * weight).sum().backward();
    check.tensor(&sequence.name("dx"), gradient(&x, &grads), LAYER)?;
    compare_gradients(check, compressor, &grads, &sequence.name("grad."), LAYER)
}

/// Tokens that come one by one: each is compressed with all that came before it, the plain form of keeping an incomplete group.
fn decode(
    check: &mut Check,
    sequence: &Sequence,
    emits: &[usize],
    compressor: &Compressor,
    device: &Device,
) -> Result<(), CaseError> {
    let case = check.case;
    let device = &device.clone().autodiff();
    let prompt = input(case, sequence, device)?;
    let [batch, length, d_model] = prompt.dims();
    let steps = emits.len();
    let later = case.tensor(&sequence.name("decode_x"), [batch, steps, d_model], device, DType::F32)?;
    let all = Tensor::cat(vec![prompt, later], 1);
    let new = |step: usize| compressor.entries(length + step + 1) - compressor.entries(length + step);
    let found: Vec<usize> = (0..steps).map(new).collect();
    count(check, &sequence.name("decode entries"), &found, emits);
    for step in (0..steps).filter(|&step| found[step] == 1 && emits[step] == 1) {
        let latents = compressor.forward(all.clone().narrow(1, 0, length + step + 1));
        let last = latents.dims()[1] - 1;
        check.tensor(&sequence.name(&format!("decode{step}.latent")), latents.narrow(1, last, 1), LAYER)?;
    }
    Ok(())
}

fn input(case: &Case, sequence: &Sequence, device: &Device) -> Result<Tensor<3>, CaseError> {
    let name = sequence.name("x");
    let [batch, _, _] = case.dims(&name)?;
    case.tensor(&name, [batch, sequence.length, case.size("dim")?], device, DType::F32)
}

fn count(check: &mut Check, name: &str, found: &[usize], expected: &[usize]) {
    let whole = |counts: &[usize]| -> Vec<i64> { counts.iter().map(|&count| count as i64).collect() };
    let expected = Array { name: name.into(), dims: vec![expected.len()], values: whole(expected) };
    check.equal(name, &whole(found), &expected);
}
