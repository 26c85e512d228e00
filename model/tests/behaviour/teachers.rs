//! Scopes and teachers of the indexers' loss, against loops over plain numbers.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use csa2_model::attention::{Context, IndexLoss, Phase, Scope, SelectionTrace, Shared, Teacher, Trace};
use csa2_model::block::Stream;
use csa2_model::checkpoint::{is_indexer, load, weights};
use csa2_model::config::ModelConfig;
use csa2_model::mix::PlannedLayer;
use csa2_model::model::Model;

use super::common::random::Source;
use super::common::small::{self, MIXES};
use super::common::{assert_close, ints, numbers};
use super::{PHASES, model, tokens};

const SCOPES: [Scope; 3] = [Scope::Topk, Scope::Pool, Scope::Visible];
const TEACHERS: [Teacher; 3] = [Teacher::Own, Teacher::Served, Teacher::PoolServed];
const SHAPE: [usize; 2] = [2, 14];

fn kinds() -> impl Iterator<Item = IndexLoss> {
    SCOPES.into_iter().flat_map(|scope| TEACHERS.map(|teacher| IndexLoss { scope, teacher }))
}

/// What one pass through the blocks leaves.
struct Walk {
    traces: Vec<Trace>,
    /// The pool that lies in front of a layer: blocks of every query.
    pools: Vec<Option<Vec<i64>>>,
    losses: BTreeMap<usize, f64>,
    selections: Vec<SelectionTrace>,
}

fn walk(model: &Model, config: &ModelConfig, phase: Phase, kind: IndexLoss) -> Walk {
    let device = model.devices().remove(0);
    let [batch, seq] = SHAPE;
    let cx = Context::new(config, seq, DType::F32, &device).with_phase(phase).with_trace(true);
    let cx = cx.with_lessons(Some(kind)).with_selections(true);
    let x = Source::new(3).normal([batch, seq, config.d_model], &device, DType::F32);
    let mut stream = Stream::start(x, config.residual);
    let mut shared = Shared::default();
    let mut walk = Walk { traces: Vec::new(), pools: Vec::new(), losses: BTreeMap::new(), selections: Vec::new() };
    for (number, block) in model.layers().iter().enumerate() {
        walk.pools.push(shared.pool.clone().map(ints));
        let out = block.forward(stream, &mut shared, &cx);
        stream = out.stream;
        walk.traces.push(out.trace.unwrap().attn);
        walk.losses.extend(out.index_loss.map(|loss| (number, numbers(loss)[0])));
    }
    walk.selections = shared.selections;
    walk.losses.extend(shared.lessons.into_iter().map(|lesson| (lesson.layer(), numbers(lesson.loss())[0])));
    walk
}

struct Plain<'a> {
    config: &'a ModelConfig,
    sinks: BTreeMap<usize, Vec<f64>>,
    walk: &'a Walk,
    phase: Phase,
    kind: IndexLoss,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Plain<'_> {
    fn layer(&self, number: usize) -> &PlannedLayer {
        &self.config.layers.layers()[number]
    }

    fn listed(&self, number: usize, row: usize) -> Vec<usize> {
        let width = self.walk.traces[number].topk.dims()[2];
        let topk = ints(self.walk.traces[number].topk.clone());
        topk[row * width..(row + 1) * width].iter().filter(|&&j| j >= 0).map(|&j| j as usize).collect()
    }

    /// The entries over which layer `number` is compared, for the query in `row`.
    fn scope(&self, number: usize, row: usize) -> Vec<usize> {
        let visible = (row % SHAPE[1] + 1) / self.layer(number).ratio;
        let searches = self.layer(number).pool_from.is_some() && self.phase == Phase::Sparse;
        match self.kind.scope {
            Scope::Topk => self.listed(number, row),
            Scope::Pool if searches => {
                let pool = self.config.pool.unwrap();
                let blocks = &self.walk.pools[number].as_ref().unwrap()[row * pool.blocks..(row + 1) * pool.blocks];
                (0..visible).filter(|j| blocks.contains(&((j / pool.block_size) as i64))).collect()
            }
            Scope::Pool | Scope::Visible => (0..visible).collect(),
        }
    }

    /// What layer `number` attends on `range`, as if it read that, its window and its sink.
    fn attention(&self, number: usize, row: usize, range: &[usize]) -> Vec<f64> {
        let trace = &self.walk.traces[number];
        let (heads, dim) = (self.config.heads, self.config.head_dim);
        let (b, t) = (row / SHAPE[1], row % SHAPE[1]);
        let q = numbers(trace.q.clone());
        let window = numbers(trace.window.clone());
        let content = trace.content.clone().unwrap();
        let entries = content.main.dims()[1];
        let main = numbers(content.main);
        let mut sums = vec![0.0; range.len()];
        for head in 0..heads {
            let q = &q[(row * heads + head) * dim..][..dim];
            let logit = |latents: &[f64], at: usize| (dot(q, &latents[at * dim..][..dim]) / (dim as f64).sqrt()).exp();
            let tokens = (t + 1).saturating_sub(self.config.window)..=t;
            let mass: Vec<f64> = range.iter().map(|j| logit(&main, b * entries + j)).collect();
            let rest: f64 = tokens.map(|u| logit(&window, b * SHAPE[1] + u)).sum();
            let all = mass.iter().sum::<f64>() + rest + self.sinks[&number][head].exp();
            sums.iter_mut().zip(mass).for_each(|(sum, mass)| *sum += mass / all);
        }
        sums
    }

    /// The layers that teach layer `number`.
    fn teachers(&self, number: usize) -> Vec<usize> {
        let mut teachers = vec![number];
        let layers = self.config.layers.layers();
        if self.kind.teacher != Teacher::Own {
            let reads = |layer: &&PlannedLayer| layer.address_from == Some(number) && layer.index != number;
            teachers.extend(layers.iter().filter(reads).map(|layer| layer.index));
        }
        if self.kind.teacher == Teacher::PoolServed && self.phase == Phase::Sparse {
            teachers.extend(layers.iter().filter(|layer| layer.pool_from == Some(number)).map(|layer| layer.index));
        }
        teachers
    }

    fn loss(&self, number: usize) -> f64 {
        let trace = &self.walk.traces[number];
        let asked = trace.index_query.clone().unwrap();
        let keys = trace.content.clone().unwrap().index_keys.unwrap();
        let entries = keys.dims()[1];
        let (heads, dim) = (self.config.index_heads, self.config.index_dim);
        let (q, a, keys) = (numbers(asked.q), numbers(asked.weights), numbers(keys));
        let (mut total, mut asking) = (0.0, 0.0);
        for row in 0..SHAPE[0] * SHAPE[1] {
            if row % SHAPE[1] + 1 < self.layer(number).ratio {
                continue;
            }
            asking += 1.0;
            let range = self.scope(number, row);
            let mut teacher = vec![0.0; range.len()];
            for layer in self.teachers(number) {
                let mass = self.attention(layer, row, &range);
                teacher.iter_mut().zip(mass).for_each(|(sum, mass)| *sum += mass);
            }
            let mass: f64 = teacher.iter().sum();
            let score = |j: usize| -> f64 {
                let key = &keys[(row / SHAPE[1] * entries + j) * dim..][..dim];
                (0..heads).map(|h| a[row * heads + h] * dot(&q[(row * heads + h) * dim..][..dim], key).max(0.0)).sum()
            };
            let scores: Vec<f64> = range.iter().map(|&j| score(j).exp()).collect();
            let sum: f64 = scores.iter().sum();
            for (p, s) in teacher.iter().zip(scores) {
                let p = p / mass;
                total += p * (p.ln() - (s / sum).ln());
            }
        }
        total / f64::max(asking, 1.0)
    }
}

#[test]
fn every_scope_and_teacher() {
    let pools = ["full+pool reindex reuse stale reindex reuse", "full@2+pool reindex reindex full+pool reindex"];
    for mix in MIXES.into_iter().filter(|mix| mix.contains("full")).chain(pools) {
        let config = small::config(mix);
        let model = model(&config);
        let all = weights(&model).unwrap();
        let sinks = |number: usize| {
            let values = &all[&format!("layers.{number}.attn.attn_sink")].values;
            (number, values.iter().map(|&s| f64::from(s)).collect())
        };
        for phase in PHASES {
            for kind in kinds() {
                let walk = walk(&model, &config, phase, kind);
                let sinks = (0..config.layers.len()).map(sinks).collect();
                let plain = Plain { config: &config, sinks, walk: &walk, phase, kind };
                let learning = config.layers.layers().iter().filter(|layer| layer.mode.has_indexer());
                let learning: Vec<usize> = learning.map(|layer| layer.index).collect();
                assert_eq!(walk.losses.keys().copied().collect::<Vec<_>>(), learning);
                for (&layer, &found) in &walk.losses {
                    let what = format!("{mix}, {phase:?}, {kind:?}, layer {layer}");
                    assert_close(&what, &[found], &[plain.loss(layer)], 1e-5);
                }
            }
        }
    }
}

#[test]
fn what_selections_are_worth() {
    for mix in ["full@2+pool reindex stale@2 reindex reuse", "full@4 reindex full reuse"] {
        let config = small::config(mix);
        let model = model(&config);
        let all = weights(&model).unwrap();
        for phase in PHASES {
            let kind = IndexLoss { scope: Scope::Pool, teacher: Teacher::Own };
            let walk = walk(&model, &config, phase, kind);
            let sinks = (0..config.layers.len()).map(|number| {
                let values = &all[&format!("layers.{number}.attn.attn_sink")].values;
                (number, values.iter().map(|&s| f64::from(s)).collect())
            });
            let plain = Plain { config: &config, sinks: sinks.collect(), walk: &walk, phase, kind };
            let learning = config.layers.layers().iter().filter(|layer| layer.mode.has_indexer());
            let told: Vec<usize> = walk.selections.iter().map(|selection| selection.layer).collect();
            assert_eq!(told, learning.map(|layer| layer.index).collect::<Vec<_>>(), "{mix}");
            for selection in &walk.selections {
                let (number, [_, _, entries]) = (selection.layer, selection.mass.dims());
                let what = format!("{mix}, {phase:?}, layer {number}");
                let ratio = plain.layer(number).ratio;
                assert_eq!(selection.ratio, ratio, "{what}");
                assert_eq!(ints(selection.topk.clone()), ints(walk.traces[number].topk.clone()), "{what}");
                let searches = plain.layer(number).pool_from.is_some() && phase == Phase::Sparse;
                assert_eq!(selection.pool.is_some(), searches, "{what}");
                let masses = numbers(selection.mass.clone());
                for (row, found) in masses.chunks(entries).enumerate() {
                    let seen: Vec<usize> = (0..(row % SHAPE[1] + 1) / ratio).collect();
                    let mut expected = plain.attention(number, row, &seen);
                    expected.resize(entries, 0.0);
                    assert_close(&format!("{what}, query {row}"), found, &expected, 1e-5);
                    if let Some(pool) = &selection.pool {
                        let width = pool.dims()[2];
                        let pool = ints(pool.clone())[row * width..(row + 1) * width].to_vec();
                        let listed: Vec<usize> = pool.into_iter().filter_map(|j| usize::try_from(j).ok()).collect();
                        assert_eq!(listed, plain.scope(number, row), "{what}, query {row}");
                    }
                }
            }
        }
    }
}

fn losses(model: &Model, config: &ModelConfig, kind: IndexLoss) -> BTreeMap<usize, Tensor<1>> {
    let out = small::forward(model, config, &tokens(SHAPE), SHAPE, |cx| cx.with_lessons(Some(kind)));
    out.index_losses.into_iter().collect()
}

#[test]
fn every_kind_teaches_the_indexers_alone() {
    let config = small::config("swa full+pool reuse reindex reuse stale");
    let model = small::model(&config, 8, &Device::flex().autodiff());
    for kind in kinds() {
        let total = losses(&model, &config, kind).into_values().reduce(|a, b| a + b).unwrap();
        let found = small::gradients(&model, &total.backward());
        for (name, gradient) in found {
            assert_eq!(gradient.iter().any(|&g| g != 0.0), is_indexer(&name), "{kind:?}: {name}");
        }
    }
}

#[test]
fn no_kind_changes_a_bit_of_the_language_models_gradient() {
    let config = small::config("swa full@2+pool reuse reindex reuse");
    let model = small::model(&config, 8, &Device::flex().autodiff());
    let gradients = |kind: Option<IndexLoss>| {
        let out = small::forward(&model, &config, &tokens(SHAPE), SHAPE, |cx| cx.with_lessons(kind));
        let language = small::language_loss(out.logits, &tokens(SHAPE));
        let total = out.index_losses.into_iter().fold(language, |sum, (_, loss)| sum + loss);
        small::gradients(&model, &total.backward())
    };
    let alone = gradients(None);
    for kind in kinds() {
        let both = gradients(Some(kind));
        for (name, alone) in alone.iter().filter(|(name, _)| !is_indexer(name)) {
            assert_eq!(small::bits(&both[name]), small::bits(alone), "{kind:?}: {name}");
        }
    }
}

#[test]
fn sinks_and_windows_move_every_teacher() {
    let config = small::config("full+pool reindex reuse");
    let model = model(&config);
    let all = weights(&model).unwrap();
    for kind in kinds() {
        let before = numbers(losses(&model, &config, kind).remove(&1).unwrap())[0];
        for name in ["layers.1.attn.attn_sink", "layers.1.attn.wkv.weight"] {
            let mut changed = all.clone();
            let values = &mut changed.get_mut(name).unwrap().values;
            // One head's sink, or all of the window's latents turned round: the entries stay as they are.
            match name.strip_suffix("attn_sink") {
                Some(_) => values[0] += 3.0,
                None => {
                    for value in values {
                        *value *= -1.0;
                    }
                }
            }
            let changed = load(model.clone(), changed, "changed").unwrap();
            let after = numbers(losses(&changed, &config, kind).remove(&1).unwrap())[0];
            assert!((before - after).abs() > 1e-6, "{kind:?}: {name} moves {before} to {after}");
        }
    }
}
