//! How weights start: one rule per kind of parameter, one random stream per parameter.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};
use rand::Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::checkpoint::is_variant;
use crate::model::Model;

/// Sets every weight of `model`. `stream` gives the random numbers of a parameter by its path (such as
/// `layers.1.attn.query.wq_b.weight`), so that layers shared by two mixes start alike and no run disturbs another.
///
/// | parameter | start |
/// |---|---|
/// | gains of norms | 1 |
/// | sinks | `sink` |
/// | biases of experts' gates | 0 |
/// | hyper-connections | streams read in equal parts, each written once, hardly mixed; what tokens add to that is scaled by 0.1 |
/// | embedding | normal, deviation 1 |
/// | last matrix of attention and of the feed-forward part | normal, deviation `0.5 / sqrt(inputs)` |
/// | other matrices | normal, deviation `1 / sqrt(inputs)` |
#[must_use]
pub fn initialize<R: Rng>(model: Model, sink: f64, stream: impl Fn(&str) -> R) -> Model {
    model.map(&mut Initializer { path: Vec::new(), sink, stream })
}

struct Initializer<F> {
    /// Empty where there is no name: the variants of an enumeration are no places.
    path: Vec<String>,
    sink: f64,
    stream: F,
}

enum Start {
    Constant(f64),
    Normal(f64),
    Given(Vec<f64>),
}

/// Start of the factors on what the tokens themselves say about mixing: little at first.
const HYPER_SCALE: f64 = 0.1;

/// Start of the diagonal of the mixing weights, before the softmax: every stream stays nearly itself.
const HYPER_DIAGONAL: f64 = 4.0;

/// Start of the fixed part of the raw weights of hyper-connections, `n (n + 2)` of them for `n` streams: what is read is the
/// streams' mean (a share of `1 / n` each), what is written goes to every stream once.
fn hyper_base(count: usize) -> Vec<f64> {
    let n = (1..=count).find(|n| n * (n + 2) >= count).unwrap_or(1);
    // One stream is read whole, nearly.
    let share = if n == 1 { HYPER_DIAGONAL } else { -((n - 1) as f64).ln() };
    let mixing = (0..n * n).map(|at| if at / n == at % n { HYPER_DIAGONAL } else { 0.0 });
    std::iter::repeat_n(share, n).chain(std::iter::repeat_n(0.0, n)).chain(mixing).collect()
}

fn start(path: &[String], dims: &[usize], sink: f64) -> Start {
    let names: Vec<&str> = path.iter().rev().map(String::as_str).filter(|name| !name.is_empty()).take(2).collect();
    // Matrices lie as [inputs, outputs], but the grouped output's blocks, gates and hyper-connections lie as [outputs, inputs].
    match (names.first().copied().unwrap_or_default(), names.get(1).copied().unwrap_or_default()) {
        ("attn_sink", _) => Start::Constant(sink),
        ("wo_a" | "function", _) | ("weight", "gate") => Start::Normal((dims[1] as f64).powf(-0.5)),
        ("bias", "gate") => Start::Constant(0.0),
        ("scale", mix) if mix.starts_with("hc_") => Start::Constant(HYPER_SCALE),
        ("base", mix) if mix.starts_with("hc_") => Start::Given(hyper_base(dims[0])),
        (_, "embed") => Start::Normal(1.0),
        (_, "wo_b" | "w2") => Start::Normal(0.5 * (dims[0] as f64).powf(-0.5)),
        _ if dims.len() == 1 => Start::Constant(1.0),
        _ => Start::Normal((dims[0] as f64).powf(-0.5)),
    }
}

impl<R: Rng, F: Fn(&str) -> R> ModuleMapper for Initializer<F> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push(if is_variant(container) { String::new() } else { name.to_string() });
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let start = start(&self.path, &param.shape(), self.sink);
        let path: Vec<&str> = self.path.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
        let mut random = (self.stream)(&path.join("."));
        param.map(|tensor| {
            let dims = tensor.dims();
            let count = dims.iter().product();
            let values: Vec<f32> = match start {
                Start::Constant(value) => vec![value as f32; count],
                Start::Given(values) => values.into_iter().map(|value| value as f32).collect(),
                Start::Normal(deviation) => {
                    StandardNormal.sample_iter(&mut random).take(count).map(|x: f64| (x * deviation) as f32).collect()
                }
            };
            let tracked = tensor.is_require_grad();
            let options = (&tensor.device(), tensor.dtype());
            Tensor::from_data(TensorData::new(values, dims), options).set_require_grad(tracked)
        })
    }
}
