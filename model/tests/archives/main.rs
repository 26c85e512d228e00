//! Folders of safetensors files as other programs write them: what is read, and what is refused.
//!
//! The files are written by the `safetensors` crate or byte by byte, never by the code that is tested.
#![cfg(feature = "flex")]

#[path = "../common/mod.rs"]
mod common;
mod folder;
mod hostile;
mod indexes;
mod memory;
mod noise;
mod parts;
mod preset;
mod released;
