//! The network in loops over plain numbers, from the formulas alone: no tensor library, no operator of the crate. Vectors are
//! quantized by the crate's function on the host, which golden cases hold.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use csa2_model::attention::Phase;
use csa2_model::checkpoint::Weight;
use csa2_model::config::{ModelConfig, QuantFormat};
use csa2_model::mix::{Mode, PlannedLayer};
use csa2_model::quant::{Format, fake_quantize};

/// One vector per token, entry or head.
type Rows = Vec<Vec<f64>>;

pub struct Plain<'a> {
    pub config: &'a ModelConfig,
    pub weights: &'a BTreeMap<String, Weight>,
    pub phase: Phase,
}

/// What one sequence gives.
#[derive(Default)]
pub struct Outcome {
    pub logits: Rows,
    /// Logits of the auxiliary head behind the layer asked for.
    pub hint: Rows,
    /// Layer, and KL of every query that sees an entry.
    pub losses: Vec<(usize, Vec<f64>)>,
}

/// What a source hands down.
#[derive(Clone, Default)]
struct Handed {
    main: Rows,
    keys: Rows,
    topk: Vec<Vec<usize>>,
    pool: Option<Vec<Vec<usize>>>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|l| l.exp()).sum();
    logits.iter().map(|l| l.exp() / sum).collect()
}

/// The places of the `count` largest numbers, ascending; of equal ones the first.
fn largest(values: &[(usize, f64)], count: usize) -> Vec<usize> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap());
    let mut places: Vec<usize> = sorted.iter().take(count).map(|(place, _)| *place).collect();
    places.sort_unstable();
    places
}

/// What is read back of vectors that are stored; `fp4` is the 4-bit format of their kind.
fn stored(rows: Rows, format: QuantFormat, fp4: Format) -> Rows {
    let format = match format {
        QuantFormat::None => return rows,
        QuantFormat::Fp4 => fp4,
        QuantFormat::Fp8 => Format::Fp8E8m0,
    };
    let one = |row: Vec<f64>| {
        let mut row: Vec<f32> = row.into_iter().map(|x| x as f32).collect();
        fake_quantize(&mut row, format);
        row.into_iter().map(f64::from).collect()
    };
    rows.into_iter().map(one).collect()
}

impl Plain<'_> {
    fn weight(&self, name: &str) -> Rows {
        let weight = &self.weights[name];
        let width = *weight.dims.last().unwrap();
        weight.values.chunks(width).map(|row| row.iter().map(|&v| f64::from(v)).collect()).collect()
    }

    fn linear(&self, name: &str, x: &Rows) -> Rows {
        let weight = self.weight(&format!("{name}.weight"));
        x.iter().map(|x| weight.iter().map(|row| dot(row, x)).collect()).collect()
    }

    fn norm(&self, name: &str, x: &Rows) -> Rows {
        let gain = &self.weight(&format!("{name}.weight"))[0];
        let one = |x: &Vec<f64>| {
            let root = (dot(x, x) / x.len() as f64 + self.config.norm_eps).sqrt();
            x.iter().zip(gain).map(|(x, g)| g * x / root).collect()
        };
        x.iter().map(one).collect()
    }

    /// How far pair `pair` turns per position in a layer of ratio `ratio`.
    fn frequency(&self, pair: usize, ratio: usize) -> f64 {
        let rotary = self.config.rope_dim as f64;
        let base = if ratio == 0 { self.config.rope_theta } else { self.config.compress_rope_theta };
        let frequency = base.powf(-2.0 * pair as f64 / rotary);
        let Some(yarn) = self.config.yarn.filter(|_| ratio > 0) else { return frequency };
        let d = |turns: f64| rotary * (yarn.original_length as f64 / (2.0 * PI * turns)).ln() / (2.0 * base.ln());
        let (low, high) = (d(yarn.beta_fast).floor().max(0.0), d(yarn.beta_slow).ceil().min(rotary - 1.0));
        let kept = 1.0 - ((pair as f64 - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
        frequency / yarn.factor * (1.0 - kept) + frequency * kept
    }

    fn turn(&self, x: &mut [f64], position: f64, ratio: usize) {
        let first = x.len() - self.config.rope_dim;
        for pair in 0..self.config.rope_dim / 2 {
            let (sin, cos) = (position * self.frequency(pair, ratio)).sin_cos();
            let (re, im) = (x[first + 2 * pair], x[first + 2 * pair + 1]);
            (x[first + 2 * pair], x[first + 2 * pair + 1]) = (re * cos - im * sin, re * sin + im * cos);
        }
    }

    fn turned(&self, mut rows: Rows, stride: usize, ratio: usize) -> Rows {
        rows.iter_mut().enumerate().for_each(|(at, row)| self.turn(row, (at * stride) as f64, ratio));
        rows
    }

    /// Every head of every token, turned: `[S][H]`.
    fn heads(&self, rows: &Rows, count: usize, ratio: usize) -> Vec<Rows> {
        let split = |(t, row): (usize, &Vec<f64>)| {
            let mut heads: Rows = row.chunks(row.len() / count).map(<[f64]>::to_vec).collect();
            for head in &mut heads {
                self.turn(head, t as f64, ratio);
            }
            heads
        };
        rows.iter().enumerate().map(split).collect()
    }

    fn latents(&self, at: &str, x: &Rows, ratio: usize) -> Rows {
        let kv = self.linear(&format!("{at}.wkv"), x);
        if ratio == 1 {
            return self.norm(&format!("{at}.norm"), &kv);
        }
        let gate = self.linear(&format!("{at}.wgate"), x);
        let group = |j: usize| {
            let channel = |c: usize| {
                let tokens = j * ratio..(j + 1) * ratio;
                let shares = softmax(&tokens.clone().map(|t| gate[t][c]).collect::<Vec<_>>());
                shares.iter().zip(tokens).map(|(share, t)| share * kv[t][c]).sum()
            };
            (0..self.config.head_dim).map(channel).collect()
        };
        self.norm(&format!("{at}.norm"), &(0..x.len() / ratio).map(group).collect())
    }

    /// Index scores `[S][N]`, of invisible entries too.
    fn scores(&self, at: &str, x: &Rows, qr: &Rows, keys: &Rows, ratio: usize) -> Rows {
        let (count, dim) = (self.config.index_heads, self.config.index_dim);
        let format = self.config.quantization.index;
        let q = self.heads(&self.linear(&format!("{at}.wq_b"), qr), count, ratio);
        let q: Vec<Rows> = q.into_iter().map(|heads| stored(heads, format, Format::Fp4E8m0)).collect();
        let a = self.linear(&format!("{at}.weights_proj"), x);
        let scale = (dim as f64).powf(-0.5) * (count as f64).powf(-0.5);
        let score = |t: usize, key: &[f64]| (0..count).map(|h| a[t][h] * scale * dot(&q[t][h], key).max(0.0)).sum();
        (0..x.len()).map(|t| keys.iter().map(|key| score(t, key)).collect()).collect()
    }

    /// The entries of every query, chosen from the scores; builds and reads pools.
    fn select(&self, layer: &PlannedLayer, scores: &Rows, handed: &mut Handed) -> Vec<Vec<usize>> {
        let visible = |t: usize| (t + 1) / layer.ratio;
        if self.phase == Phase::Dense {
            return (0..scores.len()).map(|t| (0..visible(t)).collect()).collect();
        }
        if layer.builds_pool {
            let pool = self.config.pool.unwrap();
            let build = |t: usize| {
                let row = &scores[t][..visible(t)];
                let best = |block: &[f64]| block.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let mut blocks: Vec<(usize, f64)> = row.chunks(pool.block_size).map(best).enumerate().collect();
                if let Some(newest) = blocks.last_mut() {
                    newest.1 = f64::INFINITY;
                }
                largest(&blocks, pool.blocks)
            };
            handed.pool = Some((0..scores.len()).map(build).collect());
        }
        let inside = |t: usize, j: usize| match (&handed.pool, layer.pool_from) {
            (Some(pool), Some(_)) => pool[t].contains(&(j / self.config.pool.unwrap().block_size)),
            _ => true,
        };
        let choose = |t: usize| {
            let open: Vec<_> = (0..visible(t)).filter(|&j| inside(t, j)).map(|j| (j, scores[t][j])).collect();
            largest(&open, self.config.topk)
        };
        (0..scores.len()).map(choose).collect()
    }

    /// KL of one query from the main attention's weights on the selected entries (summed over heads) to its scores.
    fn divergence(teacher: &[f64], scores: &[f64]) -> f64 {
        let mass: f64 = teacher.iter().sum();
        let student = softmax(scores);
        teacher.iter().zip(student).map(|(p, s)| p / mass * (p / mass / s).ln()).sum()
    }

    fn attention(
        &self,
        layer: &PlannedLayer,
        x: &Rows,
        handed: &mut Handed,
        losses: &mut Vec<(usize, Vec<f64>)>,
    ) -> Rows {
        let (config, seq, ratio) = (self.config, x.len(), layer.ratio);
        let at = format!("layers.{}.attn", layer.index);
        let name = |part: &str| format!("{at}.{part}");
        let qr = if config.query_rank.is_some() {
            self.norm(&name("q_norm"), &self.linear(&name("wq_a"), x))
        } else {
            x.clone()
        };
        let q = self.heads(&self.linear(&name("wq_b"), &qr), config.heads, ratio);
        let formats = config.quantization;
        let window = self.turned(self.norm(&name("kv_norm"), &self.linear(&name("wkv"), x)), 1, ratio);
        let window = stored(window, formats.window, Format::Fp4E4m3);

        let mut main = handed.main.clone();
        if matches!(layer.mode, Mode::Full | Mode::Stale) {
            let latents = self.latents(&name("compressor"), x, ratio);
            main = stored(self.turned(latents.clone(), ratio, ratio), formats.main_kv, Format::Fp4E4m3);
            if layer.mode == Mode::Full {
                let keys = self.norm(&name("indexer.k_norm"), &self.linear(&name("indexer.wk"), &latents));
                let keys = stored(self.turned(keys, ratio, ratio), formats.index, Format::Fp4E8m0);
                *handed = Handed { main: main.clone(), keys, ..Handed::default() };
            }
        }
        let scores = layer.mode.has_indexer().then(|| {
            let scores = self.scores(&name("indexer"), x, &qr, &handed.keys, ratio);
            handed.topk = self.select(layer, &scores, handed);
            scores
        });

        let sink = &self.weight(&name("attn_sink"))[0];
        let scale = (config.head_dim as f64).powf(-0.5);
        let width = if layer.mode == Mode::Dense { seq } else { config.window };
        let (mut read, mut kl) = (Vec::new(), Vec::new());
        for t in 0..seq {
            let listed: &[usize] = if ratio == 0 { &[] } else { &handed.topk[t] };
            let far = listed.iter().map(|&j| &main[j]);
            let entries: Rows = far.chain(&window[(t + 1).saturating_sub(width)..=t]).cloned().collect();
            let mut teacher = vec![0.0; listed.len()];
            let mut row = Vec::new();
            for h in 0..config.heads {
                let weights: Vec<f64> = entries.iter().map(|c| (scale * dot(&q[t][h], c)).exp()).collect();
                let sum = sink[h].exp() + weights.iter().sum::<f64>();
                let mut o: Vec<f64> = (0..config.head_dim)
                    .map(|c| entries.iter().zip(&weights).map(|(entry, weight)| weight / sum * entry[c]).sum())
                    .collect();
                teacher.iter_mut().zip(&weights).for_each(|(teacher, weight)| *teacher += weight / sum);
                self.turn(&mut o, -(t as f64), ratio);
                row.extend(o);
            }
            if let Some(scores) = scores.as_ref().filter(|_| !listed.is_empty()) {
                let student: Vec<f64> = listed.iter().map(|&j| scores[t][j]).collect();
                kl.push(Self::divergence(&teacher, &student));
            }
            read.push(row);
        }
        if scores.is_some() {
            losses.push((layer.index, kl));
        }
        self.output(&at, &read)
    }

    fn output(&self, at: &str, read: &Rows) -> Rows {
        let groups = self.config.output_groups;
        let Some(rank) = self.config.output_rank else { return self.linear(&format!("{at}.wo_b"), read) };
        let matrices = self.weight(&format!("{at}.wo_a.weight"));
        let project = |row: &Vec<f64>| {
            let parts = row.chunks(row.len() / groups).enumerate();
            parts
                .flat_map(|(g, part)| {
                    matrices[g * rank..(g + 1) * rank].iter().map(|w| dot(w, part)).collect::<Vec<_>>()
                })
                .collect()
        };
        self.linear(&format!("{at}.wo_b"), &read.iter().map(project).collect())
    }

    fn feed_forward(&self, at: &str, x: &Rows) -> Rows {
        let (gate, up) = (self.linear(&format!("{at}.w1"), x), self.linear(&format!("{at}.w3"), x));
        let silu = |z: f64| z / (1.0 + (-z).exp());
        let inner = |(gate, up): (&Vec<f64>, &Vec<f64>)| gate.iter().zip(up).map(|(g, u)| silu(*g) * u).collect();
        self.linear(&format!("{at}.w2"), &gate.iter().zip(&up).map(inner).collect())
    }

    /// One sequence; `hint` names the layer behind which the auxiliary head reads.
    pub fn forward(&self, tokens: &[i32], hint: Option<usize>) -> Outcome {
        let embedding = self.weight("embed.weight");
        let mut x: Rows = tokens.iter().map(|&token| embedding[token as usize].clone()).collect();
        let add = |x: &mut Rows, y: &Rows| x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
        let (mut handed, mut outcome) = (Handed::default(), Outcome::default());
        for layer in self.config.layers.layers() {
            let at = format!("layers.{}", layer.index);
            let normed = self.norm(&format!("{at}.attn_norm"), &x);
            add(&mut x, &self.attention(layer, &normed, &mut handed, &mut outcome.losses));
            let normed = self.norm(&format!("{at}.ffn_norm"), &x);
            add(&mut x, &self.feed_forward(&format!("{at}.ffn"), &normed));
            if hint == Some(layer.index) {
                outcome.hint = self.linear("hint.head", &self.norm("hint.norm", &x));
            }
        }
        outcome.logits = self.linear("head", &self.norm("norm", &x));
        outcome
    }
}
