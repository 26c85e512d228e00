//! E2M1: four bits, sign first, then the place in the grid of magnitudes.

/// What the eight magnitudes stand for.
const GRID: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The largest magnitude.
pub(super) const LARGEST: f32 = 6.0;

/// The code nearest to `x`, ties to the even code; beyond the grid its end.
pub(super) fn encode(x: f32) -> u8 {
    let size = x.abs();
    // How many midpoints between neighbours lie below: at one of them the even neighbour wins, which is the upper one where
    // the lower has an odd place.
    let place = (0..7)
        .filter(|&lower| {
            let middle = f32::midpoint(GRID[lower], GRID[lower + 1]);
            if lower % 2 == 1 { size >= middle } else { size > middle }
        })
        .count();
    place as u8 | u8::from(x.is_sign_negative()) << 3
}

/// The number that the low four bits of `code` stand for.
pub(super) fn decode(code: u8) -> f32 {
    let size = GRID[usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}
