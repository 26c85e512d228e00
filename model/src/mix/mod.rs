//! The layer-mix language: which layer owns content, which owns an address, and who reads whose.
//!
//! ```text
//! swa*2 (full@2 reuse*5)*3 full+pool reuse*3 (reindex reuse*3)*4
//! ```
//! A mix is parsed once into a [`LayerPlan`]; everything else (the network, its costs, the caches) works from the plan.

mod cursor;
mod error;
mod ids;
mod parse;
mod plan;
mod print;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use error::{IdsError, MixError, SyntaxError};
pub use ids::IdLists;
pub use plan::{LayerPlan, PlannedLayer};

/// The most layers that a mix may have.
pub const MAX_LAYERS: usize = 4096;

/// The largest compression ratio.
pub const MAX_RATIO: usize = 1 << 16;

/// What a layer owns and what it reads from layers below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Reads its own window alone.
    Swa,
    /// Owns content (main KV and indexer keys) and an address (Top-K).
    Full,
    /// Reads the content of the nearest `full` below; owns an address.
    Reindex,
    /// Reads the content of the nearest `full` and the address of the nearest `full` or `reindex` below.
    Reuse,
    /// Ablation: owns content, reads the address of the nearest `full` or `reindex` below.
    Stale,
    /// Control: a window without limit, nothing shared.
    Dense,
}

impl Mode {
    /// All modes, in the order in which tables list them.
    pub const ALL: [Self; 6] = [Self::Swa, Self::Full, Self::Reindex, Self::Reuse, Self::Stale, Self::Dense];

    /// The mode as the language writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Swa => "swa",
            Self::Full => "full",
            Self::Reindex => "reindex",
            Self::Reuse => "reuse",
            Self::Stale => "stale",
            Self::Dense => "dense",
        }
    }

    /// Whether the layer has a compressor of its own, and so a ratio of its own.
    pub const fn takes_ratio(self) -> bool {
        matches!(self, Self::Full | Self::Stale)
    }

    /// Whether the layer has an indexer of its own.
    pub const fn has_indexer(self) -> bool {
        matches!(self, Self::Full | Self::Reindex)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One layer as the language states it, before anything is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LayerSpec {
    mode: Mode,
    /// Own ratio of `full` and `stale`; 0 for the others.
    ratio: usize,
    pool: bool,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn modes_are_written_as_the_language_names_them() {
        for mode in Mode::ALL {
            let quoted = format!("\"{mode}\"");
            assert_eq!(serde_json::to_string(&mode).unwrap(), quoted);
        }
    }

    /// Random layers of the given modes, with every rule kept by repair: followers without a source become windows.
    fn plans(modes: &'static [Mode]) -> impl Strategy<Value = LayerPlan> {
        let layer = (proptest::sample::select(modes), 1_usize..4, any::<bool>());
        let stretch = (proptest::collection::vec(layer, 1..7), 1_usize..4);
        proptest::collection::vec(stretch, 1..6).prop_map(|stretches| {
            let mut specs = Vec::new();
            let mut content = None;
            for (stretch, count) in stretches {
                for (mode, ratio, pool) in std::iter::repeat_n(stretch, count).flatten() {
                    let spec = match (mode, content) {
                        (Mode::Full, _) => LayerSpec { mode, ratio, pool },
                        (Mode::Stale, Some(ratio)) => LayerSpec { mode, ratio, pool: false },
                        (Mode::Reuse | Mode::Reindex, Some(_)) | (Mode::Dense, _) => {
                            LayerSpec { mode, ratio: 0, pool: false }
                        }
                        _ => LayerSpec { mode: Mode::Swa, ratio: 0, pool: false },
                    };
                    if mode == Mode::Full {
                        content = Some(ratio);
                    }
                    specs.push(spec);
                }
            }
            LayerPlan::from_specs(&specs).expect("the repaired layers keep every rule")
        })
    }

    proptest! {
        #[test]
        fn printing_parses_back(plan in plans(&Mode::ALL)) {
            let text = plan.to_string();
            let back: LayerPlan = text.parse().unwrap();
            prop_assert_eq!(&back, &plan);
            prop_assert_eq!(back.to_string(), text);
        }

        #[test]
        fn printing_is_never_longer_than_the_flat_list(plan in plans(&Mode::ALL)) {
            let flat: Vec<String> = plan.layers().iter().map(|layer| {
                let ratio = if layer.mode.takes_ratio() && layer.ratio > 1 { format!("@{}", layer.ratio) } else { String::new() };
                format!("{}{ratio}{}", layer.mode, if layer.builds_pool { "+pool" } else { "" })
            }).collect();
            prop_assert!(plan.to_string().len() <= flat.join(" ").len());
        }

        #[test]
        fn ids_come_back(plan in plans(&[Mode::Swa, Mode::Full, Mode::Reindex, Mode::Reuse])) {
            let pools = plan.layers().iter().filter(|layer| layer.builds_pool).count();
            match plan.to_ids() {
                Ok(ids) => prop_assert_eq!(LayerPlan::from_ids(&ids).unwrap(), plan),
                Err(error) => {
                    let many = matches!(error, MixError::ManyPools { .. });
                    prop_assert!(many && pools > 1);
                }
            }
        }

        #[test]
        fn any_text_gives_an_answer(text in "[a-z0-9@*+() \\PC]{0,40}") {
            let _ = text.parse::<LayerPlan>();
        }
    }
}
