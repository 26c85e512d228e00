//! Whose passes are looked at: a whole model's over its task, or single layers' over inputs of their own.

use std::path::Path;

use burn::tensor::{DType, Device, Tensor, TensorReadError};
use csa2_model::attention::Context;
use csa2_model::config::ModelConfig;
use csa2_model::model::Model;
use csa2_train::evaluate::{sample, tokens};
use csa2_train::random;
use csa2_train::tasks::Batch;

use super::layers::Layers;
use super::seat::LayerView;
use super::{Extent, Options, ProbeError, QUERIES, SEQUENCES};
use crate::subject::Subject;

/// What is probed.
pub(super) enum Source {
    /// A run with a whole model.
    Model(Box<(Subject, Model)>),
    /// A run with nothing but some layers' attention.
    Layers(Box<Layers>),
}

/// One sequence.
pub(super) struct Glance {
    /// The layers' passes over it, in ascending order.
    pub views: Vec<LayerView>,
    /// What attention was given in each `[1, S, d_model]`.
    pub inputs: Vec<Tensor<3>>,
    /// The positions that are looked at.
    pub positions: Vec<usize>,
    /// In how many of them the model's most likely token is the target; none for layers alone.
    pub right: Option<usize>,
}

impl Source {
    /// A whole model.
    pub fn model(options: &Options) -> Result<Self, ProbeError> {
        let Options { run, task, device, .. } = options;
        let of_layers = |argument| {
            let why =
                "is for runs that hold layers' attention alone (imported with --attention-only); leave it away".into();
            Err(ProbeError::Argument { argument, why })
        };
        if options.inputs.is_some() {
            return of_layers("--inputs");
        }
        if options.tokens.is_some() {
            return of_layers("--tokens");
        }
        let (config, base) = task.as_ref().map_or((None, Path::new(".")), |(config, base)| (Some(config), base));
        let subject = Subject::open(run, config, base, "give one by --task", device)?;
        let model = subject.weights.model(subject.run.model_config(), device)?;
        Ok(Self::Model(Box::new((subject, model))))
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        match self {
            Self::Model(model) => model.0.run.model_config(),
            Self::Layers(layers) => layers.run.model_config(),
        }
    }

    /// Steps that the run had taken.
    pub fn step(&self) -> u64 {
        match self {
            Self::Model(model) => model.0.run.state().step,
            Self::Layers(layers) => layers.run.state().step,
        }
    }

    /// SHA-256 of the weights.
    pub fn digest(&self) -> Result<String, ProbeError> {
        match self {
            Self::Model(model) => Ok(model.0.weights.digest()),
            Self::Layers(layers) => Ok(layers.run.weights_file_digest().map_err(crate::subject::SubjectError::from)?),
        }
    }

    /// What sequences are made of, in one line.
    pub fn describe(&self) -> String {
        match self {
            Self::Model(model) => model.0.task.describe(),
            Self::Layers(layers) => layers.describe(),
        }
    }

    /// The mix, or the held layers of it.
    pub fn mix(&self) -> String {
        let mix = self.config().layers.to_string();
        match self {
            Self::Model(_) => mix,
            Self::Layers(layers) => format!("{mix} (held: {})", layers.names()),
        }
    }

    /// Whether the layer is there.
    pub fn has(&self, layer: usize) -> bool {
        match self {
            Self::Model(_) => true,
            Self::Layers(layers) => layers.has(layer),
        }
    }

    /// Tokens of a sequence.
    pub fn tokens(&self) -> usize {
        match self {
            Self::Model(model) => model.0.task.seq_len(),
            Self::Layers(layers) => layers.tokens(),
        }
    }

    /// How sequences could be shorter.
    pub fn shorter(&self) -> &'static str {
        match self {
            Self::Model(_) => "a task with shorter sequences by --task",
            Self::Layers(_) => "fewer by --tokens, or shorter sequences in --inputs",
        }
    }

    /// How many sequences there are, and where; none where any number can be drawn.
    pub fn sequences(&self) -> Option<(usize, String)> {
        match self {
            Self::Model(model) => Some((model.0.task.eval_sequences(), "the run's evaluation set".into())),
            Self::Layers(layers) => layers.sequences(),
        }
    }

    /// Sequences and queries of each where nothing is said.
    pub fn usual(&self) -> (usize, usize) {
        match self {
            Self::Model(_) => (SEQUENCES, QUERIES),
            Self::Layers(_) => super::layers::USUAL,
        }
    }

    /// The sequences, one at a time.
    pub fn glances(
        &self,
        extent: Extent,
        device: &Device,
    ) -> Box<dyn Iterator<Item = Result<Glance, ProbeError>> + '_> {
        let Extent { sequences, queries, seed } = extent;
        let cx = Context::new(self.config(), self.tokens(), DType::F32, device).with_trace(true);
        match self {
            Self::Layers(layers) => {
                let device = device.clone();
                Box::new((0..sequences).map(move |number| layers.glance(number, queries, seed, &cx, &device)))
            }
            Self::Model(model) => {
                let (subject, model) = &**model;
                let device = device.clone();
                Box::new(sample(&*subject.task, seed, sequences, 1).enumerate().map(move |(number, batch)| {
                    let positions = positions(&batch, queries, seed, number as u64);
                    let output = model.forward(tokens(&batch, &device), &cx);
                    let right = Some(right(&output.logits, &batch, &positions)?);
                    let mut glance = Glance { views: Vec::new(), inputs: Vec::new(), positions, right };
                    for (block, trace) in model.layers().iter().zip(output.traces) {
                        let (config, positions) = (subject.run.model_config(), &glance.positions);
                        let attention = block.attention();
                        glance.views.push(LayerView::new(
                            attention,
                            config,
                            &trace.attn,
                            &trace.attn_output,
                            positions,
                        )?);
                        glance.inputs.push(trace.attn_input);
                    }
                    Ok(glance)
                }))
            }
        }
    }
}

/// In how many of the positions of a sequence the largest of the logits `[1, S, vocabulary]` is that of the target.
fn right(logits: &Tensor<3>, batch: &Batch, positions: &[usize]) -> Result<usize, TensorReadError> {
    let answers: Vec<i64> = logits.clone().argmax(2).try_into_data()?.convert::<i64>().iter().collect();
    Ok(positions.iter().filter(|&&at| answers[at] == i64::from(batch.targets[at])).count())
}

/// Positions of a sequence with a target, `count` of them at most, drawn by `seed` and the number of the sequence.
fn positions(batch: &Batch, count: usize, seed: u64, number: u64) -> Vec<usize> {
    let asked: Vec<usize> = (0..batch.len).filter(|&at| batch.targets[at] >= 0).collect();
    drawn(&asked, count, seed, number)
}

/// `count` of these positions at most.
pub(super) fn drawn(asked: &[usize], count: usize, seed: u64, number: u64) -> Vec<usize> {
    let mut rng = random::stream(seed, random::SAMPLE, 1 + number);
    random::subset(&mut rng, asked.len(), count).into_iter().map(|place| asked[place]).collect()
}
