//! How weights start.

use std::cell::RefCell;
use std::collections::BTreeSet;

use burn::tensor::Device;
use csa2_model::checkpoint::weights;
use csa2_model::config::{FfnConfig, ModelConfig};
use csa2_model::init::initialize;
use csa2_model::model::Model;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::common::small;

#[test]
fn every_kind_of_weight_starts_as_stated() {
    let sizes = ModelConfig {
        vocab_size: Some(100),
        d_model: 64,
        heads: 4,
        head_dim: 32,
        query_rank: Some(48),
        output_rank: Some(40),
        index_dim: 24,
        ffn: FfnConfig::Dense { width: 80 },
        ..small::config("swa full@2 reindex")
    };
    let paths = RefCell::new(Vec::new());
    let stream = |path: &str| {
        paths.borrow_mut().push(path.to_string());
        StdRng::seed_from_u64(paths.borrow().len() as u64)
    };
    let model = initialize(Model::new(&sizes, Some(1), &Device::flex()).unwrap(), -2.5, stream);
    let found = weights(&model).unwrap();
    let paths = paths.into_inner();
    assert_eq!(paths.len(), found.len(), "one stream a weight");
    assert_eq!(paths.iter().collect::<BTreeSet<_>>().len(), paths.len(), "each its own");

    for (name, weight) in found {
        let values = &weight.values;
        if weight.dims.len() == 1 {
            let start = if name.ends_with("attn_sink") { -2.5 } else { 1.0 };
            assert_eq!(*values, vec![start; values.len()], "{name}");
            continue;
        }
        // Official matrices lie [outputs, inputs].
        let inputs = weight.dims[1] as f64;
        let deviation = match name.as_str() {
            "embed.weight" => 1.0,
            name if name.ends_with("wo_b.weight") || name.ends_with("w2.weight") => 0.5 * inputs.powf(-0.5),
            _ => inputs.powf(-0.5),
        };
        let count = values.len() as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
        let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
        // Five standard errors of either.
        assert!(mean.abs() < 5.0 * deviation / count.sqrt(), "{name}: mean {mean}");
        let ratio = variance.sqrt() / deviation;
        assert!((ratio - 1.0).abs() < 5.0 / (2.0 * count).sqrt(), "{name}: {ratio} times the deviation stated");
    }
}
