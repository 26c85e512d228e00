//! Layer-mix ablations of Compressed Sparse Attention 2: command line, runner, results and reports.

pub mod ablation;
pub mod backend;
pub mod bench;
pub mod chapter;
pub mod commands;
pub mod conform;
pub mod evaluation;
pub mod figure;
pub mod folders;
pub mod geometry;
pub mod overlap;
pub mod plan;
pub mod probe;
pub mod report;
pub mod results;
pub mod say;
pub mod search;
pub mod stats;
pub mod subject;
