//! Shapes on the command line: every size of a case can be replaced.

use std::path::PathBuf;

use crate::bench::geometry::Geometry;
use crate::bench::kl::Kl;
use crate::bench::query::Query;
use crate::bench::readout::Readout;
use crate::bench::select::{Pool, Select};

/// Cases and sizes of a read-out.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ReadoutFlags {
    /// A case of the table; may be given several times (default: all, or the first where a size is given)
    #[arg(long = "case", value_name = "NAME")]
    pub(super) cases: Vec<String>,
    /// Sequences B
    #[arg(long)]
    batch: Option<usize>,
    /// Queries S
    #[arg(long)]
    seq: Option<usize>,
    /// Heads H
    #[arg(long)]
    heads: Option<usize>,
    /// Dimension d of a head and of an entry
    #[arg(long)]
    dim: Option<usize>,
    /// Entries N
    #[arg(long)]
    entries: Option<usize>,
    /// Selected entries K of a query
    #[arg(long)]
    topk: Option<usize>,
    /// Window W; 0 for none
    #[arg(long)]
    window: Option<usize>,
    /// Compression ratio m
    #[arg(long)]
    ratio: Option<usize>,
}

impl ReadoutFlags {
    /// The case with the sizes given.
    pub(super) fn change(&self, case: Readout) -> Readout {
        Readout {
            batch: self.batch.unwrap_or(case.batch),
            seq: self.seq.unwrap_or(case.seq),
            heads: self.heads.unwrap_or(case.heads),
            dim: self.dim.unwrap_or(case.dim),
            entries: self.entries.unwrap_or(case.entries),
            topk: self.topk.unwrap_or(case.topk),
            window: self.window.unwrap_or(case.window),
            ratio: self.ratio.unwrap_or(case.ratio),
            ..case
        }
    }
}

/// Cases and sizes of a selection.
#[derive(Debug, Default, clap::Args)]
pub(super) struct SelectFlags {
    /// A case of the table; may be given several times (default: all, or the first where a size is given)
    #[arg(long = "case", value_name = "NAME")]
    pub(super) cases: Vec<String>,
    /// Sequences B
    #[arg(long)]
    batch: Option<usize>,
    /// Queries S
    #[arg(long)]
    seq: Option<usize>,
    /// Heads of the indexer
    #[arg(long)]
    index_heads: Option<usize>,
    /// Dimension of an indexer head
    #[arg(long)]
    index_dim: Option<usize>,
    /// Entries N
    #[arg(long)]
    entries: Option<usize>,
    /// Selected entries K of a query
    #[arg(long)]
    topk: Option<usize>,
    /// Compression ratio m
    #[arg(long)]
    ratio: Option<usize>,
    /// Blocks of a pool to search in; with --pool-size
    #[arg(long, requires = "pool_size")]
    pool_blocks: Option<usize>,
    /// Entries in a block of the pool; with --pool-blocks
    #[arg(long, requires = "pool_blocks")]
    pool_size: Option<usize>,
}

impl SelectFlags {
    /// The case with the sizes given.
    pub(super) fn change(&self, case: Select) -> Select {
        Select {
            batch: self.batch.unwrap_or(case.batch),
            seq: self.seq.unwrap_or(case.seq),
            index_heads: self.index_heads.unwrap_or(case.index_heads),
            index_dim: self.index_dim.unwrap_or(case.index_dim),
            entries: self.entries.unwrap_or(case.entries),
            topk: self.topk.unwrap_or(case.topk),
            ratio: self.ratio.unwrap_or(case.ratio),
            pool: self.pool_blocks.zip(self.pool_size).map(|(blocks, size)| Pool { blocks, size }).or(case.pool),
        }
    }
}

/// Cases and sizes of an indexer's loss.
#[derive(Debug, Default, clap::Args)]
pub(super) struct KlFlags {
    /// A case of the table; may be given several times (default: all, or the first where a size is given)
    #[arg(long = "case", value_name = "NAME")]
    pub(super) cases: Vec<String>,
    /// Sequences B
    #[arg(long)]
    batch: Option<usize>,
    /// Queries S
    #[arg(long)]
    seq: Option<usize>,
    /// Heads of the indexer
    #[arg(long)]
    index_heads: Option<usize>,
    /// Dimension of an indexer head
    #[arg(long)]
    index_dim: Option<usize>,
    /// Entries N
    #[arg(long)]
    entries: Option<usize>,
    /// Selected entries K of a query
    #[arg(long)]
    topk: Option<usize>,
    /// Compression ratio m
    #[arg(long)]
    ratio: Option<usize>,
}

impl KlFlags {
    /// The case with the sizes given.
    pub(super) fn change(&self, case: Kl) -> Kl {
        Kl {
            batch: self.batch.unwrap_or(case.batch),
            seq: self.seq.unwrap_or(case.seq),
            index_heads: self.index_heads.unwrap_or(case.index_heads),
            index_dim: self.index_dim.unwrap_or(case.index_dim),
            entries: self.entries.unwrap_or(case.entries),
            topk: self.topk.unwrap_or(case.topk),
            ratio: self.ratio.unwrap_or(case.ratio),
        }
    }
}

/// Cases and sizes of a decoding query.
#[derive(Debug, Default, clap::Args)]
pub(super) struct QueryFlags {
    /// A case of the table; may be given several times (default: all, or the first where a size is given)
    #[arg(long = "case", value_name = "NAME")]
    pub(super) cases: Vec<String>,
    /// Sequences B
    #[arg(long)]
    batch: Option<usize>,
    /// Heads H
    #[arg(long)]
    heads: Option<usize>,
    /// Dimension d of a head and of an entry
    #[arg(long)]
    dim: Option<usize>,
    /// Heads of the indexer
    #[arg(long)]
    index_heads: Option<usize>,
    /// Dimension of an indexer head
    #[arg(long)]
    index_dim: Option<usize>,
    /// Entries N
    #[arg(long)]
    entries: Option<usize>,
    /// Selected entries K of a query
    #[arg(long)]
    topk: Option<usize>,
    /// Window W; 0 for none
    #[arg(long)]
    window: Option<usize>,
    /// Blocks of a pool to search in; with --pool-size
    #[arg(long, requires = "pool_size")]
    pool_blocks: Option<usize>,
    /// Entries in a block of the pool; with --pool-blocks
    #[arg(long, requires = "pool_blocks")]
    pool_size: Option<usize>,
}

impl QueryFlags {
    /// The case with the sizes given.
    pub(super) fn change(&self, case: Query) -> Query {
        Query {
            batch: self.batch.unwrap_or(case.batch),
            heads: self.heads.unwrap_or(case.heads),
            dim: self.dim.unwrap_or(case.dim),
            index_heads: self.index_heads.unwrap_or(case.index_heads),
            index_dim: self.index_dim.unwrap_or(case.index_dim),
            entries: self.entries.unwrap_or(case.entries),
            topk: self.topk.unwrap_or(case.topk),
            window: self.window.unwrap_or(case.window),
            pool: self.pool_blocks.zip(self.pool_size).map(|(blocks, size)| Pool { blocks, size }).or(case.pool),
        }
    }
}

/// Cases and sizes of questions about a hull.
#[derive(Debug, Default, clap::Args)]
pub(super) struct GeometryFlags {
    /// A case of the table; may be given several times (default: all, or the first where a size is given)
    #[arg(long = "case", value_name = "NAME")]
    pub(super) cases: Vec<String>,
    /// Dimension d of an entry
    #[arg(long)]
    dim: Option<usize>,
    /// Entries n
    #[arg(long)]
    entries: Option<usize>,
    /// Points asked about
    #[arg(long)]
    points: Option<usize>,
}

impl GeometryFlags {
    /// The case with the sizes given.
    pub(super) fn change(&self, case: Geometry) -> Geometry {
        Geometry {
            dim: self.dim.unwrap_or(case.dim),
            entries: self.entries.unwrap_or(case.entries),
            points: self.points.unwrap_or(case.points),
            ..case
        }
    }
}

/// What a training step is made of.
#[derive(Debug, Default, clap::Args)]
pub(super) struct StepFlags {
    /// An ablation whose variants are timed
    #[arg(long)]
    pub(super) config: Option<PathBuf>,
    /// Only this variant; may be given several times (default: all)
    #[arg(long = "variant", value_name = "NAME", requires = "config")]
    pub(super) variants: Vec<String>,
}
