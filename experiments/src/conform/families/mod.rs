//! One file a family of cases.

pub mod attention;
pub mod attention_gradient;
pub mod block;
pub mod candidates;
pub mod components;
pub mod compressor;
pub mod geometry;
pub mod model;
pub mod model_gradient;
pub mod numbers;
pub mod quantized;
pub mod readout;
pub mod trace;
