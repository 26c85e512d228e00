//! What several tasks need: checks of values, groups of positions, batches that are made at random.

use std::ops::Range;

use rand_chacha::ChaCha8Rng;

use super::batch::Row;
use super::{Batch, TaskError};
use crate::random::{self, EVALUATION, EVALUATION_SEED, TRAIN};

/// Largest value of any size in a task's configuration.
const MAX_SIZE: usize = 1 << 20;

/// Checks the values of one kind of task.
pub(super) struct Check(pub &'static str);

impl Check {
    fn fail(&self, field: &'static str, problem: String) -> TaskError {
        TaskError::Field { kind: self.0, field, problem }
    }

    /// `value` must be from `least` to [`MAX_SIZE`], which keeps every sum and every token far from
    /// overflow.
    pub(super) fn size(&self, field: &'static str, value: usize, least: usize) -> Result<(), TaskError> {
        if (least..=MAX_SIZE).contains(&value) {
            return Ok(());
        }
        Err(self.fail(field, format!("is {value}; it must be from {least} to {MAX_SIZE}")))
    }

    /// What the part `free`, of at least `least` tokens, takes of a sequence of `tokens` in which the parts `fixed` stay as they are.
    pub(super) fn length(
        &self,
        tokens: usize,
        fixed: &[(&str, usize)],
        least: usize,
        free: &str,
    ) -> Result<usize, TaskError> {
        let taken: usize = fixed.iter().map(|(_, size)| size).sum();
        tokens.checked_sub(taken).filter(|&left| left >= least).ok_or_else(|| {
            let names: Vec<String> = fixed.iter().map(|(name, size)| format!("`{name}` {size}")).collect();
            let free = if least > 0 { format!(" and `{free}` is at least {least}") } else { String::new() };
            let problem =
                format!("{} stay as they are{free}, so there are at least {}", names.join(" and "), taken + least);
            TaskError::Length { kind: self.0, tokens, problem }
        })
    }

    pub(super) fn require(
        &self,
        holds: bool,
        field: &'static str,
        problem: impl FnOnce() -> String,
    ) -> Result<(), TaskError> {
        if holds { Ok(()) } else { Err(self.fail(field, problem())) }
    }
}

/// At most eight groups of neighbouring numbers, each with a name such as "distance 9-16".
pub(super) struct Buckets {
    first: usize,
    width: usize,
    pub names: Vec<String>,
}

impl Buckets {
    const MOST: usize = 8;

    /// Groups the numbers `first..=last`. Widths are multiples of 8.
    pub(super) fn new(what: &str, first: usize, last: usize) -> Self {
        let count = last + 1 - first;
        let width = 8 * count.div_ceil(8 * Self::MOST);
        let names =
            (first..=last).step_by(width).map(|low| format!("{what} {low}-{}", last.min(low + width - 1))).collect();
        Self { first, width, names }
    }

    /// The group of `number`, as a tag.
    pub(super) fn tag(&self, number: usize) -> i32 {
        ((number - self.first) / self.width) as i32
    }
}

/// Where each of `pairs` pairs starts within `region` tokens, ascending; every placement without
/// overlap is equally likely.
///
/// Taking the second token of each pair away leaves `region - pairs` tokens with `pairs` of them
/// marked, and each such marking belongs to exactly one placement.
pub(super) fn pair_places(rng: &mut ChaCha8Rng, region: usize, pairs: usize) -> Vec<usize> {
    let marked = random::subset(rng, region - pairs, pairs);
    marked.into_iter().enumerate().map(|(before, place)| place + before).collect()
}

/// A training batch of sequences that are made at random.
pub(super) fn made_train_batch(
    seed: u64,
    step: u64,
    rows: usize,
    len: usize,
    make: impl Fn(&mut ChaCha8Rng) -> Row,
) -> Batch {
    let mut rng = random::stream(seed, TRAIN, step);
    Batch::from_rows(len, (0..rows).map(|_| make(&mut rng)))
}

/// An evaluation batch of sequences that are made at random. Each has a stream of its own, so that
/// the set does not depend on the size of the batches.
pub(super) fn made_eval_batch(sequences: Range<usize>, len: usize, make: impl Fn(&mut ChaCha8Rng) -> Row) -> Batch {
    let row = |index| make(&mut random::stream(EVALUATION_SEED, EVALUATION, index as u64));
    Batch::from_rows(len, sequences.map(row))
}

/// Which of `total` evaluation sequences are in batch `index`.
pub(super) fn eval_range(index: usize, rows: usize, total: usize) -> Range<usize> {
    let start = index.saturating_mul(rows.max(1)).min(total);
    start..start.saturating_add(rows.max(1)).min(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn placements_are_uniform_and_reach_odd_places() {
        let mut rng = random::stream(0, "test", 0);
        let mut counts: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        for _ in 0..6_000 {
            *counts.entry(pair_places(&mut rng, 6, 2)).or_default() += 1;
        }
        // Two dominoes on six squares: 6 ways; 1000 expected, standard deviation 29.
        assert_eq!(counts.len(), 6);
        assert!(counts.contains_key(&vec![1, 3]) && counts.contains_key(&vec![1, 4]));
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn buckets_are_few_and_cover_everything() {
        for (first, last, count, name) in
            [(9, 46, 5, "x 9-16"), (0, 255, 8, "x 0-31"), (0, 0, 1, "x 0-0"), (1, 65, 5, "x 1-16"), (1, 64, 8, "x 1-8")]
        {
            let buckets = Buckets::new("x", first, last);
            assert_eq!((buckets.names.len(), &buckets.names[0][..]), (count, name));
            assert_eq!((buckets.tag(first), buckets.tag(last)), (0, count as i32 - 1));
        }
    }
}
