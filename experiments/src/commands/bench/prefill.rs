//! `csa2 bench prefill`.

use super::Failure;
use super::decode::on_processor;
use crate::backend::Backend;
use crate::bench::decode::Contexts;
use crate::bench::{Bench, Results, prefill};

/// Lengths of prompts.
#[derive(Debug, clap::Args)]
pub(super) struct PrefillFlags {
    /// Tokens of the prompts: a range, doubled from the first to the last, or a list such as 8K,32K; K is 1024, M is 1024 K
    #[arg(long, value_name = "LENGTHS", default_value = "32K")]
    context: Contexts,
}

impl PrefillFlags {
    /// Reads the prompts.
    ///
    /// # Errors
    /// When the caches do not fit the memory, or the device fails.
    pub(super) fn measure(&self, backend: Backend, bench: &Bench) -> Result<Results, Failure> {
        on_processor(backend)?;
        Ok(prefill::run(bench, self.context.lengths())?)
    }
}
