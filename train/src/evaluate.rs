//! Measuring a model on a task's evaluation set.

use std::collections::BTreeMap;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, TensorReadError};
use csa2_model::attention::{Context, IndexLoss};
use csa2_model::config::ModelConfig;
use csa2_model::model::{Model, ModelOutput};
use rand::Rng;

use crate::losses::Targets;
use crate::random;
use crate::recall::{self, Recall};
use crate::tasks::{Batch, Metric, Task};

/// The context of an evaluation of sequences of `seq` tokens: sparse, quantized where the model is, with selections recorded where they
/// are not too large, and the indexers' losses measured where their kind is given.
pub fn measuring(config: &ModelConfig, seq: usize, kind: Option<IndexLoss>, device: &Device) -> Context {
    let measured = recall::pairs(&config.layers, seq) <= recall::MOST_PAIRS;
    Context::new(config, seq, DType::F32, device).with_lessons(kind).with_selections(measured)
}

/// What a model answered at one position with a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Place in the flattened batch: sequence times length plus position.
    pub place: usize,
    /// Cross-entropy in nats.
    pub loss: f64,
    /// Whether the target got the highest output.
    pub correct: bool,
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

    /// Adds what a model answered to a batch, and says it of every position with a target, in their order.
    ///
    /// # Errors
    /// When the device cannot be read.
    pub fn add(&mut self, batch: &Batch, output: &ModelOutput) -> Result<Vec<Outcome>, TensorReadError> {
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
        let Some(logits) = targets.select(output.logits.clone().detach()) else { return Ok(Vec::new()) };
        let answers: Vec<i64> = logits.clone().argmax(1).try_into_data()?.convert::<i64>().iter().collect();
        let losses: Vec<f32> = targets.cross_entropy(logits).try_into_data()?.iter().collect();
        let mut outcomes = Vec::with_capacity(targets.ids.len());
        for (((&place, &id), answer), loss) in targets.places.iter().zip(&targets.ids).zip(answers).zip(losses) {
            let (place, loss, is_correct) = (place as usize, f64::from(loss), answer == i64::from(id));
            outcomes.push(Outcome { place, loss, correct: is_correct });
            let correct = f64::from(u8::from(is_correct));
            self.loss += loss;
            self.count += 1.0;
            self.correct += correct;
            let tag = usize::try_from(batch.tags[place]).ok().and_then(|tag| self.tags.get_mut(tag));
            if let Some((count, right, sum)) = tag {
                *count += 1.0;
                *right += correct;
                *sum += loss;
            }
        }
        Ok(outcomes)
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
    let batches = (0..task.eval_batches(rows)).map(|index| task.eval_batch(index, rows));
    evaluate_on(model, task, cx, batches, device)
}

/// Runs `batches` of the task's sequences.
///
/// # Errors
/// When the device cannot be read.
pub fn evaluate_on(
    model: &Model,
    task: &dyn Task,
    cx: &Context,
    batches: impl Iterator<Item = Batch>,
    device: &Device,
) -> Result<BTreeMap<String, f64>, TensorReadError> {
    let mut tally = Tally::new(task);
    for batch in batches {
        tally.add(&batch, &model.forward(tokens(&batch, device), cx))?;
    }
    Ok(tally.values())
}

/// `sequences` training sequences that no run is trained on: of a stream of their own, named by `seed`, at most `rows` a batch.
/// (A task on text draws them from the training files, so their bytes may well have been trained on.)
pub fn calibration(task: &dyn Task, seed: u64, sequences: usize, rows: usize) -> impl Iterator<Item = Batch> + '_ {
    let own = random::stream(seed, random::CALIBRATION, 0).next_u64();
    let rows = rows.max(1);
    (0..sequences.div_ceil(rows))
        .map(move |index| task.train_batch(own, index as u64, rows.min(sequences - index * rows)))
}

/// `sequences` different sequences of the evaluation set, drawn by `seed`, in ascending order, at most `rows` a batch.
pub fn sample(task: &dyn Task, seed: u64, sequences: usize, rows: usize) -> impl Iterator<Item = Batch> + '_ {
    let mut rng = random::stream(seed, random::SAMPLE, 0);
    let drawn = random::subset(&mut rng, task.eval_sequences(), sequences);
    let batches: Vec<Vec<usize>> = drawn.chunks(rows.max(1)).map(<[usize]>::to_vec).collect();
    batches.into_iter().map(move |numbers| Batch::joined(numbers.into_iter().map(|number| task.eval_batch(number, 1))))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::tasks::MqarConfig;

    #[test]
    fn calibration_is_no_training_batch_and_does_not_depend_on_its_last_rows() {
        let task = MqarConfig::default().build(Path::new("")).unwrap();
        let batches = |sequences, rows| calibration(&task, 3, sequences, rows).collect::<Vec<_>>();
        let rows: Vec<usize> = batches(10, 4).iter().map(|batch| batch.rows).collect();
        assert_eq!(rows, [4, 4, 2]);
        assert_eq!(batches(8, 4)[..], batches(10, 4)[..2]);
        assert_ne!(batches(4, 4)[0], task.train_batch(3, 0, 4));
        let other = calibration(&task, 4, 4, 4).next().unwrap();
        assert_ne!(batches(4, 4)[0], other);
    }

    #[test]
    fn a_sample_has_every_sequence_once() {
        let config = MqarConfig { eval_sequences: 9, ..MqarConfig::default() };
        let task = config.build(Path::new("")).unwrap();
        let whole = task.eval_batch(0, 9);
        let joined = Batch::joined(sample(&task, 1, 9, 4));
        assert_eq!(joined, whole);
        let len = task.seq_len();
        let sequences = |seed| {
            let batches: Vec<Batch> = sample(&task, seed, 5, 2).collect();
            assert_eq!(batches.iter().map(|batch| batch.rows).collect::<Vec<_>>(), [2, 2, 1]);
            let place = |row: &[i32]| whole.tokens.chunks(len).position(|known| known == row).unwrap();
            batches.iter().flat_map(|batch| batch.tokens.chunks(len).map(place).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        for seed in [0, 1] {
            assert!(sequences(seed).is_sorted_by(|a, b| a < b), "{:?}", sequences(seed));
        }
        assert_ne!(sequences(0), sequences(1));
    }
}
