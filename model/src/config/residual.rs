//! How blocks are joined: by plain sums, or by hyper-connections.

use serde::{Deserialize, Serialize};

/// How blocks are joined. In TOML: `residual = "plain"`, `residual = "hyper"` (four streams, as released) or
/// `residual = { hyper = { streams = 2 } }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields, from = "WrittenResidual")]
pub enum Residual {
    /// Each part adds its output to its input.
    #[default]
    Plain,
    /// Hyper-connections: several residual streams that each part reads from and writes to with learned weights.
    Hyper {
        /// Number of streams.
        streams: usize,
    },
}

impl Residual {
    /// Streams of hyper-connections where only their name is written: those of the released model.
    const RELEASED_STREAMS: usize = 4;
}

/// The ways to write a [`Residual`].
#[derive(Deserialize)]
#[serde(untagged, expecting = r#"`residual` is "plain", "hyper" or { hyper = { streams = … } }"#)]
enum WrittenResidual {
    Named(NamedResidual),
    Sized(SizedResidual),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum NamedResidual {
    Plain,
    Hyper,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SizedResidual {
    hyper: Streams,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Streams {
    streams: usize,
}

impl From<WrittenResidual> for Residual {
    fn from(written: WrittenResidual) -> Self {
        match written {
            WrittenResidual::Named(NamedResidual::Plain) => Self::Plain,
            WrittenResidual::Named(NamedResidual::Hyper) => Self::Hyper { streams: Self::RELEASED_STREAMS },
            WrittenResidual::Sized(SizedResidual { hyper: Streams { streams } }) => Self::Hyper { streams },
        }
    }
}
