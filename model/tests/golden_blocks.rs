//! Hyper-connections, experts, whole blocks and whole models against the golden cases `h_components`, `b_block_*`, `c_model10_*`,
//! `c_trace_*` and `g_grad_*`.
#![cfg(feature = "flex")]

mod common;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation};
use common::random::Source;
use common::small::{self, gradients};
use common::{Golden, assert_close, assert_relative, ints, numbers};
use csa2_model::attention::{Context, Shared};
use csa2_model::block::{Block, BlockTrace, Gate, Routing, Stream, SwiGlu, split_mixes};
use csa2_model::checkpoint::{load, weights};
use csa2_model::config::{ModelConfig, QuantFormat, QuantizationConfig, Residual, ScoreFunction};
use csa2_model::model::Model;

/// The tensor `[.., n]` as rows `[R, n]`.
fn rows(golden: &Golden, name: &str, device: &Device) -> Tensor<2> {
    let dims = golden.dims(name);
    let last = dims[dims.len() - 1];
    let count = dims.iter().product::<usize>() / last;
    let (_, values) = golden.numbers(name);
    Tensor::from_data(TensorData::new(values, [count, last]), (device, DType::F32))
}

#[test]
fn mixing_weights_and_their_gradient() {
    let golden = Golden::load("h_components");
    let device = Device::flex().autodiff();
    let raw = rows(&golden, "sinkhorn.mixes", &device).require_grad();
    let tensor = |name: &str| golden.tensor::<1>(name, &device, DType::F32);
    let mixes = split_mixes(&raw, &tensor("sinkhorn.scale"), &tensor("sinkhorn.base"));
    assert_close("pre", &numbers(mixes.pre.clone()), &golden.values("sinkhorn.pre"), 1e-6);
    assert_close("post", &numbers(mixes.post.clone()), &golden.values("sinkhorn.post"), 1e-6);
    assert_close("comb", &numbers(mixes.comb.clone()), &golden.values("sinkhorn.comb"), 1e-6);
    let [tokens, n, _] = mixes.comb.dims();
    let weighted = (mixes.pre * rows(&golden, "sinkhorn.gpre", &device)).sum()
        + (mixes.post * rows(&golden, "sinkhorn.gpost", &device)).sum()
        + (mixes.comb * rows(&golden, "sinkhorn.gcomb", &device).reshape([tokens, n, n])).sum();
    let grads = weighted.backward();
    assert_close("dmixes", &numbers(raw.grad(&grads).unwrap()), &golden.values("sinkhorn.dmixes"), 1e-6);
}

/// Streams so faint that the norm's eps counts, and none at all.
#[test]
fn mixing_weights_of_faint_streams() {
    let device = Device::flex();
    let config = small::released(&small::config("swa"));
    let model = small::model(&config, 3, &device);
    let all = weights(&model).unwrap();
    let [mix, _] = model.layers()[0].mixes().unwrap();
    let part = |name: &str| &all[&format!("layers.0.hc_attn_{name}")].values;
    let tensor = |values: &[f32]| Tensor::<1>::from_data(TensorData::new(values.to_vec(), [values.len()]), &device);
    let (rows, n, width) = (5, 3, 3 * config.d_model);
    for size in [1e-3, 0.0] {
        let streams = Source::new(8).normal([rows, n, config.d_model], &device, DType::F32).mul_scalar(size);
        let x = numbers(streams.clone());
        let raw: Vec<f32> = x
            .chunks(width)
            .flat_map(|x| {
                let norm = (x.iter().map(|x| x * x).sum::<f64>() / width as f64 + config.norm_eps).sqrt();
                let product = move |row: &[f32]| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x / norm).sum::<f64>();
                part("fn").chunks(width).map(move |row| product(row) as f32)
            })
            .collect();
        let raw = tensor(&raw).reshape([rows, n * (n + 2)]);
        let (found, expected) = (mix.mixes(streams), split_mixes(&raw, &tensor(part("scale")), &tensor(part("base"))));
        assert_close("pre", &numbers(found.pre), &numbers(expected.pre), 1e-5);
        assert_close("post", &numbers(found.post), &numbers(expected.post), 1e-5);
        assert_close("comb", &numbers(found.comb), &numbers(expected.comb), 1e-5);
    }
}

#[test]
fn gates_of_every_function() {
    let golden = Golden::load("h_components");
    let device = Device::flex();
    for score in [ScoreFunction::SqrtSoftplus, ScoreFunction::Sigmoid, ScoreFunction::Softmax] {
        let name = score.name();
        let expected = golden.values(&format!("gate.{name}.indices"));
        let dims = golden.dims("gate.weight");
        let active = golden.dims(&format!("gate.{name}.indices"))[1];
        let weights = golden.values(&format!("gate.{name}.weights"));
        // The case says its scale by what the weights of a token sum to.
        let scale = weights[..active].iter().sum::<f64>();
        let gate = Gate::new(dims[1], dims[0], active, (scale * 1e3).round() / 1e3, score, &device);
        let mut given = golden.weights("gate.");
        given.retain(|name, _| name == "weight" || name == "bias");
        let gate = load(gate, given, name).unwrap();
        let routing = gate.route(golden.tensor("gate.x", &device, DType::F32));
        let (found, found_weights) = ascending(&routing);
        assert_eq!(found, expected, "{name}");
        assert_close(name, &found_weights, &weights, 1e-6);
        assert_eq!(routing.load.iter().sum::<usize>(), expected.len());
    }
}

/// Experts of every token in ascending order, with their weights.
fn ascending(routing: &Routing) -> (Vec<f64>, Vec<f64>) {
    let active = routing.weights.dims()[1];
    let weights = numbers(routing.weights.clone());
    let mut pairs: Vec<(usize, f64)> = routing.experts.iter().copied().zip(weights).collect();
    pairs.chunks_mut(active).for_each(|token| token.sort_by_key(|(expert, _)| *expert));
    pairs.into_iter().map(|(expert, weight)| (expert as f64, weight)).unzip()
}

/// What a case lists, in the same order.
fn ascending_of(golden: &Golden, prefix: &str) -> (Vec<f64>, Vec<f64>) {
    let (dims, experts) = golden.numbers(&format!("{prefix}gate_indices"));
    let weights = golden.values(&format!("{prefix}gate_weights"));
    let mut pairs: Vec<(f64, f64)> = experts.into_iter().zip(weights).collect();
    pairs.chunks_mut(dims[1]).for_each(|token| token.sort_by(|a, b| a.0.total_cmp(&b.0)));
    pairs.into_iter().unzip()
}

#[test]
fn clamped_expert() {
    let golden = Golden::load("h_components");
    let device = Device::flex();
    let dims = golden.dims("expert.weights.w1.weight");
    let limit = golden.about["expert_swiglu_limit"].as_f64();
    let expert = load(SwiGlu::new(dims[1], dims[0], limit, &device), golden.weights("expert.weights."), "h").unwrap();
    let y = expert.forward(golden.tensor::<2>("expert.x", &device, DType::F32));
    assert_close("expert", &numbers(y.clone()), &golden.values("expert.y"), 1e-6);
    let routed = y * golden.tensor::<2>("expert.route", &device, DType::F32);
    assert_close("routed expert", &numbers(routed), &golden.values("expert.y_routed"), 1e-6);
    let free = load(SwiGlu::new(dims[1], dims[0], None, &device), golden.weights("expert.weights."), "h").unwrap();
    let free = numbers(free.forward(golden.tensor::<2>("expert.x", &device, DType::F32)));
    let changed = free.iter().zip(golden.values("expert.y")).filter(|(a, e)| (*a - e).abs() > 1e-3).count();
    assert!(changed > 10, "the case reaches the bound");
}

/// Streams `[B S, n, d_model]` of a hyper-connected stream.
fn streams(stream: &Stream) -> Vec<f64> {
    match stream {
        Stream::Hyper { streams, .. } => numbers(streams.clone()),
        Stream::Plain(x) => numbers(x.clone()),
    }
}

fn pre(stream: &Stream) -> Vec<f64> {
    match stream {
        Stream::Hyper { pre, .. } => numbers(pre.clone()),
        Stream::Plain(_) => panic!("a plain stream"),
    }
}

#[test]
fn whole_blocks() {
    for case in ["window", "full2", "full1_candidate_source"] {
        let golden = Golden::load(&format!("b_block_{case}"));
        let device = Device::flex();
        let config = golden.config();
        let number = golden.about["layer_id"].as_u64().unwrap() as usize;
        let block = Block::new(&config, &config.layers.layers()[number], &device);
        let block = load(block, golden.weights("weights."), case).unwrap();
        let x = golden.tensor::<4>("cap.streams_in", &device, DType::F32);
        let [batch, seq, n, channels] = x.dims();
        let stream = Stream::Hyper {
            streams: x.reshape([batch * seq, n, channels]),
            pre: rows(&golden, "cap.pre_mix_in", &device),
            shape: [batch, seq],
        };
        let cx = Context::new(&config, seq, DType::F32, &device).with_trace(true);
        let out = block.forward(stream, &mut Shared::default(), &cx);
        let trace = out.trace.unwrap();
        let close = |name: &str, found: Vec<f64>| {
            assert_close(&format!("{case}: {name}"), &found, &golden.values(name), 1e-5);
        };
        close("cap.attn.input", numbers(trace.attn_input.clone()));
        close("cap.attn.output", numbers(trace.attn_output.clone()));
        close("cap.streams_mid", streams(&trace.middle));
        close("cap.hc_attn_pre", pre(&trace.middle));
        close("cap.ffn.input", numbers(trace.ffn_input.clone()));
        check_routing(case, &trace, ascending_of(&golden, "cap.ffn."));
        close("cap.ffn.output", numbers(trace.ffn_output.clone()));
        close("cap.streams_out", streams(&out.stream));
        close("f64.streams_out", streams(&out.stream));
        close("cap.hc_ffn_pre", pre(&out.stream));
        let Stream::Hyper { streams: x, .. } =
            Stream::start(golden.tensor("cap.ffn.input", &device, DType::F32), config.residual)
        else {
            panic!("hyper-connections")
        };
        assert_eq!(x.dims(), [batch * seq, n, channels]);
        let [after_attention, after_ffn] = block.mixes().unwrap();
        for (mix, read, name) in [(after_attention, "cap.streams_in", "attn"), (after_ffn, "cap.streams_mid", "ffn")] {
            let read = golden.tensor::<4>(read, &device, DType::F32).reshape([batch * seq, n, channels]);
            let mixes = mix.mixes(read);
            close(&format!("cap.hc_{name}_post"), numbers(mixes.post));
            close(&format!("cap.hc_{name}_comb"), numbers(mixes.comb));
        }
    }
}

fn check_routing(what: &str, trace: &BlockTrace, (experts, weights): (Vec<f64>, Vec<f64>)) {
    let (found, found_weights) = ascending(trace.routing.as_ref().unwrap());
    assert_eq!(found[..experts.len()], experts, "{what}: experts");
    assert_close(&format!("{what}: weights"), &found_weights[..weights.len()], &weights, 1e-5);
}

fn model(golden: &Golden, config: &ModelConfig, device: &Device) -> Model {
    let weights = match golden.about["weights_file"].as_str() {
        Some(file) => Golden::load(file.strip_suffix(".safetensors").unwrap()).weights("weights."),
        None => golden.weights("weights."),
    };
    load(Model::new(config, None, device).unwrap(), weights, "golden").unwrap()
}

/// Mean cross-entropy of every token but the first, given those before it.
fn next_token_loss(logits: Tensor<3>, tokens: &Tensor<2, Int>) -> Tensor<1> {
    let [_, seq, _] = logits.dims();
    let targets = tokens.clone().narrow(1, 1, seq - 1).unsqueeze_dim::<3>(2);
    activation::log_softmax(logits.narrow(1, 0, seq - 1), 2).gather(2, targets).mean().neg()
}

#[test]
fn whole_models() {
    for case in ["s64", "s96"] {
        let golden = Golden::load(&format!("c_model10_{case}"));
        let device = Device::flex();
        let config = golden.config();
        let model = model(&golden, &config, &device);
        let tokens = golden.indices::<2>("input_ids", &device);
        let cx = Context::new(&config, tokens.dims()[1], DType::F32, &device).with_trace(true);
        let out = model.forward(tokens.clone(), &cx);
        let given = ["logits", "f64.logits", "hf.logits"].into_iter().filter(|name| golden.has(name));
        assert!(golden.has("logits"));
        for name in given {
            assert_close(&format!("{case}: {name}"), &numbers(out.logits.clone()), &golden.values(name), 1e-4);
        }
        assert!(case != "s64" || golden.has("loss"));
        if golden.has("loss") {
            assert_close("loss", &numbers(next_token_loss(out.logits, &tokens)), &golden.values("loss"), 1e-4);
        }
        check_trace(case, &config, &out.traces);
        assert_eq!(out.loads.len(), config.layers.len());
    }
}

/// Layer by layer, the first row of the batch.
fn check_trace(case: &str, config: &ModelConfig, traces: &[BlockTrace]) {
    let golden = Golden::load(&format!("c_trace_{case}"));
    let Residual::Hyper { streams: n } = config.residual else { panic!("hyper-connections") };
    for (number, trace) in traces.iter().enumerate() {
        let name = |part: &str| format!("layers.{number}.{part}");
        let close = |part: &str, found: Vec<f64>| {
            // The longer case holds fewer parts.
            if part == "streams_out" && case == "s96" {
                assert!(!golden.has(&name(part)));
                return;
            }
            let expected = golden.values(&name(part));
            assert!(!expected.is_empty() && found.len() >= expected.len());
            assert_close(&format!("{case}: {}", name(part)), &found[..expected.len()], &expected, 1e-4);
        };
        close("attn.input", numbers(trace.attn_input.clone()));
        close("attn.lse", numbers(trace.attn.lse.clone()));
        close("attn.output", numbers(trace.attn_output.clone()));
        close("ffn.output", numbers(trace.ffn_output.clone()));
        close("streams_out", streams(&trace.output));
        assert!(case == "s96" || golden.dims(&name("streams_out"))[2] == n);
        check_routing(&name("ffn"), trace, ascending_of(&golden, &name("ffn.")));
    }
    assert!(!golden.has(&format!("layers.{}.attn.input", traces.len())), "every layer is compared");
}

#[test]
fn gradients_of_whole_models() {
    for case in ["full2_reuse_full1_reuse", "w_full2_full1_reindex"] {
        let golden = Golden::load(&format!("g_grad_{case}"));
        let device = Device::flex().autodiff();
        let config = golden.config();
        let model = model(&golden, &config, &device);
        let tokens = golden.indices::<2>("input_ids", &device);
        let cx = Context::new(&config, tokens.dims()[1], DType::F32, &device);
        let out = model.forward(tokens.clone(), &cx);
        assert_close(case, &numbers(out.logits.clone()), &golden.values("logits"), 1e-4);
        let loss = next_token_loss(out.logits, &tokens);
        assert_close(case, &numbers(loss.clone()), &golden.values("loss"), 1e-5);
        let found = gradients(&model, &loss.backward());
        let expected = golden.weights("grad.");
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{case}");
        let silent: Vec<&str> =
            golden.about["params_without_grad"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        for (name, expected) in &expected {
            let to_f64 = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
            let found = to_f64(&found[name]);
            if silent.contains(&name.as_str()) {
                assert!(found.iter().all(|&x| x == 0.0), "{case}: {name} has a gradient");
            }
            assert_relative(&format!("{case}: {name}"), &found, &to_f64(&expected.values), 1e-4);
        }
    }
}

/// The released model's formats.
const RELEASED: QuantizationConfig =
    QuantizationConfig { main_kv: QuantFormat::Fp4, index: QuantFormat::Fp4, window: QuantFormat::Fp8 };

#[test]
fn a_quantized_model() {
    let golden = Golden::load("c_model5_quant");
    let device = Device::flex();
    let plain = golden.config();
    let tokens = golden.indices::<2>("input_ids", &device);
    let seq = tokens.dims()[1];
    let run = |config: &ModelConfig| {
        let cx = Context::new(config, seq, DType::F32, &device).with_trace(true);
        model(&golden, config, &device).forward(tokens.clone(), &cx)
    };
    assert_close("plain", &numbers(run(&plain).logits), &golden.values("logits_noquant"), 1e-4);
    let config = ModelConfig { quantization: RELEASED, ..plain };
    let out = run(&config);
    assert_close("quantized", &numbers(out.logits.clone()), &golden.values("logits"), 1e-3);
    assert_close("quantized, f64", &numbers(out.logits), &golden.values("f64.logits"), 1e-3);
    for (number, trace) in out.traces.iter().enumerate() {
        let name = |part: &str| format!("cap.layers.{number}.{part}");
        let close = |part: &str, found: Vec<f64>| {
            assert_close(&name(part), &found, &golden.values(&name(part)), 1e-3);
        };
        close("attn.input", numbers(trace.attn_input.clone()));
        close("attn.window_kv", numbers(trace.attn.window.clone()));
        if golden.has(&name("attn.compress_kv")) {
            let content = trace.attn.content.clone().unwrap();
            close("attn.compress_kv", numbers(content.main));
            if golden.has(&name("attn.indexer.k")) {
                close("attn.indexer.k", numbers(content.index_keys.unwrap()));
            }
        }
        if golden.has(&name("attn.indexer.q")) {
            close("attn.indexer.q", numbers(trace.attn.index_query.clone().unwrap().q));
        }
        check_selection(&golden, &config, number, &ints(trace.attn.topk.clone()));
        close("attn.lse", numbers(trace.attn.lse.clone()));
        close("attn.output", numbers(trace.attn_output.clone()));
        close("ffn.output", numbers(trace.ffn_output.clone()));
        close("streams_out", streams(&trace.output));
    }
    assert_eq!(out.traces.len(), config.layers.len());
}

/// Entries exactly, in rows whose K-th score is further from the next one than rounding can move it.
fn check_selection(golden: &Golden, config: &ModelConfig, number: usize, found: &[i64]) {
    let name = |part: &str| format!("cap.layers.{number}.attn.{part}");
    let (dims, listed) = golden.numbers(&name("topk_idxs"));
    let window = config.window.min(dims[1]);
    if dims[2] == window {
        return;
    }
    let margins = golden.has(&name("indexer.topk_margin")).then(|| golden.values(&name("indexer.topk_margin")));
    let mut compared = 0;
    for (row, expected) in listed.chunks(dims[2]).enumerate() {
        if margins.as_ref().is_some_and(|margins| margins[row] < 1e-4) {
            continue;
        }
        // Behind the window, entries are numbered after the sequence's tokens.
        let entry = |&at: &f64| if at < 0.0 { -1 } else { at as i64 - dims[1] as i64 };
        let expected: Vec<i64> = expected[window..].iter().map(entry).collect();
        let width = expected.len();
        assert_eq!(found[row * width..(row + 1) * width], expected, "layer {number}, query {row}");
        compared += 1;
    }
    assert!(compared * 10 >= dims[0] * dims[1] * 9, "nearly every row is compared: {compared}");
}
