//! What a task hands to the training loop.

/// Marks "nothing here" among targets and tags.
pub const NONE: i32 = -1;

/// Sequences with what is to be predicted at each position. All vectors hold `rows * len` numbers,
/// row after row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Number of sequences.
    pub rows: usize,
    /// Tokens in each sequence.
    pub len: usize,
    /// Input tokens `[rows, len]`.
    pub tokens: Vec<i32>,
    /// What the network's output at each position should be `[rows, len]`; [`NONE`] where no loss
    /// is taken. Targets are already in place: nothing needs to be shifted.
    pub targets: Vec<i32>,
    /// Targets of the auxiliary head `[rows, len]`, of the same vocabulary; only for tasks with a
    /// [`super::Task::auxiliary`].
    pub hint_targets: Option<Vec<i32>>,
    /// Index into [`super::Task::tags`] of each position `[rows, len]`; [`NONE`] where it has no
    /// tag.
    pub tags: Vec<i32>,
    /// Tokens from the one that holds the answer to the position that asks for it `[rows, len]`; [`NONE`] where nothing
    /// is asked, and in tasks whose targets lie at no one place.
    pub distances: Vec<i32>,
}

/// One sequence of a [`Batch`].
pub(super) struct Row {
    pub tokens: Vec<i32>,
    pub targets: Vec<i32>,
    pub hints: Option<Vec<i32>>,
    pub tags: Vec<i32>,
    pub distances: Vec<i32>,
}

impl Row {
    /// Tokens 0, no targets, no tags, no distances, no hints.
    pub(super) fn blank(len: usize) -> Self {
        let none = || vec![NONE; len];
        Self { tokens: vec![0; len], targets: none(), hints: None, tags: none(), distances: none() }
    }
}

impl Batch {
    /// The sequences of several batches of equal length, one after the other.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn joined(batches: impl Iterator<Item = Self>) -> Self {
        batches.fold(Self::empty(0), |mut all, batch| {
            assert!(all.rows == 0 || all.len == batch.len, "sequences of one task are equally long");
            (all.rows, all.len) = (all.rows + batch.rows, batch.len);
            all.tokens.extend(batch.tokens);
            all.targets.extend(batch.targets);
            all.tags.extend(batch.tags);
            all.distances.extend(batch.distances);
            if let Some(hints) = batch.hint_targets {
                all.hint_targets.get_or_insert_default().extend(hints);
            }
            all
        })
    }

    /// No sequence of `len` tokens.
    fn empty(len: usize) -> Self {
        let (tokens, targets, tags, distances) = (vec![], vec![], vec![], vec![]);
        Self { rows: 0, len, tokens, targets, hint_targets: None, tags, distances }
    }

    /// Puts sequences of `len` tokens together.
    pub(super) fn from_rows(len: usize, rows: impl Iterator<Item = Row>) -> Self {
        let mut batch = Self::empty(len);
        for row in rows {
            batch.rows += 1;
            batch.tokens.extend(row.tokens);
            batch.targets.extend(row.targets);
            batch.tags.extend(row.tags);
            batch.distances.extend(row.distances);
            if let Some(hints) = row.hints {
                batch.hint_targets.get_or_insert_default().extend(hints);
            }
        }
        batch
    }
}
