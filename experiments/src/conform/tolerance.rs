//! How far a number may be off, for every family of cases in one place. These are the tolerances that the goldens were published
//! with.
//!
//! | family | tolerance |
//! |---|---|
//! | `a` | 1e-9 in f64, 1e-5 in f32; the log-sum-exp of a row without entries is left out |
//! | `b_attn`, `b_block`, `f` | 1e-5; indices and masks exactly |
//! | `b_attn_grad`, `g_grad` | gradients 1e-4 of the largest of their tensor, so that a gradient of zeros is zeros exactly |
//! | `c_model`, `c_trace` | 1e-4; indices and masks exactly |
//! | `c_model` with quantizers | 1e-3; indices exactly where the margin allows |
//! | `d`, `e` | exactly |
//! | `h` | 1e-6; indices exactly |
//! | `k` | 1e-9; distances and KL 1e-6; what a query reaches 1e-8; ranks exactly |

/// What a difference is measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The expected number, or 1 where that is larger: absolute below 1, relative above.
    Number,
    /// The largest expected number of the tensor.
    Largest,
}

impl Scale {
    /// The name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Largest => "largest",
        }
    }
}

/// The largest difference that passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// The largest quotient of difference and scale.
    pub limit: f64,
    /// What the difference is divided by.
    pub scale: Scale,
}

const fn close(limit: f64) -> Tolerance {
    Tolerance { limit, scale: Scale::Number }
}

const fn of_largest(limit: f64) -> Tolerance {
    Tolerance { limit, scale: Scale::Largest }
}

/// The read-out in f32.
pub const READOUT: Tolerance = close(1e-5);
/// The read-out in f64.
pub const READOUT_F64: Tolerance = close(1e-9);
/// An attention layer, a block, a compressor with its gradients.
pub const LAYER: Tolerance = close(1e-5);
/// Gradients of a layer or a model.
pub const GRADIENT: Tolerance = of_largest(1e-4);
/// A whole model, its layers included.
pub const MODEL: Tolerance = close(1e-4);
/// A whole model with quantizers.
pub const QUANTIZED: Tolerance = close(1e-3);
/// Components.
pub const COMPONENT: Tolerance = close(1e-6);
/// Probabilities, outputs, Jacobians and cosines of the geometry.
pub const GEOMETRY: Tolerance = close(1e-9);
/// Distances and divergences of the geometry.
pub const DISTANCE: Tolerance = close(1e-6);
/// How far the output of a query that was found may be from its target.
pub const REACHED: Tolerance = close(1e-8);
