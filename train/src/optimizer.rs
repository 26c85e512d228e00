//! `AdamW` over a whole model, with the gradient's norm limited for the trunk and for the indexers apart.
//!
//! The update rule is an operator; this file adds which parameters decay, the two norms, and a state that is stored by the
//! parameters' official names.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use csa2_model::checkpoint::{CheckpointError, ParameterPath, Weight, is_indexer};
use csa2_model::model::Model;
use csa2_model::ops::{self, AdamwStep};

use crate::config::TrainConfig;

/// Gradient norms before limiting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GradientNorms {
    /// Of everything but the indexers.
    pub trunk: f64,
    /// Of the indexers.
    pub indexers: f64,
    /// Official names of parameters whose gradient is not finite, first layer first.
    pub broken: Vec<String>,
}

/// The optimizer and its state.
pub struct Optimizer {
    betas: [f64; 2],
    weight_decay: f64,
    clip: f64,
    moments: BTreeMap<String, Moments>,
}

/// Running means of a parameter's gradient and of its square, as lists, and how many steps are in them.
struct Moments {
    first: Tensor<1>,
    second: Tensor<1>,
    steps: u32,
}

/// Keeps the update's division apart from 0.
const EPSILON: f64 = 1e-8;

impl Optimizer {
    /// An optimizer that has not taken a step.
    pub fn new(config: &TrainConfig) -> Self {
        Self { betas: config.betas, weight_decay: config.weight_decay, clip: config.clip, moments: BTreeMap::new() }
    }

    /// Norms of the gradients, to be looked at before [`step`](Self::step).
    pub fn norms(model: &Model, grads: &GradientsParams) -> GradientNorms {
        let mut squares = Squares { path: ParameterPath::default(), grads, norms: GradientNorms::default() };
        model.visit(&mut squares);
        let norms = squares.norms;
        GradientNorms { trunk: norms.trunk.sqrt(), indexers: norms.indexers.sqrt(), broken: norms.broken }
    }

    /// Updates every parameter that has a gradient.
    pub fn step(&mut self, model: Model, grads: GradientsParams, norms: &GradientNorms, rate: f64) -> Model {
        let factor = |norm: f64| if norm > self.clip { self.clip / norm } else { 1.0 };
        let (trunk, indexers) = (factor(norms.trunk), factor(norms.indexers));
        model.map(&mut Update { path: ParameterPath::default(), optimizer: self, grads, rate, trunk, indexers })
    }

    /// The state by official name: `<parameter>.moment_1`, `.moment_2` and `.time`.
    ///
    /// # Errors
    /// When the device cannot be read.
    pub fn state(&self) -> Result<BTreeMap<String, Weight>, CheckpointError> {
        let mut state = BTreeMap::new();
        for (name, moments) in &self.moments {
            for (part, tensor) in [("moment_1", &moments.first), ("moment_2", &moments.second)] {
                let name = format!("{name}.{part}");
                let values = tensor.clone().try_into_data().map_err(|e| e.to_string());
                let values = values.and_then(|data| data.try_to_vec::<f32>().map_err(|e| e.to_string()));
                let values = values.map_err(|error| CheckpointError::Device { name: name.clone(), error })?;
                state.insert(name, Weight { dims: vec![values.len()], values });
            }
            // Steps are counted exactly in f32 up to 2^24.
            let time = Weight { dims: vec![1], values: vec![moments.steps as f32] };
            state.insert(format!("{name}.time"), time);
        }
        Ok(state)
    }

    /// Takes up a state that [`state`](Self::state) gave.
    ///
    /// # Errors
    /// When an array is missing or left over; `source_name` is told.
    pub fn restore(
        mut self,
        mut state: BTreeMap<String, Weight>,
        source_name: &str,
        device: &Device,
    ) -> Result<Self, CheckpointError> {
        let suffix = ".time";
        let names: Vec<String> = state.keys().filter_map(|key| Some(key.strip_suffix(suffix)?.to_string())).collect();
        let mut problems = Vec::new();
        for name in names {
            let mut take = |part: &str| state.remove(&format!("{name}.{part}"));
            let (Some(first), Some(second), Some(time)) = (take("moment_1"), take("moment_2"), take("time")) else {
                problems.push(format!("{name}: its moments are incomplete"));
                continue;
            };
            if first.dims != second.dims || first.dims.len() != 1 || time.values.len() != 1 {
                problems.push(format!("{name}: its moments have shapes {:?} and {:?}", first.dims, second.dims));
                continue;
            }
            let tensor = |w: Weight| Tensor::<1>::from_data(TensorData::new(w.values, w.dims), device);
            let moments = Moments { first: tensor(first), second: tensor(second), steps: time.values[0] as u32 };
            self.moments.insert(name, moments);
        }
        problems.extend(state.keys().map(|name| format!("{name}: unexpected")));
        if problems.is_empty() {
            Ok(self)
        } else {
            Err(CheckpointError::Mismatch { source_name: source_name.into(), problems })
        }
    }
}

struct Squares<'a> {
    path: ParameterPath,
    grads: &'a GradientsParams,
    norms: GradientNorms,
}

impl ModuleVisitor for Squares<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.get::<D>(param.id) else { return };
        let name = self.path.official();
        let square = f64::from(grad.square().sum().into_scalar::<f32>());
        if !square.is_finite() {
            self.norms.broken.push(name.clone());
        }
        *(if is_indexer(&name) { &mut self.norms.indexers } else { &mut self.norms.trunk }) += square;
    }
}

struct Update<'a> {
    path: ParameterPath,
    optimizer: &'a mut Optimizer,
    grads: GradientsParams,
    rate: f64,
    trunk: f64,
    indexers: f64,
}

impl ModuleMapper for Update<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(grad) = self.grads.remove::<D>(param.id) else { return param };
        let name = self.path.official();
        let factor = if is_indexer(&name) { self.indexers } else { self.trunk };
        // Norm gains and sinks do not decay.
        let weight_decay = if D >= 2 { self.optimizer.weight_decay } else { 0.0 };
        let state = self.optimizer.moments.remove(&name);
        let (mut updated, rate, betas) = (None, self.rate, self.optimizer.betas);
        let param = param.map(|tensor| {
            let shape = tensor.shape();
            let count = shape.num_elements();
            // The rule works number by number, so every parameter is updated as a list.
            let values = tensor.inner().reshape([count]);
            let Moments { first, second, steps } =
                state.unwrap_or_else(|| Moments { first: values.zeros_like(), second: values.zeros_like(), steps: 0 });
            let step = AdamwStep { rate, factor, betas, epsilon: EPSILON, weight_decay, step: steps + 1 };
            let (values, first, second) = ops::adamw(values, grad.reshape([count]), first, second, step);
            updated = Some(Moments { first, second, steps: step.step });
            Tensor::from_inner(values.reshape(shape)).require_grad()
        });
        self.optimizer.moments.extend(updated.map(|moments| (name, moments)));
        param
    }
}
