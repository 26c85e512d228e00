//! Which tensors of an archive make up a model, or some of its attention layers; what is wrong with them, by name.

use std::collections::{BTreeMap, BTreeSet};

use super::CheckpointError;
use super::archive::Archive;
use super::storage::{Kind, Stored};
use super::tensors::{TensorSpec, attention_tensors, scale_name, tensors};
use crate::config::{FfnConfig, ModelConfig, Part};

/// How an archive is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Rows and columns of a quantized matrix that share a scale, where the configuration says it; told from the shapes
    /// otherwise.
    pub block: Option<[usize; 2]>,
    /// Whether parts that csa2 does not have are left out instead of refused.
    pub skip_unsupported: bool,
}

/// Tensors of a part that csa2 does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Name of one of them.
    pub example: String,
}

/// The tensors that were asked for, all found and fit to be decoded one by one.
pub struct Selection<'a> {
    archive: &'a Archive,
    tensors: Vec<(TensorSpec, Stored<'a>)>,
    storage: BTreeMap<String, Amount>,
    skipped: BTreeMap<Part, Skipped>,
}

/// How many tensors are stored in one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many.
    pub tensors: usize,
    /// Their bytes, those of scales included.
    pub bytes: u64,
}

impl<'a> Selection<'a> {
    /// Every tensor of a whole model; the archive may hold nothing else but zeros for parts that csa2 does not have, and these
    /// parts themselves where `options` say so.
    ///
    /// # Errors
    /// Everything that is missing, left over, of another shape or of another type, by name.
    pub fn whole(archive: &'a Archive, config: &ModelConfig, options: Options) -> Result<Self, CheckpointError> {
        Matching::new(archive, options).finish(tensors(config)?, config, |_| true)
    }

    /// The tensors of some attention layers. What lies beside these layers' attention is not looked at.
    ///
    /// # Errors
    /// As [`whole`](Self::whole), and when there is no such layer.
    pub fn attention(
        archive: &'a Archive,
        config: &ModelConfig,
        layers: &[usize],
        options: Options,
    ) -> Result<Self, CheckpointError> {
        let mut specs = Vec::new();
        for &layer in layers {
            specs.extend(attention_tensors(config, layer)?);
        }
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        let prefixes: Vec<String> = layers.iter().map(|&layer| attention_prefix(layer)).collect();
        let inside = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        Matching::new(archive, options).finish(specs, config, inside)
    }

    /// The tensors, sorted by official name.
    pub fn specs(&self) -> impl Iterator<Item = &TensorSpec> {
        self.tensors.iter().map(|(spec, _)| spec)
    }

    /// The numbers of the tensor at a place in [`specs`](Self::specs), last axis fastest.
    ///
    /// # Errors
    /// When a number or a scale is not finite.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn decode(&self, place: usize) -> Result<Vec<f32>, CheckpointError> {
        let (spec, stored) = &self.tensors[place];
        stored.decode().map_err(|wrong| CheckpointError::Mismatch {
            source_name: self.archive.path().display().to_string(),
            problems: vec![format!("{}: {wrong}", self.archive.stored_name(&spec.name))],
        })
    }

    /// How much is stored in which way.
    pub fn storage(&self) -> &BTreeMap<String, Amount> {
        &self.storage
    }

    /// What was left out.
    pub fn skipped(&self) -> &BTreeMap<Part, Skipped> {
        &self.skipped
    }
}

/// How the names of an attention layer's tensors begin.
pub fn attention_prefix(layer: usize) -> String {
    format!("layers.{layer}.attn.")
}

/// Holds an archive against what is expected of it.
struct Matching<'a> {
    archive: &'a Archive,
    options: Options,
    found: Vec<(TensorSpec, Stored<'a>)>,
    /// Official names of tensors that have been looked at.
    seen: BTreeSet<String>,
    storage: BTreeMap<String, Amount>,
    /// One line a tensor, behind its name.
    problems: Vec<(String, String)>,
}

impl<'a> Matching<'a> {
    fn new(archive: &'a Archive, options: Options) -> Self {
        Self {
            archive,
            options,
            found: Vec::new(),
            seen: BTreeSet::new(),
            storage: BTreeMap::new(),
            problems: Vec::new(),
        }
    }

    /// `inside` tells the names that must be accounted for.
    fn finish(
        mut self,
        specs: Vec<TensorSpec>,
        config: &ModelConfig,
        inside: impl Fn(&str) -> bool,
    ) -> Result<Selection<'a>, CheckpointError> {
        for spec in specs {
            if let Err(wrong) = self.take(&spec) {
                self.problems.push((self.archive.stored_name(&spec.name), wrong));
            }
        }
        let skipped = self.left_over(config, inside);
        if !self.options.skip_unsupported {
            self.refuse(&skipped);
        }
        if !self.problems.is_empty() {
            self.problems.sort();
            let problems = self.problems.into_iter().map(|(name, wrong)| format!("{name}: {wrong}")).collect();
            return Err(CheckpointError::Mismatch { source_name: self.archive.path().display().to_string(), problems });
        }
        Ok(Selection { archive: self.archive, tensors: self.found, storage: self.storage, skipped })
    }

    /// Finds one tensor, and its scale where it has one.
    fn take(&mut self, spec: &TensorSpec) -> Result<(), String> {
        self.seen.insert(spec.name.clone());
        let scale_name = scale_name(&spec.name).filter(|_| spec.kind != Kind::Plain);
        let scale = scale_name.as_deref().and_then(|name| self.archive.get(name));
        self.seen.extend(scale_name);
        let view = self.archive.get(&spec.name).ok_or_else(|| format!("missing, expected {:?}", spec.shape))?;
        let stored = Stored::check(view, scale, &spec.shape, spec.kind, self.options.block)?;
        let amount = self.storage.entry(stored.describe()).or_default();
        amount.tensors += 1;
        amount.bytes += (view.bytes.len() + scale.map_or(0, |scale| scale.bytes.len())) as u64;
        self.found.push((spec.clone(), stored));
        Ok(())
    }

    /// Sorts what nobody asked for into parts that csa2 does not have and problems.
    fn left_over(&mut self, config: &ModelConfig, inside: impl Fn(&str) -> bool) -> BTreeMap<Part, Skipped> {
        let mut skipped: BTreeMap<Part, Skipped> = BTreeMap::new();
        let archive = self.archive;
        for name in archive.names().filter(|name| inside(name) && !self.seen.contains(*name)) {
            let stored = archive.stored_name(name);
            match Part::of_tensor(name, config.layers.len()) {
                Some(_) if self.is_idle(name, config) => {}
                Some(part) => {
                    let bytes = archive.get(name).map_or(0, |view| view.bytes.len() as u64);
                    let sum = skipped.entry(part).or_insert(Skipped { tensors: 0, bytes: 0, example: stored });
                    sum.tensors += 1;
                    sum.bytes += bytes;
                }
                None => self.problems.push((stored, "unexpected, this model has no such tensor".into())),
            }
        }
        skipped
    }

    /// Whether a tensor is the routing bias of image tokens and all zeros: Transformers adds it to every model.
    fn is_idle(&self, name: &str, config: &ModelConfig) -> bool {
        let FfnConfig::Moe { experts, .. } = config.ffn else { return false };
        let Some(view) = self.archive.get(name).filter(|_| name.ends_with(".ffn.gate.bias_vl")) else { return false };
        let stored = Stored::check(view, None, &[experts], Kind::Plain, None);
        stored.and_then(|stored| stored.decode()).is_ok_and(|values| values.iter().all(|&value| value == 0.0))
    }

    fn refuse(&mut self, skipped: &BTreeMap<Part, Skipped>) {
        for (part, Skipped { tensors, example, .. }) in skipped {
            let (what, more) = (part.describe(), tensors - 1);
            let others = if more == 0 { String::new() } else { format!(" and {more} more tensors") };
            let line = format!("{what}{others}, which csa2 does not have; --skip-unsupported leaves this part out");
            self.problems.push((example.clone(), line));
        }
    }
}
