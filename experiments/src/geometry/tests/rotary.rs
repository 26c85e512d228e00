//! Rotary positions, and angles between families.

use super::*;

#[test]
fn rotary_positions_do_not_cancel_and_do_not_break_the_shared_vector() {
    let mut numbers = Numbers(7);
    let (n, d) = (9, 6);
    let readout = ReadOut::attention(numbers.points(n, d, d)).unwrap().with_sink(0.3).unwrap();
    let (rope, q) = (Rope::standard(4, 100.0).unwrap(), numbers.normals(d));
    let positions: Vec<f64> = (0..n).map(|j| j as f64).collect();
    let map = |positions: &[f64], rotated| rotated_map(&readout, &rope, positions, &q, 11.0, rotated).unwrap();
    let plain = readout.read(&q).unwrap();

    // Released: symmetric, no negative eigenvalue, and the derivative of the output.
    let both = map(&positions, Rotated::KeysAndValuesAndBack);
    assert!(both.asymmetry < 1e-14 && both.eigenvalues[0] > -1e-14 * both.eigenvalues[1]);
    assert!(norm(&minus(&both.reading.o, &plain.o)) > 0.1, "rotations do not cancel");
    // It is the read-out of the points R_t^T R_j c_j.
    let seen: Vec<Vec<f64>> =
        (0..n).map(|j| rope.rotate(readout.points().row(j), positions[j] - 11.0).unwrap()).collect();
    let seen = ReadOut::attention(Entries::from_rows(&seen).unwrap()).unwrap().with_sink(0.3).unwrap();
    near(&both.reading.o, &seen.read(&q).unwrap().o, 1e-13);
    for (row, expected) in rows(&both.jacobian).iter().zip(rows(&seen.jacobian(&q).unwrap())) {
        near(row, &expected, 1e-13);
    }
    // At one position for all they do cancel.
    let together = map(&vec![11.0; n], Rotated::KeysAndValuesAndBack);
    near(&together.reading.o, &plain.o, 1e-13);

    // Keys alone, or not rotated back: neither symmetric nor, in general, definite.
    for rotated in [Rotated::Keys, Rotated::KeysAndValues] {
        let found = map(&positions, rotated);
        assert!(found.asymmetry > 0.1, "{rotated:?}: {}", found.asymmetry);
        assert!(found.eigenvalues[0] < -1e-3, "{rotated:?}: {:?}", found.eigenvalues);
        for k in 0..d {
            let moved = |by: f64| {
                let mut q = q.clone();
                q[k] += by;
                rotated_map(&readout, &rope, &positions, &q, 11.0, rotated).unwrap().reading.o
            };
            let (up, down) = (moved(1e-6), moved(-1e-6));
            for i in 0..d {
                assert!((found.jacobian[(i, k)] - (up[i] - down[i]) / 2e-6).abs() < 1e-8);
            }
        }
    }
}

#[test]
fn principal_angles_of_known_spaces() {
    let a = Entries::from_rows(&[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]).unwrap();
    let tilted = Entries::from_rows(&[[1.0, 0.0], [0.0, 1e-9_f64.cos()], [0.0, 1e-9_f64.sin()], [0.0, 0.0]]).unwrap();
    let found = principal_angles(&a, &tilted, 1e-10).unwrap();
    near(&found.cosines, &[1.0, 1.0], 1e-15);
    near(&found.radians, &[0.0, 1e-9], 1e-16);
    let other = Entries::from_rows(&[[0.0, 0.0, 0.0], [1.0, 0.0, 2.0], [1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]).unwrap();
    let found = principal_angles(&a, &other, 1e-10).unwrap();
    assert_eq!(found.ranks, [2, 2]);
    near(&found.radians, &[std::f64::consts::FRAC_PI_4, std::f64::consts::FRAC_PI_2], 1e-15);
}
