//! Ablations: what is compared, and running it to the end.

pub(crate) mod config;
pub(crate) mod progress;
pub(crate) mod record;
mod runner;
mod searched;
#[cfg(test)]
mod testing;

pub use config::{
    AblationConfig, AblationError, Section, TRAINED, Variant, changed_model, check_size, load_posttraining, read_text,
    toml_error,
};
pub use record::pointless_pool;
pub use runner::{Ended, RunnerError, RunnerOptions, run};
