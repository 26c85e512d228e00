//! The id-list form of a mix, as a Hugging Face `config.json` writes it.

use super::{IdsError, LayerPlan, LayerSpec, MAX_LAYERS, MAX_RATIO, MixError, Mode};
use serde::{Deserialize, Serialize};

/// A mix as four lists of numbers. `stale` and `dense` layers, and more than one pool, have no such form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdLists {
    /// The ratio of every layer; 0 for `swa`. Its length is the number of layers.
    pub compress_ratios: Vec<usize>,
    /// The `full` layers, ascending.
    pub kv_source_layer_ids: Vec<usize>,
    /// The `full` and `reindex` layers, ascending.
    pub index_source_layer_ids: Vec<usize>,
    /// The `full` layer that builds the candidate pool.
    #[serde(default)]
    pub candidate_source_layer_id: Option<usize>,
}

impl LayerPlan {
    /// Reads the id-list form.
    ///
    /// # Errors
    /// [`MixError::Ids`] names the first contradiction.
    pub fn from_ids(ids: &IdLists) -> Result<Self, MixError> {
        ids.check_ranges()?;
        let mut content: Option<(usize, usize)> = None;
        let mut specs = Vec::with_capacity(ids.compress_ratios.len());
        for (layer, &ratio) in ids.compress_ratios.iter().enumerate() {
            let spec = ids.spec(layer, ratio, content)?;
            if spec.mode == Mode::Full {
                content = Some((layer, ratio));
            }
            specs.push(spec);
        }
        Self::from_specs(&specs)
    }

    /// Writes the id-list form.
    ///
    /// # Errors
    /// [`MixError::NotInIds`] for `stale` and `dense` layers, [`MixError::ManyPools`] for more than one pool.
    pub fn to_ids(&self) -> Result<IdLists, MixError> {
        let mut ids = IdLists {
            compress_ratios: self.layers().iter().map(|layer| layer.ratio).collect(),
            kv_source_layer_ids: Vec::new(),
            index_source_layer_ids: Vec::new(),
            candidate_source_layer_id: None,
        };
        for layer in self.layers() {
            match layer.mode {
                Mode::Stale | Mode::Dense => {
                    return Err(MixError::NotInIds { layer: layer.index, mode: layer.mode });
                }
                Mode::Full => {
                    ids.kv_source_layer_ids.push(layer.index);
                    ids.index_source_layer_ids.push(layer.index);
                }
                Mode::Reindex => ids.index_source_layer_ids.push(layer.index),
                Mode::Swa | Mode::Reuse => {}
            }
            if layer.builds_pool
                && let Some(first) = ids.candidate_source_layer_id.replace(layer.index)
            {
                return Err(MixError::ManyPools { first, second: layer.index });
            }
        }
        Ok(ids)
    }
}

impl IdLists {
    /// What each list must satisfy before the layers are read one after the other.
    fn check_ranges(&self) -> Result<(), IdsError> {
        let layers = self.compress_ratios.len();
        let Some(last) = layers.checked_sub(1) else {
            return Err(IdsError::Empty);
        };
        if layers > MAX_LAYERS {
            return Err(IdsError::TooMany { layers });
        }
        check_list(KV, &self.kv_source_layer_ids, last)?;
        check_list(INDEX, &self.index_source_layer_ids, last)?;
        if let Some(id) = self.candidate_source_layer_id {
            if id > last {
                return Err(IdsError::OutOfRange { list: "candidate_source_layer_id", id, last });
            }
            if !self.kv_source_layer_ids.contains(&id) {
                return Err(IdsError::CandidateNotSource { layer: id });
            }
        }
        Ok(())
    }

    /// One layer, given the nearest content source below it and that source's ratio.
    fn spec(&self, layer: usize, ratio: usize, content: Option<(usize, usize)>) -> Result<LayerSpec, IdsError> {
        let own_content = self.kv_source_layer_ids.binary_search(&layer).is_ok();
        let own_index = self.index_source_layer_ids.binary_search(&layer).is_ok();
        if ratio > MAX_RATIO {
            return Err(IdsError::RatioTooLarge { layer, ratio });
        }
        if ratio == 0 {
            return match (own_content, own_index) {
                (true, _) => Err(IdsError::SourceWithoutRatio { list: KV, layer }),
                (_, true) => Err(IdsError::SourceWithoutRatio { list: INDEX, layer }),
                _ => Ok(LayerSpec { mode: Mode::Swa, ratio: 0, pool: false }),
            };
        }
        if own_content {
            if !own_index {
                return Err(IdsError::ContentWithoutIndex { layer });
            }
            return Ok(LayerSpec { mode: Mode::Full, ratio, pool: self.candidate_source_layer_id == Some(layer) });
        }
        let Some((source_layer, source_ratio)) = content else {
            return Err(if own_index {
                IdsError::IndexWithoutContent { layer }
            } else {
                IdsError::FollowerWithoutContent { layer, ratio }
            });
        };
        if ratio != source_ratio {
            return Err(IdsError::RatioDiffers { layer, ratio, source_layer, source_ratio });
        }
        let mode = if own_index { Mode::Reindex } else { Mode::Reuse };
        Ok(LayerSpec { mode, ratio: 0, pool: false })
    }
}

const KV: &str = "kv_source_layer_ids";
const INDEX: &str = "index_source_layer_ids";

fn check_list(list: &'static str, ids: &[usize], last: usize) -> Result<(), IdsError> {
    let mut before = None;
    for &id in ids {
        if id > last {
            return Err(IdsError::OutOfRange { list, id, last });
        }
        if let Some(before) = before.replace(id)
            && id <= before
        {
            return Err(IdsError::NotAscending { list, before, id });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `swa full@2 reuse full+pool reindex reuse`.
    fn ids() -> IdLists {
        IdLists {
            compress_ratios: vec![0, 2, 2, 1, 1, 1],
            kv_source_layer_ids: vec![1, 3],
            index_source_layer_ids: vec![1, 3, 4],
            candidate_source_layer_id: Some(3),
        }
    }

    fn message(change: impl FnOnce(&mut IdLists)) -> String {
        let mut ids = ids();
        change(&mut ids);
        LayerPlan::from_ids(&ids).expect_err("must be refused").to_string()
    }

    fn to_ids(mix: &str) -> Result<IdLists, MixError> {
        mix.parse::<LayerPlan>().unwrap().to_ids()
    }

    #[test]
    fn both_ways() {
        let plan = LayerPlan::from_ids(&ids()).unwrap();
        assert_eq!(plan.to_string(), "swa full@2 reuse full+pool reindex reuse");
        assert_eq!(plan.to_ids().unwrap(), ids());
    }

    #[test]
    fn released_layout() {
        let ids = to_ids("swa*2 (full@2 reuse*5)*3 full+pool reuse*3 (reindex reuse*3)*4").unwrap();
        assert_eq!(ids.kv_source_layer_ids, [2, 8, 14, 20]);
        assert_eq!(ids.index_source_layer_ids, [2, 8, 14, 20, 24, 28, 32, 36]);
        assert_eq!(ids.candidate_source_layer_id, Some(20));
        assert_eq!(ids.compress_ratios, [vec![0; 2], vec![2; 18], vec![1; 20]].concat());
    }

    #[test]
    fn a_window_layer_inside_a_block_keeps_ratio_zero() {
        let ids = to_ids("full@2 swa reuse").unwrap();
        assert_eq!(ids.compress_ratios, [2, 0, 2]);
        assert_eq!(LayerPlan::from_ids(&ids).unwrap().to_string(), "full@2 swa reuse");
    }

    #[test]
    fn what_has_no_id_form() {
        assert_eq!(
            to_ids("full stale").unwrap_err().to_string(),
            "layer 1 (`stale`) has no id-list form: `compress_ratios` and the source ids know only \
             swa, full, reindex and reuse; keep this mix as text, or replace the layer"
        );
        assert!(to_ids("dense").unwrap_err().to_string().starts_with("layer 0 (`dense`) has no id-list form"));
        assert_eq!(
            to_ids("full+pool reuse full+pool").unwrap_err().to_string(),
            "layers 0 and 2 both build a candidate pool, but the id-list form has one `candidate_source_layer_id`; \
             keep this mix as text, or drop one `+pool`"
        );
    }

    #[test]
    fn empty_and_oversized_lists() {
        assert_eq!(
            message(|ids| ids.compress_ratios.clear()),
            "`compress_ratios` is empty; it must hold one ratio per layer"
        );
        assert_eq!(
            message(|ids| ids.compress_ratios = vec![0; 5000]),
            "`compress_ratios` has 5000 entries; a mix has at most 4096 layers"
        );
        assert_eq!(
            message(|ids| ids.compress_ratios[1] = 100_000),
            "`compress_ratios` gives layer 1 the ratio 100000; the largest ratio is 65536"
        );
        assert_eq!(
            IdsError::Length { ratios: 6, layers: 7 }.to_string(),
            "`compress_ratios` has 6 entries but there are 7 layers; it must hold one ratio per layer"
        );
    }

    #[test]
    fn ids_out_of_range_or_out_of_order() {
        assert_eq!(
            message(|ids| ids.kv_source_layer_ids.push(6)),
            "`kv_source_layer_ids` names layer 6, but the layers are 0 to 5"
        );
        assert_eq!(
            message(|ids| ids.candidate_source_layer_id = Some(9)),
            "`candidate_source_layer_id` names layer 9, but the layers are 0 to 5"
        );
        assert_eq!(
            message(|ids| ids.index_source_layer_ids = vec![3, 1, 4]),
            "`index_source_layer_ids` has 1 after 3; its ids must ascend, each once"
        );
        assert_eq!(
            message(|ids| ids.kv_source_layer_ids = vec![1, 1, 3]),
            "`kv_source_layer_ids` has 1 after 1; its ids must ascend, each once"
        );
    }

    #[test]
    fn sources_need_a_ratio() {
        assert_eq!(
            message(|ids| ids.compress_ratios[3] = 0),
            "`kv_source_layer_ids` names layer 3, whose entry in `compress_ratios` is 0; a source needs a ratio of 1 or more"
        );
        assert_eq!(
            message(|ids| ids.compress_ratios[4] = 0),
            "`index_source_layer_ids` names layer 4, whose entry in `compress_ratios` is 0; a source needs a ratio of 1 or more"
        );
    }

    #[test]
    fn content_and_index_belong_together() {
        assert_eq!(
            message(|ids| ids.index_source_layer_ids = vec![1, 4]),
            "layer 3 is in `kv_source_layer_ids` but not in `index_source_layer_ids`; \
             a layer with its own content has its own indexer, so it must be in both"
        );
        assert_eq!(
            message(|ids| ids.kv_source_layer_ids = vec![3]),
            "layer 1 is in `index_source_layer_ids`, but no layer at or below it is in `kv_source_layer_ids`; \
             an indexer scores the keys of a content source"
        );
    }

    #[test]
    fn followers_need_a_source_of_their_ratio() {
        assert_eq!(
            message(|ids| ids.compress_ratios[0] = 2),
            "`compress_ratios` gives layer 0 the ratio 2, but no layer at or below it is in `kv_source_layer_ids`; \
             use 0 for a layer that reads its window alone"
        );
        assert_eq!(
            message(|ids| ids.compress_ratios[5] = 2),
            "`compress_ratios` gives layer 5 the ratio 2, but it reads the content of layer 3, whose ratio is 1; \
             the two must be equal"
        );
    }

    #[test]
    fn pool_builder_is_a_source() {
        assert_eq!(
            message(|ids| ids.candidate_source_layer_id = Some(4)),
            "`candidate_source_layer_id` is 4, which is not in `kv_source_layer_ids`; only a `full` layer builds a pool"
        );
    }

    #[test]
    fn unknown_keys_are_refused() {
        let text = r#"{"compress_ratios":[0],"kv_source_layer_ids":[],"index_source_layer_ids":[],"extra":1}"#;
        assert!(serde_json::from_str::<IdLists>(text).unwrap_err().to_string().contains("unknown field `extra`"));
    }
}
