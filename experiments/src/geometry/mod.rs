//! What a query can and cannot do: the mathematics of a read-out in f64, without a network.
//!
//! Entries are the rows `c_j` of C, `[n, d]`; a query q reads `o = sum_j p_j c_j` with `p = softmax(scale C q)`. A sink is one more point, at
//! the origin. Solvers answer with certificates that are checked apart from them, in the points' own coordinates, and say `Undecided` where
//! there is none.
//!
//! Tolerances are relative to the hull's radius. A direction in which the points extend less than [`Precision::rank`] of it counts as none:
//! answers are those for the points without it, residuals and distances included. Faces, vertices and largest probabilities, for which
//! it can be all that matters, are undecided then, unless it is no more than rounding, as [`Precision`] says.

mod angles;
mod concentration;
mod entries;
mod error;
mod family;
mod frame;
mod hull;
mod interior;
mod linalg;
mod member;
mod newton;
mod nnls;
mod readout;
mod rope;
mod singled_out;
mod spectrum;
mod support;
#[cfg(test)]
mod tests;
mod tilt;

pub use angles::{Angles, principal_angles};
pub use concentration::Concentration;
pub use entries::Entries;
pub use error::GeometryError;
pub use family::{Family, Reach};
pub use frame::{Dimensions, affine_rank, rank};
pub use hull::{Hull, Membership, Precision};
pub use member::Member;
pub use readout::{ReadOut, Reading};
pub use rope::{Rope, Rotated, RotatedMap, rotated_map};
pub use singled_out::Largest;
pub use spectrum::eigenvalues;
pub use tilt::{Untilted, tilted};
