//! The parts of one training step between forward pass and update, for the training loop and for whoever times them.

use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use csa2_model::model::{Model, ModelOutput};

use crate::indexers::LossWeights;
use crate::losses::Targets;
use crate::optimizer::{GradientNorms, Optimizer};
use crate::tasks::{Batch, Task};
use crate::trainable::Trainable;

/// What one forward pass comes to.
pub struct StepLosses {
    /// What is minimised `[1]`.
    pub total: Tensor<1>,
    /// The auxiliary head's part before its weight, where the task has one.
    pub hint: Option<Tensor<1>>,
}

/// The language model's loss and the auxiliary head's, where the task counts, and, times their factor, the indexers'.
pub fn losses(task: &dyn Task, weights: LossWeights, batch: &Batch, output: &ModelOutput) -> StepLosses {
    let device = output.logits.device();
    let mean = |targets: &[i32], logits: Tensor<3>| {
        let targets = Targets::new(targets);
        targets.select(logits).map(|logits| targets.cross_entropy(logits).mean())
    };
    let language = weights.task.then(|| mean(&batch.targets, output.logits.clone())).flatten();
    let mut total = language.unwrap_or_else(|| Tensor::zeros([1], &device));
    let hint = match (&batch.hint_targets, &output.hint) {
        (Some(targets), Some(logits)) => mean(targets, logits.clone()),
        _ => None,
    };
    if let (Some(hint), Some(auxiliary)) = (&hint, task.auxiliary().filter(|_| weights.task)) {
        total = total + hint.clone().mul_scalar(auxiliary.weight);
    }
    for (_, loss) in &output.index_losses {
        total = total + loss.clone().mul_scalar(weights.index);
    }
    StepLosses { total, hint }
}

/// The gradients of a loss for every parameter of `model` that trains, and their norms.
pub fn gradients(model: &Model, loss: &Tensor<1>, trainable: Trainable) -> (GradientsParams, GradientNorms) {
    let mut grads = loss.backward();
    let mut grads = GradientsParams::from_module(&mut grads, model);
    trainable.keep(model, &mut grads);
    let norms = Optimizer::norms(model, &grads);
    (grads, norms)
}
