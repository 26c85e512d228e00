//! The families of golden cases, told apart by how a file's name begins.

use super::Place;
use super::case::Case;
use super::check::Check;
use super::error::CaseError;
use super::families::{
    attention, attention_gradient, block, candidates, components, compressor, geometry, model, model_gradient, numbers,
    readout, trace,
};

/// What cases of one prefix pin.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// How the names of its files begin.
    pub prefix: &'static str,
    /// What it pins, in a few words.
    pub about: &'static str,
    /// Compares one case.
    pub run: fn(&mut Check, &Place) -> Result<(), CaseError>,
}

/// All families; of two prefixes that fit, the longer one comes first.
pub const FAMILIES: [Family; 12] = [
    Family { prefix: "a_", about: "read-out", run: readout::run },
    Family { prefix: "b_attn_grad", about: "gradients of an attention layer", run: attention_gradient::run },
    Family { prefix: "b_attn", about: "attention layer", run: attention::run },
    Family { prefix: "b_block", about: "block", run: block::run },
    Family { prefix: "c_trace", about: "model, layer by layer", run: trace::run },
    Family { prefix: "c_model", about: "model", run: model::run },
    Family { prefix: "d_", about: "candidate pool", run: candidates::run },
    Family { prefix: "e_", about: "number formats", run: numbers::run },
    Family { prefix: "f_", about: "compressor", run: compressor::run },
    Family { prefix: "g_grad", about: "gradients of a model", run: model_gradient::run },
    Family { prefix: "h_", about: "components", run: components::run },
    Family { prefix: "k_", about: "geometry", run: geometry::run },
];

impl Family {
    /// The family of the case `name`, if any.
    pub fn of(name: &str) -> Option<Self> {
        FAMILIES.into_iter().find(|family| name.starts_with(family.prefix))
    }

    /// Refuses a case whose JSON says that it is of another kind: the letter that names begin with.
    ///
    /// # Errors
    /// When it says so.
    pub fn fits(self, case: &Case) -> Result<(), CaseError> {
        let letter = self.prefix.split_once('_').map_or(self.prefix, |(letter, _)| letter);
        match case.find("case") {
            Some(found) if found != letter => {
                Err(CaseError::key("case", format!("is {found}, but the file's name is that of a case {letter:?}")))
            }
            _ => Ok(()),
        }
    }

    /// The prefixes of all families, for people.
    pub fn prefixes() -> String {
        FAMILIES.map(|family| family.prefix).join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_prefix_wins() {
        let of = |name| Family::of(name).map(|family| family.prefix);
        assert_eq!(of("b_attn_grad_window"), Some("b_attn_grad"));
        assert_eq!(of("b_attn_reindex"), Some("b_attn"));
        assert_eq!(of("c_model5_quant"), Some("c_model"));
        assert_eq!(of("b_other"), None);
        assert_eq!(of("x"), None);
    }
}
