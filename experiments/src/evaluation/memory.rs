//! What a measurement holds in memory, told before it starts.

use std::collections::BTreeSet;

use csa2_model::config::{FfnConfig, ModelConfig, Residual};
use csa2_model::mix::Mode;
use csa2_train::recall::{MOST_PAIRS, pairs};

/// Bytes of a number.
const NUMBER: u128 = 4;

/// Bytes that measuring `rows` sequences of `seq` tokens at a time needs at its peak: about, and rather too much than too little.
pub fn needed(config: &ModelConfig, seq: usize, rows: usize) -> u128 {
    let wide = |size: usize| size as u128;
    let layers = config.layers.layers();
    let entries = |ratio: usize| wide((seq / ratio.max(1)).max(1));
    // Which entries every token sees: a table for each ratio, held twice while it is made.
    let ratios: BTreeSet<usize> =
        layers.iter().filter(|layer| layer.mode.takes_ratio()).map(|layer| layer.ratio).collect();
    let tables = 2 * ratios.iter().map(|&ratio| wide(seq) * entries(ratio)).sum::<u128>();
    // What selections are worth is kept of all layers until the end of a pass, and sorted and read back layer by layer.
    let measured = pairs(&config.layers, seq) <= MOST_PAIRS;
    let selecting = || layers.iter().filter(|layer| layer.mode.has_indexer());
    let masses = selecting().map(|layer| wide(rows) * wide(seq) * entries(layer.ratio));
    let masses = if measured { 2 * masses.clone().sum::<u128>() + 4 * masses.max().unwrap_or(0) } else { 0 };
    // Vectors of one token: of the stream, of a layer with all that is in use at once, of what layers share, and the logits.
    let streams = match config.residual {
        Residual::Plain => 1,
        Residual::Hyper { streams } => streams,
    };
    let heads = wide(config.heads) * wide(config.head_dim);
    let index = wide(config.index_heads) * wide(config.index_dim + 1) + wide(config.index_dim);
    let attention = 4 * heads
        + 2 * index
        + 4 * wide(config.head_dim)
        + 2 * wide(config.topk)
        + wide(config.query_rank.unwrap_or(0));
    let ffn = match config.ffn {
        FfnConfig::Dense { width } => 4 * wide(width),
        FfnConfig::Moe { active, shared, width, experts, .. } => {
            4 * wide(active + shared) * wide(width) + wide(experts)
        }
    };
    let addresses =
        wide(layers.iter().filter(|layer| !matches!(layer.mode, Mode::Swa | Mode::Dense)).count()) * wide(config.topk);
    let logits = 3 * wide(config.vocab_size.unwrap_or(0));
    let token = 4 * wide(streams) * wide(config.d_model) + attention.max(ffn) + addresses + logits;
    NUMBER * (tables + masses + wide(rows) * wide(seq) * token)
}

/// `1.5 GiB`.
pub fn size(bytes: u128) -> String {
    let scaled = bytes as f64;
    match bytes {
        0..1_048_576 => format!("{:.1} KiB", scaled / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", scaled / 1_048_576.0),
        _ => format!("{:.1} GiB", scaled / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::testing::config;

    #[test]
    fn tables_of_tokens_and_entries_are_counted() {
        let exact = config("full reuse").model;
        let half = config("full@2 reuse").model;
        // Beyond the length to which selections are measured only the tables differ.
        let seq = 1 << 13;
        let expected = 2 * 4 * (seq as u128) * (seq as u128 - seq as u128 / 2);
        assert_eq!(needed(&exact, seq, 1) - needed(&half, seq, 1), expected);
        assert!(needed(&exact, 1 << 16, 1) > 1 << 35, "65536 x 65536 places twice");
        // Rows add vectors, not tables.
        let vectors = needed(&exact, seq, 2) - needed(&exact, seq, 1);
        assert_eq!(needed(&exact, seq, 5) - needed(&exact, seq, 1), 4 * vectors);
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!([512, 3 << 20, 5 << 29].map(size), ["0.5 KiB", "3.0 MiB", "2.5 GiB"]);
    }
}
