//! The statements of the mathematics as tests, identities over random instances, and bad input.

mod bad_input;
mod certificates;
mod identities;
mod properties;
mod rotary;
mod statements;

use faer::Mat;

use super::linalg::{dot, minus, norm};
use super::*;

/// The worked example.
fn triangle() -> ReadOut {
    ReadOut::attention(Entries::from_rows(&[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]).unwrap()).unwrap()
}

/// Random numbers that are the same everywhere.
struct Numbers(u64);

impl Numbers {
    /// Between 0 and 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Nearly normal: twelve uniform numbers have variance 1 together.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    fn normals(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.normal()).collect()
    }

    /// n points of d numbers whose affine hull has min(rank, n - 1) dimensions.
    fn points(&mut self, n: usize, d: usize, rank: usize) -> Entries {
        let directions: Vec<Vec<f64>> = (0..rank).map(|_| self.normals(d)).collect();
        let offset = self.normals(d);
        let rows: Vec<Vec<f64>> = (0..n)
            .map(|_| {
                directions.iter().fold(offset.clone(), |mut row, direction| {
                    let by = self.normal();
                    row.iter_mut().zip(direction).for_each(|(value, step)| *value += by * step);
                    row
                })
            })
            .collect();
        Entries::from_rows(&rows).unwrap()
    }

    /// A distribution, all of it above 0.
    fn distribution(&mut self, n: usize) -> Vec<f64> {
        let weights: Vec<f64> = (0..n).map(|_| self.normal().exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }
}

fn near(found: &[f64], expected: &[f64], by: f64) {
    assert_eq!(found.len(), expected.len());
    for (one, other) in found.iter().zip(expected) {
        assert!((one - other).abs() <= by, "{found:?} is not {expected:?}");
    }
}

fn family(points: Entries) -> Family {
    Family::new(ReadOut::new(points, 1.0).unwrap(), Precision::DEFAULT).unwrap()
}

fn reached(family: &Family, u: &[f64]) -> Vec<f64> {
    match family.reach(u).unwrap() {
        Reach::Reached { query, residual } => {
            assert!(residual <= 1e-8, "{residual}");
            query
        }
        other => panic!("{u:?}: {other:?}"),
    }
}

/// The direction, the margin and the distance of a target that is not reached, the direction checked here.
fn refused(family: &Family, u: &[f64]) -> (Vec<f64>, f64, f64) {
    match family.reach(u).unwrap() {
        Reach::OutsideOrBoundary { direction, margin, distance } => {
            let points = family.readout().points();
            let values: Vec<f64> = points.rows().map(|c| dot(&direction, &minus(c, u))).collect();
            let tolerance = 1e-9 * family.hull().radius().max(norm(u));
            assert!((norm(&direction) - 1.0).abs() < 1e-12);
            assert!(values.iter().all(|value| *value <= margin + 1e-3 * tolerance), "{values:?} {margin}");
            assert!(margin <= tolerance && values.iter().any(|value| *value < 0.0), "{values:?}");
            assert!((margin + distance).abs() <= 2.0 * tolerance, "{margin} {distance}");
            (direction, margin, distance)
        }
        other => panic!("{u:?}: {other:?}"),
    }
}

fn rows(matrix: &Mat<f64>) -> Vec<Vec<f64>> {
    (0..matrix.nrows()).map(|i| matrix.row(i).iter().copied().collect()).collect()
}
