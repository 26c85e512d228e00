//! What a CSA2 network is: layer mixes, configuration, costs, layers and operators.
//!
//! Nothing here knows of data, optimizers or result files. Notation as in the technical report (arXiv 2609.19969): B batch,
//! S tokens, H heads, d head dimension, `d_r` rotary part, W window, K Top-K, m compression ratio, N compressed entries.

pub mod attention;
pub mod block;
pub mod checkpoint;
pub mod config;
pub mod cost;
pub mod init;
pub mod mix;
pub mod model;
pub mod ops;
pub mod quant;
pub mod store;
