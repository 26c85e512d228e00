//! Attention layers of every mode, one file an idea; [`Attention`] puts them together.

mod cache;
mod compressor;
mod context;
mod indexer;
mod layer;
mod memory;
mod output;
mod query;
mod rope;
mod shared;
mod teaching;
mod values;
mod window;

pub use cache::{Cache, LayerCache};
pub use compressor::Compressor;
pub use context::{Context, Phase};
pub use indexer::{IndexQuery, Indexer};
pub use layer::{Attention, AttentionOutput, Pass, Trace};
pub use memory::{Ask, InTensors, Memory};
pub use output::OutputProjection;
pub use query::Query;
pub use rope::{RopeTable, rope_frequencies, rope_frequencies_in};
pub use shared::{Address, Content, Shared};
use teaching::Seat;
pub use teaching::{IndexLoss, Lesson, Scope, SelectionTrace, Teacher};
pub use window::WindowKv;
