//! Identities over random instances: flat hulls, repeated entries, huge and tiny ones, a single entry, fewer and more entries than dimensions.

use proptest::prelude::*;

use super::*;

/// Random points with a read-out whose scale suits their magnitude.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) seed: u64,
    pub(super) n: usize,
    pub(super) d: usize,
    rank: usize,
    /// The last rows are copies of the first.
    copies: usize,
    pub(super) magnitude: f64,
    with_prior: bool,
}

pub(super) fn instances() -> impl Strategy<Value = Instance> {
    let magnitudes = prop_oneof![4 => Just(1.0), 1 => Just(1e-120), 1 => Just(1e-8), 1 => Just(1e6), 1 => Just(1e120)];
    (any::<u64>(), 1_usize..14, 1_usize..10, 0_usize..10, 0_usize..3, magnitudes, any::<bool>()).prop_map(
        |(seed, n, d, rank, copies, magnitude, with_prior)| Instance {
            seed,
            n,
            d,
            rank: rank.min(d),
            copies: copies.min(n / 2),
            magnitude,
            with_prior,
        },
    )
}

impl Instance {
    pub(super) fn new(seed: u64, n: usize, d: usize, rank: usize, copies: usize, magnitude: f64) -> Self {
        Self { seed, n, d, rank, copies, magnitude, with_prior: false }
    }

    pub(super) fn numbers(&self) -> Numbers {
        Numbers(self.seed ^ 0x5eed)
    }

    pub(super) fn points(&self) -> Entries {
        let points = Numbers(self.seed).points(self.n, self.d, self.rank);
        let from = |j: usize| j % self.distinct();
        let rows: Vec<Vec<f64>> =
            (0..self.n).map(|j| points.row(from(j)).iter().map(|c| c * self.magnitude).collect()).collect();
        Entries::from_rows(&rows).unwrap()
    }

    /// How many points differ.
    fn distinct(&self) -> usize {
        self.n - self.copies
    }

    fn readout(&self) -> ReadOut {
        let readout = ReadOut::new(self.points(), 0.7).unwrap();
        if self.with_prior { readout.with_prior(&self.numbers().distribution(self.n)).unwrap() } else { readout }
    }

    fn family(&self) -> Family {
        Family::new(self.readout(), Precision::DEFAULT).unwrap()
    }

    /// A query for points of that magnitude.
    pub(super) fn query(&self, numbers: &mut Numbers) -> Vec<f64> {
        numbers.normals(self.d).iter().map(|q| q / self.magnitude).collect()
    }
}

fn kl(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).filter(|(p, _)| **p > 0.0).map(|(p, q)| p * (p / q).ln()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn convexity(instance in instances()) {
        let readout = instance.readout();
        let q = instance.query(&mut instance.numbers());
        let Reading { p, o, .. } = readout.read(&q).unwrap();
        prop_assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-12 && p.iter().all(|p| *p >= 0.0));
        for i in 0..instance.d {
            let column = || readout.points().rows().map(|c| c[i]);
            let (least, most) = (column().fold(f64::INFINITY, f64::min), column().fold(f64::NEG_INFINITY, f64::max));
            let slack = 1e-12 * instance.magnitude;
            prop_assert!(o[i] >= least - slack && o[i] <= most + slack);
        }
        let hull = Hull::new(readout.points(), Precision::DEFAULT).unwrap();
        let inside = hull.locate(&o).unwrap();
        prop_assert!(matches!(inside, Membership::Inside { .. }), "{inside:?}");
    }

    #[test]
    fn jacobian_is_symmetric_positive_semidefinite_and_the_derivative(instance in instances()) {
        let readout = instance.readout();
        let q = instance.query(&mut instance.numbers());
        let p = readout.read(&q).unwrap().p;
        let jacobian = readout.jacobian(&q).unwrap();
        let square = instance.magnitude * instance.magnitude;
        let d = instance.d;
        let scaled = Mat::from_fn(d, d, |i, k| jacobian[(i, k)] / square);
        for i in 0..d {
            for k in 0..d {
                prop_assert_eq!(jacobian[(i, k)].to_bits(), jacobian[(k, i)].to_bits());
            }
        }
        let values = scaled.self_adjoint_eigenvalues(faer::Side::Lower).unwrap();
        let largest = values.last().copied().unwrap();
        prop_assert!(values[0] >= -1e-12 * largest.max(1e-300));
        // Differences of points span min(d, n - 1) dimensions at most.
        let rank = values.iter().filter(|value| **value > 1e-11 * largest.max(0.01)).count();
        prop_assert!(rank <= d.min(instance.n - 1) && rank <= instance.rank, "{rank}");
        // Rows of d p / d q sum to nothing, and make d o / d q with the points.
        let of_p = readout.probability_jacobian(&q).unwrap();
        for k in 0..d {
            prop_assert!((0..instance.n).map(|j| of_p[(j, k)]).sum::<f64>().abs() < 1e-10 * instance.magnitude);
            for i in 0..d {
                let sum: f64 = (0..instance.n).map(|j| of_p[(j, k)] * readout.points().row(j)[i]).sum();
                prop_assert!((sum - jacobian[(i, k)]).abs() <= 1e-10 * square);
            }
            let moved = |by: f64| {
                let mut q = q.clone();
                q[k] += by / instance.magnitude;
                readout.read(&q).unwrap().p
            };
            let (up, down) = (moved(1e-5), moved(-1e-5));
            for j in 0..instance.n {
                let slope = (up[j] - down[j]) / 2e-5;
                prop_assert!((of_p[(j, k)] / instance.magnitude - slope).abs() < 1e-7, "{} {}", p[j], slope);
            }
        }
    }

    #[test]
    fn tilting_is_reading_with_the_changed_query(instance in instances(), constant in -50.0_f64..50.0) {
        let readout = instance.readout();
        let mut numbers = instance.numbers();
        let (q, dq) = (instance.query(&mut numbers), instance.query(&mut numbers));
        let sum: Vec<f64> = q.iter().zip(&dq).map(|(q, dq)| q + dq).collect();
        let p = readout.read(&q).unwrap().p;
        let tilt = readout.tilt(&dq).unwrap();
        let shifted: Vec<f64> = tilt.iter().map(|t| t + constant).collect();
        let expected = readout.read(&sum).unwrap().p;
        for t in [tilt, shifted] {
            for (found, expected) in tilted(&p, &t).unwrap().iter().zip(&expected) {
                prop_assert!((found - expected).abs() < 1e-10);
            }
        }
    }

    #[test]
    fn a_tilt_is_taken_back_and_the_rest_is_orthogonal_to_every_tilt(instance in instances()) {
        let family = instance.family();
        let readout = family.readout();
        let mut numbers = instance.numbers();
        let dq = instance.query(&mut numbers);
        let noise = numbers.normals(instance.n);
        let tilt: Vec<f64> = readout.tilt(&dq).unwrap().iter().zip(&noise).map(|(t, e)| t + e).collect();
        let found = family.untilt(&tilt).unwrap();
        let made = readout.tilt(&found.dq).unwrap();
        // tilt = made + outside + constant.
        let rest: Vec<f64> = (0..instance.n).map(|j| tilt[j] - made[j] - found.outside[j]).collect();
        let size = 1.0 + norm(&tilt) + norm(&made);
        prop_assert!(rest.iter().all(|value| (value - rest[0]).abs() < 1e-10 * size), "{rest:?}");
        prop_assert!(found.outside.iter().sum::<f64>().abs() < 1e-12 * size);
        prop_assert!(dot(&found.outside, &made).abs() < 1e-10 * size * size);
        prop_assert!((found.distance - norm(&found.outside)).abs() < 1e-14);
        // A tilt that a query makes is made back, whatever else there is.
        let again = family.untilt(&made).unwrap();
        prop_assert!(again.distance < 1e-12 * size);
        prop_assert!(instance.rank < instance.n - 1 || instance.copies > 0 || found.distance < 1e-10 * size);
    }

    #[test]
    fn ranks_are_those_of_the_construction(instance in instances()) {
        let distinct = instance.distinct();
        let found = Dimensions::of(&instance.points(), 1e-10).unwrap();
        prop_assert_eq!(found.simplex, instance.n - 1);
        prop_assert_eq!(found.family, instance.rank.min(distinct - 1));
        // The points' offset is one more direction, where there is room.
        prop_assert_eq!(found.tilts, (instance.rank + 1).min(distinct).min(instance.d));
        prop_assert!(found.tilts - found.family <= 1);
    }

    #[test]
    fn every_mean_of_weights_above_0_is_reached_by_one_query_of_the_hulls_directions(instance in instances()) {
        let family = instance.family();
        let mut numbers = instance.numbers();
        let u = family.readout().mean(&numbers.distribution(instance.n)).unwrap();
        let Some(query) = reached_by(&family, &u, instance.magnitude) else { return Ok(()) };
        // In the directions of the hull: the tilt that it makes is made back by itself alone.
        let back = family.untilt(&family.readout().tilt(&query).unwrap()).unwrap().dq;
        prop_assert!(norm(&minus(&back, &query)) <= 1e-8 * norm(&query) + 1e-10 / instance.magnitude);
    }

    #[test]
    fn no_vertex_is_reached_and_beyond_it_the_distance_is_known(instance in instances(), beyond in 0.01_f64..3.0) {
        let family = instance.family();
        let points = family.readout().points();
        let direction = instance.numbers().normals(instance.d);
        let value = |j: usize| dot(points.row(j), &direction);
        let top = (0..instance.n).max_by(|&i, &j| value(i).total_cmp(&value(j))).unwrap();
        // Nearest to what is beyond it is the vertex, if the functional is largest there.
        let far: Vec<f64> = points.row(top).iter().zip(&direction).map(|(c, v)| c + beyond * v * instance.magnitude).collect();
        let (_, margin, distance) = refused(&family, &far);
        let expected = beyond * norm(&direction) * instance.magnitude;
        prop_assert!((distance - expected).abs() < 1e-8 * expected, "{distance} {expected}");
        prop_assert!(margin < 0.0);
        if family.hull().rank() > 0 {
            let (_, _, distance) = refused(&family, points.row(top));
            prop_assert!(distance <= 1e-9 * instance.magnitude);
            prop_assert_eq!(family.is_vertex(top).unwrap(), Some(true));
        }
    }

    #[test]
    fn no_point_of_a_proper_face_is_reached(instance in instances(), on_face in 1_usize..5) {
        // Points below the face x_0 = 0, and some on it.
        let mut numbers = instance.numbers();
        let row = |j: usize, c: &[f64]| {
            let first = if j < on_face { 0.0 } else { -0.1 - c[0].abs() };
            [&[first], c].concat().iter().map(|value| value * instance.magnitude).collect::<Vec<f64>>()
        };
        let below = Numbers(instance.seed).points(on_face + instance.n, instance.d, instance.rank);
        let rows: Vec<Vec<f64>> = below.rows().enumerate().map(|(j, c)| row(j, c)).collect();
        let family = super::family(Entries::from_rows(&rows).unwrap());
        let mut weights = numbers.distribution(on_face);
        weights.resize(on_face + instance.n, 0.0);
        let u = family.readout().mean(&weights).unwrap();
        let (_, _, distance) = refused(&family, &u);
        prop_assert!(distance <= 1e-9 * instance.magnitude, "{distance}");
        // The limit of members has that mean, and lives on the face.
        match family.member(&weights).unwrap() {
            Member::Found { p, face: Some(face), .. } => {
                prop_assert!(face.iter().all(|&j| j < on_face));
                let off = norm(&minus(&family.readout().mean(&p).unwrap(), &u));
                prop_assert!(off <= 1e-9 * instance.magnitude);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn membership_is_certified_by_weights_or_by_a_direction(instance in instances(), out in 0.0_f64..2.0) {
        let points = instance.points();
        let hull = Hull::new(&points, Precision::DEFAULT).unwrap();
        let mut numbers = instance.numbers();
        let mean = ReadOut::new(points.clone(), 1.0).unwrap().mean(&numbers.distribution(instance.n)).unwrap();
        let u: Vec<f64> = mean.iter().map(|c| c + out * numbers.normal() * instance.magnitude).collect();
        let tolerance = 1e-9 * instance.magnitude;
        let sum = |weights: &[f64]| {
            assert!(weights.iter().all(|w| *w >= 0.0) && (weights.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            ReadOut::new(points.clone(), 1.0).unwrap().mean(weights).unwrap()
        };
        match hull.locate(&u).unwrap() {
            Membership::Inside { weights, .. } => prop_assert!(norm(&minus(&sum(&weights), &u)) < tolerance),
            Membership::Outside { weights, distance, direction } => {
                prop_assert!((norm(&minus(&sum(&weights), &u)) - distance).abs() < tolerance);
                for c in points.rows() {
                    prop_assert!(dot(&direction, &minus(c, &u)) <= -distance + tolerance);
                }
            }
            other @ Membership::Undecided { .. } => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_member_with_a_mean_divides_the_divergence_from_the_prior(instance in instances()) {
        let family = instance.family();
        let target = instance.numbers().distribution(instance.n);
        let found = family.member(&target).unwrap();
        let Member::Found { p, kl: found, query, face: None } = found else { panic!("{found:?}") };
        let readout = family.readout();
        let (mean, expected) = (readout.mean(&p).unwrap(), readout.mean(&target).unwrap());
        prop_assert!(norm(&minus(&mean, &expected)) <= enough(&family, instance.magnitude));
        for (one, other) in readout.read(&query).unwrap().p.iter().zip(&p) {
            prop_assert!((one - other).abs() < 1e-15);
        }
        let prior = readout.prior();
        let grain = grain(readout, &query);
        prop_assert!((kl(&target, &prior) - found - kl(&p, &prior)).abs() < 1e-9 + 100.0 * grain);
        prop_assert!(found > -1e-12 - grain && (found - kl(&target, &p)).abs() < 1e-12 + grain, "{found}");
    }

    #[test]
    fn no_query_gives_an_entry_more_than_its_largest_probability(instance in instances(), index in 0_usize..14) {
        let family = instance.family();
        let index = index % instance.n;
        let Some(Largest::Found { supremum, bound, witnessed, face, attained, .. }) = largest(&family, index) else {
            return Ok(());
        };
        prop_assert!(supremum <= bound + 1e-9 && (witnessed - supremum).abs() < 1e-9);
        prop_assert!(face.contains(&index) && attained == (face.len() == instance.n));
        let mut numbers = instance.numbers();
        for size in [0.1, 1.0, 3.0, 10.0] {
            let q: Vec<f64> = instance.query(&mut numbers).iter().map(|q| q * size).collect();
            prop_assert!(family.readout().read(&q).unwrap().p[index] <= bound + 1e-12);
        }
    }

    #[test]
    fn angles_do_not_change_with_the_columns_that_span_a_space(instance in instances()) {
        let mut numbers = instance.numbers();
        let (a, b) = (instance.points(), numbers.points(instance.n, 3, 3));
        let found = principal_angles(&a, &b, 1e-10).unwrap();
        let swapped = principal_angles(&b, &a, 1e-10).unwrap();
        prop_assert_eq!(found.cosines.len(), found.ranks[0].min(found.ranks[1]));
        let mixing: Vec<Vec<f64>> = (0..3).map(|_| numbers.normals(3)).collect();
        let mixed: Vec<Vec<f64>> =
            b.rows().map(|row| (0..3).map(|k| (0..3).map(|i| row[i] * mixing[i][k]).sum()).collect()).collect();
        let mixed = principal_angles(&a, &Entries::from_rows(&mixed).unwrap(), 1e-10).unwrap();
        for i in 0..found.cosines.len() {
            prop_assert!((0.0..=1.0).contains(&found.cosines[i]));
            prop_assert!((found.cosines[i] - swapped.cosines[i]).abs() < 1e-12);
            prop_assert!((found.cosines[i] - mixed.cosines[i]).abs() < 1e-9);
            prop_assert!((found.radians[i].cos() - found.cosines[i]).abs() < 1e-7);
        }
        let itself = principal_angles(&a, &a, 1e-10).unwrap();
        prop_assert!(itself.radians.iter().all(|angle| *angle < 1e-12), "{:?}", itself.radians);
    }
}
