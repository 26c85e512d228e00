//! Answers at full size and at the edge of what f64 can tell: what is said is certified, and what cannot be is left open.

use super::*;

/// Means under weights `e^(spread x)`, x of unit variance: the wider, the nearer to the boundary.
fn targets(numbers: &mut Numbers, readout: &ReadOut, spread: f64, count: usize) -> Vec<Vec<f64>> {
    let n = readout.points().count();
    let mean = |numbers: &mut Numbers| {
        let weights: Vec<f64> = (0..n).map(|_| (spread * numbers.normal()).exp()).collect();
        let sum: f64 = weights.iter().sum();
        readout.mean(&weights.iter().map(|weight| weight / sum).collect::<Vec<_>>()).unwrap()
    };
    (0..count).map(|_| mean(numbers)).collect()
}

#[test]
fn targets_at_width_512_of_640_entries_are_reached_and_points_outside_are_told_apart() {
    let mut numbers = Numbers(11);
    for rank in [512, 300] {
        let readout = ReadOut::attention(numbers.points(640, 512, rank)).unwrap();
        let family = Family::new(readout, Precision::DEFAULT).unwrap();
        assert_eq!(family.hull().rank(), rank);
        for u in targets(&mut numbers, family.readout(), 1.0, 2) {
            reached(&family, &u);
            match family.hull().locate(&u).unwrap() {
                Membership::Inside { distance, .. } => assert!(distance < 1e-9),
                other => panic!("{other:?}"),
            }
        }
        let vertex = family.readout().points().row(0);
        let (_, _, distance) = refused(&family, vertex);
        assert!(distance < 1e-9);
        let far: Vec<f64> = vertex.iter().map(|c| 2.0 * c).collect();
        let (_, margin, distance) = refused(&family, &far);
        assert!(distance > 1.0 && (margin + distance).abs() < 1e-6, "{distance} {margin}");
    }
}

#[test]
fn targets_near_the_boundary_are_reached_while_weights_are_above_rounding() {
    let mut numbers = Numbers(12);
    for (n, d) in [(40, 16), (100, 64), (64, 64), (50, 80)] {
        let family = Family::new(ReadOut::attention(numbers.points(n, d, d)).unwrap(), Precision::DEFAULT).unwrap();
        for u in targets(&mut numbers, family.readout(), 4.0, 20) {
            reached(&family, &u);
        }
    }
}

/// Weights as small as e^-40: the target is inside, but no nearer to its face than rounding. Whatever is said must not be wrong.
#[test]
fn nearer_to_the_boundary_than_rounding_nothing_wrong_is_said() {
    let mut numbers = Numbers(13);
    let family = Family::new(ReadOut::attention(numbers.points(40, 16, 16)).unwrap(), Precision::DEFAULT).unwrap();
    let mut open = 0;
    for u in targets(&mut numbers, family.readout(), 14.0, 60) {
        match family.reach(&u).unwrap() {
            Reach::Reached { query, residual } => {
                let o = family.readout().read(&query).unwrap().o;
                assert!(residual <= 1e-8 && (norm(&minus(&o, &u)) - residual).abs() < 1e-14);
            }
            Reach::OutsideOrBoundary { .. } => {
                let (_, margin, distance) = refused(&family, &u);
                assert!(margin.abs() < 1e-9 && distance < 1e-9);
            }
            Reach::Undecided { .. } => open += 1,
        }
        assert!(matches!(family.hull().locate(&u).unwrap(), Membership::Inside { .. }));
    }
    assert!(open < 30, "{open} of 60 are left open");
}

/// Thin in some directions by a factor of a million, and far from the origin: membership is decided all the same.
#[test]
fn membership_of_thin_and_distant_hulls_is_decided() {
    let mut numbers = Numbers(14);
    for (thin, far) in [(1e-6, 0.0), (1e-10, 0.0), (1.0, 1e4), (1.0, 1e8)] {
        let points = numbers.points(60, 24, 24);
        let stretched = |c: &[f64]| -> Vec<f64> {
            c.iter().enumerate().map(|(i, c)| c * f64::powf(thin, i as f64 / 24.0) + far).collect()
        };
        let rows: Vec<Vec<f64>> = points.rows().map(stretched).collect();
        let family = family(Entries::from_rows(&rows).unwrap());
        for u in targets(&mut numbers, family.readout(), 1.0, 5) {
            let found = family.hull().locate(&u).unwrap();
            assert!(matches!(found, Membership::Inside { .. }), "{thin} {far}: {found:?}");
            let outside: Vec<f64> = u.iter().map(|u| u + numbers.normal()).collect();
            let found = family.hull().locate(&outside).unwrap();
            assert!(matches!(found, Membership::Outside { .. }), "{thin} {far}: {found:?}");
        }
    }
}

/// A query for a hull of so little extent is so long that its logits are rounded by more than the precision: it is not passed off.
#[test]
fn a_query_whose_output_rounding_spoils_is_left_open_with_its_residual() {
    let mut numbers = Numbers(15);
    // Nearly the plane x = y.
    let mut row = || {
        let [x, y, z] = [numbers.normal(), numbers.normal(), numbers.normal()];
        [x, x + 1e-9 * y, z]
    };
    let rows: Vec<[f64; 3]> = (0..30).map(|_| row()).collect();
    let family = family(Entries::from_rows(&rows).unwrap());
    assert_eq!(family.hull().rank(), 3);
    let mut open = 0;
    for u in targets(&mut numbers, family.readout(), 1.0, 20) {
        match family.reach(&u).unwrap() {
            Reach::Reached { residual, .. } => assert!(residual <= 1e-10 * family.hull().radius()),
            Reach::Undecided { residual, .. } => {
                assert!(residual > 1e-10 * family.hull().radius() && residual < 1e-4);
                open += 1;
            }
            other @ Reach::OutsideOrBoundary { .. } => panic!("{other:?}"),
        }
    }
    assert!(open > 0);
}

/// A hundred points on a circle: the query of a target near an edge is so long that weights of points far from it underflow.
#[test]
fn targets_near_an_edge_of_a_round_hull_are_reached() {
    let at = |j: usize| (std::f64::consts::TAU * j as f64 / 100.0).sin_cos();
    let rows: Vec<[f64; 2]> = (0..100).map(|j| at(j).into()).collect();
    let family = family(Entries::from_rows(&rows).unwrap());
    for inside in [1e-2, 1e-4, 1e-6, 1e-9] {
        let u: Vec<f64> = (0..2).map(|i| (0.3 * rows[0][i] + 0.7 * rows[1][i]) * (1.0 - inside)).collect();
        reached(&family, &u);
        let beyond: Vec<f64> = (0..2).map(|i| (0.3 * rows[0][i] + 0.7 * rows[1][i]) * (1.0 + inside)).collect();
        refused(&family, &beyond);
    }
}

/// Between an entry and a sink that has all of the weight, or none of it, up to the range of the exponential.
#[test]
fn a_sink_that_outweighs_the_entries_or_vanishes_is_met_by_a_longer_query() {
    let mut numbers = Numbers(16);
    for sink in [-700.0, -100.0, -40.0, 40.0, 100.0, 700.0] {
        for (n, d) in [(1, 1), (1, 3), (5, 2), (4, 4), (9, 3)] {
            let readout = ReadOut::attention(numbers.points(n, d, d)).unwrap().with_sink(sink).unwrap();
            let family = Family::new(readout, Precision::DEFAULT).unwrap();
            let u = family.readout().mean(&numbers.distribution(n + 1)).unwrap();
            reached(&family, &u);
        }
    }
}

/// Beside an entry ten thousand times farther away, the output comes as near to a target among the others as rounding lets it.
#[test]
fn a_far_entry_does_not_make_the_others_targets_coarse() {
    let mut numbers = Numbers(17);
    for (n, d) in [(12, 4), (40, 16), (8, 8)] {
        let points = numbers.points(n, d, d);
        let farther =
            |j: usize, c: &[f64]| -> Vec<f64> { c.iter().map(|c| if j == 0 { 1e4 * c } else { *c }).collect() };
        let rows: Vec<Vec<f64>> = points.rows().enumerate().map(|(j, c)| farther(j, c)).collect();
        let family = family(Entries::from_rows(&rows).unwrap());
        for _ in 0..20 {
            let mut weights = numbers.distribution(n);
            weights[0] *= 1e-4;
            let sum: f64 = weights.iter().sum();
            let weights: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
            reached(&family, &family.readout().mean(&weights).unwrap());
        }
    }
}

/// Outside by as little as a thousand-millionth of the radius, off faces of all dimensions.
#[test]
fn a_point_that_is_hardly_outside_is_told_to_be() {
    let mut numbers = Numbers(18);
    for (n, d) in [(6, 1), (12, 3), (40, 16), (100, 64), (64, 64), (50, 80)] {
        let family = family(numbers.points(n, d, d));
        let hull = family.hull();
        for share in [1e-9, 1e-7, 1e-5, 1e-2] {
            for _ in 0..5 {
                let far: Vec<f64> = numbers.normals(d).iter().map(|x| 10.0 * x).collect();
                let Membership::Outside { direction, weights, .. } = hull.locate(&far).unwrap() else {
                    panic!("{far:?} is inside");
                };
                let foot = family.readout().mean(&weights).unwrap();
                let by = share * hull.radius();
                let u: Vec<f64> = foot.iter().zip(&direction).map(|(foot, v)| foot + by * v).collect();
                let found = hull.locate(&u).unwrap();
                let Membership::Outside { distance, .. } = found else { panic!("{share}: {found:?}") };
                assert!((distance - by).abs() <= 1e-10 * hull.radius(), "{distance} {by}");
                let (_, margin, distance) = refused(&family, &u);
                assert!((margin + distance).abs() <= 1e-10 * hull.radius());
            }
        }
    }
}

/// Flatter than what counts as a direction, but not by rounding: the third entry is a vertex, which its face does not show.
#[test]
fn of_a_hull_too_thin_to_see_no_face_is_told() {
    for thin in [1e-11, 1e-12, 1e-13, 3e-14] {
        let family = family(Entries::from_rows(&[[-1.0, 0.0], [1.0, 0.0], [0.0, thin]]).unwrap());
        assert_eq!(family.is_vertex(2).unwrap(), None, "{thin}");
        assert!(matches!(family.largest_probability(2).unwrap(), Largest::Undecided { .. }), "{thin}");
        assert_eq!(family.is_vertex(0).unwrap(), Some(true));
    }
    // Rounding is no direction: flat points have as much once they are computed.
    for rounding in [2e-15, 1e-16, 1e-20] {
        let family = family(Entries::from_rows(&[[-1.0, 0.0], [1.0, 0.0], [0.0, rounding]]).unwrap());
        assert_eq!(family.is_vertex(2).unwrap(), Some(false), "{rounding}");
    }
    let family = family(Entries::from_rows(&[[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]).unwrap());
    assert_eq!(family.is_vertex(2).unwrap(), Some(false));
}

/// Seen from the middle one, the near neighbour's direction is known to few digits: its rounding is not taken for a dimension.
#[test]
fn neighbours_on_an_edge_are_not_mistaken_for_opposites_of_the_far_end() {
    let mut numbers = Numbers(19);
    for near in [1e-3, 1e-4, 1e-5] {
        for _ in 0..50 {
            let (from, along, d) = (numbers.normals(6), numbers.normals(6), 6);
            let at = |by: f64| (0..d).map(|i| from[i] + by * along[i]).collect::<Vec<f64>>();
            let rows = [at(-1.3), at(0.0), at(near), at(0.8), at(1.9), vec![0.0; d]];
            let family = family(Entries::from_rows(&rows).unwrap());
            let vertices: Vec<Option<bool>> = (0..6).map(|index| family.is_vertex(index).unwrap()).collect();
            assert_eq!(vertices, [true, false, false, false, true, true].map(Some), "{near}");
        }
    }
}
