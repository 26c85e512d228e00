//! Attention whose values are not rotated: the same weights as with rotated keys, but the mean of the latents as they were.

use burn::tensor::{DType, Tensor};
use csa2_model::attention::{Phase, rope_frequencies};
use csa2_model::config::ModelConfig;

use super::common::random::Source;
use super::common::{assert_close, ints, numbers, small};
use super::{model, walk};

/// A vector turned by an angle per pair of its last channels.
fn turned(vector: &[f64], position: f64, frequencies: &[f64]) -> Vec<f64> {
    let mut out = vector.to_vec();
    let first = vector.len() - 2 * frequencies.len();
    for (pair, frequency) in out[first..].chunks_mut(2).zip(frequencies) {
        let (sin, cos) = (position * frequency).sin_cos();
        (pair[0], pair[1]) = (cos * pair[0] - sin * pair[1], sin * pair[0] + cos * pair[1]);
    }
    out
}

/// Key and value of a stored vector.
fn halves<'a>(vector: &'a [f64], config: &ModelConfig) -> (&'a [f64], Vec<f64>) {
    let (key, tail) = vector.split_at(config.head_dim);
    (key, [&key[..config.head_dim - config.rope_dim], tail].concat())
}

#[test]
fn keys_weigh_and_unrotated_latents_are_averaged() {
    let config = small::unrotated(&small::config("swa full@2 reindex reuse stale@2 reuse"));
    let (batch, seq) = (2, 13);
    let model = model(&config);
    let frequencies = |ratio: usize| match ratio {
        0 => rope_frequencies(config.rope_dim, config.rope_theta, None),
        _ => rope_frequencies(config.rope_dim, config.compress_rope_theta, config.yarn.as_ref()),
    };
    let wide = config.head_dim + config.rope_dim;
    for (step, planned) in walk(&model, &config, [batch, seq], Phase::Sparse).iter().zip(config.layers.layers()) {
        let trace = &step.trace;
        let frequencies = frequencies(planned.ratio);
        let (q, window, found) = [trace.q.clone(), trace.window.clone().unsqueeze_dim(2), trace.readout_back.clone()]
            .map(numbers::<4>)
            .into();
        let content = trace.content.as_ref();
        let main = content.map_or_else(Vec::new, |content| numbers(content.main.clone()));
        let entries = content.map_or(0, |content| content.entries);
        let topk = ints(trace.topk.clone());
        let slots = trace.topk.dims()[2];
        let sinks = numbers(model.layers()[planned.index].attention().sinks());
        let vector = |rows: &'_ [f64], row: usize| rows[row * wide..(row + 1) * wide].to_vec();
        let mut expected = Vec::new();
        for at in 0..batch * seq {
            let (row, position) = (at / seq, at % seq);
            let near = (position + 1).saturating_sub(config.window)..=position;
            let mut read: Vec<(Vec<f64>, usize)> =
                near.map(|token| (vector(&window, row * seq + token), token)).collect();
            read.extend(topk[at * slots..(at + 1) * slots].iter().filter_map(|&entry| {
                let entry = usize::try_from(entry).ok()?;
                Some((vector(&main, row * entries + entry), entry * planned.ratio))
            }));
            for (head, sink) in sinks.iter().enumerate() {
                let q = &vector(&q, at * config.heads + head)[..config.head_dim];
                let weight = |key: &[f64]| {
                    (q.iter().zip(key).map(|(q, key)| q * key).sum::<f64>() / (config.head_dim as f64).sqrt()).exp()
                };
                let mut sum = sink.exp();
                let mut mean = vec![0.0; config.head_dim];
                for (stored, place) in &read {
                    let (key, value) = halves(stored, &config);
                    // The key is the value, rotated by its position.
                    assert_close("key", key, &turned(&value, *place as f64, &frequencies), 1e-5);
                    sum += weight(key);
                    mean.iter_mut().zip(&value).for_each(|(mean, value)| *mean += weight(key) * value);
                }
                expected.extend(mean.iter().map(|mean| mean / sum));
            }
        }
        assert_close(&format!("layer {}", planned.index), &found, &expected, 1e-5);
    }
}

#[test]
fn without_rotary_differences_both_are_one() {
    // At position 0 nothing is turned, so the first token cannot tell the two apart; later ones can.
    let rotated = small::config("swa full reuse");
    let unrotated = small::unrotated(&rotated);
    let tokens = Source::new(2).tokens([1, 9], small::VOCABULARY);
    let logits =
        |config: &ModelConfig| -> Tensor<3> { small::forward(&model(config), config, &tokens, [1, 9], |cx| cx).logits };
    let (one, other) = (numbers(logits(&rotated)), numbers(logits(&unrotated)));
    assert_eq!(logits(&rotated).dtype(), DType::F32);
    let first = small::VOCABULARY;
    assert_close("first token", &one[..first], &other[..first], 1e-5);
    let apart = one[first..].iter().zip(&other[first..]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(apart > 1e-3, "{apart}");
}
