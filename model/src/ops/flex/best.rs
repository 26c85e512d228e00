//! The best of a row of scores, kept in a short list that is thinned out when it is full.

use super::simd::Real;
use crate::ops::NO_ENTRY;

/// The `count` best scores seen so far, and some more. Ties: the lowest position wins.
pub(super) struct Best<T: Real> {
    count: usize,
    kept: Vec<T::Rank>,
    /// Scores up to this one can no longer be among the best: `count` others are at least as high and lie before.
    floor: T,
    positions: Vec<u32>,
}

impl<T: Real> Best<T> {
    pub(super) fn new(count: usize) -> Self {
        Self { count, kept: Vec::with_capacity(2 * count), floor: T::neg_infinity(), positions: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.floor = T::neg_infinity();
    }

    /// A block that is chosen whatever its score.
    pub(super) fn pin(&mut self, position: u32) {
        self.keep(T::rank_above_all(position));
    }

    /// Offers scores of the positions from `first` on; later offers must have higher positions.
    #[inline(always)]
    pub(super) fn offer_row(&mut self, scores: &[T], first: u32) {
        const CHUNK: usize = 32;
        for (chunk, scores) in scores.chunks(CHUNK).enumerate() {
            // Most chunks hold none of the best; this look at all of them at once compiles to a few wide comparisons.
            let mut promising = self.floor == T::neg_infinity();
            for &score in scores {
                promising |= score > self.floor;
            }
            if promising {
                for (i, &score) in scores.iter().enumerate() {
                    self.offer(score, first + (chunk * CHUNK + i) as u32);
                }
            }
        }
    }

    /// Offers one score; later offers must have higher positions.
    #[inline(always)]
    pub(super) fn offer(&mut self, score: T, position: u32) {
        if score > self.floor || self.floor == T::neg_infinity() {
            self.keep(score.rank(position));
        }
    }

    /// Takes over what another list of the same length has kept.
    pub(super) fn join(&mut self, other: Self) {
        self.kept.extend(other.kept);
        self.thin();
    }

    fn keep(&mut self, rank: T::Rank) {
        self.kept.push(rank);
        if self.kept.len() >= 2 * self.count {
            self.thin();
            // Only once `count` are kept does the least of them bar the way; a pinned one is never the least then, or all are.
            if let Some(&least) = self.kept.iter().min() {
                self.floor = T::ranked(least).0;
            }
        }
    }

    fn thin(&mut self) {
        if self.kept.len() > self.count {
            self.kept.select_nth_unstable_by(self.count, |a, b| b.cmp(a));
            self.kept.truncate(self.count);
        }
    }

    /// Writes the best into `row`, ascending, the rest as "no entry"; `row` has `count` places.
    pub(super) fn write(&mut self, row: &mut [i32]) {
        self.thin();
        self.positions.clear();
        self.positions.extend(self.kept.iter().map(|&rank| T::ranked(rank).1));
        self.positions.sort_unstable();
        row.fill(NO_ENTRY);
        for (place, &position) in row.iter_mut().zip(&self.positions) {
            *place = position as i32;
        }
    }
}
