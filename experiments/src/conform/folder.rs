//! Which cases a folder holds.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::error::ConformError;
use super::family::Family;

/// The names of the cases of `folder` that begin with one of `only` (all where that is empty), in alphabetical order: of every
/// safetensors file, but for one that only lends its weights to a case, and of every JSON file that a family's cases have.
///
/// # Errors
/// When the folder cannot be read or holds no case, or a prefix fits none.
pub fn cases(folder: &Path, only: &[String]) -> Result<Vec<String>, ConformError> {
    let failed = |error| ConformError::Folder { folder: folder.into(), error };
    let (mut tensors, mut abouts) = (BTreeSet::new(), BTreeSet::new());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(".safetensors") {
            tensors.insert(name.to_owned());
        } else if let Some(name) = name.strip_suffix(".json") {
            abouts.insert(name.to_owned());
        }
    }
    let lent: BTreeSet<String> = abouts.iter().filter_map(|name| weights_of(folder, name)).collect();
    let alone = tensors.difference(&abouts).filter(|name| !lent.contains(*name));
    let lost = abouts.difference(&tensors).filter(|name| Family::of(name).is_some());
    let names: BTreeSet<String> = tensors.intersection(&abouts).chain(alone).chain(lost).cloned().collect();
    if names.is_empty() {
        return Err(ConformError::Empty { folder: folder.into() });
    }
    if let Some(prefix) = only.iter().find(|prefix| !names.iter().any(|name| name.starts_with(*prefix))) {
        let there = names.into_iter().collect::<Vec<_>>().join(", ");
        return Err(ConformError::Only { prefix: prefix.clone(), there });
    }
    let wanted = |name: &String| only.is_empty() || only.iter().any(|prefix| name.starts_with(prefix));
    Ok(names.into_iter().filter(wanted).collect())
}

/// The file whose weights the case `name` borrows, without its ending.
fn weights_of(folder: &Path, name: &str) -> Option<String> {
    let about: Value = serde_json::from_slice(&std::fs::read(folder.join(format!("{name}.json"))).ok()?).ok()?;
    Some(about.get("weights_file")?.as_str()?.strip_suffix(".safetensors")?.to_owned())
}
