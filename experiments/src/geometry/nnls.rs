//! Least squares with coefficients that are not negative, by active sets (Lawson and Hanson): `min |b - A x|, x >= 0`.
//!
//! Two questions become this one: the distance to a hull, and whether a point is inside a hull's relative interior. What a caller
//! concludes rests on certificates that it checks itself, never on this solver having converged.

use faer::{Mat, MatRef};

use super::linalg::{dot, norm, times, transpose_times};

/// Where the solver ended.
pub struct Solved {
    /// Coefficients, `[columns]`, none negative.
    pub x: Vec<f64>,
    /// `b - A x`, `[rows]`, without what rounding of x left of the columns in use: orthogonal to them up to its own rounding, however small it is.
    pub residual: Vec<f64>,
}

/// An orthogonal factorisation of the columns in use, which grows and shrinks by one column.
struct Factors {
    /// Orthonormal, `[rows, room]`; the first ones count.
    q: Mat<f64>,
    /// Columns of the upper triangle.
    r: Vec<Vec<f64>>,
    /// `transpose(Q) b`.
    target: Vec<f64>,
}

impl Factors {
    fn new(rows: usize, columns: usize) -> Self {
        Self { q: Mat::zeros(rows, rows.min(columns)), r: Vec::new(), target: Vec::new() }
    }

    fn used(&self) -> MatRef<'_, f64> {
        self.q.subcols(0, self.r.len())
    }

    /// Takes in a column; not one that the others span once each, like itself, is moved by `noise`.
    fn push(&mut self, column: &[f64], b: &[f64], noise: f64) -> bool {
        let k = self.r.len();
        if k == self.q.ncols() {
            return false;
        }
        let size = norm(column);
        let mut rest = column.to_vec();
        let mut upper = vec![0.0; k];
        // Twice, so that what is left is orthogonal to the last bit.
        for _ in 0..2 {
            let along = transpose_times(self.used(), &rest);
            for (rest, known) in rest.iter_mut().zip(times(self.used(), &along)) {
                *rest -= known;
            }
            upper.iter_mut().zip(&along).for_each(|(upper, along)| *upper += along);
        }
        let left = norm(&rest);
        let as_sum: f64 = self.back_substitute(&upper).iter().map(|value| value.abs()).sum();
        if left <= (1e-13 * size).max(noise * (1.0 + as_sum)) {
            return false;
        }
        for (q, rest) in self.q.col_as_slice_mut(k).iter_mut().zip(&rest) {
            *q = rest / left;
        }
        upper.push(left);
        self.r.push(upper);
        self.target.push(dot(self.q.col_as_slice(k), b));
        true
    }

    /// Lets go of column `at`.
    fn remove(&mut self, at: usize) {
        self.r.remove(at);
        // Each later column has one number below the diagonal: rotated away, two rows at a time.
        for i in at..self.r.len() {
            let (above, below) = (self.r[i][i], self.r[i][i + 1]);
            let length = above.hypot(below);
            let (c, s) = if length == 0.0 { (1.0, 0.0) } else { (above / length, below / length) };
            for column in &mut self.r[i..] {
                let (a, b) = (column[i], column[i + 1]);
                (column[i], column[i + 1]) = (c * a + s * b, c * b - s * a);
            }
            let (a, b) = (self.target[i], self.target[i + 1]);
            (self.target[i], self.target[i + 1]) = (c * a + s * b, c * b - s * a);
            let (mut left, mut right) = (self.q.col(i).to_owned(), self.q.col(i + 1).to_owned());
            for (a, b) in left.iter_mut().zip(right.iter_mut()) {
                (*a, *b) = (c * *a + s * *b, c * *b - s * *a);
            }
            self.q.col_mut(i).copy_from(&left);
            self.q.col_mut(i + 1).copy_from(&right);
            self.r[i].truncate(i + 1);
        }
        self.target.pop();
    }

    /// The coefficients of least squares over the columns in use.
    fn solve(&self) -> Vec<f64> {
        self.back_substitute(&self.target)
    }

    /// Coefficients of the columns in use that make what is `along` in Q.
    fn back_substitute(&self, along: &[f64]) -> Vec<f64> {
        let mut x = along.to_vec();
        for i in (0..x.len()).rev() {
            let column = &self.r[i];
            x[i] /= column[i];
            let value = x[i];
            x[..i].iter_mut().zip(column).for_each(|(x, r)| *x -= value * r);
        }
        x
    }

    /// What of `b` is orthogonal to the columns in use.
    fn residual(&self, b: &[f64]) -> Vec<f64> {
        let mut rest = b.to_vec();
        for _ in 0..2 {
            let along = transpose_times(self.used(), &rest);
            rest.iter_mut().zip(times(self.used(), &along)).for_each(|(rest, known)| *rest -= known);
        }
        rest
    }
}

/// Solves `min |b - A x|, x >= 0`; A is `[rows, columns]`, and its numbers, like those of b, should not be far from 1.
///
/// Columns were rounded by as much as `noise`: two that are opposite up to that would span, with coefficients of 1 over it, whatever
/// direction their rounding has.
pub fn solve(a: MatRef<'_, f64>, b: &[f64], noise: f64) -> Solved {
    let columns = a.ncols();
    let sizes: Vec<f64> = (0..columns).map(|j| norm(&column(a, j))).collect();
    let goal = norm(b);
    let mut factors = Factors::new(a.nrows(), columns);
    let mut used: Vec<usize> = Vec::new();
    let mut x: Vec<f64> = Vec::new();
    // 0: outside and free to enter, 1: in use, 2: outside until something changes.
    // Columns that are 0 up to rounding have no direction.
    let largest = sizes.iter().copied().fold(0.0, f64::max);
    let usable = |j: usize| sizes[j] > 1e-13 * largest;
    let mut state = vec![0_u8; columns];
    let mut residual = b.to_vec();
    for _ in 0..10 * columns + 100 {
        let size = norm(&residual);
        if size <= 1e-15 * goal {
            break;
        }
        let pull = transpose_times(a, &residual);
        let strength = |j: usize| pull[j] / sizes[j];
        let free = (0..columns).filter(|&j| state[j] == 0 && usable(j) && strength(j) > 4e-15 * size);
        let Some(enter) = free.max_by(|&i, &j| strength(i).total_cmp(&strength(j))) else { break };
        if !factors.push(&column(a, enter), b, noise) {
            state[enter] = 2;
            continue;
        }
        let mut wanted = factors.solve();
        if wanted[used.len()] <= 0.0 {
            // Rounding alone pulled it in.
            factors.remove(used.len());
            state[enter] = 2;
            continue;
        }
        used.push(enter);
        x.push(0.0);
        state[enter] = 1;
        while let Some(step) = shortest_step(&x, &wanted) {
            x.iter_mut().zip(&wanted).for_each(|(x, wanted)| *x += step * (wanted - *x));
            let smallest = (0..x.len()).filter(|&i| wanted[i] <= 0.0).min_by(|&i, &j| x[i].total_cmp(&x[j]));
            let leave: Vec<usize> =
                (0..x.len()).filter(|&i| wanted[i] <= 0.0 && (x[i] <= 0.0 || Some(i) == smallest)).collect();
            for at in leave.into_iter().rev() {
                factors.remove(at);
                state[used.remove(at)] = 0;
                x.remove(at);
            }
            wanted = factors.solve();
        }
        x = wanted;
        residual = factors.residual(b);
        state.iter_mut().filter(|state| **state == 2).for_each(|state| *state = 0);
    }
    let mut all = vec![0.0; columns];
    for (&j, &x) in used.iter().zip(&x) {
        all[j] = x;
    }
    Solved { x: all, residual }
}

fn column(a: MatRef<'_, f64>, j: usize) -> Vec<f64> {
    a.col(j).iter().copied().collect()
}

/// How far from `x` to `wanted` one can go until the first coefficient is 0; none where all of it is positive.
fn shortest_step(x: &[f64], wanted: &[f64]) -> Option<f64> {
    let steps = x.iter().zip(wanted).filter(|(_, wanted)| **wanted <= 0.0);
    steps.map(|(x, wanted)| if *x > 0.0 { x / (x - wanted) } else { 0.0 }).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_squares_where_no_coefficient_is_negative_and_the_face_where_one_would_be() {
        let a = faer::mat![[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]];
        let inside = solve(a.as_ref(), &[1.0, 2.0, 3.0], 0.0);
        assert!((inside.x[0] - 1.0).abs() < 1e-14 && (inside.x[1] - 2.0).abs() < 1e-14, "{:?}", inside.x);
        assert!(norm(&inside.residual) < 1e-14);
        // Without the sign, x would be (3, -1).
        let edge = solve(a.as_ref(), &[3.0, -1.0, 2.0], 0.0);
        assert!((edge.x[0] - 2.5).abs() < 1e-14 && edge.x[1] == 0.0, "{:?}", edge.x);
        assert!(solve(a.as_ref(), &[-1.0, -1.0, -1.0], 0.0).x.iter().all(|x| *x == 0.0));
    }
}
