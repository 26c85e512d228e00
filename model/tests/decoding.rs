//! A sequence given in pieces to a cache has the logits of one pass over all of it.
#![cfg(feature = "flex")]

mod common;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Int, Tensor};
use common::random::Source;
use common::small::{self, MIXES};
use common::{Golden, assert_close, ints, numbers};
use csa2_model::attention::{Cache, Context, IndexLoss, Scope, Teacher};
use csa2_model::checkpoint::load;
use csa2_model::config::ModelConfig;
use csa2_model::model::Model;
use rand::RngExt;

/// Logits `[B, S, vocabulary]` of tokens given in pieces of these lengths, and the selections of every layer `[S]` of rows.
fn in_pieces(
    model: &Model,
    config: &ModelConfig,
    tokens: &Tensor<2, Int>,
    pieces: &[usize],
    dtype: DType,
) -> (Tensor<3>, Vec<Vec<Vec<i64>>>) {
    let device = tokens.device();
    let mut cache = Cache::new(config.layers.len());
    let mut logits = Vec::new();
    let mut selections = vec![Vec::new(); config.layers.len()];
    for &length in pieces {
        let cx = Context::continued(config, cache.len(), length, dtype, &device).with_trace(true);
        let piece = tokens.clone().narrow(1, cache.len(), length);
        let out = model.forward_cached(piece, &mut cache, &cx);
        for (rows, trace) in selections.iter_mut().zip(out.traces) {
            let [_, _, width] = trace.attn.topk.dims();
            rows.extend(ints(trace.attn.topk.narrow(0, 0, 1)).chunks(width).map(<[i64]>::to_vec));
        }
        logits.push(out.logits);
    }
    assert_eq!(cache.len(), pieces.iter().sum::<usize>());
    (Tensor::cat(logits, 1), selections)
}

struct ToF64;

impl ModuleMapper for ToF64 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let device = value.device();
            Tensor::from_data(value.into_data().convert::<f64>(), (&device, DType::F64))
        })
    }
}

#[test]
fn the_released_pattern_at_every_split() {
    for name in ["c_model10_s64", "c_model10_s96"] {
        at_every_split(&Golden::load(name));
    }
}

fn at_every_split(golden: &Golden) {
    let device = Device::flex();
    let config = golden.config();
    let weights = Golden::load("c_model10_s64").weights("weights.");
    let model = load(Model::new(&config, None, &device).unwrap(), weights, "golden").unwrap();
    let tokens = golden.indices::<2>("input_ids", &device);
    let seq = tokens.dims()[1];
    let (expected, prefill) = (golden.values("logits"), golden.about["prefill"].as_u64().map(|split| split as usize));
    let whole = in_pieces(&model, &config, &tokens, &[seq], DType::F32).1;
    for split in 1..seq {
        let pieces: Vec<usize> = std::iter::once(split).chain(std::iter::repeat_n(1, seq - split)).collect();
        let (logits, selections) = in_pieces(&model, &config, &tokens, &pieces, DType::F32);
        assert_close(&format!("split at {split}"), &numbers(logits.clone()), &expected, 1e-4);
        assert_eq!(selections, whole, "split at {split}");
        if Some(split) == prefill {
            let part = |start, length| numbers(logits.clone().narrow(1, start, length));
            assert_close("prefill", &part(0, split), &golden.values("prefill_logits"), 1e-4);
            assert_close("decode", &part(split, seq - split), &golden.values("decode_logits"), 1e-4);
        }
    }
    assert_eq!(golden.has("decode_logits"), prefill.is_some());
}

/// The small models: plain, with hyper-connections and experts, and quantized.
fn configs() -> impl Iterator<Item = ModelConfig> {
    MIXES.into_iter().chain(["full@4 reuse", "dense full@2+pool reindex"]).flat_map(|mix| {
        let plain = small::config(mix);
        [small::released(&plain), small::quantized(mix, small::FORMATS[3]), small::unrotated(&plain), plain]
    })
}

#[test]
fn pieces_of_any_length() {
    let device = Device::flex();
    for (number, config) in configs().enumerate() {
        let model = small::model(&config, number as u64, &device).map(&mut ToF64);
        let mut source = Source::new(number as u64);
        for seq in [1, 5, 26] {
            let tokens = small::ids(&source.tokens([2, seq], small::VOCABULARY), [2, seq], &device);
            let cx = Context::new(&config, seq, DType::F64, &device);
            let expected = numbers(model.forward(tokens.clone(), &cx).logits);
            for longest in [1, 3, 11] {
                let mut pieces = Vec::new();
                while pieces.iter().sum::<usize>() < seq {
                    let left = seq - pieces.iter().sum::<usize>();
                    pieces.push(source.0.random_range(1..=longest).min(left));
                }
                let found = in_pieces(&model, &config, &tokens, &pieces, DType::F64).0;
                assert_close(&format!("{} in {pieces:?}", config.layers), &numbers(found), &expected, 1e-11);
            }
        }
    }
}

/// The mean over the queries of all pieces is the mean over those of the whole.
#[test]
fn indexers_learn_the_same_in_pieces() {
    let device = Device::flex();
    let shape = [2, 26];
    for mix in ["full@4 reuse full@2 reindex", "full@4+pool reindex stale@4 reuse"] {
        let config = small::config(mix);
        let model = small::model(&config, 5, &device).map(&mut ToF64);
        let tokens = small::ids(&Source::new(6).tokens(shape, small::VOCABULARY), shape, &device);
        for scope in [Scope::Topk, Scope::Pool, Scope::Visible] {
            for teacher in [Teacher::Own, Teacher::Served, Teacher::PoolServed] {
                let kind = Some(IndexLoss { scope, teacher });
                let cx = Context::new(&config, shape[1], DType::F64, &device).with_lessons(kind);
                let whole = model.forward(tokens.clone(), &cx).index_losses;
                let mut cache = Cache::new(config.layers.len());
                let mut sums = vec![0.0; whole.len()];
                let asking = |start: usize, end: usize, layer: usize| {
                    let ratio = config.layers.layers()[layer].ratio;
                    (start..end).filter(|t| t + 1 >= ratio).count() as f64
                };
                for length in [2, 3, 1, 11, 9] {
                    let (start, end) = (cache.len(), cache.len() + length);
                    let cx = Context::continued(&config, start, length, DType::F64, &device).with_lessons(kind);
                    let piece = tokens.clone().narrow(1, start, length);
                    let losses = model.forward_cached(piece, &mut cache, &cx).index_losses;
                    assert_eq!(losses.len(), whole.len());
                    for (sum, (layer, loss)) in sums.iter_mut().zip(losses) {
                        *sum += asking(start, end, layer) * numbers(loss)[0];
                    }
                }
                for (sum, (layer, loss)) in sums.into_iter().zip(whole) {
                    let (mean, expected) = (sum / asking(0, shape[1], layer), numbers(loss)[0]);
                    assert!(expected > 1e-3, "{mix}, {kind:?}, layer {layer}: {expected}");
                    assert_close(&format!("{mix}, {kind:?}, layer {layer}"), &[mean], &[expected], 1e-11);
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "the context starts behind the past")]
fn a_context_of_another_place_is_refused() {
    let device = Device::flex();
    let config = small::config("full reuse");
    let model = small::model(&config, 1, &device);
    let cx = Context::continued(&config, 3, 1, DType::F32, &device);
    model.forward_cached(small::ids(&[1], [1, 1], &device), &mut Cache::new(2), &cx);
}
