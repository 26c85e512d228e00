//! The binary `csa2`. Everything is in the library; see there.

use std::process::ExitCode;

use clap::Parser;

// Tensors of a training step live for a moment: the system's allocator spends a quarter of the step on them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    csa2::commands::main(&csa2::commands::Cli::parse())
}
