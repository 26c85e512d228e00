//! From one statement per layer to the graph: who reads whose content and address.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{LayerSpec, MixError, Mode, parse, print};

/// One layer of a plan, with everything it reads resolved to layer indices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedLayer {
    /// Place in the stack, from 0.
    pub index: usize,
    /// What it owns and reads.
    pub mode: Mode,
    /// Compression ratio m; 0 for `swa` and `dense`; followers carry the ratio of their source.
    pub ratio: usize,
    /// Whether it builds a candidate pool.
    pub builds_pool: bool,
    /// The layer whose main KV it reads: itself for `full` and `stale`, none for `swa` and `dense`.
    pub content_from: Option<usize>,
    /// The layer whose Top-K it reads: itself for `full` and `reindex`, none for `swa` and `dense`.
    pub address_from: Option<usize>,
    /// For a `reindex` layer, the pool builder inside whose pool it searches.
    pub pool_from: Option<usize>,
}

/// A checked mix: at least one layer, every reader with something to read.
///
/// Parses from and prints to the layer-mix language, also in configuration files. The printing is canonical:
/// two equal plans print the same text, and the text parses back to the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerPlan {
    layers: Vec<PlannedLayer>,
}

impl LayerPlan {
    /// The layers, from the bottom of the stack up.
    pub fn layers(&self) -> &[PlannedLayer] {
        &self.layers
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there is no layer; never true of a checked plan.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Number of layers of one mode.
    pub fn count(&self, mode: Mode) -> usize {
        self.layers.iter().filter(|layer| layer.mode == mode).count()
    }

    /// Whether any layer builds a candidate pool.
    pub fn has_pool(&self) -> bool {
        self.layers.iter().any(|layer| layer.builds_pool)
    }

    /// Whether any layer has an indexer.
    pub fn has_indexer(&self) -> bool {
        self.layers.iter().any(|layer| layer.mode.has_indexer())
    }

    /// The layers that read the Top-K of `layer`, itself included. Empty where `layer` owns no address.
    pub fn readers_of_address(&self, layer: usize) -> Vec<usize> {
        self.layers.iter().filter(|reader| reader.address_from == Some(layer)).map(|reader| reader.index).collect()
    }

    /// The layers that choose entries of their own: `full` and `reindex`.
    pub fn selecting(&self) -> impl Iterator<Item = &PlannedLayer> {
        self.layers.iter().filter(|layer| layer.mode.has_indexer())
    }

    /// The plan with layer `layer` in another mode; layers above it that read what it owned then read what is nearest below
    /// them. A mode with a ratio of its own keeps the ratio that the layer has, one without a pool loses the pool.
    ///
    /// # Errors
    /// When the changed mix is none: a reader has nothing left to read, or entries of another ratio.
    ///
    /// # Panics
    /// When there is no layer `layer`.
    pub fn with_mode(&self, layer: usize, mode: Mode) -> Result<Self, MixError> {
        let mut specs: Vec<LayerSpec> = self.specs().collect();
        let was = &self.layers[layer];
        let ratio = if mode.takes_ratio() { was.ratio.max(1) } else { 0 };
        specs[layer] = LayerSpec { mode, ratio, pool: was.builds_pool && mode == Mode::Full };
        Self::from_specs(&specs)
    }

    /// The plan in which every `full` layer whose content a `reindex` layer searches builds a candidate pool, where `pools`, or
    /// none does.
    #[must_use]
    pub fn with_pools(&self, pools: bool) -> Self {
        let searched = |layer: usize| {
            self.layers.iter().any(|other| other.mode == Mode::Reindex && other.content_from == Some(layer))
        };
        let specs = self.specs().enumerate();
        let specs: Vec<LayerSpec> =
            specs.map(|(layer, spec)| LayerSpec { pool: pools && searched(layer), ..spec }).collect();
        Self::from_specs(&specs).expect("who reads whose content and address does not depend on pools")
    }

    /// The layers below `end` alone, with the pools that are searched there. None where there are no layers below it.
    pub fn below(&self, end: usize) -> Option<Self> {
        let below = &self.layers[..end.min(self.layers.len())];
        let searched = |layer: usize| below.iter().any(|other| other.pool_from == Some(layer));
        let specs = self.specs().enumerate().take(below.len());
        let specs: Vec<LayerSpec> =
            specs.map(|(layer, spec)| LayerSpec { pool: spec.pool && searched(layer), ..spec }).collect();
        (!specs.is_empty()).then(|| Self::from_specs(&specs).expect("layers read from what is below them"))
    }

    /// What the language says of each layer.
    fn specs(&self) -> impl Iterator<Item = LayerSpec> {
        self.layers.iter().map(|layer| LayerSpec {
            mode: layer.mode,
            ratio: if layer.mode.takes_ratio() { layer.ratio } else { 0 },
            pool: layer.builds_pool,
        })
    }

    /// Where the decoder of the Causal Encoder-Decoder view begins: the last `full` layer.
    pub fn decoder_start(&self) -> Option<usize> {
        self.layers.iter().rev().find(|layer| layer.mode == Mode::Full).map(|layer| layer.index)
    }

    /// Resolves who reads whose content and address.
    pub(super) fn from_specs(specs: &[LayerSpec]) -> Result<Self, MixError> {
        let mut sources = Sources::default();
        let layers = specs.iter().enumerate().map(|(index, spec)| sources.resolve(index, *spec));
        Ok(Self { layers: layers.collect::<Result<_, _>>()? })
    }
}

/// What the layers read so far offer to the layers above them.
#[derive(Default)]
struct Sources {
    /// The nearest `full`.
    content: Option<Content>,
    /// The nearest `full` or `reindex`.
    address: Option<usize>,
}

/// A `full` layer, as its followers see it.
#[derive(Clone, Copy)]
struct Content {
    layer: usize,
    ratio: usize,
    pool: bool,
}

impl Sources {
    fn resolve(&mut self, index: usize, spec: LayerSpec) -> Result<PlannedLayer, MixError> {
        let mode = spec.mode;
        let mut layer = PlannedLayer {
            index,
            mode,
            ratio: spec.ratio,
            builds_pool: spec.pool,
            content_from: None,
            address_from: None,
            pool_from: None,
        };
        match mode {
            Mode::Swa | Mode::Dense => {}
            Mode::Full => {
                self.content = Some(Content { layer: index, ratio: spec.ratio, pool: spec.pool });
                self.address = Some(index);
                layer.content_from = Some(index);
                layer.address_from = Some(index);
            }
            Mode::Reindex | Mode::Reuse => {
                let content = self.content.ok_or(MixError::NoContent { layer: index, mode })?;
                if mode == Mode::Reindex {
                    self.address = Some(index);
                    layer.pool_from = content.pool.then_some(content.layer);
                }
                layer.ratio = content.ratio;
                layer.content_from = Some(content.layer);
                layer.address_from = self.address;
            }
            Mode::Stale => {
                // An address implies a `full` below it, whose ratio the address counts in.
                let (Some(source_layer), Some(content)) = (self.address, self.content) else {
                    return Err(MixError::NoAddress { layer: index });
                };
                let (ratio, source_ratio) = (spec.ratio, content.ratio);
                if ratio != source_ratio {
                    return Err(MixError::StaleRatio { layer: index, ratio, source_layer, source_ratio });
                }
                layer.content_from = Some(index);
                layer.address_from = Some(source_layer);
            }
        }
        Ok(layer)
    }
}

impl FromStr for LayerPlan {
    type Err = MixError;

    fn from_str(text: &str) -> Result<Self, MixError> {
        Self::from_specs(&parse::parse(text)?)
    }
}

impl fmt::Display for LayerPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::print(self.specs(), f)
    }
}

impl Serialize for LayerPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LayerPlan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> LayerPlan {
        text.parse().unwrap()
    }

    fn message(text: &str) -> String {
        text.parse::<LayerPlan>().expect_err("must be refused").to_string()
    }

    const RELEASED: &str = "swa*2 (full@2 reuse*5)*3 full@1+pool reuse*3 (reindex reuse*3)*4";

    #[test]
    fn released_layout_resolves() {
        let plan = plan(RELEASED);
        assert_eq!(plan.len(), 40);
        assert_eq!(Mode::ALL.map(|mode| plan.count(mode)), [2, 4, 4, 30, 0, 0]);
        assert_eq!(plan.decoder_start(), Some(20));
        assert!(plan.has_pool());
        let layer = |i: usize| plan.layers()[i].clone();
        assert_eq!((layer(1).content_from, layer(1).address_from, layer(1).ratio), (None, None, 0));
        assert_eq!((layer(13).content_from, layer(13).address_from, layer(13).ratio), (Some(8), Some(8), 2));
        assert_eq!((layer(20).content_from, layer(20).builds_pool, layer(20).pool_from), (Some(20), true, None));
        assert_eq!((layer(28).content_from, layer(28).address_from), (Some(20), Some(28)));
        assert_eq!((layer(28).pool_from, layer(28).builds_pool), (Some(20), false));
        assert_eq!((layer(31).content_from, layer(31).address_from, layer(31).pool_from), (Some(20), Some(28), None));
        assert_eq!(plan.readers_of_address(28), [28, 29, 30, 31]);
        assert_eq!(plan.readers_of_address(29), [0_usize; 0]);
    }

    #[test]
    fn a_stale_layer_lends_its_content_to_nobody() {
        let plan = plan("full@2 stale@2 reuse reindex stale@2 reuse");
        let read: Vec<_> = plan.layers().iter().map(|l| (l.content_from, l.address_from)).collect();
        let expected = [(0, 0), (1, 0), (0, 0), (0, 3), (4, 3), (0, 3)].map(|(c, a)| (Some(c), Some(a)));
        assert_eq!(read, expected);
    }

    #[test]
    fn a_pool_ends_with_its_block() {
        let plan = plan("full+pool reindex full reindex");
        let pools: Vec<_> = plan.layers().iter().map(|layer| layer.pool_from).collect();
        assert_eq!(pools, [None, Some(0), None, None]);
    }

    #[test]
    fn pools_are_built_where_a_layer_searches_or_nowhere() {
        let mix = plan("swa full reuse full@2 reindex reuse full+pool reuse full+pool reindex");
        assert_eq!(mix.with_pools(true), plan("swa full reuse full@2+pool reindex reuse full reuse full+pool reindex"));
        assert_eq!(mix.with_pools(false), plan("swa full reuse full@2 reindex reuse full reuse full reindex"));
        assert!(!plan("swa full reuse").with_pools(true).has_pool());
        // The layers below another one, with the pools that are searched among them.
        let mix = plan("swa full+pool reindex full@2+pool reuse reindex");
        assert_eq!(mix.below(0), None);
        assert_eq!(mix.below(3), Some(plan("swa full+pool reindex")));
        assert_eq!(mix.below(5), Some(plan("swa full+pool reindex full@2 reuse")));
        assert_eq!(mix.below(99), Some(mix));
    }

    #[test]
    fn followers_need_a_full_below() {
        assert_eq!(
            message("swa reuse full"),
            "layer 1 (`reuse`) has no `full` layer below it, so there is no content to read; \
             put a `full` before it, or write `swa` for a layer that reads its window alone"
        );
        assert_eq!(
            message("reindex"),
            "layer 0 (`reindex`) has no `full` layer below it, so there is no content to read; \
             put a `full` before it, or write `swa` for a layer that reads its window alone"
        );
    }

    #[test]
    fn stale_needs_an_address_of_its_ratio() {
        assert_eq!(
            message("swa stale"),
            "layer 1 (`stale`) has no `full` or `reindex` layer below it, so there is no address to read; \
             put one of them before it"
        );
        assert_eq!(
            message("full@2 reindex stale"),
            "layer 2 (`stale`) has ratio 1 but reads the address of layer 1, whose ratio is 2: \
             entry numbers would mean other positions; write `stale@2`"
        );
    }

    #[test]
    fn a_layer_in_another_mode_is_the_mix_written_so() {
        for (mix, layer, mode, expected) in [
            ("swa full@2 reuse full+pool reindex", 3, Mode::Reuse, "swa full@2 reuse*2 reindex"),
            ("full reindex reuse", 1, Mode::Reuse, "full reuse*2"),
            ("full@4 full@2 reuse", 1, Mode::Reindex, "full@4 reindex reuse"),
            ("full@4 reuse", 1, Mode::Stale, "full@4 stale@4"),
            ("swa full+pool reindex", 0, Mode::Full, "full full+pool reindex"),
        ] {
            assert_eq!(plan(mix).with_mode(layer, mode).unwrap(), plan(expected), "{mix}");
        }
        assert_eq!(
            plan("full full reuse").with_mode(0, Mode::Reuse),
            Err(MixError::NoContent { layer: 0, mode: Mode::Reuse })
        );
        let ratio = plan("full full@2 stale@2").with_mode(1, Mode::Reuse).unwrap_err();
        assert!(matches!(ratio, MixError::StaleRatio { layer: 2, .. }), "{ratio}");
        let selecting: Vec<usize> = plan("swa full reuse reindex").selecting().map(|layer| layer.index).collect();
        assert_eq!(selecting, [1, 3]);
    }

    #[test]
    fn serde_goes_through_the_text() {
        let json = serde_json::to_string(&plan("swa swa full+pool reindex")).unwrap();
        assert_eq!(json, r#""swa*2 full+pool reindex""#);
        assert_eq!(serde_json::from_str::<LayerPlan>(&json).unwrap(), plan("swa*2 full+pool reindex"));
        let error = serde_json::from_str::<LayerPlan>(r#""swa fulll""#).unwrap_err().to_string();
        assert!(error.contains("column 5: unknown mode `fulll`"), "{error}");
    }
}
