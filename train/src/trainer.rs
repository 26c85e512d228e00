//! The training loop of one run: from a configuration and a seed to metrics, a checkpoint and final values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorReadError};
use csa2_model::attention::{Context, IndexLoss, Phase};
use csa2_model::checkpoint;
use csa2_model::config::ModelConfig;
use csa2_model::init::initialize;
use csa2_model::model::{BuildError, Model, ModelOutput};
use thiserror::Error;

use crate::checkpoints::{Store, StoreError};
use crate::config::{RunConfig, RunConfigError};
use crate::evaluate::{Tally, evaluate, measuring, tokens};
use crate::faults::{broken_layer, finite};
use crate::files::{self, FileError};
use crate::indexers::LossWeights;
use crate::metrics::{MetricLine, MetricsFile, Split};
use crate::optimizer::{GradientNorms, Optimizer};
use crate::prefetch::{Prefetch, PrefetchError};
use crate::random;
use crate::step;
use crate::tasks::{Batch, Task};
use crate::trainable::Trainable;

/// Why a run stopped.
#[derive(Debug, Error)]
pub enum TrainError {
    /// The configuration cannot be.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// The model cannot be built.
    #[error("model: {0}")]
    Build(#[from] BuildError),
    /// A file cannot be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(#[from] TensorReadError),
    /// No batch.
    #[error(transparent)]
    Batch(#[from] PrefetchError),
    /// The loss or a gradient is not a number.
    #[error("step {step}: {what} is not finite; first seen in {place}; {}", last_good(checkpoint.as_ref()))]
    NotFinite {
        /// Steps taken before.
        step: u64,
        /// Loss or gradient.
        what: &'static str,
        /// The layer or parameter.
        place: String,
        /// `state.json` of the last checkpoint and its step.
        checkpoint: Option<(PathBuf, u64)>,
    },
    /// The run to start from has no weights.
    #[error("{}: this run is to start from the weights there, but there is no checkpoint; train that run first", path.display())]
    NoStart {
        /// The folder of the run to start from.
        path: PathBuf,
    },
    /// The folder holds a run of another configuration.
    #[error("{}: holds a run of another configuration (its hash is {found}, this one's is {expected})", path.display())]
    OtherRun {
        /// The run's folder.
        path: PathBuf,
        /// The hash found.
        found: String,
        /// The hash of this configuration.
        expected: String,
    },
}

fn last_good(checkpoint: Option<&(PathBuf, u64)>) -> String {
    match checkpoint {
        Some((path, step)) => format!("the last good checkpoint is that of step {step} ({})", path.display()),
        None => "there is no checkpoint before it".into(),
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The budget is used up.
    Finished(Finished),
    /// It was asked to stop; a checkpoint of this step is on disk.
    Interrupted {
        /// Steps taken.
        step: u64,
    },
}

/// What a finished run reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Steps taken.
    pub steps: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Validation values at the end, addresses sparse and the model quantized where it is to be.
    pub values: BTreeMap<String, f64>,
    /// The same of the further models, by their names.
    pub evaluations: BTreeMap<String, BTreeMap<String, f64>>,
    /// Seconds spent training and evaluating, interruptions left out.
    pub seconds: f64,
}

/// One run to be trained.
pub struct Trainer<'a> {
    /// Task, model and training.
    pub config: &'a RunConfig,
    /// The task, built.
    pub task: Arc<dyn Task>,
    /// Seed of data and initialisation.
    pub seed: u64,
    /// Identifies the configuration in checkpoints.
    pub config_hash: &'a str,
    /// Where the run lies on disk.
    pub folder: &'a Path,
    /// The folder of the run whose weights this one starts from; none where it starts from random ones.
    pub from: Option<&'a Path>,
    /// Further models to be measured with the trained weights, by name: with another pool, say.
    pub evaluations: &'a [(String, ModelConfig)],
    /// Where it computes, without automatic differentiation.
    pub device: Device,
    /// Set from outside to end the run at the next step with a checkpoint.
    pub stop: &'a AtomicBool,
    /// Told after every step how many are done.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// What lives from step to step.
struct Progress {
    model: Model,
    optimizer: Optimizer,
    step: u64,
    metrics: MetricsFile,
    checkpoint: Option<u64>,
    started: Instant,
    seconds_before: f64,
}

impl Progress {
    fn seconds(&self) -> f64 {
        self.seconds_before + self.started.elapsed().as_secs_f64()
    }
}

impl Trainer<'_> {
    /// Steps that the budget pays for.
    pub fn steps(&self) -> u64 {
        self.config.train.steps(self.task.seq_len())
    }

    /// What counts in the loss of a step.
    fn weights(&self, step: u64) -> LossWeights {
        let train = &self.config.train;
        train.index.weights_at(train.index_loss, step, self.steps())
    }

    /// Trains from the last checkpoint, or from the start, to the end of the budget.
    ///
    /// # Errors
    /// When configuration, files or device fail, or when a loss or gradient is not finite.
    pub fn run(&self) -> Result<Outcome, TrainError> {
        let seq = self.task.seq_len();
        self.config.validate(seq)?;
        let device = self.device.clone().autodiff();
        let steps = self.steps();
        let dense_steps = self.config.train.dense_steps(seq);
        let mut now = self.start(&device)?;
        let model_config = self.model_config()?;
        let indexed = self.config.train.index_loss > 0.0;
        let kind = self.config.train.index.kind();
        let training = Context::new(&model_config, seq, DType::F32, &device).with_lessons(indexed.then_some(kind));
        let measuring = measuring(&model_config, seq, Some(kind), &self.device);
        let phase = |step: u64| if step < dense_steps { Phase::Dense } else { Phase::Sparse };
        let quantized = |step: u64| step >= self.config.train.quantize_from;
        let blocks = |step: u64| {
            let pool = model_config.pool?;
            self.config.train.pool_blocks_at(pool.blocks, step, steps)
        };
        let at = |cx: &Context, step: u64| {
            cx.clone().with_phase(phase(step)).with_quantization(quantized(step)).with_pool_blocks(blocks(step))
        };
        if now.step == 0 {
            self.measure(&mut now, &at(&measuring, 0))?;
        }
        let mut last = None;
        let batches = Prefetch::start(self.task.clone(), self.seed, self.config.train.batch, now.step..steps)?;
        for batch in batches {
            let (step, batch) = batch?;
            if self.stop.load(Ordering::Relaxed) {
                self.save(&mut now)?;
                return Ok(Outcome::Interrupted { step: now.step });
            }
            self.step(&mut now, &batch, &at(&training, step), steps, &device)?;
            let done = now.step;
            if done.is_multiple_of(self.config.train.evaluate_every) || done == steps {
                // The end is judged as the model will be used.
                let cx = if done == steps { measuring.clone() } else { at(&measuring, step) };
                last = Some(self.measure(&mut now, &cx)?).filter(|_| done == steps);
            }
            if done.is_multiple_of(self.config.train.checkpoint_every) || done == steps {
                self.save(&mut now)?;
            }
            (self.progress)(done);
        }
        // A run that was killed after its last checkpoint has nothing left to train, but is measured again.
        let values = match last {
            Some(values) => values,
            None => self.evaluate(&now, &measuring)?,
        };
        let evaluations = self.further(&now, kind)?;
        let tokens = now.step * self.config.train.tokens_per_step(seq);
        Ok(Outcome::Finished(Finished { steps: now.step, tokens, values, evaluations, seconds: now.seconds() }))
    }

    /// Measures the further models.
    fn further(&self, now: &Progress, kind: IndexLoss) -> Result<BTreeMap<String, BTreeMap<String, f64>>, TrainError> {
        let mut all = BTreeMap::new();
        for (name, config) in self.evaluations {
            let hint = self.task.auxiliary().map(|auxiliary| auxiliary.after_layer);
            let model = Model::new(config, hint, &self.device)?;
            let weights = checkpoint::weights(&now.model).map_err(StoreError::from)?;
            let model = checkpoint::load(model, weights, name).map_err(StoreError::from)?;
            let cx = measuring(config, self.task.seq_len(), Some(kind), &self.device);
            all.insert(name.clone(), self.evaluate_model(now, &model, &cx)?);
        }
        Ok(all)
    }

    /// The model's configuration with the task's vocabulary.
    fn model_config(&self) -> Result<ModelConfig, TrainError> {
        Ok(self.config.model_for(&*self.task)?)
    }

    fn start(&self, device: &Device) -> Result<Progress, TrainError> {
        files::make_folder(self.folder)?;
        let hint = self.task.auxiliary().map(|auxiliary| auxiliary.after_layer);
        let config = self.model_config()?;
        let model = Model::new(&config, hint, device)?;
        let store = Store::new(self.folder);
        let state = store.state()?;
        if let Some(state) = state.as_ref().filter(|state| state.config_hash != self.config_hash) {
            let (path, found) = (self.folder.to_path_buf(), state.config_hash.clone());
            return Err(TrainError::OtherRun { path, found, expected: self.config_hash.into() });
        }
        if let Some(state) = &state {
            store.check_step(state, self.steps())?;
        }
        let metrics = self.folder.join("metrics.jsonl");
        let metrics = MetricsFile::open(metrics, state.as_ref().map_or(0, |state| state.metrics_bytes))?;
        let started = Instant::now();
        Ok(match state {
            Some(state) => Progress {
                model: store.load_model(&state, model)?,
                optimizer: store.load_optimizer(&state, &self.config.train, &self.device)?,
                step: state.step,
                metrics,
                checkpoint: Some(state.step),
                started,
                seconds_before: state.seconds,
            },
            None => Progress {
                model: match self.from {
                    Some(folder) => Self::start_from(folder, model)?,
                    None => initialize(model, config.sink_init, |path| {
                        random::stream(self.seed, &format!("{}/{path}", random::INITIALISATION), 0)
                    }),
                },
                optimizer: Optimizer::new(&self.config.train),
                step: 0,
                metrics,
                checkpoint: None,
                started,
                seconds_before: 0.0,
            },
        })
    }

    /// The weights of the run in `folder`.
    fn start_from(folder: &Path, model: Model) -> Result<Model, TrainError> {
        let store = Store::new(folder);
        let state = store.state()?.ok_or_else(|| TrainError::NoStart { path: folder.to_path_buf() })?;
        Ok(store.load_model(&state, model)?)
    }

    fn save(&self, now: &mut Progress) -> Result<(), TrainError> {
        let bytes = now.metrics.sync()?;
        let seconds = now.seconds();
        let config = self.model_config()?;
        Store::new(self.folder).save(
            &now.model,
            &now.optimizer,
            now.step,
            bytes,
            seconds,
            self.config_hash,
            &config,
        )?;
        now.checkpoint = Some(now.step);
        Ok(())
    }

    /// One optimizer step.
    fn step(
        &self,
        now: &mut Progress,
        batch: &Batch,
        cx: &Context,
        steps: u64,
        device: &Device,
    ) -> Result<(), TrainError> {
        let rate = self.config.train.learning_rate_at(now.step, steps);
        let output = now.model.forward(tokens(batch, device), cx);
        let losses = step::losses(&*self.task, self.weights(now.step), batch, &output);
        let total = losses.total.clone().try_into_scalar::<f32>()?;
        if !total.is_finite() {
            return Err(self.not_finite_loss(now, batch, cx, device)?);
        }
        let trainable = self.config.train.trainable;
        let (grads, norms) = step::gradients(&now.model, &losses.total, trainable);
        if let Some(last) = norms.broken.last() {
            // Gradients run from the last layer to the first: the last broken one is where it began.
            return Err(self.not_finite(now, "the gradient", last.clone()));
        }
        let model = now.optimizer.step(now.model.clone(), grads, &norms, rate);
        // A bias balances experts that train.
        now.model = match trainable {
            Trainable::Everything => model.balanced(&output.loads, self.config.train.expert_bias_speed()),
            Trainable::Attention | Trainable::Indexers => model,
        };
        now.step += 1;
        if now.step.is_multiple_of(self.config.train.log_every) {
            self.log(now, batch, cx, &output, losses.hint, &norms, rate)?;
        }
        Ok(())
    }

    fn log(
        &self,
        now: &mut Progress,
        batch: &Batch,
        cx: &Context,
        output: &ModelOutput,
        hint: Option<Tensor<1>>,
        norms: &GradientNorms,
        rate: f64,
    ) -> Result<(), TrainError> {
        let mut tally = Tally::new(&*self.task);
        tally.add(batch, output)?;
        let mut values = tally.values();
        // The groups' shares of one batch are too few to be worth a line.
        values.retain(|name, _| !name.contains('/') || name.contains("/layer "));
        if let Some(hint) = hint {
            values.insert("hint_loss".into(), f64::from(hint.try_into_scalar::<f32>()?));
        }
        values.insert("grad_norm".into(), norms.trunk);
        if norms.indexers > 0.0 {
            values.insert("grad_norm_indexers".into(), norms.indexers);
        }
        values.insert("lr".into(), rate);
        self.append(now, Split::Train, cx, values)
    }

    /// Evaluates and writes the values down.
    fn measure(&self, now: &mut Progress, cx: &Context) -> Result<BTreeMap<String, f64>, TrainError> {
        let values = self.evaluate(now, cx)?;
        self.append(now, Split::Validation, cx, values.clone())?;
        Ok(values)
    }

    /// The evaluation set's values. An accuracy would be a number even where answers are not: the loss decides.
    fn evaluate(&self, now: &Progress, cx: &Context) -> Result<BTreeMap<String, f64>, TrainError> {
        self.evaluate_model(now, &now.model.valid(), cx)
    }

    fn evaluate_model(&self, now: &Progress, model: &Model, cx: &Context) -> Result<BTreeMap<String, f64>, TrainError> {
        let rows = self.config.train.batch;
        let values = evaluate(model, &*self.task, cx, rows, &self.device)?;
        if values.get("loss").is_none_or(|loss| loss.is_finite()) {
            return Ok(values);
        }
        for index in 0..self.task.eval_batches(rows) {
            let batch = self.task.eval_batch(index, rows);
            if let Some(place) = broken_layer(model, &batch, cx, &self.device)? {
                return Err(self.not_finite(now, "the evaluation's loss", place));
            }
        }
        Err(self.not_finite(now, "the evaluation's loss", "the head".into()))
    }

    fn append(
        &self,
        now: &mut Progress,
        split: Split,
        cx: &Context,
        mut values: BTreeMap<String, f64>,
    ) -> Result<(), TrainError> {
        if self.config.model.quantization.any() {
            values.insert("quantized".into(), f64::from(u8::from(cx.quantize)));
        }
        if let (Some(pool), Some(_)) = (self.config.model.pool, self.config.train.pool_from) {
            values.insert("pool_blocks".into(), cx.pool_blocks.unwrap_or(pool.blocks) as f64);
        }
        let tokens = now.step * self.config.train.tokens_per_step(self.task.seq_len());
        Ok(now.metrics.append(&MetricLine { step: now.step, tokens, split, phase: cx.phase, values })?)
    }

    fn not_finite(&self, now: &Progress, what: &'static str, place: String) -> TrainError {
        let path = Store::new(self.folder).state_path();
        TrainError::NotFinite { step: now.step, what, place, checkpoint: now.checkpoint.map(|step| (path, step)) }
    }

    /// Runs the batch again and looks where it goes wrong first.
    fn not_finite_loss(
        &self,
        now: &Progress,
        batch: &Batch,
        cx: &Context,
        device: &Device,
    ) -> Result<TrainError, TrainError> {
        if let Some(place) = broken_layer(&now.model, batch, cx, device)? {
            return Ok(self.not_finite(now, "the loss", place));
        }
        let output = now.model.forward(tokens(batch, device), cx);
        let mode = |layer: usize| now.model.layers()[layer].attention().mode();
        for (layer, loss) in &output.index_losses {
            if !finite(loss.clone().mul_scalar(self.weights(now.step).index))? {
                let place = format!("the indexer's loss of layer {layer} ({})", mode(*layer));
                return Ok(self.not_finite(now, "the loss", place));
            }
        }
        if let (Some(loss), Some(auxiliary)) =
            (step::losses(&*self.task, self.weights(now.step), batch, &output).hint, self.task.auxiliary())
            && !finite(loss.mul_scalar(auxiliary.weight))?
        {
            return Ok(self.not_finite(now, "the loss", "the auxiliary head".into()));
        }
        Ok(self.not_finite(now, "the loss", "the head".into()))
    }
}
