//! Runs made by hand: a tiny task, and weights that differ from layer to layer.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use burn::tensor::Device;
use csa2_model::checkpoint::{Weight, encode, weights};
use csa2_model::config::ModelConfig;
use csa2_model::init::initialize;
use csa2_model::model::Model;
use csa2_train::checkpoints::Store;
use csa2_train::config::RunConfig;
use csa2_train::files::FileError;
use csa2_train::random;

/// Everything of a run but its mix.
const RUN: &str = "\
[task]
kind = \"mqar\"
pairs = 2
keys = 4
values = 4
fillers = 2
region = 8
gap = 2
queries = 6
eval_sequences = 12

[model]
layers = \"MIX\"
vocab_size = 10
d_model = 16
heads = 2
head_dim = 8
rope_dim = 4
window = 4
topk = 3
index_heads = 2
index_dim = 8
ffn = { kind = \"dense\", width = 16 }

[train]
tokens = 2_240
batch = 8
learning_rate = 3e-3
";

/// The configuration of a run of `mix`.
pub fn config(mix: &str) -> RunConfig {
    toml::from_str(&RUN.replace("MIX", mix)).unwrap()
}

/// Weights with enough in them that every change of a mix is seen.
pub fn random_weights(model: &ModelConfig, seed: u64) -> BTreeMap<String, Weight> {
    let model = Model::new(model, None, &Device::flex()).unwrap();
    let model = initialize(model, 0.0, |path| random::stream(seed, path, 0));
    let mut all = weights(&model).unwrap();
    for (name, weight) in &mut all {
        let factor = if name.contains("indexer") || name.contains("w2.weight") { 4.0 } else { 2.0 };
        weight.values.iter_mut().for_each(|value| *value *= factor);
    }
    all
}

/// Writes a run into `folder`.
pub fn save(folder: &Path, config: &RunConfig, weights: &BTreeMap<String, Weight>) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.toml"), toml::to_string(config).unwrap()).unwrap();
    let bytes = encode(weights).unwrap();
    Store::new(folder)
        .save_weights("hash", &config.model, |path, mut file| {
            file.write_all(&bytes).map_err(|source| FileError::writing(path, source)).map(|()| file)
        })
        .unwrap();
}
