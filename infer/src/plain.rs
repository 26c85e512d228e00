//! Decoding that runs the whole sequence again for every token: slow, and right by construction.

use burn::tensor::{DType, Device, Tensor, TensorData, TensorReadError};
use csa2_model::attention::Context;
use csa2_model::config::ModelConfig;
use csa2_model::model::Model;

/// Logits `[V]` of the token after `tokens` (at least one).
///
/// # Errors
/// When the device cannot be read.
pub fn next_logits(
    model: &Model,
    config: &ModelConfig,
    tokens: &[i32],
    device: &Device,
) -> Result<Vec<f32>, TensorReadError> {
    let seq = tokens.len();
    let cx = Context::new(config, seq, DType::F32, device);
    let input = Tensor::from_data(TensorData::new(tokens.to_vec(), [1, seq]), device);
    let logits = model.forward(input, &cx).logits;
    let last = logits.narrow(1, seq.saturating_sub(1), 1);
    Ok(last.try_into_data()?.iter::<f32>().collect())
}

/// Continues `prompt` (at least one token) by `count` tokens, each the one with the largest logit; of equal ones, the lowest.
///
/// # Errors
/// When the device cannot be read.
pub fn greedy(
    model: &Model,
    config: &ModelConfig,
    prompt: &[i32],
    count: usize,
    device: &Device,
) -> Result<Vec<i32>, TensorReadError> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let logits = next_logits(model, config, &tokens, device)?;
        let better = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
        tokens.push((0..logits.len()).fold(0, better) as i32);
    }
    Ok(tokens.split_off(prompt.len()))
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use csa2_model::init::initialize;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn tiny(device: &Device) -> (ModelConfig, Model) {
        let config: ModelConfig = toml::from_str(
            "layers = 'swa full@2+pool reuse reindex'\nvocab_size = 11\nd_model = 16\nheads = 2\nhead_dim = 8\nrope_dim = 4\n\
             window = 3\ntopk = 2\nindex_heads = 2\nindex_dim = 4\npool = { blocks = 2, block_size = 2 }\n\
             ffn = { kind = 'dense', width = 16 }",
        )
        .unwrap();
        let model = Model::new(&config, None, device).unwrap();
        let model = initialize(model, 0.0, |path| ChaCha8Rng::seed_from_u64(path.len() as u64));
        (config, model)
    }

    #[test]
    fn the_whole_pass_predicts_what_token_by_token_decoding_does() {
        let device = Device::flex();
        let (config, model) = tiny(&device);
        let prompt = [3, 1, 4, 1, 5];
        let answer = greedy(&model, &config, &prompt, 9, &device).unwrap();
        let whole: Vec<i32> = prompt.iter().chain(&answer).copied().collect();
        let cx = Context::new(&config, whole.len(), DType::F32, &device);
        let input = Tensor::from_data(TensorData::new(whole.clone(), [1, whole.len()]), &device);
        let best: Vec<i64> = model.forward(input, &cx).logits.argmax(2).into_data().convert::<i64>().iter().collect();
        for (at, &token) in whole.iter().enumerate().skip(prompt.len()) {
            assert_eq!(best[at - 1], i64::from(token), "token {at}");
        }
        assert!(answer.iter().collect::<std::collections::BTreeSet<_>>().len() > 1, "a constant answer tests nothing");
    }
}
