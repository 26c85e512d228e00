//! What can be wrong with a corpus, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Why a corpus cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The list of files has no entry.
    #[error("`files` is empty; list at least one file, folder or pattern such as \"docs/**/*.txt\"")]
    NothingListed,
    /// An entry of the list that is no path and no pattern.
    #[error("`files` has the entry `{entry}`, which {problem}")]
    Entry {
        /// The entry.
        entry: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An entry of the list that fits no file.
    #[error(
        "`files` has the entry `{entry}`, but no file is found at {}; paths are taken from the \
         folder of the configuration file",
        path.display()
    )]
    NoMatch {
        /// The entry.
        entry: String,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A file or folder that cannot be read.
    #[error(
        "cannot read {}: {problem}; make it readable or leave it out of `files`",
        path.display()
    )]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        problem: io::Error,
    },
    /// A `.gz` file that cannot be decompressed.
    #[error(
        "cannot decompress {}: {problem}; it may be damaged or not be gzip at all: rename it, \
         replace it or leave it out of `files`",
        path.display()
    )]
    Decompress {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: io::Error,
    },
    /// More bytes than allowed.
    #[error(
        "the corpus passes `max_bytes` = {max_bytes} (counted after decompression) within {}; list \
         fewer files or raise `max_bytes`",
        path.display()
    )]
    TooLarge {
        /// The file that was being read.
        path: PathBuf,
        /// The limit.
        max_bytes: u64,
    },
    /// Files were found, but they hold nothing.
    #[error("the corpus is empty: {files} file(s) found, 0 bytes in all; list files with content")]
    Empty {
        /// Files found.
        files: usize,
    },
    /// All documents fell on the other side of the split.
    #[error(
        "no document is left for {side}: {documents} different document(s), `validation_share` = \
         {share}; add files, lower `document_bytes` or {remedy} `validation_share`"
    )]
    NoneLeft {
        /// "training" or "validation".
        side: &'static str,
        /// Documents in all.
        documents: usize,
        /// The configured share.
        share: f64,
        /// "raise" or "lower".
        remedy: &'static str,
    },
}
