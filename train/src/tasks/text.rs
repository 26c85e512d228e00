//! Byte-level language modelling over files.
//!
//! Tokens are bytes. The documents of each side of the split stand one after another, each followed
//! by a 0 byte (see [`crate::corpus`]). A training sequence is a window at a random place of the
//! training bytes, so it may run over the end of a document; the evaluation set is made of windows
//! of the validation bytes that do not overlap. At each position the next byte is to be predicted.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::batch::Row;
use super::shared::{Buckets, Check, eval_range};
use super::{Auxiliary, Batch, Metric, Task, TaskError};
use crate::corpus::{Corpus, CorpusOptions};
use crate::random::{self, TRAIN};

const KIND: &str = "text";

/// Configuration of the `text` task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextConfig {
    /// Files, folders and patterns, relative to the folder of the configuration file. A folder
    /// stands for all files below it; files that end in `.gz` are decompressed.
    pub files: Vec<String>,
    /// Tokens in a sequence (256).
    #[serde(default = "default_seq_len")]
    pub seq_len: usize,
    /// Share of documents for validation (0.1); above 0, below 1.
    #[serde(default = "default_validation_share")]
    pub validation_share: f64,
    /// Files longer than this are cut into documents of this many bytes (65536), so that one large
    /// file also splits into training and validation.
    #[serde(default = "default_document_bytes")]
    pub document_bytes: usize,
    /// Largest corpus to read, in bytes after decompression (1 GiB).
    #[serde(default = "default_max_bytes")]
    pub max_bytes: u64,
    /// Most sequences in the evaluation set (256). Where the validation bytes hold more, these are
    /// spread evenly over them.
    #[serde(default = "default_eval_sequences")]
    pub eval_sequences: usize,
}

fn default_seq_len() -> usize {
    256
}

fn default_validation_share() -> f64 {
    0.1
}

fn default_document_bytes() -> usize {
    65536
}

fn default_max_bytes() -> u64 {
    1 << 30
}

fn default_eval_sequences() -> usize {
    256
}

impl TextConfig {
    /// The default configuration over `files`.
    pub fn new(files: Vec<String>) -> Self {
        Self {
            files,
            seq_len: default_seq_len(),
            validation_share: default_validation_share(),
            document_bytes: default_document_bytes(),
            max_bytes: default_max_bytes(),
            eval_sequences: default_eval_sequences(),
        }
    }

    /// Checks the values and reads the files; relative paths are taken from `base_dir`.
    ///
    /// # Errors
    /// A value out of its range, files that cannot be used, or a sequence longer than the data.
    pub fn build(&self, base_dir: &Path) -> Result<Text, TaskError> {
        self.validate()?;
        let options = CorpusOptions {
            validation_share: self.validation_share,
            document_bytes: self.document_bytes,
            max_bytes: self.max_bytes,
        };
        let corpus = Corpus::load(&self.files, base_dir, &options).map_err(TaskError::Corpus)?;
        self.check_length("training", corpus.train.len())?;
        self.check_length("validation", corpus.validation.len())?;
        Ok(Text { config: self.clone(), corpus, positions: Buckets::new("position", 0, self.seq_len - 1) })
    }

    /// The same task in sequences of `tokens` tokens.
    ///
    /// # Errors
    /// None; what is longer than the data is refused when the task is built.
    pub fn stretched(&self, tokens: usize) -> Result<Self, TaskError> {
        Ok(Self { seq_len: tokens, ..self.clone() })
    }

    /// Tokens in each sequence.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// The key of the configuration that [`stretched`](Self::stretched) changes.
    pub fn length_key(&self) -> &'static str {
        "seq_len"
    }

    /// The task has no auxiliary head.
    pub fn auxiliary(&self) -> Option<Auxiliary> {
        None
    }

    fn validate(&self) -> Result<(), TaskError> {
        let check = Check(KIND);
        check.size("seq_len", self.seq_len, 1)?;
        check.size("eval_sequences", self.eval_sequences, 1)?;
        // Shorter documents would cost more to keep apart than they hold.
        check.size("document_bytes", self.document_bytes, 256)?;
        check.require(self.max_bytes > 0, "max_bytes", || "is 0; it must be at least 1".into())?;
        let share = self.validation_share;
        check.require(share > 0.0 && share < 1.0, "validation_share", || {
            format!("is {share}; it must be above 0 and below 1")
        })
    }

    fn check_length(&self, side: &str, bytes: usize) -> Result<(), TaskError> {
        Check(KIND).require(bytes > self.seq_len, "seq_len", || {
            let len = self.seq_len;
            format!(
                "is {len}, but the {side} data are only {bytes} bytes and a sequence takes one \
                 byte more than its length; set it below {bytes} or add files"
            )
        })
    }
}

/// The `text` task.
pub struct Text {
    config: TextConfig,
    corpus: Corpus,
    positions: Buckets,
}

impl Text {
    /// The window of `bytes` that starts at `start`, each target the byte after its token.
    fn row(&self, bytes: &[u8], start: usize) -> Row {
        let len = self.config.seq_len;
        let mut row = Row::blank(len);
        for (at, pair) in bytes[start..=start + len].windows(2).enumerate() {
            row.tokens[at] = i32::from(pair[0]);
            row.targets[at] = i32::from(pair[1]);
            row.tags[at] = self.positions.tag(at);
        }
        row
    }

    /// Windows that the validation bytes hold without overlap. The byte after a window is the first
    /// of the next, so each byte but the very first is predicted once.
    fn windows(&self) -> usize {
        (self.corpus.validation.len() - 1) / self.config.seq_len
    }
}

impl Task for Text {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn vocab_size(&self) -> usize {
        256
    }

    fn seq_len(&self) -> usize {
        self.config.seq_len()
    }

    fn metric(&self) -> Metric {
        Metric::BitsPerByte
    }

    /// Position in the window: later ones have more context.
    fn tags(&self) -> &[String] {
        &self.positions.names
    }

    fn train_batch(&self, seed: u64, step: u64, rows: usize) -> Batch {
        let mut rng = random::stream(seed, TRAIN, step);
        let bytes = &self.corpus.train;
        let starts = bytes.len() - self.config.seq_len;
        let rows = (0..rows).map(|_| self.row(bytes, random::below(&mut rng, starts)));
        Batch::from_rows(self.config.seq_len, rows)
    }

    fn eval_sequences(&self) -> usize {
        self.config.eval_sequences.min(self.windows())
    }

    fn eval_batch(&self, index: usize, rows: usize) -> Batch {
        let (total, windows) = (self.eval_sequences(), self.windows());
        let row = |sequence| {
            let window = sequence * windows / total;
            self.row(&self.corpus.validation, window * self.config.seq_len)
        };
        Batch::from_rows(self.config.seq_len, eval_range(index, rows, total).map(row))
    }

    fn describe(&self) -> String {
        let Corpus { train, validation, summary } = &self.corpus;
        format!(
            "bytes of text: {} files, {} duplicate documents dropped; training {} documents, {} \
             bytes; validation {} documents, {} bytes, of which {} windows of {} bytes are \
             evaluated; equal guesses give 8 bits per byte",
            summary.files,
            summary.duplicates,
            summary.train_documents,
            train.len(),
            summary.validation_documents,
            validation.len(),
            self.eval_sequences(),
            self.config.seq_len,
        )
    }

    fn data_digest(&self) -> Option<&str> {
        Some(&self.corpus.summary.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;

    /// A file in which every two neighbouring bytes tell where they stand, with bytes that are not
    /// UTF-8.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..12_000_u32).flat_map(|n| (n * 5 + 40_000).to_be_bytes()[2..].to_vec()).collect();
        assert!(std::str::from_utf8(&bytes).is_err());
        fs::write(folder.path().join("corpus.bin"), bytes).unwrap();
        folder
    }

    /// A small configuration with other values for some keys.
    fn config(values: &str) -> TextConfig {
        let small = TextConfig {
            seq_len: 100,
            document_bytes: 1024,
            validation_share: 0.3,
            eval_sequences: 20,
            ..TextConfig::new(vec!["corpus.bin".into()])
        };
        let mut table = toml::Table::try_from(small).unwrap();
        table.extend(values.parse::<toml::Table>().unwrap());
        table.try_into().unwrap()
    }

    fn task(values: &str) -> Text {
        config(values).build(folder().path()).unwrap()
    }

    fn as_tokens(bytes: &[u8]) -> Vec<i32> {
        bytes.iter().map(|byte| i32::from(*byte)).collect()
    }

    #[test]
    fn training_windows_come_from_the_training_bytes() {
        let task = task("");
        let bytes = as_tokens(&task.corpus.train);
        let known: BTreeSet<&[i32]> = bytes.windows(101).collect();
        let batch = task.train_batch(1, 2, 50);
        assert_eq!((batch.rows, batch.len, batch.tokens.len()), (50, 100, 5000));
        for (tokens, targets) in batch.tokens.chunks(100).zip(batch.targets.chunks(100)) {
            let window = [tokens, &targets[99..]].concat();
            assert!(known.contains(&window[..]));
            assert_eq!(tokens[1..], targets[..99]);
        }
        let firsts: BTreeSet<&[i32]> = batch.tokens.chunks(100).collect();
        assert!(firsts.len() > 45, "windows are spread");
    }

    #[test]
    fn the_last_training_window_can_be_drawn() {
        let mut task = task("");
        task.corpus.train.truncate(102);
        let draw = |step| task.train_batch(0, step, 1).targets;
        let drawn: BTreeSet<Vec<i32>> = (0..20).map(draw).collect();
        let both = [1, 2].map(|at| as_tokens(&task.corpus.train[at..at + 100]));
        assert_eq!(drawn, BTreeSet::from(both));
    }

    #[test]
    fn evaluation_covers_validation_evenly_and_without_overlap() {
        let task = task("");
        let bytes = as_tokens(&task.corpus.validation);
        assert!(task.windows() > 40);
        assert_eq!((task.eval_sequences(), task.eval_batches(8)), (20, 3));
        let batches: Vec<Batch> = (0..3).map(|index| task.eval_batch(index, 8)).collect();
        let sequences = batches.iter().flat_map(|batch| batch.tokens.chunks(100));
        let place = |tokens| bytes.windows(100).position(|window| window == tokens);
        let places: Vec<usize> = sequences.map(|tokens| place(tokens).unwrap()).collect();
        assert_eq!(places.len(), 20);
        assert!(places.windows(2).all(|pair| pair[1] >= pair[0] + 100), "{places:?}");
        assert!(places[19] > bytes.len() * 8 / 10, "the end is reached: {places:?}");

        let all = self::task("eval_sequences = 1000");
        assert_eq!(all.eval_sequences(), (bytes.len() - 1) / 100);
        let targets = all.eval_batch(0, 1000).targets;
        assert_eq!(targets, bytes[1..=targets.len()], "each byte once");
    }

    #[test]
    fn tags_are_positions() {
        let task = task("seq_len = 256");
        assert_eq!(task.tags().len(), 8);
        assert_eq!(task.tags()[0], "position 0-31");
        assert_eq!(task.tags()[7], "position 224-255");
        let tags = task.train_batch(0, 0, 1).tags;
        assert_eq!((tags[31], tags[32], tags[255]), (0, 1, 7));
        assert_eq!(task.metric(), Metric::BitsPerByte);
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (values, message) in [
            ("seq_len = 0", "`seq_len` is 0; it must be from 1"),
            ("seq_len = 1048576", "`seq_len` is 1048576, but the training data are only"),
            ("seq_len = 10000", "`seq_len` is 10000, but the validation data are only"),
            ("eval_sequences = 0", "`eval_sequences` is 0"),
            ("document_bytes = 10", "`document_bytes` is 10; it must be from 256"),
            ("document_bytes = 1048576", "add files, lower `document_bytes` or"),
            ("max_bytes = 0", "`max_bytes` is 0"),
            ("max_bytes = 1000", "`max_bytes` = 1000"),
            ("validation_share = 0", "`validation_share` is 0; it must be above 0"),
            ("validation_share = 1", "`validation_share` is 1;"),
            ("validation_share = nan", "`validation_share` is NaN"),
            ("files = [\"missing.txt\"]", "`files` has the entry `missing.txt`"),
        ] {
            let error = config(values).build(folder().path()).err().unwrap().to_string();
            assert!(error.contains("task `text`: ") && error.contains(message), "{error}");
        }
    }
}
