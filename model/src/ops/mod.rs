//! The operators in which CSA2 spends its time, each behind a backend-extension trait.
//!
//! One file per operator holds its trait, its gradient rule for any `Autodiff<B>` and the function that layers
//! call. Implementations: [`reference`](mod@reference) (plain tensors, exact and slow, for tests), `flex` (native CPU
//! code) and `cube` (kernels for wgpu and CUDA). Fake quantization has [`quant`](crate::quant) in place of a reference.
//! A layer never asks which backend it runs on.
//!
//! | operator | what it computes | gradient for |
//! |---|---|---|
//! | [`readout`](fn@readout) | attention over window and selected entries with a sink, one softmax | query, window, main, sink |
//! | [`index_select`] | Top-K of the index scores, and the candidate pool | none (discrete) |
//! | [`attention_mass`] | the read-out's probabilities on listed entries, summed over heads (the indexer's teacher) | none (detached) |
//! | [`index_kl`] | KL(teacher ‖ student) of the indexer, per query | index query, index keys, head weights |
//! | [`rotate`] | rotary position on the last channels, forwards or backwards | the rotated tensor |
//! | [`fake_quantize`] | what would be read back if vectors were stored in few bits | its input (straight through) |
//! | [`rms_norm`](fn@rms_norm), [`swiglu`](fn@swiglu) | as their names say | all inputs |
//! | [`cross_entropy`](fn@cross_entropy) | the language model's loss of every row | logits |
//! | [`sinkhorn`](fn@sinkhorn) | a balanced matrix a token, that mixes residual streams | logits |
//! | [`hyper_read`], [`hyper_write`] | residual streams read and written with weights per token | all inputs |
//! | [`adamw`](fn@adamw) | one update of a parameter and its moments | none |
//! | [`stored_readout`], [`stored_select`] | read-out and selection over packed vectors, for decoding | none |

mod adamw;
mod cross_entropy;
mod hyper;
mod kl;
mod mass;
mod norm;
mod quantize;
mod readout;
pub mod reference;
mod rotate;
mod select;
pub mod stored;
mod swiglu;

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

#[cfg(feature = "flex")]
pub use flex::{REGISTERS, check_registers};

pub use adamw::{AdamwBackend, AdamwStep, adamw};
pub use cross_entropy::{CrossEntropyBackend, cross_entropy};
pub use hyper::{HYPER_EPS, HyperBackend, SINKHORN_ROUNDS, hyper_read, hyper_write, sinkhorn};
pub use kl::{IndexKlBackend, index_kl};
pub use mass::{MassBackend, attention_mass};
pub use norm::{NormBackend, rms_norm};
pub use quantize::{QuantizeBackend, fake_quantize};
pub use readout::{ReadoutBackend, readout};
pub use rotate::{RotateBackend, rotate};
pub use select::{PoolUse, SelectBackend, SelectSpec, Selection, index_select};
pub use stored::{Place, StoredSpec, StoredWindow, stored_readout, stored_select};
pub use swiglu::{SwigluBackend, swiglu};

/// The longest vector that the operators take on a GPU, in channels: a workgroup holds some of them in 32 KiB.
pub const GPU_CHANNELS: usize = 1024;

/// No entry: fills the places of a Top-K row that has fewer than K visible entries. Contributes nothing.
pub const NO_ENTRY: i32 = -1;

/// A row whose index scores were not numbers. A read-out over such a row is NaN, so that the fault surfaces in the
/// loss instead of becoming an arbitrary choice.
pub const NAN_ROW: i32 = -2;
