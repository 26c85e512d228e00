//! What attention averages: an ablation of the read-out's symmetry.

use serde::{Deserialize, Serialize};

/// What attention averages. Keys are rotated by their positions in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Values {
    /// The rotated latents, key and value being one vector, and the mean is turned back by the query's position: the released
    /// read-out, whose derivative is symmetric.
    #[default]
    Rotated,
    /// The latents as they were before the rotation, and nothing is turned back: an ablation. Key and value are two vectors, and the
    /// derivative need not be symmetric.
    Unrotated,
}

impl Values {
    /// The values as a configuration writes them.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rotated => "rotated",
            Self::Unrotated => "unrotated",
        }
    }

    /// Whether they are the released ones.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
    pub(super) const fn is_rotated(&self) -> bool {
        matches!(self, Self::Rotated)
    }
}
