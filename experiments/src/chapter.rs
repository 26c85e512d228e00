#![doc = include_str!("../../docs/chapter/index.md")]

#[doc = include_str!("../../docs/chapter/read_out.md")]
#[doc = include_str!("../../docs/figures/triangle.svg")]
pub mod read_out {}

#[doc = include_str!("../../docs/chapter/jacobian.md")]
#[doc = include_str!("../../docs/figures/ellipse.svg")]
pub mod jacobian {}

#[doc = include_str!("../../docs/chapter/tilting.md")]
#[doc = include_str!("../../docs/figures/tilt.svg")]
pub mod tilting {}

#[doc = include_str!("../../docs/chapter/dimensions.md")]
#[doc = include_str!("../../docs/figures/dimensions.svg")]
pub mod dimensions {}

#[doc = include_str!("../../docs/chapter/single_entries.md")]
#[doc = include_str!("../../docs/figures/collinear.svg")]
pub mod single_entries {}

#[doc = include_str!("../../docs/chapter/interior.md")]
#[doc = include_str!("../../docs/figures/interior.svg")]
pub mod interior {}

#[doc = include_str!("../../docs/chapter/gaps.md")]
#[doc = include_str!("../../docs/figures/gaps.svg")]
pub mod gaps {}

#[doc = include_str!("../../docs/chapter/rotation.md")]
#[doc = include_str!("../../docs/figures/rotation.svg")]
pub mod rotation {}

#[doc = include_str!("../../docs/chapter/experiments.md")]
pub mod experiments {}
