//! Gradients of quantized layers against the same layers put together here, with `x + (stored(x) - x).detach()` in every
//! place where a vector is stored: what flows back must be what flows back through that sum. In f64, where it is exact.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData};
use csa2_model::attention::{Compressor, Context, Indexer, OutputProjection, Query, Shared, WindowKv};
use csa2_model::checkpoint::{Weight, load, weights};
use csa2_model::config::{ModelConfig, QuantizationConfig};
use csa2_model::mix::{Mode, PlannedLayer};
use csa2_model::ops::{self, PoolUse, SelectSpec};
use csa2_model::quant::{Format, fake_quantize};

use super::common::random::Source;
use super::common::small::{self, FORMATS};
use super::common::{TakeGradient, ToF64, assert_relative, numbers};

const SHAPE: [usize; 2] = [2, 11];

/// Without pools: they choose, and choices have no gradient.
const MIXES: [&str; 4] = ["swa dense", "full reuse", "full@2 reindex reuse", "full@2 stale@2 full reuse"];

fn device() -> Device {
    Device::flex().autodiff()
}

/// `x + (stored(x) - x).detach()`.
fn straight_through<const D: usize>(x: Tensor<D>, format: Option<Format>) -> Tensor<D> {
    let Some(format) = format else { return x };
    let mut values: Vec<f32> = numbers(x.clone()).into_iter().map(|x| x as f32).collect();
    fake_quantize(&mut values, format);
    let values: Vec<f64> = values.into_iter().map(f64::from).collect();
    let stored = Tensor::from_data(TensorData::new(values, x.dims()), (&x.device(), DType::F64));
    x.clone() + (stored - x.detach())
}

/// A part with the weights of the whole layer.
fn filled<M: Module>(module: M, weights: BTreeMap<String, Weight>) -> M {
    load(module, weights, "the whole layer").unwrap().map(&mut ToF64)
}

/// What a layer learns from.
type Losses = Vec<Tensor<1>>;

/// The parts of one layer, with the weights of the whole one.
struct Parts<'a> {
    layer: &'a PlannedLayer,
    config: &'a ModelConfig,
    query: Query,
    window: WindowKv,
    compressor: Option<Compressor>,
    indexer: Option<Indexer>,
    output: OutputProjection,
    sink: Tensor<1>,
}

/// What the layers below have handed down: main KV, index keys, Top-K.
#[derive(Clone, Default)]
struct Handed {
    main: Option<Tensor<3>>,
    keys: Option<Tensor<3>>,
    topk: Option<Tensor<3, Int>>,
}

impl<'a> Parts<'a> {
    fn new(config: &'a ModelConfig, layer: &'a PlannedLayer, all: &BTreeMap<String, Weight>) -> Self {
        let own = |prefix: &str, names: &[&str]| {
            let prefix = format!("layers.{}.attn.{prefix}", layer.index);
            let inside = all.iter().filter_map(|(name, weight)| Some((name.strip_prefix(&prefix)?, weight)));
            let wanted = inside.filter(|(name, _)| names.iter().any(|wanted| name.starts_with(wanted)));
            wanted.map(|(name, weight)| (name.to_string(), weight.clone())).collect::<BTreeMap<_, _>>()
        };
        let device = device();
        let (content, address) = (matches!(layer.mode, Mode::Full | Mode::Stale), layer.mode.has_indexer());
        let sink = &own("", &["attn_sink"])["attn_sink"].values;
        let sink: Vec<f64> = sink.iter().map(|&s| f64::from(s)).collect();
        Self {
            layer,
            config,
            query: filled(Query::new(config, &device), own("", &["wq_a.", "q_norm.", "wq_b."])),
            window: filled(WindowKv::new(config, &device), own("", &["wkv.", "kv_norm."])),
            compressor: content
                .then(|| filled(Compressor::new(config, layer.ratio, &device), own("compressor.", &[""]))),
            indexer: address
                .then(|| filled(Indexer::new(config, layer.mode == Mode::Full, &device), own("indexer.", &[""]))),
            output: filled(OutputProjection::new(config, &device), own("", &["wo_a.", "wo_b."])),
            sink: Tensor::from_data(TensorData::new(sink, [config.heads]), (&device, DType::F64)).require_grad(),
        }
    }

    /// Output and indexer loss.
    fn forward(&self, x: Tensor<3>, handed: &mut Handed, cx: &Context, formats: QuantizationConfig) -> Losses {
        let (ratio, seq) = (self.layer.ratio, SHAPE[1]);
        let (rope, latent_format) = (cx.tokens(ratio), QuantizationConfig::latent_format);
        let index_format = QuantizationConfig::index_format(formats.index);
        let (qr, q) = self.query.forward(x.clone(), rope);
        let window = straight_through(self.window.forward(x.clone(), rope, cx), latent_format(formats.window));
        let mut main = handed.main.clone();
        if let Some(compressor) = &self.compressor {
            let (latent, rope) = (compressor.forward(x.clone()), cx.entries(ratio));
            main = Some(straight_through(rope.rotate_vectors(latent.clone()), latent_format(formats.main_kv)));
            if self.layer.mode == Mode::Full {
                let keys = self.indexer.as_ref().unwrap().keys(latent, rope, cx).unwrap();
                let keys = Some(straight_through(keys, index_format));
                *handed = Handed { main: main.clone(), keys, topk: None };
            }
        }
        let asked = self.indexer.as_ref().map(|indexer| {
            let mut asked = indexer.query(x, qr, rope, cx);
            asked.q = straight_through(asked.q, index_format);
            let keys = handed.keys.clone().unwrap();
            let spec =
                SelectSpec { ratio, start: 0, entries: seq / ratio, topk: self.config.topk, pool: PoolUse::None };
            let found = ops::index_select(asked.q.clone(), keys, asked.weights.clone(), None, spec);
            handed.topk = Some(found.topk);
            asked
        });
        let none = || Tensor::full([SHAPE[0], seq, 1], ops::NO_ENTRY, &device());
        let topk = handed.topk.clone().filter(|_| ratio > 0).unwrap_or_else(none);
        let main = main.filter(|_| ratio > 0).unwrap_or_else(|| window.clone().narrow(1, 0, 1).zeros_like());
        let width = if self.layer.mode == Mode::Dense { seq } else { self.config.window };
        let scale = (self.config.head_dim as f64).powf(-0.5);
        let (read, lse) = ops::readout(q.clone(), window, main.clone(), self.sink.clone(), topk.clone(), width, scale);
        let mut losses = vec![weighted(self.output.forward(rope.rotate_back(read)), self.layer.index)];
        if let Some(asked) = asked {
            let mass = ops::attention_mass(q, main, lse, topk.clone(), scale);
            let kl = ops::index_kl(asked.q, handed.keys.clone().unwrap(), asked.weights, mass, topk);
            losses.push(kl.sum().mul_scalar(1.0 / (SHAPE[0] * (seq + 1 - ratio)) as f64));
        }
        losses
    }

    /// Gradients by official name.
    fn gradients(&self, grads: &Gradients, into: &mut BTreeMap<String, Vec<f32>>) {
        let at = format!("layers.{}.attn.", self.layer.index);
        let mut add = |prefix: &str, found: BTreeMap<String, Vec<f32>>| {
            into.extend(found.into_iter().map(|(name, values)| (format!("{at}{prefix}{name}"), values)));
        };
        add("", of(&self.query, grads));
        add("", of(&self.window, grads));
        add("", of(&self.output, grads));
        self.compressor.iter().for_each(|part| add("compressor.", of(part, grads)));
        self.indexer.iter().for_each(|part| add("indexer.", of(part, grads)));
        let sink = small::floats(self.sink.grad(grads).unwrap());
        add("", BTreeMap::from([("attn_sink".to_string(), sink)]));
    }
}

/// Gradients of a module's parameters.
fn of<M: Module>(module: &M, grads: &Gradients) -> BTreeMap<String, Vec<f32>> {
    let filled = module.clone().map(&mut TakeGradient(grads));
    weights(&filled).unwrap().into_iter().map(|(name, weight)| (name, weight.values)).collect()
}

/// A number that depends on every output.
fn weighted(output: Tensor<3>, layer: usize) -> Tensor<1> {
    let weight = Source::new(20 + layer as u64).normal(output.dims(), &device(), DType::F64);
    (output * weight).sum()
}

fn total(losses: Losses) -> Tensor<1> {
    losses.into_iter().reduce(|a, b| a + b).unwrap()
}

fn input(config: &ModelConfig) -> Tensor<3> {
    Source::new(3).normal([SHAPE[0], SHAPE[1], config.d_model], &device(), DType::F64).require_grad()
}

fn context(config: &ModelConfig) -> Context {
    Context::new(config, SHAPE[1], DType::F64, &device()).with_index_loss(true)
}

#[test]
fn gradients_pass_straight_through() {
    for mix in MIXES {
        for formats in FORMATS.into_iter().chain([QuantizationConfig::default()]) {
            let config = small::quantized(mix, formats);
            let model = small::model(&config, 6, &device());
            let all = weights(&model).unwrap();
            let model = model.map(&mut ToF64);

            let (x, mut shared, cx) = (input(&config), Shared::default(), context(&config));
            let mut losses = Vec::new();
            for (layer, block) in model.layers().iter().enumerate() {
                let out = block.attention().forward(x.clone(), &mut shared, &cx);
                losses.push(weighted(out.output, layer));
                losses.extend(out.index_loss);
            }
            let loss = total(losses);
            let grads = loss.clone().backward();
            let mut found = of(&model, &grads);
            found.insert("input".into(), small::floats(x.grad(&grads).unwrap()));

            let (x, cx) = (input(&config), context(&config).with_quantization(false));
            let parts: Vec<Parts> =
                config.layers.layers().iter().map(|layer| Parts::new(&config, layer, &all)).collect();
            let mut handed = Handed::default();
            let losses = parts.iter().flat_map(|part| part.forward(x.clone(), &mut handed, &cx, formats)).collect();
            let expected_loss = total(losses);
            let grads = expected_loss.clone().backward();
            let mut expected = BTreeMap::from([("input".to_string(), small::floats(x.grad(&grads).unwrap()))]);
            for part in &parts {
                part.gradients(&grads, &mut expected);
            }

            let what = format!("{mix} {formats:?}");
            assert_relative(&what, &numbers(loss), &numbers(expected_loss), 1e-10);
            for (name, expected) in &expected {
                let double = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
                assert!(expected.iter().any(|&g| g != 0.0), "{what}: {name} has a gradient");
                assert_relative(&format!("{what}: {name}"), &double(&found[name]), &double(expected), 1e-6);
            }
            let others = found.keys().filter(|name| name.contains(".attn.") && !expected.contains_key(*name));
            assert_eq!(others.count(), 0, "{what}: every parameter of attention is compared");
        }
    }
}
