//! Which model a cache belongs to.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor};
use csa2_model::config::ModelConfig;
use csa2_model::model::Model;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Hashes of what must be equal for a cache to mean the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    /// Of the configuration, every default written out.
    pub(crate) config: String,
    /// Of all weights, their shapes and numbers in the network's order.
    pub(crate) weights: String,
}

impl Identity {
    pub(crate) fn of(model: &Model, config: &ModelConfig) -> Self {
        let text = serde_json::to_string(config).expect("a configuration can be written");
        let mut hash = Hash(Xxh3::new());
        model.visit(&mut hash);
        Self { config: format!("{:032x}", xxh3_128(text.as_bytes())), weights: format!("{:032x}", hash.0.digest128()) }
    }
}

struct Hash(Xxh3);

impl ModuleVisitor for Hash {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let data = param.val().into_data();
        for size in data.shape().iter() {
            self.0.update(&(*size as u64).to_le_bytes());
        }
        self.0.update(data.bytes());
    }
}

/// The number format of a model's weights: that of the first one that is not f32, if there is one.
pub(crate) fn other_than_f32(model: &Model) -> Option<DType> {
    struct Find(Option<DType>);
    impl ModuleVisitor for Find {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let found = param.val().dtype();
            if found != DType::F32 && self.0.is_none() {
                self.0 = Some(found);
            }
        }
    }
    let mut find = Find(None);
    model.visit(&mut find);
    find.0
}
