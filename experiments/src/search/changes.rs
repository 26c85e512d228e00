//! The single changes of a mix that need no new weights.

use csa2_model::mix::{LayerPlan, MixError, Mode};
use serde::Serialize;

/// One layer in another mode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The layer.
    pub layer: usize,
    /// Its mode.
    pub from: Mode,
    /// Its mode after the change.
    pub to: Mode,
    /// The mix after the change.
    #[serde(rename = "mix")]
    pub plan: LayerPlan,
}

/// A change that is no candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Excluded {
    /// The layer.
    pub layer: usize,
    /// Its mode.
    pub from: Mode,
    /// The mode that it cannot get.
    pub to: Mode,
    /// Why.
    pub why: String,
}

/// The modes that a layer can get without new weights.
pub fn targets(mode: Mode, full_to_reindex: bool) -> &'static [Mode] {
    match mode {
        Mode::Full if full_to_reindex => &[Mode::Reindex, Mode::Reuse],
        Mode::Full | Mode::Reindex => &[Mode::Reuse],
        Mode::Swa | Mode::Reuse | Mode::Stale | Mode::Dense => &[],
    }
}

/// Every single change of a mix, from the bottom layer up, and those that cannot be.
pub fn changes(plan: &LayerPlan, full_to_reindex: bool) -> (Vec<Change>, Vec<Excluded>) {
    let (mut candidates, mut excluded) = (Vec::new(), Vec::new());
    for layer in plan.layers() {
        for &to in targets(layer.mode, full_to_reindex) {
            let (index, from) = (layer.index, layer.mode);
            let changed = plan.with_mode(index, to).map_err(|error| match error {
                MixError::NoContent { layer, .. } if layer == index => "no `full` lies below it".to_string(),
                other => other.to_string(),
            });
            match changed.and_then(|changed| same_pools(plan, &changed).map(|()| changed)) {
                Ok(plan) => candidates.push(Change { layer: index, from, to, plan }),
                Err(why) => excluded.push(Excluded { layer: index, from, to, why }),
            }
        }
    }
    (candidates, excluded)
}

/// A layer that searches in a candidate pool must go on to search in the same, and one that searches everything must not come to
/// search in one: a model is not to be run with another pool than it was trained with.
fn same_pools(before: &LayerPlan, after: &LayerPlan) -> Result<(), String> {
    for (was, is) in before.layers().iter().zip(after.layers()).filter(|(_, is)| is.mode == Mode::Reindex) {
        let layer = is.index;
        match (was.pool_from, is.pool_from) {
            (was, is) if was == is => {}
            (Some(builder), _) => {
                return Err(format!("layer {layer} searches in the pool of layer {builder}, which would be gone"));
            }
            (None, Some(builder)) => {
                return Err(format!(
                    "layer {layer} would search in the pool of layer {builder}, where it searched everything"
                ));
            }
            (None, None) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(mix: &str, full_to_reindex: bool) -> (Vec<String>, Vec<String>) {
        let (candidates, excluded) = changes(&mix.parse().unwrap(), full_to_reindex);
        let candidates = candidates.iter().map(|change| format!("{} {}: {}", change.layer, change.to, change.plan));
        let excluded = excluded.iter().map(|no| format!("{} {}: {}", no.layer, no.to, no.why));
        (candidates.collect(), excluded.collect())
    }

    #[test]
    fn every_selecting_layer_but_the_lowest_full_can_change() {
        let (candidates, excluded) = found("swa full@2 reindex full reuse", true);
        let expected = [
            "2 reuse: swa full@2 reuse full reuse",
            "3 reindex: swa full@2 reindex*2 reuse",
            "3 reuse: swa full@2 reindex reuse*2",
        ];
        assert_eq!(candidates, expected);
        assert_eq!(excluded.len(), 2);
        assert_eq!(excluded[0], "1 reindex: no `full` lies below it");
        let (candidates, _) = found("full*2", false);
        assert_eq!(candidates, ["1 reuse: full reuse"]);
        assert!(found("swa dense*2", true) == (vec![], vec![]));
    }

    #[test]
    fn a_layer_keeps_the_pool_that_it_searches_in() {
        let (candidates, excluded) = found("full full+pool reindex full reindex", true);
        // The pool's builder has a searcher; the full above could only become one.
        assert_eq!(
            candidates,
            ["2 reuse: full full+pool reuse full reindex", "4 reuse: full full+pool reindex full reuse"]
        );
        let why: Vec<&String> = excluded.iter().filter(|text| !text.starts_with('0')).collect();
        assert_eq!(
            why,
            [
                "1 reindex: layer 2 searches in the pool of layer 1, which would be gone",
                "1 reuse: layer 2 searches in the pool of layer 1, which would be gone",
                "3 reindex: layer 3 would search in the pool of layer 1, where it searched everything",
                "3 reuse: layer 4 would search in the pool of layer 1, where it searched everything",
            ]
        );
        // Once nobody searches in it, the builder may go, and the pool with it.
        let (candidates, _) = found("full full+pool reuse", false);
        assert_eq!(candidates, ["1 reuse: full reuse*2"]);
    }

    #[test]
    fn what_the_mix_language_refuses_is_no_candidate() {
        let (candidates, excluded) = found("full full@2 stale@2", false);
        assert_eq!(candidates, [""; 0]);
        assert!(excluded[1].contains("layer 2 (`stale`) has ratio 2 but reads the address of layer 0"), "{excluded:?}");
    }
}
