//! The binary, run as a user runs it: what it prints, how it ends, and what it leaves on disk.

mod bad_input;
mod bench;
mod common;
mod configurations;
mod conform;
mod decode;
mod eval;
mod folders;
mod generate;
mod interruption;
mod layers;
mod output;
mod overlap;
mod posttrain;
mod probe;
mod search;
mod streams;
mod transfer;
#[cfg(feature = "wgpu")]
mod two_backends;
