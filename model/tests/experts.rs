//! Gates and experts: ties, balance, broken numbers, and grouping against token by token.
#![cfg(feature = "flex")]

mod common;

use std::collections::BTreeMap;

use burn::tensor::{DType, Device, Tensor, TensorData};
use common::random::Source;
use common::{assert_close, numbers, small};
use csa2_model::attention::Context;
use csa2_model::block::{FeedForward, Gate, Moe};
use csa2_model::checkpoint::{Weight, load, weights};
use csa2_model::config::{FfnConfig, ModelConfig, ScoreFunction};
use csa2_model::model::Model;

/// A gate over `experts` experts that sees the logits themselves.
fn gate(experts: usize, active: usize, bias: &[f32]) -> Gate {
    let gate = Gate::new(experts, experts, active, 1.0, ScoreFunction::default(), &Device::flex());
    let identity = (0..experts * experts).map(|at| f32::from(u8::from(at / experts == at % experts))).collect();
    let given = BTreeMap::from([
        ("weight".to_string(), Weight { dims: vec![experts, experts], values: identity }),
        ("bias".to_string(), Weight { dims: vec![experts], values: bias.to_vec() }),
    ]);
    load(gate, given, "test").unwrap()
}

fn row(values: &[f32]) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values.to_vec(), [1, values.len()]), &Device::flex())
}

#[test]
fn of_equal_experts_the_lower_number_is_chosen() {
    assert_eq!(gate(4, 2, &[0.0; 4]).route(row(&[1.0; 4])).experts, [0, 1]);
    assert_eq!(gate(4, 2, &[0.0; 4]).route(row(&[0.0, 1.0, -1.0, 1.0])).experts, [1, 3]);
    assert_eq!(gate(4, 4, &[0.0; 4]).route(row(&[0.0, 2.0, 0.0, 2.0])).experts, [1, 3, 0, 2]);
}

#[test]
fn the_bias_chooses_and_does_not_weigh() {
    let plain = gate(3, 2, &[0.0; 3]).route(row(&[1.0, 0.5, 0.0]));
    assert_eq!((plain.experts, plain.load), (vec![0, 1], vec![1, 1, 0]));
    let biased = gate(3, 2, &[0.0, 0.0, 5.0]).route(row(&[1.0, 0.5, 0.0]));
    assert_eq!((biased.experts, biased.load), (vec![2, 0], vec![1, 0, 1]));
    let score = |x: f64| x.exp().ln_1p().sqrt();
    let sum = score(1.0) + score(0.0);
    assert_close("weights", &numbers(biased.weights), &[score(0.0) / sum, score(1.0) / sum], 1e-6);
}

#[test]
fn scores_far_from_zero_keep_their_digits_and_gradients() {
    let device = Device::flex().autodiff();
    for logits in [[-200.0, -100.0], [-41.0, -39.0], [-40.0, 40.0], [90.0, 200.0], [-1e4, 1e4]] {
        for dtype in [DType::F32, DType::F64] {
            let gate = Gate::new(1, 2, 2, 1.0, ScoreFunction::default(), &Device::flex());
            let given = BTreeMap::from([
                ("weight".to_string(), Weight { dims: vec![2, 1], values: logits.to_vec() }),
                ("bias".to_string(), Weight { dims: vec![2], values: vec![0.0; 2] }),
            ]);
            let gate = small::in_format(load(gate, given, "test").unwrap(), dtype, &device);
            let x = Tensor::<2>::ones([1, 1], (&device, dtype)).require_grad();
            let routing = gate.route(x.clone());
            let slope = numbers(x.grad(&routing.weights.clone().narrow(1, 0, 1).sum().backward()).unwrap())[0];
            assert!(slope.is_finite(), "{logits:?} in {dtype:?}: {slope}");
            // ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|), and of the square root the logarithm, so that nothing underflows.
            let log_score = |x: f64| 0.5 * if x < -30.0 { x } else { (x.max(0.0) + (-x.abs()).exp().ln_1p()).ln() };
            let best = f64::from(logits[1]);
            let share = 1.0 / (1.0 + (log_score(f64::from(logits[0])) - log_score(best)).exp());
            let tolerance = if dtype == DType::F64 { 1e-12 } else { 1e-5 };
            assert_eq!(routing.experts, [1, 0], "{logits:?}");
            // Scores that are both 0 in f32 have no share.
            if dtype == DType::F64 || logits[1] > -150.0 {
                assert_close("share", &numbers(routing.weights)[..1], &[share], tolerance);
            }
        }
    }
}

#[test]
fn what_is_not_a_number_stays_one() {
    let routing = gate(3, 2, &[0.0; 3]).route(row(&[f32::NAN; 3]));
    assert!(numbers(routing.weights).iter().all(|weight| weight.is_nan()));
    assert_eq!(routing.experts, [0, 1]);
    let mut broken = weights(&gate(3, 2, &[0.0; 3])).unwrap();
    broken.get_mut("weight").unwrap().values[4] = f32::NAN;
    let some = load(gate(3, 2, &[0.0; 3]), broken, "test").unwrap().route(row(&[0.0, 5.0, 1.0]));
    assert_eq!(some.experts, [2, 0], "a broken score is the worst");
}

#[test]
fn biases_move_against_the_load() {
    let gate = gate(3, 1, &[0.5, 0.5, 0.5]).balanced(&[4, 2, 0], 0.25);
    assert_eq!(weights(&gate).unwrap()["bias"].values, [0.25, 0.5, 0.75]);
    // Over many steps the load of fixed scores evens out: 30 tokens that all like expert 0 best.
    let mut source = Source::new(3);
    let logits: Vec<f32> =
        (0..30).flat_map(|_| [2.0, 0.0, 0.0].map(|mean| mean + 0.3 * source.normals(1)[0] as f32)).collect();
    let x = Tensor::<2>::from_data(TensorData::new(logits, [30, 3]), &Device::flex());
    let mut gate = fresh_gate();
    let first = gate.route(x.clone()).load;
    assert_eq!(first, [30, 0, 0]);
    for _ in 0..400 {
        let load = gate.route(x.clone()).load;
        gate = gate.balanced(&load, 0.01);
    }
    let load = gate.route(x).load;
    assert!(load.iter().all(|&count| (8..=12).contains(&count)), "{load:?}");
}

fn fresh_gate() -> Gate {
    gate(3, 1, &[0.0; 3])
}

#[test]
#[should_panic(expected = "one load an expert")]
fn a_load_of_other_experts_is_refused() {
    let _ = gate(3, 1, &[0.0; 3]).balanced(&[1, 2], 0.1);
}

/// The model's first mixture.
fn mixture(config: &ModelConfig) -> Moe {
    let model = small::model(config, 4, &Device::flex());
    match model.layers()[0].feed_forward() {
        FeedForward::Moe(moe) => moe.clone(),
        FeedForward::Dense(_) => panic!("the configuration has experts"),
    }
}

#[test]
fn grouped_tokens_give_what_each_gives_alone() {
    for (experts, active, shared) in [(3, 2, 1), (5, 1, 0), (4, 4, 2), (1, 1, 0), (9, 2, 1)] {
        let mut config = small::released(&small::config("swa"));
        let FfnConfig::Moe { experts: e, active: a, shared: s, .. } = &mut config.ffn else { unreachable!() };
        (*e, *a, *s) = (experts, active, shared);
        config.validate().unwrap();
        let moe = mixture(&config);
        let x = Source::new(9).normal([2, 7, config.d_model], &Device::flex(), DType::F32);
        let (together, routing) = moe.forward(x.clone());
        let again = moe.forward(x.clone()).0;
        assert_eq!(small::bits(&small::floats(together.clone())), small::bits(&small::floats(again)));
        assert_eq!(routing.load.iter().sum::<usize>(), 14 * active);
        let mut alone = Vec::new();
        for b in 0..2 {
            for t in 0..7 {
                alone.extend(numbers(moe.forward(x.clone().narrow(0, b, 1).narrow(1, t, 1)).0));
            }
        }
        assert_close(&format!("{active} of {experts}"), &numbers(together), &alone, 1e-5);
    }
}

#[test]
fn loads_come_with_the_pass_and_balance_the_model() {
    let config = small::released(&small::config("swa full reuse"));
    let device = Device::flex();
    let model = small::model(&config, 2, &device);
    let tokens = Source::new(1).tokens([2, 9], small::VOCABULARY);
    let cx = Context::new(&config, 9, DType::F32, &device);
    let loads = model.forward(small::ids(&tokens, [2, 9], &device), &cx).loads;
    assert_eq!(
        loads.iter().map(|(layer, load)| (*layer, load.iter().sum())).collect::<Vec<_>>(),
        [(0, 36), (1, 36), (2, 36)]
    );
    let before = weights(&model).unwrap();
    let after = weights(&model.clone().balanced(&loads, 0.5)).unwrap();
    for (name, weight) in &before {
        let moved = after[name] != *weight;
        let layer: Option<usize> =
            name.strip_suffix(".ffn.gate.bias").map(|name| name["layers.".len()..].parse().unwrap());
        let uneven = layer.is_some_and(|layer| loads[layer].1.iter().any(|&count| count != 12));
        assert_eq!(moved, uneven, "{name}");
    }
    let plain: Model = small::model(&small::config("swa"), 2, &device);
    let cx = Context::new(&small::config("swa"), 9, DType::F32, &device);
    assert!(plain.forward(small::ids(&tokens, [2, 9], &device), &cx).loads.is_empty());
}
