//! Which parameters train: everything, or a part while the rest stays as it is.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use csa2_model::checkpoint::{ParameterPath, is_indexer};
use csa2_model::model::Model;
use serde::{Deserialize, Serialize};

/// The parameters that train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trainable {
    /// All.
    #[default]
    Everything,
    /// Those of attention layers, indexers included.
    Attention,
    /// Those of indexers.
    Indexers,
}

impl Trainable {
    /// Whether this is what a configuration without the key has.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a parameter trains, by official name.
    pub fn includes(self, official: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Attention => official.contains(".attn."),
            Self::Indexers => is_indexer(official),
        }
    }

    /// Takes away the gradients of what does not train.
    pub fn keep(self, model: &Model, grads: &mut GradientsParams) {
        if self != Self::Everything {
            model.visit(&mut Freeze { path: ParameterPath::default(), trainable: self, grads });
        }
    }
}

struct Freeze<'a> {
    path: ParameterPath,
    trainable: Trainable,
    grads: &'a mut GradientsParams,
}

impl ModuleVisitor for Freeze<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.trainable.includes(&self.path.official()) {
            self.grads.remove::<D>(param.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_by_name() {
        for (name, attention, indexer) in [
            ("layers.1.attn.wq_b.weight", true, false),
            ("layers.1.attn.indexer.wq_b.weight", true, true),
            ("layers.1.attn_norm.weight", false, false),
            ("layers.1.ffn.w1.weight", false, false),
            ("embed.weight", false, false),
        ] {
            assert!(Trainable::Everything.includes(name));
            assert_eq!(Trainable::Attention.includes(name), attention, "{name}");
            assert_eq!(Trainable::Indexers.includes(name), indexer, "{name}");
        }
    }
}
