//! Inference with CSA2 networks: caches as small as the number formats promise, prefill in pieces, decoding of several sequences
//! at once. What it computes is what one pass over the whole sequence computes. Caches are kept on the host; on a GPU, its kernels read packed
//! copies of them in its own memory.
//!
//! [`Session`] is the way in; [`plain`] decodes without a cache, the form that everything else is held against.

pub mod cache;
mod error;
mod file;
mod identity;
mod limit;
pub mod plain;
pub mod sampling;
mod session;

pub use cache::{Bytes, Caches};
pub use error::{FileError, SessionError};
pub use limit::Limit;
pub use session::{Bounded, Options, Session, decoder, exact_replay};
