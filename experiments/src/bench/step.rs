//! A whole training step: the code that `csa2 ablate` runs, on a batch that is there.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::DType;
use csa2_model::attention::Context;
use csa2_model::init::initialize;
use csa2_model::model::Model;
use csa2_train::config::RunConfig;
use csa2_train::evaluate::tokens;
use csa2_train::indexers::LossWeights;
use csa2_train::optimizer::Optimizer;
use csa2_train::tasks::Task;
use csa2_train::{random, step};

use super::{Bench, BenchError, Row, Sizes, Subject};
use crate::ablation::AblationConfig;

/// What is trained where nothing else is asked for.
const QUICKSTART: &str = include_str!("step.toml");

/// The parts of a step. Reading the loss belongs to the forward pass, the gradients' norms to the backward pass.
const PARTS: [&str; 3] = ["forward", "backward", "optimizer"];

/// A training step to be timed.
pub struct Step {
    /// Name of the variant.
    pub name: String,
    /// Task, model and training.
    pub run: RunConfig,
    /// The task, built.
    pub task: Arc<dyn Task>,
}

/// The variants of `config` with these names, or all of them; without a configuration, the quickstart's model.
///
/// # Errors
/// When the configuration is wrong, or has no such variant.
pub fn chosen(config: Option<&Path>, names: &[String]) -> Result<Vec<Step>, BenchError> {
    let Some(path) = config else { return Ok(vec![quickstart()?]) };
    let mut variants = AblationConfig::load(path)?.variants;
    if let Some(name) = names.iter().find(|name| variants.iter().all(|variant| variant.name != **name)) {
        let there = variants.iter().map(|variant| variant.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(BenchError::Step(format!("{}: no variant \"{name}\"; there are: {there}", path.display())));
    }
    variants.retain(|variant| names.is_empty() || names.contains(&variant.name));
    Ok(variants.into_iter().map(|variant| Step { name: variant.name, run: variant.run, task: variant.task }).collect())
}

fn quickstart() -> Result<Step, BenchError> {
    let wrong = |error: &dyn std::fmt::Display| BenchError::Step(error.to_string());
    let run: RunConfig = toml::from_str(QUICKSTART).map_err(|error| wrong(&error))?;
    let task = run.task.build(Path::new(".")).map_err(|error| wrong(&error))?.into();
    Ok(Step { name: "quickstart".into(), run, task })
}

impl Step {
    fn sizes(&self) -> Sizes {
        let model = &self.run.model;
        vec![
            ("batch", self.run.train.batch),
            ("seq", self.task.seq_len()),
            ("layers", model.layers.len()),
            ("d-model", model.d_model),
            ("heads", model.heads),
            ("dim", model.head_dim),
            ("topk", model.topk),
            ("window", model.window),
        ]
    }
}

/// Times one step after another, on one batch. Making the batch is left out: training does it on another thread.
///
/// # Errors
/// When the model cannot be built or the device fails.
pub fn run(bench: &Bench, subject: &Step) -> Result<Row, BenchError> {
    let wrong = |error: &dyn std::fmt::Display| BenchError::Step(format!("{}: {error}", subject.name));
    let (task, train) = (&*subject.task, &subject.run.train);
    subject.run.validate(task.seq_len()).map_err(|error| wrong(&error))?;
    let config = subject.run.model_for(task).map_err(|error| wrong(&error))?;
    let device = bench.device.clone().autodiff();
    let hint = task.auxiliary().map(|auxiliary| auxiliary.after_layer);
    let model = Model::new(&config, hint, &device).map_err(|error| wrong(&error))?;
    let mut model =
        initialize(model, config.sink_init, |path| random::stream(0, &format!("{}/{path}", random::INITIALISATION), 0));
    let mut optimizer = Optimizer::new(train);
    let cx = Context::new(&config, task.seq_len(), DType::F32, &device)
        .with_lessons((train.index_loss > 0.0).then(|| train.index.kind()));
    let batch = task.train_batch(0, 0, train.batch);
    let sizes = subject.sizes();
    let tokens_per_step = Some(batch.rows * batch.len);
    let subject = Subject {
        operator: "step",
        case: subject.name.clone(),
        pass: "step",
        sizes,
        work: None,
        tokens: tokens_per_step,
    };
    bench.time_parts(subject, PARTS, || {
        let start = Instant::now();
        let output = model.forward(tokens(&batch, &device), &cx);
        let losses = step::losses(task, LossWeights { task: true, index: train.index_loss }, &batch, &output);
        let _loss = losses.total.clone().try_into_scalar::<f32>()?;
        let forward = start.elapsed().as_secs_f64();
        let (grads, norms) = step::gradients(&model, &losses.total, train.trainable);
        bench.device.sync()?;
        let backward = start.elapsed().as_secs_f64();
        model = optimizer.step(model.clone(), grads, &norms, train.learning_rate);
        bench.device.sync()?;
        Ok([forward, backward - forward, start.elapsed().as_secs_f64() - backward])
    })
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::bench::Effort;

    #[test]
    fn the_model_is_the_quickstarts() {
        let step = quickstart().unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/quickstart.toml");
        let theirs = AblationConfig::load(Path::new(path)).unwrap();
        let variant = theirs.variants.iter().find(|variant| variant.name == "full + reuse").unwrap();
        assert_eq!(step.run.model_for(&*step.task).unwrap(), variant.run.model);
        assert_eq!((step.run.train.batch, step.task.seq_len()), (variant.run.train.batch, 48));
    }

    #[test]
    fn a_step_has_three_parts() {
        let bench = Bench::new(Device::flex(), Effort { repetitions: 1, seconds: 0.0 });
        let mut step = quickstart().unwrap();
        step.run.train.batch = 2;
        let row = run(&bench, &step).unwrap();
        let parts: f64 = row.parts.iter().map(|(_, seconds)| seconds).sum();
        assert_eq!(row.parts.len(), 3);
        assert!(row.parts.iter().all(|(_, seconds)| *seconds > 0.0) && parts <= row.timing.median, "{row:?}");
        assert_eq!(row.subject.tokens, Some(96));
    }
}
