//! Measuring a model on a task's evaluation set.

use std::collections::BTreeMap;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, TensorReadError};
use csa2_model::attention::{Context, IndexLoss};
use csa2_model::config::ModelConfig;
use csa2_model::model::{Model, ModelOutput};

use crate::losses::Targets;
use crate::recall::Recall;
use crate::tasks::{Batch, Metric, Task};

/// Selections are measured on sequences of at most that many pairs of a token and an entry.
const MEASURED: usize = 1 << 22;

/// The context of an evaluation of sequences of `seq` tokens: sparse, quantized where the model is, with selections recorded where they
/// are not too large, and the indexers' losses measured where their kind is given.
pub fn measuring(config: &ModelConfig, seq: usize, kind: Option<IndexLoss>, device: &Device) -> Context {
    let pairs = config.layers.layers().iter().filter(|layer| layer.ratio > 0).map(|layer| seq * (seq / layer.ratio));
    let measured = pairs.max().unwrap_or(0) <= MEASURED;
    Context::new(config, seq, DType::F32, device).with_lessons(kind).with_selections(measured)
}

/// Sums over positions with a target, and what they come to.
pub struct Tally<'a> {
    task: &'a dyn Task,
    loss: f64,
    count: f64,
    correct: f64,
    /// Per tag: targets, correct ones, cross-entropy.
    tags: Vec<(f64, f64, f64)>,
    index_kl: BTreeMap<usize, f64>,
    /// Per layer: tokens that each expert got.
    loads: BTreeMap<usize, Vec<usize>>,
    recall: Recall,
    batches: f64,
}

impl<'a> Tally<'a> {
    /// Nothing measured yet.
    pub fn new(task: &'a dyn Task) -> Self {
        let tags = vec![(0.0, 0.0, 0.0); task.tags().len()];
        Self {
            task,
            loss: 0.0,
            count: 0.0,
            correct: 0.0,
            tags,
            index_kl: BTreeMap::new(),
            loads: BTreeMap::new(),
            recall: Recall::default(),
            batches: 0.0,
        }
    }

    /// Adds what a model answered to a batch.
    ///
    /// # Errors
    /// When the device cannot be read.
    pub fn add(&mut self, batch: &Batch, output: &ModelOutput) -> Result<(), TensorReadError> {
        self.batches += 1.0;
        for (layer, loss) in &output.index_losses {
            *self.index_kl.entry(*layer).or_default() += f64::from(loss.clone().try_into_scalar::<f32>()?);
        }
        for (layer, load) in &output.loads {
            let sums = self.loads.entry(*layer).or_insert_with(|| vec![0; load.len()]);
            sums.iter_mut().zip(load).for_each(|(sum, count)| *sum += count);
        }
        self.recall.add(&output.selections)?;
        let targets = Targets::new(&batch.targets);
        let Some(logits) = targets.select(output.logits.clone().detach()) else { return Ok(()) };
        let answers: Vec<i64> = logits.clone().argmax(1).try_into_data()?.convert::<i64>().iter().collect();
        let losses: Vec<f32> = targets.cross_entropy(logits).try_into_data()?.iter().collect();
        for (((&place, &id), answer), loss) in targets.places.iter().zip(&targets.ids).zip(answers).zip(losses) {
            let (correct, loss) = (f64::from(u8::from(answer == i64::from(id))), f64::from(loss));
            self.loss += loss;
            self.count += 1.0;
            self.correct += correct;
            let tag = usize::try_from(batch.tags[place as usize]).ok().and_then(|tag| self.tags.get_mut(tag));
            if let Some((count, right, sum)) = tag {
                *count += 1.0;
                *right += correct;
                *sum += loss;
            }
        }
        Ok(())
    }

    /// The values by name: `loss` (nats), the task's metric, both per tag, `index_kl` (mean) and per layer; of every layer with
    /// experts `expert_load` (the largest load over the mean one; 1 is balance) and `experts_idle` (the share without a token).
    pub fn values(&self) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::new();
        let metric = self.task.metric();
        let measure = |count: f64, correct: f64, loss: f64| match metric {
            Metric::Accuracy => correct / count,
            Metric::BitsPerByte => loss / count / std::f64::consts::LN_2,
        };
        if self.count > 0.0 {
            values.insert("loss".into(), self.loss / self.count);
            values.insert(metric.name().into(), measure(self.count, self.correct, self.loss));
        }
        for (tag, &(count, correct, loss)) in self.task.tags().iter().zip(&self.tags) {
            if count > 0.0 {
                values.insert(format!("{}/{tag}", metric.name()), measure(count, correct, loss));
            }
        }
        for (layer, loads) in &self.loads {
            let (most, total) = (loads.iter().max().copied().unwrap_or(0), loads.iter().sum::<usize>());
            let idle = loads.iter().filter(|&&count| count == 0).count();
            values.insert(format!("expert_load/layer {layer}"), (most * loads.len()) as f64 / total.max(1) as f64);
            values.insert(format!("experts_idle/layer {layer}"), idle as f64 / loads.len() as f64);
        }
        for (layer, sum) in &self.index_kl {
            values.insert(format!("index_kl/layer {layer}"), sum / self.batches);
        }
        values.extend(self.recall.values());
        if !self.index_kl.is_empty() {
            let mean = self.index_kl.values().sum::<f64>() / self.index_kl.len() as f64 / self.batches;
            values.insert("index_kl".into(), mean);
        }
        values
    }
}

/// Token ids `[rows, len]` of a batch.
pub fn tokens(batch: &Batch, device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(batch.tokens.clone(), [batch.rows, batch.len]), device)
}

/// Runs the whole evaluation set, `rows` sequences at a time.
///
/// # Errors
/// When the device cannot be read.
pub fn evaluate(
    model: &Model,
    task: &dyn Task,
    cx: &Context,
    rows: usize,
    device: &Device,
) -> Result<BTreeMap<String, f64>, TensorReadError> {
    let mut tally = Tally::new(task);
    for index in 0..task.eval_batches(rows) {
        let batch = task.eval_batch(index, rows);
        tally.add(&batch, &model.forward(tokens(&batch, device), cx))?;
    }
    Ok(tally.values())
}
