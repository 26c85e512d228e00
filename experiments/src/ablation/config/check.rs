//! What is refused before anything is trained, besides what tasks, models and training settings refuse themselves.

use std::collections::BTreeSet;
use std::path::Path;

use csa2_model::config::ModelConfig;
use csa2_model::cost::Cost;
use csa2_train::tasks::Task;

use super::{AblationError, AblationFile, Variant};

/// Checks the table `[ablation]` and the variants' names.
pub(super) fn section(path: &Path, file: &AblationFile) -> Result<(), AblationError> {
    let refuse = |message: String| Err(AblationError::Toml { path: path.to_path_buf(), message });
    let section = &file.ablation;
    name("ablation.name", &section.name).or_else(&refuse)?;
    if file.variant.is_empty() {
        return refuse("has no [[variant]]; an ablation compares at least one, better two".into());
    }
    let mut names = BTreeSet::new();
    for variant in &file.variant {
        name("a variant's name", &variant.name).or_else(&refuse)?;
        if RESERVED.contains(&variant.name.to_lowercase().as_str()) {
            return refuse(format!(
                "a variant's name is \"{}\", which is a file of the results; rename it",
                variant.name
            ));
        }
        if !names.insert(variant.name.to_lowercase()) {
            return refuse(format!("has two variants named \"{}\" (case does not count); rename one", variant.name));
        }
    }
    if let Some(baseline) = section.baseline.as_ref().filter(|b| !file.variant.iter().any(|v| v.name == **b)) {
        let names: Vec<&str> = file.variant.iter().map(|v| v.name.as_str()).collect();
        return refuse(format!(
            "ablation.baseline = \"{baseline}\" is no variant; the variants are: {}",
            names.join(", ")
        ));
    }
    seeds("ablation.seeds", &section.seeds).or_else(&refuse)?;
    if section.decode_context == 0 {
        return refuse("ablation.decode_context = 0: it is a context length in tokens, at least 1".into());
    }
    Ok(())
}

/// Every seed is one run.
pub(super) fn seeds(key: &str, seeds: &[u64]) -> Result<(), String> {
    if seeds.is_empty() {
        return Err(format!("{key} is empty; one seed makes one run of every variant, three give an interval"));
    }
    if seeds.iter().collect::<BTreeSet<_>>().len() < seeds.len() {
        return Err(format!("{key} = {seeds:?} names a seed twice; every seed is one run"));
    }
    Ok(())
}

/// Files that lie beside the variants' folders.
const RESERVED: [&str; 5] = ["ablation.json", "report.html", "table.md", "table.csv", "matrix.csv"];

/// Names become folders.
pub(crate) fn name(what: &str, name: &str) -> Result<(), String> {
    let fine = |c: char| c.is_alphanumeric() || " -_.,+@*=()".contains(c);
    let plain = !name.starts_with([' ', '.', '-']) && !name.ends_with([' ', '.']);
    if !name.is_empty() && name.len() <= 80 && plain && name.chars().all(fine) {
        return Ok(());
    }
    Err(format!(
        "{what} is {name:?}; a name becomes a folder, so it is made of letters, digits, spaces and any of -_.,+@*=(), \
         in 1 to 80 bytes (80 plain letters), without a space, point or minus at its start or a space or point at its end"
    ))
}

/// An ablation ranks by one metric, so its variants must have the same.
pub(super) fn metric(path: &Path, variants: &[Variant]) -> Result<(), AblationError> {
    let judged = |variant: &Variant| (variant.task.metric(), variant.task.metric_tag().map(str::to_owned));
    let Some(other) = variants.iter().find(|variant| judged(variant) != judged(&variants[0])) else { return Ok(()) };
    let (first, kind, other_kind) = (&variants[0].name, variants[0].task.kind(), other.task.kind());
    Err(AblationError::Variant {
        path: path.to_path_buf(),
        place: format!("variant \"{}\"", other.name),
        message: format!(
            "its task `{other_kind}` is not judged as the task `{kind}` of \"{first}\"; an ablation ranks by one metric, \
             so compare the two tasks in ablations of their own"
        ),
    })
}

/// Finds out before any training starts that a model cannot be built.
pub(super) fn buildable(config: &ModelConfig, task: &dyn Task) -> Result<(), String> {
    let hint = task.auxiliary().map(|auxiliary| auxiliary.after_layer);
    csa2_model::model::check(config, hint).map(|_| ()).map_err(|error| error.to_string())
}

/// Sizes beyond these are surely a slip of the pen, and running out of memory would end the process, not the run.
const MOST_PARAMETERS: u128 = 1 << 34;
const MOST_TOKENS: usize = 1 << 16;

/// Refuses models and sequences beyond what training and measuring hold.
///
/// # Errors
/// A sentence that names the size.
pub fn size(model: &ModelConfig, cost: &Cost, seq_len: usize) -> Result<(), String> {
    if seq_len > MOST_TOKENS {
        return Err(format!(
            "the task's sequences have {seq_len} tokens; training keeps tables of tokens times entries, and csa2 trains on \
             at most {MOST_TOKENS} tokens"
        ));
    }
    // Rows are as long as these settings, however few entries there are.
    for (key, value) in [("topk", model.topk), ("pool.blocks", model.pool.map_or(0, |pool| pool.blocks))] {
        if value > MOST_TOKENS {
            return Err(format!("`{key} = {value}`: a sequence has at most {MOST_TOKENS} entries; set it lower"));
        }
    }
    let parameters = cost.parameters().total();
    if parameters <= MOST_PARAMETERS {
        return Ok(());
    }
    let (billions, gigabytes) = (parameters / 1_000_000_000, parameters.saturating_mul(16) / 1_000_000_000);
    Err(format!(
        "the model has {billions} billion parameters; training holds 16 bytes for each (weight, gradient, two moments), \
         {gigabytes} GB, and csa2 trains at most {} billion; make it smaller",
        MOST_PARAMETERS / 1_000_000_000
    ))
}
