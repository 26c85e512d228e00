//! What cannot be is refused with its name; nothing panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::*;

fn text<T>(result: Result<T, GeometryError>) -> String {
    match result {
        Ok(_) => "accepted".into(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn entries_that_cannot_be() {
    let new = |values: &[f64], width| text(Entries::new(values.to_vec(), width));
    assert_eq!(new(&[], 2), "entry: there is none; give at least one");
    assert_eq!(new(&[], 0), "dimension of the entries: there is none; give at least one");
    assert_eq!(new(&[1.0], 0), "dimension of the entries: there is none; give at least one");
    assert_eq!(new(&[1.0, 2.0, 3.0], 2), "entries: has 3 numbers, expected 4");
    assert_eq!(new(&[1.0, f64::NAN], 2), "entries[1] is NaN; it must be finite");
    assert_eq!(new(&[1.0, 2.0, f64::NEG_INFINITY], 1), "entries[2] is -inf; it must be finite");
    let rows: [&[f64]; 2] = [&[1.0], &[1.0, 2.0]];
    assert_eq!(text(Entries::from_rows(&rows)), "a row of the entries: has 2 numbers, expected 1");
    assert_eq!(text(Entries::from_rows::<[f64; 1]>(&[])), "entry: there is none; give at least one");
    assert_eq!(text(Entries::from_rows(&[[0.0; 0]])), "dimension of the entries: there is none; give at least one");
}

#[test]
fn read_outs_that_cannot_be() {
    let points = || triangle().points().clone();
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let expected = format!("scale is {scale}; it must be above 0 and finite");
        assert_eq!(text(ReadOut::new(points(), scale)), expected);
    }
    assert_eq!(text(triangle().with_sink(f64::NAN)), "sink[0] is NaN; it must be finite");
    let twice = triangle().with_sink(0.0).unwrap().with_sink(0.0);
    assert_eq!(text(twice), "number of sinks is 2; it must be 0 or 1");
    assert_eq!(text(triangle().with_prior(&[1.0])), "prior: has 1 numbers, expected 3");
    assert_eq!(text(triangle().with_prior(&[1.0, 0.0, 1.0])), "a weight of the prior is 0; it must be above 0");
    assert_eq!(text(triangle().with_prior(&[1.0, f64::NAN, 1.0])), "prior[1] is NaN; it must be finite");
    assert_eq!(text(triangle().read(&[1.0])), "query: has 1 numbers, expected 2");
    assert_eq!(text(triangle().read(&[1.0, f64::NAN])), "query[1] is NaN; it must be finite");
    let beyond = "beyond the range of f64; rescale the entries, the query or the target";
    let huge = ReadOut::new(Entries::from_rows(&[[1e200], [-1e200]]).unwrap(), 1.0).unwrap();
    assert_eq!(text(huge.read(&[1e200])), format!("logits: {beyond}"));
    assert_eq!(text(huge.covariance(&[0.5, 0.5])), format!("covariance: {beyond}"));
    assert_eq!(text(triangle().covariance(&[0.5])), "probabilities: has 1 numbers, expected 3");
    let negative = "probabilities is -1; it must be 0 or more, each of them";
    assert_eq!(text(triangle().covariance(&[1.0, 1.0, -1.0])), negative);
}

#[test]
fn hulls_and_tilts_beyond_the_range_of_f64() {
    let beyond = "beyond the range of f64; rescale the entries, the query or the target";
    let wide = Entries::from_rows(&[[f64::MAX], [f64::MIN]]).unwrap();
    assert_eq!(text(Hull::new(&wide, Precision::DEFAULT)), format!("radius of the hull: {beyond}"));
    let family = Family::new(ReadOut::new(wide, 1.0).unwrap(), Precision::DEFAULT);
    assert_eq!(text(family), format!("radius of the hull: {beyond}"));
    let square = super::family(Entries::from_rows(&[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]).unwrap());
    let alternating = [1.0, -1.0, 1.0, -1.0].map(|sign| sign * 1e308);
    assert_eq!(text(square.untilt(&alternating)), format!("distance of the tilt: {beyond}"));
}

#[test]
fn questions_that_cannot_be() {
    let family = Family::new(triangle(), Precision::DEFAULT).unwrap();
    assert_eq!(text(family.reach(&[0.0; 3])), "target: has 3 numbers, expected 2");
    assert_eq!(text(family.reach(&[0.0, f64::INFINITY])), "target[1] is inf; it must be finite");
    assert_eq!(text(family.hull().locate(&[f64::NAN; 2])), "point[0] is NaN; it must be finite");
    assert_eq!(text(family.member(&[1.0])), "distribution: has 1 numbers, expected 3");
    assert_eq!(text(family.member(&[0.0; 3])), "sum of the distribution is 0; it must be above 0 and finite");
    assert_eq!(text(family.member(&[-1.0, 1.0, 1.0])), "distribution is -1; it must be 0 or more, each of them");
    assert_eq!(text(family.untilt(&[0.0])), "tilt: has 1 numbers, expected 3");
    assert_eq!(text(family.largest_probability(3)), "entry 3: there are 3, counted from 0");
    assert_eq!(text(family.is_vertex(7)), "entry 7: there are 3, counted from 0");
    assert_eq!(text(tilted(&[0.5, 0.5], &[0.0])), "tilt: has 1 numbers, expected 2");
    assert_eq!(text(tilted(&[0.0], &[0.0])), "sum of the probabilities is 0; it must be above 0");
    assert_eq!(text(Concentration::of(&[])), "weight: there is none; give at least one");
    let one = Entries::from_rows(&[[1.0, 2.0]]).unwrap();
    let different = principal_angles(triangle().points(), &one, 1e-9);
    assert_eq!(text(different), "a column of the second matrix: has 1 numbers, expected 3");
    for tolerance in [0.0, 1.0, -1e-9, f64::NAN] {
        let expected = format!("relative tolerance of the rank is {tolerance}; it must be above 0 and below 1");
        assert_eq!(text(rank(&one, tolerance)), expected);
        assert_eq!(text(affine_rank(&one, tolerance)), expected);
        assert_eq!(text(principal_angles(&one, &one, tolerance)), expected);
        assert_eq!(text(Hull::new(&one, Precision { rank: tolerance, ..Precision::DEFAULT })), expected);
        for precision in [
            Precision { distance: tolerance, ..Precision::DEFAULT },
            Precision { reach: tolerance, ..Precision::DEFAULT },
        ] {
            assert!(text(Hull::new(&one, precision)).ends_with("it must be above 0 and below 1"));
        }
    }
}

#[test]
fn rotations_that_cannot_be() {
    assert_eq!(text(Rope::new(vec![f64::NAN])), "frequencies[0] is NaN; it must be finite");
    assert_eq!(text(Rope::standard(4, 0.0)), "base is 0; it must be above 0 and finite");
    let rope = Rope::standard(4, 10.0).unwrap();
    assert_eq!(text(rope.rotate(&[1.0; 3], 1.0)), "vector to rotate: has 3 numbers, expected 4");
    assert_eq!(text(rope.rotate(&[1.0; 4], f64::NAN)), "position[0] is NaN; it must be finite");
    let map = |rope: &Rope, positions: &[f64], q: &[f64], at| {
        text(rotated_map(&triangle(), rope, positions, q, at, Rotated::Keys))
    };
    let small = Rope::standard(2, 10.0).unwrap();
    assert_eq!(map(&rope, &[0.0; 3], &[0.0; 2], 0.0), "vector to rotate: has 2 numbers, expected 4");
    assert_eq!(map(&small, &[0.0; 2], &[0.0; 2], 0.0), "positions: has 2 numbers, expected 3");
    assert_eq!(map(&small, &[0.0; 3], &[0.0; 1], 0.0), "query: has 1 numbers, expected 2");
    assert_eq!(map(&small, &[0.0; 3], &[0.0; 2], f64::NAN), "position[0] is NaN; it must be finite");
}

/// Numbers from all over the range of f64.
fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        3 => -1.0..1.0_f64,
        2 => Just(0.0),
        1 => any::<f64>(),
        1 => Just(f64::MAX),
        1 => Just(f64::MIN),
        1 => Just(5e-324),
        1 => (-300_i32..300).prop_map(|exponent| 10.0_f64.powi(exponent)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the numbers, every question ends, and with an answer that is finite, or an error.
    #[test]
    fn no_numbers_make_a_panic(
        (n, d) in (1_usize..6, 1_usize..5),
        values in proptest::collection::vec(any_number(), 30),
        u in proptest::collection::vec(any_number(), 6),
        index in 0_usize..7,
    ) {
        let asked = catch_unwind(AssertUnwindSafe(|| ask(n, d, &values, &u, index)));
        prop_assert!(asked.is_ok(), "{n} {d} {values:?} {u:?} {index}");
    }
}

fn ask(n: usize, d: usize, values: &[f64], u: &[f64], index: usize) {
    let Ok(points) = Entries::new(values[..n * d].to_vec(), d) else { return };
    let _ = Dimensions::of(&points, 1e-9);
    let _ = principal_angles(&points, &points, 1e-9);
    let Ok(readout) = ReadOut::attention(points) else { return };
    let _ = readout.jacobian(&u[..d]);
    let _ = readout.probability_jacobian(&u[..d]);
    let _ = readout.tilt(&u[..d]);
    if let Ok(reading) = readout.read(&u[..d]) {
        assert!(reading.p.iter().chain(&reading.o).all(|value| value.is_finite()));
    }
    let rope = Rope::standard(d, 100.0).unwrap();
    let _ = rotated_map(&readout, &rope, &u[..n], &values[..d], u[0], Rotated::Keys);
    let _ = readout.clone().with_prior(&u[..n]);
    let Ok(family) = Family::new(readout, Precision::DEFAULT) else { return };
    for target in [&u[..d], &values[..d]] {
        let _ = family.hull().locate(target);
        if let Ok(Reach::Reached { query, residual }) = family.reach(target) {
            assert!(residual.is_finite() && query.iter().all(|q| q.is_finite()));
        }
    }
    let _ = family.untilt(&u[..n]);
    let _ = family.member(&u[..n]);
    let _ = family.is_vertex(index);
    let _ = family.largest_probability(index);
}
