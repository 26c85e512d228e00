//! Bounded replay in an evaluation: the end of every prompt alone goes through the decoder's layers.
//!
//! A sequence's prompt is its first half, or up to its first target where that comes later; what follows is decoded. Logits inside the
//! prompt stay those of a whole pass, for nobody reads them from a replay.

use std::ops::Range;

use burn::tensor::{DType, Device, Tensor};
use csa2_infer::{decoder, exact_replay};
use csa2_model::attention::{Cache, Context};
use csa2_model::config::ModelConfig;
use csa2_model::cost::Cost;
use csa2_model::model::{Model, ModelOutput};
use csa2_train::evaluate::tokens;
use csa2_train::tasks::{Batch, NONE};

/// Tokens of a batch's prompts: all but what follows the first query that is decoded.
pub fn prompt(batch: &Batch) -> usize {
    let asked = |at: &usize| (0..batch.rows).any(|row| batch.targets[row * batch.len + at] != NONE);
    (1 + (0..batch.len).find(asked).unwrap_or(0).max(batch.len / 2)).min(batch.len)
}

/// Why a replay of so many tokens cannot be.
pub fn check(config: &ModelConfig, replay: usize) -> Result<(), String> {
    decoder(config).map_err(|error| error.to_string())?;
    if replay < config.window {
        return Err(format!(
            "the window has {0} tokens and would not be whole behind a replay of {replay}; replay at least {0}",
            config.window
        ));
    }
    Ok(())
}

/// What a replay does to prompts of `prompt` tokens, in words.
pub fn words(config: &ModelConfig, replay: usize, prompt: usize) -> String {
    let Ok(layers) = decoder(config) else { return String::new() };
    let (first, last, all) = (layers.start, layers.end - 1, config.layers.len());
    let left_out = prompt.saturating_sub(replay);
    let passes = (layers.len() * left_out) as f64 / (all * prompt) as f64;
    let operations = saved(config, &layers, replay, prompt);
    let operations = operations.map_or(String::new(), |share| format!(" and {:.0}% of its operations", 100.0 * share));
    format!(
        "of prompts of {prompt} tokens, {left_out} do not go through the decoder (layers {first} to {last} of {all}), {:.0}% of a prompt's passes \
         through layers{operations}; a replay is exact from {} tokens on",
        100.0 * passes,
        exact_replay(config, &layers)
    )
}

/// Share of the operations of reading a prompt that a replay leaves out: those of the decoder's layers for the tokens before it, but for the
/// entries that the first of them still makes. The head is not counted, for it reads the last token alone. None where the model has no
/// vocabulary.
fn saved(config: &ModelConfig, layers: &Range<usize>, replay: usize, prompt: usize) -> Option<f64> {
    let all = Cost::of(config).ok()?;
    let encoder = config.layers.below(layers.start).and_then(|below| {
        let pool = config.pool.filter(|_| below.has_pool());
        Cost::of(&ModelConfig { layers: below, pool, ..config.clone() }).ok()
    });
    let maker = format!("full@{}", config.layers.layers()[layers.start].ratio).parse().ok()?;
    let maker = Cost::of(&ModelConfig { layers: maker, pool: None, ..config.clone() }).ok()?;
    let work = |cost: &Cost, context: usize| {
        let flops = cost.decode_flops(context as u64);
        flops.unweighted() - flops.head
    };
    let left_out = |context: usize| {
        let below = encoder.as_ref().map_or(0.0, |encoder| work(encoder, context));
        work(&all, context) - below - 2.0 * maker.active_parameters().compressor as f64
    };
    let whole: f64 = (1..=prompt).map(|context| work(&all, context)).sum();
    Some((1..=prompt.saturating_sub(replay)).map(left_out).sum::<f64>() / whole)
}

/// Logits of a batch as [`words`] says.
pub fn forward(model: &Model, config: &ModelConfig, batch: &Batch, replay: usize, device: &Device) -> ModelOutput {
    let all = tokens(batch, device);
    let whole = || model.forward(all.clone(), &Context::new(config, batch.len, DType::F32, device));
    let prompt = prompt(batch);
    let since = prompt.saturating_sub(replay);
    let (Ok(layers), true) = (decoder(config), since > 0) else { return whole() };
    let mut cache = Cache::new(config.layers.len());
    let part = |start: usize, end: usize, cache: &mut Cache| {
        let cx = Context::continued(config, start, end - start, DType::F32, device);
        model.forward_cached(all.clone().narrow(1, start, end - start), cache, &cx).logits
    };
    part(0, since, &mut cache);
    cache.forget_windows(layers.start);
    let replayed = part(since, batch.len, &mut cache);
    let decoded = replayed.narrow(1, prompt - 1 - since, batch.len - prompt + 1);
    let logits = match prompt - 1 {
        0 => decoded,
        read => Tensor::cat(vec![whole().logits.narrow(1, 0, read), decoded], 1),
    };
    let (hint, none) = (None, Vec::new);
    ModelOutput { logits, hint, index_losses: none(), traces: Vec::new(), loads: Vec::new(), selections: Vec::new() }
}

#[cfg(test)]
mod tests {
    use csa2_model::init::initialize;
    use csa2_train::random;

    use super::*;
    use crate::subject::testing::config;

    /// Twelve tokens, of which these positions have targets.
    fn batch(targets: &[usize]) -> Batch {
        let tokens: Vec<i32> = (0..12).map(|at| at * 5 % 7).collect();
        let answers: Vec<i32> = (0..12).map(|at| if targets.contains(&at) { 1 } else { NONE }).collect();
        Batch { rows: 1, len: 12, tokens, targets: answers, ..Batch::joined(std::iter::empty()) }
    }

    #[test]
    fn prompts_end_at_the_first_question_that_is_decoded() {
        assert_eq!(prompt(&batch(&[8, 10])), 9);
        assert_eq!(prompt(&batch(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])), 7);
        assert_eq!(prompt(&batch(&[11])), 12);
        assert_eq!(prompt(&batch(&[])), 7);
    }

    #[test]
    fn a_replay_changes_what_is_decoded_and_nothing_else() {
        let mut config = config("swa full reuse").model;
        (config.window, config.vocab_size) = (3, Some(11));
        let device = Device::flex();
        let model = Model::new(&config, None, &device).unwrap();
        let model = initialize(model, 0.0, |path| random::stream(0, random::INITIALISATION, path.len() as u64));
        let batch = batch(&[8, 9, 10, 11]);
        let numbers = |output: ModelOutput| output.logits.into_data().try_to_vec::<f32>().unwrap();
        let whole = numbers(model.forward(tokens(&batch, &device), &Context::new(&config, 12, DType::F32, &device)));
        let replayed = |replay| numbers(forward(&model, &config, &batch, replay, &device));
        // Two layers of windows of three tokens reach five tokens; nine are all.
        let apart = |found: &[f32], from: usize, to: usize| {
            let range = from * 11..to * 11;
            found[range.clone()].iter().zip(&whole[range]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        for exact in [5, 6, 9, 100] {
            assert!(apart(&replayed(exact), 0, 12) < 1e-5, "{exact}");
        }
        let short = replayed(3);
        assert!(apart(&short, 0, 8) == 0.0 && apart(&short, 8, 12) > 1e-4, "{}", apart(&short, 8, 12));
        let told = words(&config, 3, 9);
        assert!(
            told.starts_with("of prompts of 9 tokens, 6 do not go through the decoder (layers 1 to 2 of 3), 44% of")
        );
        // Of nine tokens six leave out two of three layers, which have the read-outs of entries and the scores.
        let share = saved(&config, &(1..3), 3, 9).unwrap();
        assert!((0.40..0.50).contains(&share), "{share}");
        assert!(told.contains(&format!("through layers and {:.0}% of its operations;", 100.0 * share)), "{told}");
        assert!(saved(&config, &(1..3), 9, 9).unwrap() == 0.0);
        assert!(told.ends_with("exact from 5 tokens on"), "{told}");
    }

    #[test]
    fn replays_that_cannot_be() {
        let of = |mix: &str, replay| check(&config(mix).model, replay).unwrap_err();
        assert!(of("swa*2", 8).contains("no layer of `swa*2` is `full`"));
        assert!(of("full dense", 8).contains("is `dense`"));
        assert!(of("full reuse", 1).contains("would not be whole behind a replay of 1"));
    }
}
