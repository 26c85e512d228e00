//! The whole model of a case, with its weights and its token ids.

use burn::tensor::{Device, Int, Tensor};
use csa2_model::checkpoint::load;
use csa2_model::config::ModelConfig;
use csa2_model::model::Model;
use csa2_model::ops;

use super::case::{Array, Case, int_tensor};
use super::check::{Check, numbers};
use super::error::CaseError;
use super::sizes::{check_model, check_rows};
use super::tolerance::Tolerance;

/// A model and the tokens that it is run on.
pub struct Network {
    /// The configuration.
    pub config: ModelConfig,
    /// The model.
    pub model: Model,
    /// Token ids `[B, S]`.
    pub ids: Array<i64>,
    /// Sequences.
    pub batch: usize,
    /// Tokens of a sequence.
    pub seq: usize,
}

impl Network {
    /// The model that `case` is of, on `device`.
    ///
    /// # Errors
    /// When the case lacks something, or its weights are not those of its configuration.
    pub fn load(case: &Case, config: ModelConfig, device: &Device) -> Result<Self, CaseError> {
        let weights = case.weights_anywhere("weights.")?;
        check_model(&config, &weights)?;
        let [batch, seq] = case.dims("input_ids")?;
        check_rows(&config, batch, seq)?;
        let vocabulary = config.vocab_size.unwrap_or_default() as i64;
        let ids = case.ints("input_ids", &[batch, seq], 0..vocabulary)?;
        let model = load(Model::new(&config, None, device)?, weights, case.name())?;
        Ok(Self { config, model, ids, batch, seq })
    }

    /// The token ids `[B, S]` on a device.
    pub fn tokens(&self, device: &Device) -> Tensor<2, Int> {
        int_tensor(self.ids.values.clone(), [self.batch, self.seq], device)
    }
}

/// Compares the mean cross-entropy of the next token, from the logits `[B, S, V]` of every token but the last, and returns it `[1]`.
///
/// # Errors
/// When the case holds no loss or has sequences of one token, or the device cannot be read.
pub fn compare_loss(
    check: &mut Check,
    logits: Tensor<3>,
    tokens: Tensor<2, Int>,
    tolerance: Tolerance,
) -> Result<Tensor<1>, CaseError> {
    let [batch, seq, vocabulary] = logits.dims();
    if seq < 2 {
        let expected = "at least two tokens, so that there is a next one".into();
        return Err(CaseError::Shape { name: "input_ids".into(), found: vec![batch, seq], expected });
    }
    let rows = batch * (seq - 1);
    let logits = logits.narrow(1, 0, seq - 1).reshape([rows, vocabulary]);
    let targets = tokens.narrow(1, 1, seq - 1).reshape([rows]);
    let loss = ops::cross_entropy(logits, targets).mean();
    let found = numbers(loss.clone())?;
    check.close("loss", &found, &check.case.floats("loss", &[])?, tolerance);
    if check.case.has("f64.loss") {
        check.close("f64.loss", &found, &check.case.floats("f64.loss", &[])?, tolerance);
    }
    Ok(loss)
}
