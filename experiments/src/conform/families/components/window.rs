//! Which tokens a window holds: for every query of a sequence (`window_idx.wW.sS`), and for one token that is decoded at position
//! P (`window_idx.wW.decodeP`).

use burn::tensor::Device;
use csa2_model::ops::reference;

use crate::conform::check::{Check, HOST, ints};
use crate::conform::error::CaseError;

/// The longest window or sequence of a case.
const LONGEST: usize = 1 << 16;

/// Compares them.
pub fn run(check: &mut Check) -> Result<(), CaseError> {
    let case = check.case;
    let on = std::mem::replace(&mut check.on, HOST);
    let names: Vec<&str> = case.names().filter(|name| name.starts_with("window_idx.")).collect();
    for name in names {
        let unknown = || CaseError::Missing {
            name: name.into(),
            needed: "window indices are named window_idx.wW.sS or window_idx.wW.decodeP".into(),
        };
        let (width, at) =
            name.strip_prefix("window_idx.w").and_then(|rest| rest.split_once('.')).ok_or_else(unknown)?;
        let size = |text: &str| text.parse().ok().filter(|size| (1..=LONGEST).contains(size));
        let width = size(width).ok_or_else(unknown)?;
        let (found, dims) = if let Some(position) = at.strip_prefix("decode") {
            let position: usize = position.parse().ok().filter(|size| *size <= LONGEST).ok_or_else(unknown)?;
            (decoded(position, width)?, [1, 1, width])
        } else {
            let seq = at.strip_prefix('s').and_then(size).ok_or_else(unknown)?;
            let positions = reference::window_positions(seq, seq, width, &Device::flex());
            (ints(positions)?, [1, seq, width.min(seq)])
        };
        check.equal(name, &found, &case.ints(name, &dims, -1..LONGEST as i64)?);
    }
    check.on = on;
    Ok(())
}

/// The window of the token at `position`, oldest first, as slots of a ring of `width`, in which a token lies at its position
/// modulo `width`. The case fills up at the front.
fn decoded(position: usize, width: usize) -> Result<Vec<i64>, CaseError> {
    let positions = ints(reference::window_positions(position + 1, 1, width, &Device::flex()))?;
    let slots: Vec<i64> = positions.into_iter().filter(|&at| at >= 0).map(|at| at % width as i64).collect();
    Ok([vec![-1; width - slots.len()], slots].concat())
}
