//! Training of CSA2 networks: tasks and data, losses, optimizer, loop, checkpoints and resume.

pub mod checkpoints;
pub mod config;
pub mod corpus;
pub mod evaluate;
mod faults;
pub mod files;
pub mod indexers;
pub mod losses;
pub mod metrics;
pub mod optimizer;
pub mod overlap;
pub mod prefetch;
pub mod random;
pub mod recall;
pub mod runs;
pub mod staging;
pub mod step;
pub mod tasks;
pub mod trainable;
pub mod trainer;
