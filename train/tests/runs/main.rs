//! Runs made of folders in Hugging Face's form, and such folders made of runs.
#![cfg(feature = "flex")]

mod attention;
mod damage;
mod folder;
mod golden;
mod round_trip;
