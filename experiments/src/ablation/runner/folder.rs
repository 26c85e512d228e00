//! The ablation's folder: whether it may be used, and by one process at a time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use csa2_train::files::remove_partial;

use super::{RunnerError, RunnerOptions};
use crate::folders::{check_free, lock};
use crate::results::{AblationRecord, ablation_path, read_ablation};
use crate::say::say;

/// What the folder holds.
const WHAT: &str = "ablation";

/// Makes or takes up the folder, and keeps other processes out while the result lives.
pub fn open(options: &RunnerOptions, new: &AblationRecord) -> Result<File, RunnerError> {
    let out = &options.out;
    let known = ablation_path(out).exists();
    if !known {
        check_free(out, WHAT)?;
    }
    let held = lock(out, WHAT)?;
    if known && options.fresh {
        move_aside(out)?;
        return Ok(lock(out, WHAT)?);
    }
    if known {
        let old = read_ablation(&ablation_path(out)).map_err(RunnerError::Record)?;
        let changes = changes(&old, new, out);
        if !changes.is_empty() {
            return Err(RunnerError::Changed { path: out.clone(), changes });
        }
    }
    remove_partial(out);
    Ok(held)
}

/// What differs from the results on disk. New variants and seeds may join, and what only the report shows may change.
fn changes(old: &AblationRecord, new: &AblationRecord, out: &Path) -> Vec<String> {
    let mut changes = Vec::new();
    if old.name != new.name {
        changes.push(format!("the ablation's name, from \"{}\" to \"{}\"", old.name, new.name));
    }
    for variant in &new.variants {
        let Some(was) = old.variants.iter().find(|was| was.name == variant.name) else { continue };
        let begun = out.join(&variant.name).exists();
        if was.config_hash != variant.config_hash && begun {
            let (from, to) = (&was.config_hash, &variant.config_hash);
            let layers = if was.layers == variant.layers {
                String::new()
            } else {
                format!(": layers \"{}\", now \"{}\"", was.layers, variant.layers)
            };
            changes.push(format!("variant \"{}\" (hash {from}, now {to}){layers}", variant.name));
        }
    }
    for was in &old.variants {
        if !new.variants.iter().any(|v| v.name == was.name) && out.join(&was.name).exists() {
            changes.push(format!("variant \"{}\" has results, but is no longer in the configuration", was.name));
        }
    }
    changes
}

/// Moves results out of the way under a name that tells when.
fn move_aside(out: &Path) -> Result<(), RunnerError> {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let place = |number: u64| -> PathBuf {
        let more = if number > 1 { format!("-{number}") } else { String::new() };
        out.with_file_name(format!("{name}.before-{seconds}{more}"))
    };
    let aside = (1..1000).map(place).find(|aside| !aside.exists()).unwrap_or_else(|| place(0));
    fs::rename(out, &aside).map_err(|source| RunnerError::Aside { path: out.to_path_buf(), source })?;
    say(&format!("moved {} to {}", out.display(), aside.display()));
    Ok(())
}
