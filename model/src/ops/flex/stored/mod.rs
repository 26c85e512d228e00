//! The operators over stored vectors on the CPU: packed vectors are read where they lie and dequantized a few at a time.

mod panel;
mod readout;
mod select;

pub(in super::super) use readout::readout;
pub(in super::super) use select::select;
