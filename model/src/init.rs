//! How weights start: one rule per kind of parameter, one random stream per parameter.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};
use rand::Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::model::Model;

/// Sets every weight of `model`. `stream` gives the random numbers of a parameter by its path (such as
/// `layers.1.attn.query.wq_b.weight`), so that layers shared by two mixes start alike and no run disturbs another.
///
/// | parameter | start |
/// |---|---|
/// | gains of norms | 1 |
/// | sinks | `sink` |
/// | embedding | normal, deviation 1 |
/// | last matrix of attention and of the feed-forward part | normal, deviation `0.5 / sqrt(inputs)` |
/// | other matrices | normal, deviation `1 / sqrt(inputs)` |
#[must_use]
pub fn initialize<R: Rng>(model: Model, sink: f64, stream: impl Fn(&str) -> R) -> Model {
    model.map(&mut Initializer { path: Vec::new(), sink, stream })
}

struct Initializer<F> {
    path: Vec<String>,
    sink: f64,
    stream: F,
}

enum Start {
    Constant(f64),
    Normal(f64),
}

fn start(path: &[String], dims: &[usize], sink: f64) -> Start {
    let names: Vec<&str> = path.iter().rev().map(String::as_str).take(2).collect();
    // Matrices lie as [inputs, outputs], but the grouped output's blocks lie as [outputs, inputs].
    match (names.first().copied().unwrap_or_default(), names.get(1).copied().unwrap_or_default()) {
        ("attn_sink", _) => Start::Constant(sink),
        ("wo_a", _) => Start::Normal((dims[1] as f64).powf(-0.5)),
        (_, "embed") => Start::Normal(1.0),
        (_, "wo_b" | "w2") => Start::Normal(0.5 * (dims[0] as f64).powf(-0.5)),
        _ if dims.len() == 1 => Start::Constant(1.0),
        _ => Start::Normal((dims[0] as f64).powf(-0.5)),
    }
}

impl<R: Rng, F: Fn(&str) -> R> ModuleMapper for Initializer<F> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let start = start(&self.path, &param.shape(), self.sink);
        let mut random = (self.stream)(&self.path.join("."));
        param.map(|tensor| {
            let dims = tensor.dims();
            let count = dims.iter().product();
            let values: Vec<f32> = match start {
                Start::Constant(value) => vec![value as f32; count],
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
