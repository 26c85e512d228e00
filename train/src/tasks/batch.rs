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
}

/// One sequence of a [`Batch`].
pub(super) struct Row {
    pub tokens: Vec<i32>,
    pub targets: Vec<i32>,
    pub hints: Option<Vec<i32>>,
    pub tags: Vec<i32>,
}

impl Row {
    /// Tokens 0, no targets, no tags, no hints.
    pub(super) fn blank(len: usize) -> Self {
        Self { tokens: vec![0; len], targets: vec![NONE; len], hints: None, tags: vec![NONE; len] }
    }
}

impl Batch {
    /// The sequences of several batches of equal length, one after the other.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn joined(batches: impl Iterator<Item = Self>) -> Self {
        let empty = Self { rows: 0, len: 0, tokens: vec![], targets: vec![], hint_targets: None, tags: vec![] };
        batches.fold(empty, |mut all, batch| {
            assert!(all.rows == 0 || all.len == batch.len, "sequences of one task are equally long");
            (all.rows, all.len) = (all.rows + batch.rows, batch.len);
            all.tokens.extend(batch.tokens);
            all.targets.extend(batch.targets);
            all.tags.extend(batch.tags);
            if let Some(hints) = batch.hint_targets {
                all.hint_targets.get_or_insert_default().extend(hints);
            }
            all
        })
    }

    /// Puts sequences of `len` tokens together.
    pub(super) fn from_rows(len: usize, rows: impl Iterator<Item = Row>) -> Self {
        let mut batch = Self { rows: 0, len, tokens: vec![], targets: vec![], hint_targets: None, tags: vec![] };
        for row in rows {
            batch.rows += 1;
            batch.tokens.extend(row.tokens);
            batch.targets.extend(row.targets);
            batch.tags.extend(row.tags);
            if let Some(hints) = row.hints {
                batch.hint_targets.get_or_insert_default().extend(hints);
            }
        }
        batch
    }
}
