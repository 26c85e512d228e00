//! Layers' attention without the rest of their model: what stands for the inputs that the layers below would give.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use csa2_model::attention::{Attention, Context, Shared};
use csa2_model::checkpoint::{Weight, decode};
use csa2_model::config::ModelConfig;
use csa2_train::random;
use csa2_train::runs::Run;
use rand_distr::{Distribution, StandardNormal};

use super::seat::LayerView;
use super::source::{Glance, drawn};
use super::{Options, ProbeError};
use crate::subject::SubjectError;

/// Tokens of a drawn sequence where nothing else is said.
pub const TOKENS: usize = 2048;

/// Sequences, and queries of each, where nothing else is said: released layers have 64 heads of 512 channels.
pub(super) const USUAL: (usize, usize) = (4, 2);

/// The layers that a run holds.
pub(super) struct Layers {
    pub run: Run,
    /// In ascending order.
    held: Vec<Attention>,
    inputs: Inputs,
}

/// What the layers are given.
enum Inputs {
    /// Independent numbers of mean 0 and variance 1, as normalised inputs have, the same in every layer.
    Drawn { tokens: usize },
    /// From a file, by layer: `[B, S, d_model]`.
    Given { name: String, dims: [usize; 3], layers: BTreeMap<usize, Vec<f32>> },
}

impl Layers {
    /// The layers that `run` holds, and inputs as the options say.
    pub fn open(run: Run, options: &Options) -> Result<Self, ProbeError> {
        if options.task.is_some() {
            return Err(ProbeError::Argument {
                argument: "--task",
                why: "the run holds layers' attention alone and reads no tokens; leave it away, and give inputs by --inputs".into(),
            });
        }
        let numbers: Vec<usize> = run.held_layers().unwrap_or_default().to_vec();
        let shown = options.run.display().to_string();
        for &number in &numbers {
            let layer = &run.model_config().layers.layers()[number];
            let sources =
                [(layer.content_from, "content"), (layer.address_from, "address"), (layer.pool_from, "candidate pool")];
            let missing = sources
                .into_iter()
                .find_map(|(source, what)| Some((source?, what)).filter(|(source, _)| !numbers.contains(source)));
            if let Some((source_layer, what)) = missing {
                return Err(ProbeError::Sourceless { run: shown, layer: number, mode: layer.mode, source_layer, what });
            }
        }
        let inputs = match (&options.inputs, options.tokens) {
            (Some(_), Some(_)) => {
                let why = "the sequences of --inputs have lengths of their own; leave it away".into();
                return Err(ProbeError::Argument { argument: "--tokens", why });
            }
            (Some(path), None) => Inputs::read(path, &numbers, run.model_config())?,
            (None, tokens) => Inputs::Drawn { tokens: tokens.unwrap_or(TOKENS) },
        };
        let mut held = Vec::new();
        for &number in &numbers {
            held.push(run.attention(number, &options.device).map_err(SubjectError::from)?);
        }
        Ok(Self { run, held, inputs })
    }

    /// Whether this layer is held.
    pub fn has(&self, layer: usize) -> bool {
        self.held.iter().any(|attention| attention.layer() == layer)
    }

    /// The held layers: `2 full, 3 reuse`.
    pub fn names(&self) -> String {
        let names = self.held.iter().map(|attention| format!("{} {}", attention.layer(), attention.mode()));
        names.collect::<Vec<_>>().join(", ")
    }

    /// Tokens of a sequence.
    pub fn tokens(&self) -> usize {
        match &self.inputs {
            Inputs::Drawn { tokens } => *tokens,
            Inputs::Given { dims, .. } => dims[1],
        }
    }

    /// How many sequences there are, and where; none where any number can be drawn.
    pub fn sequences(&self) -> Option<(usize, String)> {
        match &self.inputs {
            Inputs::Drawn { .. } => None,
            Inputs::Given { name, dims, .. } => Some((dims[0], name.clone())),
        }
    }

    /// What the layers are given, in one line.
    pub fn describe(&self) -> String {
        match &self.inputs {
            Inputs::Drawn { tokens } => format!(
                "layers alone, given drawn inputs: {tokens} tokens of independent numbers of mean 0 and variance 1, the same in every layer. They \
                 are no text: this says what the weights do, not what they do in their model"
            ),
            Inputs::Given { name, dims, .. } => format!("layers alone, given the inputs of {name}: {} tokens", dims[1]),
        }
    }

    /// The layers' passes over sequence `number`; queries are drawn in its second half.
    pub fn glance(
        &self,
        number: usize,
        queries: usize,
        seed: u64,
        cx: &Context,
        device: &Device,
    ) -> Result<Glance, ProbeError> {
        let (tokens, config) = (self.tokens(), self.run.model_config());
        let late: Vec<usize> = (tokens / 2..tokens).collect();
        let mut glance = Glance {
            views: Vec::new(),
            inputs: Vec::new(),
            positions: drawn(&late, queries, seed, number as u64),
            right: None,
        };
        let mut shared = Shared::default();
        let all = match &self.inputs {
            Inputs::Drawn { .. } => Some(noise([1, tokens, config.d_model], seed, number, device)),
            Inputs::Given { .. } => None,
        };
        for attention in &self.held {
            let x = match (&all, &self.inputs) {
                (Some(all), _) => all.clone(),
                (None, inputs) => inputs.sequence(attention.layer(), number, device),
            };
            let made = attention.forward(x.clone(), &mut shared, cx);
            let trace = made.trace.as_ref().expect("the context asks for a trace");
            glance.views.push(LayerView::new(attention, config, trace, &made.output, &glance.positions)?);
            glance.inputs.push(x);
        }
        Ok(glance)
    }
}

/// Independent standard normal numbers.
fn noise(dims: [usize; 3], seed: u64, number: usize, device: &Device) -> Tensor<3> {
    let mut rng = random::stream(seed, random::INPUTS, number as u64);
    let values: Vec<f32> = (0..dims.iter().product()).map(|_| StandardNormal.sample(&mut rng)).collect();
    Tensor::from_data(TensorData::new(values, dims), device)
}

impl Inputs {
    /// The inputs `layers.N.attn_input` of the layers `numbers`.
    fn read(path: &Path, numbers: &[usize], config: &ModelConfig) -> Result<Self, ProbeError> {
        let wrong = |message: String| ProbeError::Inputs { path: path.to_path_buf(), message };
        let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let mut tensors = decode(&bytes, "the file").map_err(|error| wrong(error.to_string()))?;
        let (mut layers, mut size) = (BTreeMap::new(), None);
        for &number in numbers {
            let name = format!("layers.{number}.attn_input");
            let shape = format!("[sequences, tokens, {}] or [tokens, {0}]", config.d_model);
            let Weight { dims, values } = tensors.remove(&name).ok_or_else(|| {
                wrong(format!("has no `{name}`; give what the attention of every held layer is given, {shape} in F32"))
            })?;
            let dims = match dims[..] {
                [tokens, width] => [1, tokens, width],
                [sequences, tokens, width] => [sequences, tokens, width],
                _ => [0, 0, 0],
            };
            if dims[2] != config.d_model || dims[0] == 0 || dims[1] == 0 {
                return Err(wrong(format!("`{name}` is not {shape}, none of them 0")));
            }
            if *size.get_or_insert(dims) != dims {
                return Err(wrong(format!(
                    "`{name}` has other sizes than the first layer's; all have as many sequences and tokens"
                )));
            }
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                return Err(wrong(format!("`{name}`, number {}, is {}; all must be finite", at + 1, values[at])));
            }
            layers.insert(number, values);
        }
        if let Some(name) = tensors.keys().next() {
            return Err(wrong(format!("`{name}` belongs to no layer that the run holds; leave it away")));
        }
        let dims = size.unwrap_or([0; 3]);
        Ok(Self::Given { name: path.display().to_string(), dims, layers })
    }

    /// The inputs of a layer in one sequence `[1, S, d_model]`.
    fn sequence(&self, layer: usize, number: usize, device: &Device) -> Tensor<3> {
        let Self::Given { dims: [_, tokens, width], layers, .. } = self else {
            unreachable!("only a file has sequences of layers")
        };
        let count = tokens * width;
        let values = layers[&layer][number * count..(number + 1) * count].to_vec();
        Tensor::from_data(TensorData::new(values, [1, *tokens, *width]), device)
    }
}
