//! Mixture of experts: every token passes through a few of many feed-forward parts, chosen by a gate.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};

use super::SwiGlu;
use crate::config::{FfnConfig, ModelConfig, ScoreFunction};

/// Which experts a token passes through, and how much each counts.
#[derive(Module, Debug)]
pub struct Gate {
    /// `[experts, d_model]`.
    weight: Param<Tensor<2>>,
    /// Added to the scores for the choice alone `[experts]`. No gradient: it balances the load (see [`Gate::balanced`]).
    bias: Param<Tensor<1>>,
    active: usize,
    route_scale: f64,
    #[module(skip)]
    score: ScoreFunction,
}

/// Where the tokens of a batch go.
#[derive(Clone, Debug)]
pub struct Routing {
    /// The experts of every token, `active` of them a token, best first; on the host.
    pub experts: Vec<usize>,
    /// How much each counts `[R, active]`; they sum to the configured scale.
    pub weights: Tensor<2>,
    /// How many tokens each expert got.
    pub load: Vec<usize>,
}

impl Gate {
    /// A gate that sends every token to `active` of `experts`, weights uninitialised.
    pub fn new(
        d_model: usize,
        experts: usize,
        active: usize,
        route_scale: f64,
        score: ScoreFunction,
        device: &Device,
    ) -> Self {
        Self {
            weight: Param::from_tensor(Tensor::zeros([experts, d_model], device)),
            bias: Param::from_tensor(Tensor::zeros([experts], device)),
            active,
            route_scale,
            score,
        }
    }

    /// Chooses for every row of `x` `[R, d_model]`: the experts with the largest score plus bias, of equal ones the lower
    /// number. Their weights are the scores without the bias, divided by their sum, times the scale.
    ///
    /// # Panics
    /// When the device cannot be read.
    pub fn route(&self, x: Tensor<2>) -> Routing {
        let scores = scores(x.matmul(self.weight.val().transpose()), self.score);
        let [rows, experts] = scores.dims();
        let ranks = scores.clone().detach() + self.bias.val().detach().unsqueeze::<2>();
        // Experts have tensors of their own, so the choice must be known on the host.
        let ranks: Vec<f64> = ranks.into_data().convert::<f64>().try_to_vec().expect("just converted");
        let mut chosen = Vec::with_capacity(rows * self.active);
        let mut load = vec![0; experts];
        let mut order: Vec<usize> = Vec::with_capacity(experts);
        for row in ranks.chunks_exact(experts) {
            order.clear();
            order.extend(0..experts);
            // Stable, so that of equal ones the lower number stays first. What is not a number is worst; its weight makes
            // the output not a number.
            let key = |&expert: &usize| if row[expert].is_nan() { f64::NEG_INFINITY } else { row[expert] };
            order.sort_by(|a, b| key(b).total_cmp(&key(a)));
            chosen.extend_from_slice(&order[..self.active]);
            order[..self.active].iter().for_each(|&expert| load[expert] += 1);
        }
        let places = chosen.iter().map(|&expert| expert as i32).collect::<Vec<i32>>();
        let places = Tensor::<2, Int>::from_data(TensorData::new(places, [rows, self.active]), &scores.device());
        let raw = scores.gather(1, places);
        let weights = raw.clone() / raw.sum_dim(1);
        Routing { experts: chosen, weights: weights.mul_scalar(self.route_scale), load }
    }

    /// Balances the load without a loss: the bias of an expert that got more tokens than the mean falls by `speed`, that of
    /// one that got fewer rises by it (DeepSeek-V3 report, section 2.1.2).
    ///
    /// # Panics
    /// When `load` has another number of experts.
    #[must_use]
    pub fn balanced(mut self, load: &[usize], speed: f64) -> Self {
        self.bias = self.bias.map(|bias| {
            assert_eq!(bias.dims(), [load.len()], "one load an expert");
            let total: usize = load.iter().sum();
            let experts = load.len();
            let step = |&count: &usize| match (count * experts).cmp(&total) {
                std::cmp::Ordering::Less => speed,
                std::cmp::Ordering::Equal => 0.0,
                std::cmp::Ordering::Greater => -speed,
            };
            let steps: Vec<f64> = load.iter().map(step).collect();
            let tracked = bias.is_require_grad();
            let device = bias.device();
            let steps = Tensor::from_data(TensorData::new(steps, [experts]), (&device, bias.dtype()));
            (bias.detach() + steps).detach().set_require_grad(tracked)
        });
        self
    }
}

/// How well each expert suits, from the gate's logits `[R, experts]`.
fn scores(logits: Tensor<2>, function: ScoreFunction) -> Tensor<2> {
    match function {
        ScoreFunction::SqrtSoftplus => sqrt_softplus(logits),
        ScoreFunction::Sigmoid => activation::sigmoid(logits),
        ScoreFunction::Softmax => activation::softmax(logits, 1),
    }
}

/// Below this, `sqrt(softplus(x))` is `e^(x / 2)` to the last digit of f64, and its derivative as written is 0 times infinity.
const SMALL: f64 = -40.0;

/// `sqrt(ln(1 + e^x))` at any `x`, with a gradient everywhere.
fn sqrt_softplus(x: Tensor<2>) -> Tensor<2> {
    let small = x.clone().lower_elem(SMALL);
    let bounded = x.clone().clamp_min(SMALL);
    let softplus = bounded.clone().clamp_min(0.0) + bounded.abs().neg().exp().log1p();
    let tail = x.clamp_max(SMALL).mul_scalar(0.5).exp();
    softplus.sqrt().mask_where(small, tail)
}

/// A mixture of experts with, optionally, one expert that every token passes through.
#[derive(Module, Debug)]
pub struct Moe {
    gate: Gate,
    experts: Vec<SwiGlu>,
    /// As wide as all shared experts together.
    shared_experts: Option<SwiGlu>,
}

impl Moe {
    /// The mixture that the configuration asks for, weights uninitialised.
    ///
    /// # Panics
    /// When the configuration asks for a dense feed-forward part.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let FfnConfig::Moe { experts, active, shared, width, route_scale, swiglu_limit, score } = config.ffn else {
            panic!("the configuration has no mixture of experts");
        };
        let expert = |width| SwiGlu::new(config.d_model, width, swiglu_limit, device);
        Self {
            gate: Gate::new(config.d_model, experts, active, route_scale, score, device),
            experts: (0..experts).map(|_| expert(width)).collect(),
            shared_experts: (shared > 0).then(|| expert(shared * width)),
        }
    }

    /// The gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The mixture with its load balanced (see [`Gate::balanced`]).
    #[must_use]
    pub fn balanced(mut self, load: &[usize], speed: f64) -> Self {
        self.gate = self.gate.balanced(load, speed);
        self
    }

    /// `x` `[B, S, d_model]` to the same shape. Tokens are grouped by expert, so that each expert runs once, over its own
    /// tokens alone, in their order: the same bits every time.
    pub fn forward(&self, x: Tensor<3>) -> (Tensor<3>, Routing) {
        let [batch, seq, channels] = x.dims();
        let rows = batch * seq;
        let x = x.reshape([rows, channels]);
        let routing = self.gate.route(x.clone());
        let mut output = self.routed(&x, &routing);
        if let Some(shared) = &self.shared_experts {
            output = output + shared.forward(x);
        }
        (output.reshape([batch, seq, channels]), routing)
    }

    fn routed(&self, x: &Tensor<2>, routing: &Routing) -> Tensor<2> {
        let [rows, channels] = x.dims();
        let active = self.gate.active;
        let device = x.device();
        let index = |values: Vec<i32>| {
            let count = values.len();
            Tensor::<1, Int>::from_data(TensorData::new(values, [count]), &device)
        };
        // Places `token * active + choice`, by expert.
        let mut places: Vec<Vec<i32>> = vec![Vec::new(); self.experts.len()];
        routing.experts.iter().enumerate().for_each(|(place, &expert)| places[expert].push(place as i32));
        let weights = routing.weights.clone().reshape([rows * active, 1]);
        let mut outputs = Vec::new();
        let mut back = vec![0; rows * active];
        let mut done = 0;
        for (expert, places) in self.experts.iter().zip(places).filter(|(_, places)| !places.is_empty()) {
            for &place in &places {
                back[place as usize] = done;
                done += 1;
            }
            let tokens = index(places.iter().map(|place| place / active as i32).collect());
            let weights = weights.clone().select(0, index(places));
            outputs.push(expert.forward(x.clone().select(0, tokens)) * weights);
        }
        if outputs.is_empty() {
            return x.zeros_like();
        }
        let grouped = Tensor::cat(outputs, 0);
        grouped.select(0, index(back)).reshape([rows, active, channels]).sum_dim(1).reshape([rows, channels])
    }
}
