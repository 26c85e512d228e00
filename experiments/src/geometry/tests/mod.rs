//! The statements of the mathematics as tests, identities over random instances, and bad input.

mod bad_input;
mod certificates;
mod identities;
mod properties;
mod rotary;
mod statements;

use faer::Mat;

use super::linalg::{dot, minus, norm};
use super::support::{Face, face};
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

/// Rounding of a query's logits: sums whose terms can be much larger than they are, where the hull is thin and the query long.
fn grain(readout: &ReadOut, q: &[f64]) -> f64 {
    let terms = |c: &[f64]| c.iter().zip(q).map(|(c, q)| (c * q).abs()).sum::<f64>();
    f64::EPSILON * readout.scale() * readout.points().rows().map(terms).fold(0.0, f64::max)
}

/// How far from its target an output may be that has reached it.
fn enough(family: &Family, magnitude: f64) -> f64 {
    Precision::DEFAULT.reach * family.hull().radius() + 1e-14 * magnitude
}

/// The thinnest direction of the hull as a share of its widest.
fn thickness(family: &Family) -> f64 {
    let spread = &family.hull().frame.spread;
    spread.last().map_or(1.0, |thinnest| thinnest / spread[0])
}

/// The query that reaches a target in the relative interior. None only where rounding its logits, which one over the thickness makes large
/// (for differences up to some 60, beside a sink of 40), explains that no output was near enough.
fn reached_by(family: &Family, u: &[f64], magnitude: f64) -> Option<Vec<f64>> {
    let found = family.reach(u).unwrap();
    match found {
        Reach::Reached { query, residual } => {
            let o = family.readout().read(&query).unwrap().o;
            assert!(residual <= enough(family, magnitude), "{residual}");
            assert!((norm(&minus(&o, u)) - residual).abs() <= 1e-15 * magnitude);
            Some(query)
        }
        Reach::Undecided { residual, .. } if residual <= 4e-14 / thickness(family) * family.hull().radius() => None,
        other => panic!("{other:?}"),
    }
}

/// The largest probability of an entry. None only where an entry is left out of its face by so little that no query in f64 shows it.
fn largest(family: &Family, index: usize) -> Option<Largest> {
    let points = family.readout().points();
    let found = family.largest_probability(index).unwrap();
    if matches!(found, Largest::Found { .. }) {
        return Some(found);
    }
    let face = face(points, points.row(index), Precision::DEFAULT).unwrap();
    let Face::Found { exposed, .. } = &face else { panic!("{face:?}") };
    let least = exposed.iter().flat_map(|step| &step.left).fold(f64::INFINITY, |least, (_, value)| least.min(-value));
    assert!(least < 1e-8 * family.hull().radius(), "{found:?} {face:?}");
    None
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
