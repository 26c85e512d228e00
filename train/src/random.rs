//! Named random streams, and the few kinds of random choice that the tasks make.
//!
//! Every random number in a run comes from a stream that is named by a seed, a purpose and an index
//! (such as the step). Streams are told apart by a hash, so that no two of them overlap, and asking
//! for one more stream never shifts the numbers of another. A stream can be made again from its
//! name alone: a resumed run needs no saved generator state.

use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

/// Training data; the index is the step.
pub const TRAIN: &str = "train";
/// Evaluation data; the index is the number of the sequence in the evaluation set.
pub const EVALUATION: &str = "evaluation";
/// Initial parameters; the index tells layers or tensors apart.
pub const INITIALISATION: &str = "initialisation";
/// The seed of sequences that a finished model is measured on to choose between changes of it.
pub const CALIBRATION: &str = "calibration";
/// Which sequences of the evaluation set are looked at, where not all are.
pub const SAMPLE: &str = "sample";
/// Inputs of layers that are looked at without their model; the index is the number of the sequence.
pub const INPUTS: &str = "inputs";
/// Tokens that are drawn in generation; the index is the row.
pub const SAMPLING: &str = "sampling";
/// Dropout; the index is the step.
pub const DROPOUT: &str = "dropout";

/// Seed of every evaluation stream. It is fixed, so that all variants and all training seeds of an
/// ablation are judged on the same sequences.
pub const EVALUATION_SEED: u64 = 0;

/// Set in front of what is hashed. Its number is raised when streams are to change on purpose.
const DOMAIN: &[u8] = b"csa2 random stream 1";

/// The stream `name` number `index` of the run with seed `seed`.
///
/// The generator's 256-bit key is SHA-256 of domain, seed, length of the name, name and index; the
/// length keeps different (name, index) from giving the same bytes.
pub fn stream(seed: u64, name: &str, index: u64) -> ChaCha8Rng {
    let mut hash = Sha256::new();
    hash.update(DOMAIN);
    hash.update(seed.to_le_bytes());
    hash.update((name.len() as u64).to_le_bytes());
    hash.update(name.as_bytes());
    hash.update(index.to_le_bytes());
    ChaCha8Rng::from_seed(hash.finalize().into())
}

/// `count` different numbers below `limit`, in random order; all of them where `count` is above
/// `limit`.
pub fn distinct(rng: &mut ChaCha8Rng, limit: usize, count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..limit).collect();
    numbers.shuffle(rng);
    numbers.truncate(count);
    numbers
}

/// `count` different numbers below `limit`, ascending, every such set equally likely.
pub fn subset(rng: &mut ChaCha8Rng, limit: usize, count: usize) -> Vec<usize> {
    let mut numbers = distinct(rng, limit, count);
    numbers.sort_unstable();
    numbers
}

/// `count` numbers below `limit` in cycles: each cycle is a fresh shuffle of all of them, the last
/// one is cut short. Empty where `limit` is 0.
pub fn cycles(rng: &mut ChaCha8Rng, limit: usize, count: usize) -> Vec<usize> {
    let mut numbers = Vec::with_capacity(count);
    while limit > 0 && numbers.len() < count {
        let missing = count - numbers.len();
        numbers.extend(distinct(rng, limit, missing));
    }
    numbers
}

/// A whole number below `limit`, each equally likely; 0 where `limit` is 0.
pub fn below(rng: &mut ChaCha8Rng, limit: usize) -> usize {
    if limit == 0 { 0 } else { rng.random_range(0..limit) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;
    use std::collections::{BTreeMap, BTreeSet};

    /// A change of these numbers means that every run gives other results than before: a dependency
    /// has changed its generator or its way of choosing. Such a change must be made knowingly, with
    /// a new `DOMAIN`.
    #[test]
    fn first_outputs_are_frozen() {
        assert_eq!(stream(7, TRAIN, 3).next_u64(), 17_653_812_917_394_075_040);
        let mut rng = stream(7, TRAIN, 3);
        let (different, set) = (distinct(&mut rng, 10, 6), subset(&mut rng, 20, 5));
        let (cycled, one) = (cycles(&mut rng, 3, 7), below(&mut rng, 1000));
        assert_eq!(different, [7, 2, 9, 0, 8, 6]);
        assert_eq!(set, [0, 3, 5, 8, 17]);
        assert_eq!(cycled, [0, 2, 1, 1, 2, 0, 0]);
        assert_eq!(one, 669);
    }

    #[test]
    fn streams_differ_in_every_part_of_their_name() {
        let mut keys = BTreeSet::new();
        let mut asked = 0;
        for seed in [0, 1, u64::MAX] {
            for name in [TRAIN, EVALUATION, INITIALISATION, DROPOUT, "", "train0"] {
                for index in [0, 1, 48, u64::MAX] {
                    keys.insert(stream(seed, name, index).get_seed());
                    asked += 1;
                }
            }
        }
        assert_eq!(keys.len(), asked);
        assert_eq!(stream(1, TRAIN, 2), stream(1, TRAIN, 2));
    }

    #[test]
    fn subsets_are_uniform() {
        let mut rng = stream(0, "test", 0);
        let mut counts: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        for _ in 0..10_000 {
            *counts.entry(subset(&mut rng, 5, 2)).or_default() += 1;
        }
        assert_eq!(counts.len(), 10);
        // 1000 expected, standard deviation 30.
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn cycles_use_every_number_before_repeating_one() {
        let numbers = cycles(&mut stream(0, "test", 1), 4, 10);
        assert_eq!(numbers.len(), 10);
        for cycle in numbers.chunks(4) {
            assert_eq!(cycle.iter().collect::<BTreeSet<_>>().len(), cycle.len());
        }
        assert!(cycles(&mut stream(0, "test", 1), 0, 10).is_empty());
    }
}
