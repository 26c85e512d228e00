//! Every number and statement of the mathematics, under its name.

use super::*;

/// Rows of the worked example: q, p, o.
const EXAMPLE: [([f64; 2], [f64; 3], [f64; 2]); 3] = [
    ([std::f64::consts::SQRT_2, 0.0], [0.4223, 0.1554, 0.4223], [0.8446, 0.5777]),
    ([-std::f64::consts::SQRT_2, 0.0], [0.2119, 0.5761, 0.2119], [0.4239, 0.7881]),
    ([0.0, 0.0], [1.0 / 3.0; 3], [2.0 / 3.0; 2]),
];

#[test]
fn read_out_is_the_softmax_of_c_q_over_root_d_and_the_mean_under_it() {
    let mut numbers = Numbers(1);
    let points = numbers.points(7, 4, 4);
    let q = numbers.normals(4);
    let found = ReadOut::attention(points.clone()).unwrap().read(&q).unwrap();
    let weights: Vec<f64> = points.rows().map(|c| (dot(c, &q) / 2.0).exp()).collect();
    let sum: f64 = weights.iter().sum();
    near(&found.p, &weights.iter().map(|weight| weight / sum).collect::<Vec<_>>(), 1e-14);
    let o = |i: usize| (0..7).map(|j| weights[j] / sum * points.row(j)[i]).sum::<f64>();
    near(&found.o, &[o(0), o(1), o(2), o(3)], 1e-14);
    assert!((found.log_partition - sum.ln()).abs() < 1e-13);
}

#[test]
fn worked_example_gives_the_table() {
    for (q, p, o) in EXAMPLE {
        let found = triangle().read(&q).unwrap();
        near(&found.p, &p, 1e-4);
        near(&found.o, &o, 1e-4);
    }
}

#[test]
fn a_sink_is_one_more_point_at_the_origin_with_prior_e_to_the_s() {
    let mut numbers = Numbers(2);
    let (points, q, s) = (numbers.points(5, 3, 3), numbers.normals(3), 0.7);
    let found = ReadOut::attention(points.clone()).unwrap().with_sink(s).unwrap().read(&q).unwrap();
    let logits: Vec<f64> = points.rows().map(|c| dot(c, &q) / 3.0_f64.sqrt()).collect();
    let sum = f64::exp(s) + logits.iter().map(|logit| logit.exp()).sum::<f64>();
    let p: Vec<f64> = logits.iter().map(|logit| logit.exp() / sum).chain([s.exp() / sum]).collect();
    near(&found.p, &p, 1e-14);
    let o: Vec<f64> = (0..3).map(|i| points.rows().zip(&p).map(|(c, p)| p * c[i]).sum()).collect();
    near(&found.o, &o, 1e-14);
    let prior = [1.0, 1.0, 1.0, 1.0, 1.0, f64::exp(s)];
    let same = ReadOut::new(points.with_origin(), 1.0 / 3.0_f64.sqrt()).unwrap().with_prior(&prior).unwrap();
    near(&same.read(&q).unwrap().p, &p, 1e-14);
    // The origin belongs to the hull then: halfway to it is reached with a sink and not without.
    let single = Entries::from_rows(&[[2.0, 0.0]]).unwrap();
    let with = ReadOut::attention(single.clone()).unwrap().with_sink(s).unwrap();
    reached(&Family::new(with, Precision::DEFAULT).unwrap(), &[1.0, 0.0]);
    refused(&family(single), &[1.0, 0.0]);
}

#[test]
fn convexity_output_is_in_the_hull_and_between_the_entries_coordinates() {
    for (q, ..) in EXAMPLE {
        let readout = triangle();
        let o = readout.read(&q).unwrap().o;
        assert!(o.iter().all(|o| (0.0..=1.0).contains(o)));
        let hull = Hull::new(readout.points(), Precision::DEFAULT).unwrap();
        assert!(matches!(hull.locate(&o).unwrap(), Membership::Inside { .. }));
    }
}

#[test]
fn jacobian_is_the_covariance_over_root_d() {
    let (readout, q) = (triangle(), EXAMPLE[0].0);
    let jacobian = readout.jacobian(&q).unwrap();
    for (row, expected) in rows(&jacobian).iter().zip([[0.0928, -0.0464], [-0.0464, 0.1725]]) {
        near(row, &expected, 1e-4);
    }
    let Reading { p, o, .. } = readout.read(&q).unwrap();
    let second = |i: usize, k: usize| readout.points().rows().zip(&p).map(|(c, p)| p * c[i] * c[k]).sum::<f64>();
    for i in 0..2 {
        for k in 0..2 {
            let expected = (second(i, k) - o[i] * o[k]) / std::f64::consts::SQRT_2;
            assert!((jacobian[(i, k)] - expected).abs() < 1e-14);
        }
    }
}

#[test]
fn jacobian_is_the_derivative_and_without_root_d_it_is_off_by_1_414() {
    let (readout, q) = (triangle(), EXAMPLE[0].0);
    let (jacobian, of_p) = (readout.jacobian(&q).unwrap(), readout.probability_jacobian(&q).unwrap());
    let covariance = readout.covariance(&readout.read(&q).unwrap().p).unwrap();
    let step = 1e-6;
    for k in 0..2 {
        let moved = |by: f64| {
            let mut q = q;
            q[k] += by;
            readout.read(&q).unwrap()
        };
        let (up, down) = (moved(step), moved(-step));
        for i in 0..2 {
            let slope = (up.o[i] - down.o[i]) / (2.0 * step);
            assert!((jacobian[(i, k)] - slope).abs() < 1e-9);
            assert!((covariance[(i, k)] / slope - 1.414).abs() < 1e-3);
        }
        for j in 0..3 {
            assert!((of_p[(j, k)] - (up.p[j] - down.p[j]) / (2.0 * step)).abs() < 1e-9);
        }
    }
}

#[test]
fn tilting_by_a_change_of_the_query_is_reading_with_the_changed_query() {
    let (readout, q, dq) = (triangle(), [0.3, -1.2], [2.0, 0.7]);
    let tilt = readout.tilt(&dq).unwrap();
    near(&tilt, &[2.0, 0.7, 2.7].map(|t: f64| t / std::f64::consts::SQRT_2), 1e-15);
    let p = readout.read(&q).unwrap().p;
    near(&tilted(&p, &tilt).unwrap(), &readout.read(&[2.3, -0.5]).unwrap().p, 1e-15);
}

#[test]
fn tilting_by_a_constant_changes_nothing_and_no_tilt_brings_an_entry_in() {
    let p = [0.2, 0.0, 0.5, 0.3];
    near(&tilted(&p, &[4.0; 4]).unwrap(), &p, 1e-16);
    let found = tilted(&p, &[1.0, 700.0, -2.0, 0.0]).unwrap();
    assert!(found[1] == 0.0 && (found.iter().sum::<f64>() - 1.0).abs() < 1e-15);
}

/// Of two entries the one that gains is the one with the larger tilt: nothing else decides.
#[test]
fn a_tilt_changes_odds_by_the_difference_of_tilts_alone() {
    let (p, t) = ([0.1, 0.2, 0.3, 0.4], [0.5, -1.0, 0.5, 2.0]);
    let found = tilted(&p, &t).unwrap();
    for i in 0..4 {
        for j in 0..4 {
            let odds = (found[i] / found[j]) / (p[i] / p[j]);
            assert!((odds.ln() - (t[i] - t[j])).abs() < 1e-14);
        }
    }
}

#[test]
fn reachable_tilts_are_the_columns_of_c_and_the_rest_is_out_of_reach() {
    let family = Family::new(triangle(), Precision::DEFAULT).unwrap();
    let readout = family.readout();
    let dq = [0.4, -1.3];
    let shifted: Vec<f64> = readout.tilt(&dq).unwrap().iter().map(|t| t + 5.0).collect();
    let back = family.untilt(&shifted).unwrap();
    near(&back.dq, &dq, 1e-14);
    assert!(back.distance < 1e-14);
    // Four entries in two dimensions: one direction of re-weighting is out of reach, here that of the square's alternating signs.
    let square = Entries::from_rows(&[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]).unwrap();
    let found = super::family(square).untilt(&[1.0, -1.0, 1.0, -1.0]).unwrap();
    near(&found.dq, &[0.0, 0.0], 1e-15);
    near(&found.outside, &[1.0, -1.0, 1.0, -1.0], 1e-15);
    assert!((found.distance - 2.0).abs() < 1e-15);
}

#[test]
fn of_639_dimensions_at_least_127_are_out_of_reach_at_width_512() {
    let points = Numbers(3).points(640, 512, 512);
    let found = Dimensions::of(&points, 1e-10).unwrap();
    assert_eq!(found, Dimensions { simplex: 639, tilts: 512, family: 512 });
    assert_eq!(found.unreachable(), 127);
}

#[test]
fn both_ranks_are_counted_and_bounded() {
    let mut numbers = Numbers(4);
    for (n, d) in [(1, 1), (1, 5), (4, 9), (9, 9), (12, 4)] {
        let points = numbers.points(n, d, d);
        let found = Dimensions::of(&points, 1e-10).unwrap();
        assert_eq!(found, Dimensions { simplex: n - 1, tilts: n.min(d), family: (n - 1).min(d) });
    }
    // On a line that misses the origin a query tilts in two ways, of which one is constant on the entries.
    let line = Entries::from_rows(&[[-1.0, 1.0], [0.0, 1.0], [1.0, 1.0]]).unwrap();
    assert_eq!(Dimensions::of(&line, 1e-10).unwrap(), Dimensions { simplex: 2, tilts: 2, family: 1 });
    let same = Entries::from_rows(&[[0.1, 0.3]; 5]).unwrap();
    assert_eq!(Dimensions::of(&same, 1e-10).unwrap(), Dimensions { simplex: 4, tilts: 1, family: 0 });
    let none = Entries::from_rows(&[[0.0, 0.0]; 5]).unwrap();
    assert_eq!(Dimensions::of(&none, 1e-10).unwrap(), Dimensions { simplex: 4, tilts: 0, family: 0 });
}

fn largest(family: &Family, index: usize) -> (f64, bool, Vec<usize>) {
    match family.largest_probability(index).unwrap() {
        Largest::Found { supremum, attained, face, witness, witnessed, bound } => {
            let read = family.readout().read(&witness).unwrap().p[index];
            assert_eq!(read.to_bits(), witnessed.to_bits());
            assert!((witnessed - supremum).abs() < 1e-9 && (bound - supremum).abs() < 1e-9);
            (supremum, attained, face)
        }
        Largest::Undecided { reason } => panic!("{index}: {reason}"),
    }
}

#[test]
fn the_middle_of_a_line_never_gets_more_than_a_third() {
    let line = family(Entries::from_rows(&[[-1.0], [0.0], [1.0]]).unwrap());
    let (most, attained, face) = largest(&line, 1);
    assert!((most - 1.0 / 3.0).abs() < 1e-14 && attained && face == [0, 1, 2]);
    for step in -400..=400 {
        let p = line.readout().read(&[f64::from(step) / 10.0]).unwrap().p[1];
        assert!(p <= 1.0 / 3.0 + 1e-15);
    }
    assert_eq!([0, 1, 2].map(|index| line.is_vertex(index).unwrap()), [Some(true), Some(false), Some(true)]);
}

#[test]
fn only_a_vertex_can_be_driven_to_probability_1() {
    // A triangle with a point inside, and one in the middle of an edge.
    let points = [[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.5, 0.5], [1.0, 1.0]];
    let family = family(Entries::from_rows(&points).unwrap());
    for index in 0..3 {
        assert_eq!(largest(&family, index), (1.0, false, vec![index]));
        assert_eq!(family.is_vertex(index).unwrap(), Some(true));
    }
    let (inner, attained, face) = largest(&family, 3);
    assert!((inner - 0.224_009_237_7).abs() < 1e-10 && attained && face.len() == 5);
    let (edge, attained, face) = largest(&family, 4);
    assert!((edge - 1.0 / 3.0).abs() < 1e-14 && !attained && face == [1, 2, 4]);
    assert_eq!([3, 4].map(|index| family.is_vertex(index).unwrap()), [Some(false); 2]);
}

#[test]
fn equal_entries_share_what_their_vertex_gets_by_prior() {
    let points = Entries::from_rows(&[[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).unwrap();
    let readout = ReadOut::new(points, 1.0).unwrap().with_prior(&[3.0, 1.0, 1.0, 1.0]).unwrap();
    let family = Family::new(readout, Precision::DEFAULT).unwrap();
    assert!((largest(&family, 0).0 - 0.75).abs() < 1e-14 && (largest(&family, 1).0 - 0.25).abs() < 1e-14);
    assert_eq!(family.is_vertex(0).unwrap(), Some(true));
    let one = Family::new(ReadOut::new(Entries::from_rows(&[[5.0, 5.0]]).unwrap(), 1.0).unwrap(), Precision::DEFAULT);
    assert_eq!(largest(&one.unwrap(), 0), (1.0, true, vec![0]));
}

#[test]
fn the_image_is_the_relative_interior() {
    let family = Family::new(triangle(), Precision::DEFAULT).unwrap();
    for (.., o) in EXAMPLE {
        let query = reached(&family, &o);
        near(&family.readout().read(&query).unwrap().o, &o, 1e-8);
    }
    // A hair's breadth inside.
    reached(&family, &[0.5, 0.5 + 1e-6]);
    // Vertices and edges: on the boundary.
    for u in [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.5], [1.0, 0.3]] {
        let (_, _, distance) = refused(&family, &u);
        assert!(distance < 1e-12, "{distance}");
    }
    let (direction, margin, distance) = refused(&family, &[0.0, 0.0]);
    let half = std::f64::consts::FRAC_1_SQRT_2;
    assert!((distance - half).abs() < 1e-12 && (margin + half).abs() < 1e-12);
    assert!(direction.iter().all(|v| *v < 0.0));
}

/// `g(q) = <q, u> - psi(q)`: concave, with its maximum where o(q) = u, and below `-|q| eps - log rho_min` in the hull's directions.
#[test]
fn g_is_concave_and_goes_to_minus_infinity_along_the_hull() {
    let readout = triangle().with_prior(&[0.5, 0.2, 0.3]).unwrap();
    let u = [0.7, 0.6];
    let g = |q: &[f64]| readout.scale() * dot(q, &u) - readout.read(q).unwrap().log_partition;
    let family = Family::new(readout.clone(), Precision::DEFAULT).unwrap();
    let best = reached(&family, &u);
    // Twice the distance of u to the nearest edge, x + y = 1, is 0.3 root 2; eps is what a functional exceeds u by at least.
    let eps = 0.3 / std::f64::consts::SQRT_2;
    let mut numbers = Numbers(5);
    for size in [0.1, 1.0, 10.0, 100.0] {
        let direction = numbers.normals(2);
        let q: Vec<f64> = direction.iter().map(|v| size * v / norm(&direction)).collect();
        let bound = -readout.scale() * size * eps - 0.2_f64.ln();
        assert!(g(&q) <= bound + 1e-12, "{} {bound}", g(&q));
        assert!(g(&q) < g(&best));
        let middle: Vec<f64> = q.iter().zip(&best).map(|(a, b)| f64::midpoint(*a, *b)).collect();
        assert!(g(&middle) >= f64::midpoint(g(&q), g(&best)) - 1e-12);
    }
}

#[test]
fn in_a_flat_hull_the_solution_is_in_its_directions_and_unique_there() {
    let mut numbers = Numbers(6);
    let points = numbers.points(8, 6, 3);
    let family = family(points.clone());
    assert_eq!(family.hull().rank(), 3);
    let u = family.readout().mean(&numbers.distribution(8)).unwrap();
    let query = reached(&family, &u);
    // A direction that no difference of entries has a part in.
    let mut along: Vec<Vec<f64>> = Vec::new();
    let across = |along: &[Vec<f64>], mut v: Vec<f64>| {
        for unit in along.iter().chain(along) {
            let by = dot(&v, unit);
            v.iter_mut().zip(unit).for_each(|(v, u)| *v -= by * u);
        }
        v
    };
    for j in 1..4 {
        let new = across(&along, minus(points.row(j), points.row(0)));
        along.push(new.iter().map(|v| v / norm(&new)).collect());
    }
    let across = across(&along, numbers.normals(6));
    assert!(norm(&across) > 0.1 && dot(&across, &query).abs() < 1e-8 * norm(&query));
    let moved: Vec<f64> = query.iter().zip(&across).map(|(q, a)| q + 3.0 * a).collect();
    near(&family.readout().read(&moved).unwrap().o, &u, 1e-8);
    near(&reached(&family, &family.readout().read(&query).unwrap().o), &query, 1e-7);
    // Off the affine hull there is nothing, and the distance is how far off.
    let off: Vec<f64> = u.iter().zip(&across).map(|(u, a)| u + 0.5 * a / norm(&across)).collect();
    let (_, margin, distance) = refused(&family, &off);
    assert!((distance - 0.5).abs() < 1e-9 && (margin + 0.5).abs() < 1e-9);
}

#[test]
fn a_convex_combination_with_a_weight_0_can_be_on_the_boundary() {
    let family = Family::new(triangle(), Precision::DEFAULT).unwrap();
    let on_edge = family.readout().mean(&[0.25, 0.75, 0.0]).unwrap();
    assert!(matches!(family.hull().locate(&on_edge).unwrap(), Membership::Inside { .. }));
    refused(&family, &on_edge);
}

#[test]
fn many_distributions_give_one_output_and_one_of_them_is_in_the_family() {
    let square = family(Entries::from_rows(&[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]).unwrap());
    let (one, other) = ([0.25; 4], [0.4, 0.1, 0.4, 0.1]);
    let mean = square.readout().mean(&one).unwrap();
    near(&square.readout().mean(&other).unwrap(), &mean, 1e-16);
    let member = |w: &[f64]| match square.member(w).unwrap() {
        Member::Found { p, kl, face: None, .. } => (p, kl),
        other => panic!("{other:?}"),
    };
    near(&member(&one).0, &one, 1e-12);
    near(&member(&other).0, &one, 1e-12);
    assert!(member(&one).1.abs() < 1e-14);
    let kl: f64 = other.iter().map(|w| w * (w / 0.25).ln()).sum();
    assert!((member(&other).1 - kl).abs() < 1e-12 && kl > 0.1);
}

#[test]
fn a_mean_on_a_face_has_a_limit_of_members_on_that_face() {
    let family = Family::new(triangle().with_prior(&[0.2, 0.6, 0.2]).unwrap(), Precision::DEFAULT).unwrap();
    match family.member(&[3.0, 1.0, 0.0]).unwrap() {
        Member::Found { p, kl, face, .. } => {
            assert_eq!(face, Some(vec![0, 1]));
            near(&p, &[0.75, 0.25, 0.0], 1e-10);
            assert!(kl.abs() < 1e-12);
        }
        Member::Undecided { reason } => panic!("{reason}"),
    }
    match family.member(&[0.0, 0.0, 1.0]).unwrap() {
        Member::Found { p, kl, face, .. } => assert_eq!((p, kl, face), (vec![0.0, 0.0, 1.0], 0.0, Some(vec![2]))),
        Member::Undecided { reason } => panic!("{reason}"),
    }
}

#[test]
fn saturated_weights_put_the_computed_output_on_the_boundary() {
    let readout = triangle();
    let Reading { p, o, .. } = readout.read(&[2000.0, -2000.0]).unwrap();
    assert_eq!(o, [1.0, 0.0]);
    let found = Concentration::of(&p).unwrap();
    assert_eq!((found.smallest, found.largest, found.zeros, found.effective), (0.0, 1.0, 2, 1.0));
    refused(&Family::new(readout, Precision::DEFAULT).unwrap(), &o);
    let even = Concentration::of(&[0.25; 4]).unwrap();
    assert!((even.entropy - 4.0_f64.ln()).abs() < 1e-15 && (even.effective - 4.0).abs() < 1e-14);
    assert_eq!((even.smallest, even.zeros), (0.25, 0));
}

#[test]
fn every_statement_holds_with_a_sink_for_the_origin_and_the_entries() {
    let (points, s, q) = (triangle().points().clone(), 0.4, [0.9, -0.2]);
    let readout = ReadOut::attention(points.clone()).unwrap().with_sink(s).unwrap();
    let Reading { p, o, .. } = readout.read(&q).unwrap();
    // The sink's own probability counts in the covariance by what it takes from the others alone.
    let jacobian = readout.jacobian(&q).unwrap();
    for i in 0..2 {
        for k in 0..2 {
            let second: f64 = points.rows().zip(&p).map(|(c, p)| p * c[i] * c[k]).sum();
            assert!((jacobian[(i, k)] - (second - o[i] * o[k]) / std::f64::consts::SQRT_2).abs() < 1e-15);
        }
    }
    // A tilt leaves the sink's logit as it is.
    assert_eq!(readout.tilt(&[3.0, -7.0]).unwrap()[3].to_bits(), 0.0_f64.to_bits());
    // (1, 1) stays a vertex; the sink is one, too, and nothing of the hull with it is the hull without it.
    let family = Family::new(readout, Precision::DEFAULT).unwrap();
    assert!([2, 3].iter().all(|&index| (largest(&family, index).0 - 1.0).abs() < 1e-15));
    let below = [0.3, 0.3];
    reached(&family, &below);
    refused(&Family::new(triangle(), Precision::DEFAULT).unwrap(), &below);
    // One entry and the sink make a line of two points: one direction of re-weighting, and it is reached.
    let single = ReadOut::attention(Entries::from_rows(&[[2.0, 1.0]]).unwrap()).unwrap().with_sink(s).unwrap();
    assert_eq!(Dimensions::of(single.points(), 1e-10).unwrap(), Dimensions { simplex: 1, tilts: 1, family: 1 });
}
