//! Inference with CSA2 networks. So far: decoding without a cache, the plain form that every faster one is held against.

pub mod plain;
