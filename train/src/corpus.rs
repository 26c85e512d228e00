//! A text corpus from files: found, read, split into training and validation documents.
//!
//! Documents are told apart by the SHA-256 of their bytes. The hash drops duplicates, decides which
//! documents are for validation, and gives the order in which they are put one after another. So
//! the result depends on what the files hold, never on their names, places or order, and a document
//! keeps its side when others are added. Documents that differ in a few bytes are different
//! documents: the split does not notice near copies.

mod error;
mod files;
mod reader;

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest, Sha256};

pub use error::CorpusError;
use reader::Reader;

/// Stands after each document. A document may hold this byte as well.
pub const BOUNDARY: u8 = 0;

/// How a corpus is divided and how large it may be.
#[derive(Clone, Debug, PartialEq)]
pub struct CorpusOptions {
    /// Share of documents for validation, on average.
    pub validation_share: f64,
    /// Longer files are cut into documents of this many bytes, so that a single large file also
    /// gives both training and validation documents.
    pub document_bytes: usize,
    /// Largest number of bytes to read, counted after decompression and with duplicates.
    pub max_bytes: u64,
}

/// Training and validation bytes: documents, each followed by [`BOUNDARY`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    /// Training documents.
    pub train: Vec<u8>,
    /// Validation documents.
    pub validation: Vec<u8>,
    /// Where they come from.
    pub summary: CorpusSummary,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorpusSummary {
    /// Files read, empty ones included.
    pub files: usize,
    /// Documents dropped because their bytes had been seen before.
    pub duplicates: usize,
    /// Documents for training.
    pub train_documents: usize,
    /// Documents for validation.
    pub validation_documents: usize,
    /// SHA-256 over the hashes of all documents, in hexadecimal.
    pub digest: String,
}

type Hash = [u8; 32];

impl Corpus {
    /// Reads what `entries` name, relative to `base_dir`. An entry is a file, a folder (all regular
    /// files below it, hidden ones too; links to folders are not followed) or a pattern with `*`,
    /// `?`, `[...]` or `**`. Files whose name ends in `.gz` are decompressed. Any bytes will do.
    ///
    /// While the corpus is read it takes up to twice its size in memory.
    ///
    /// # Errors
    /// See [`CorpusError`].
    pub fn load(entries: &[String], base_dir: &Path, options: &CorpusOptions) -> Result<Self, CorpusError> {
        let files = files::find(entries, base_dir)?;
        let mut documents = Documents::default();
        for path in &files {
            documents.read(path, options)?;
        }
        documents.split(files.len(), options.validation_share)
    }
}

/// Different documents by hash.
#[derive(Default)]
struct Documents {
    by_hash: BTreeMap<Hash, Vec<u8>>,
    duplicates: usize,
    bytes_read: u64,
}

impl Documents {
    /// Adds the documents of one file, reading no further than allowed: a small compressed file can
    /// hold more than fits into memory.
    fn read(&mut self, path: &Path, options: &CorpusOptions) -> Result<(), CorpusError> {
        let mut reader = Reader::open(path)?;
        loop {
            let document = reader.read_up_to(options.document_bytes)?;
            if document.is_empty() {
                return Ok(());
            }
            self.bytes_read += document.len() as u64;
            if self.bytes_read > options.max_bytes {
                let (path, max_bytes) = (path.to_owned(), options.max_bytes);
                return Err(CorpusError::TooLarge { path, max_bytes });
            }
            self.add(document);
        }
    }

    fn add(&mut self, document: Vec<u8>) {
        let hash: Hash = Sha256::digest(&document).into();
        if self.by_hash.insert(hash, document).is_some() {
            self.duplicates += 1;
        }
    }

    fn split(self, files: usize, share: f64) -> Result<Corpus, CorpusError> {
        let documents = self.by_hash.len();
        if documents == 0 {
            return Err(CorpusError::Empty { files });
        }
        let (mut train, mut validation) = (Side::default(), Side::default());
        let mut digest = Sha256::new();
        for (hash, document) in self.by_hash {
            digest.update(hash);
            let validates = is_validation(&hash, share);
            let side = if validates { &mut validation } else { &mut train };
            side.push(&document);
        }
        let none_left = |side, remedy| CorpusError::NoneLeft { side, documents, share, remedy };
        if train.documents == 0 {
            return Err(none_left("training", "lower"));
        }
        if validation.documents == 0 {
            return Err(none_left("validation", "raise"));
        }
        let summary = CorpusSummary {
            files,
            duplicates: self.duplicates,
            train_documents: train.documents,
            validation_documents: validation.documents,
            digest: hexadecimal(&digest.finalize()),
        };
        Ok(Corpus { train: train.bytes, validation: validation.bytes, summary })
    }
}

/// The documents on one side of the split, one after another.
#[derive(Default)]
struct Side {
    bytes: Vec<u8>,
    documents: usize,
}

impl Side {
    fn push(&mut self, document: &[u8]) {
        self.bytes.extend_from_slice(document);
        self.bytes.push(BOUNDARY);
        self.documents += 1;
    }
}

/// Whether a document is for validation: its hash, read as a fraction from 0 to 1, is below the
/// share.
fn is_validation(hash: &Hash, share: f64) -> bool {
    let leading = hash.iter().take(8).fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
    (leading as f64 / 2_f64.powi(64)) < share
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::io::Write;

    const OPTIONS: CorpusOptions = CorpusOptions { validation_share: 0.4, document_bytes: 4096, max_bytes: 1 << 20 };

    fn load(folder: &Path, options: &CorpusOptions) -> Result<Corpus, CorpusError> {
        Corpus::load(&["data".into()], folder, options)
    }

    /// A folder with `data/name` for each file.
    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        for (name, bytes) in files {
            fs::write(folder.path().join("data").join(name), bytes).unwrap();
        }
        folder
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn documents(side: &[u8]) -> BTreeSet<&[u8]> {
        side.split(|byte| *byte == BOUNDARY).filter(|document| !document.is_empty()).collect()
    }

    /// A folder with the files `document 0`, `document 1`, ... under names of the caller's choice.
    fn numbered(count: usize, name: impl Fn(usize) -> String) -> tempfile::TempDir {
        let folder = folder(&[]);
        for n in 0..count {
            let path = folder.path().join("data").join(name(n));
            fs::write(path, format!("document {n}")).unwrap();
        }
        folder
    }

    #[test]
    fn every_document_is_on_exactly_one_side() {
        let corpus = load(numbered(40, |n| n.to_string()).path(), &OPTIONS).unwrap();
        let (train, validation) = (documents(&corpus.train), documents(&corpus.validation));
        assert_eq!(train.len() + validation.len(), 40);
        let expected: Vec<String> = (0..40).map(|n| format!("document {n}")).collect();
        let all: BTreeSet<&[u8]> = train.union(&validation).copied().collect();
        assert_eq!(all, expected.iter().map(String::as_bytes).collect());
        assert_eq!(corpus.summary.train_documents, train.len());
        assert_eq!(corpus.summary.validation_documents, validation.len());
        // 16 expected, standard deviation 3.
        assert!((7..26).contains(&validation.len()), "{}", validation.len());
    }

    #[test]
    fn names_and_order_of_files_do_not_matter() {
        let one = load(numbered(12, |n| format!("{n:02}")).path(), &OPTIONS).unwrap();
        let other = load(numbered(12, |n| format!("{:02}.txt", 99 - n)).path(), &OPTIONS).unwrap();
        assert_eq!(one, other);
    }

    proptest! {
        #[test]
        fn a_document_keeps_its_side_when_others_join(
            contents in prop::collection::vec("[a-z]{1,8}", 1..20),
            share in 0.0..1.0_f64,
        ) {
            let side = |text: &String| is_validation(&Sha256::digest(text).into(), share);
            let mut all = Documents::default();
            for text in &contents {
                all.add(text.clone().into_bytes());
            }
            let different: BTreeSet<&String> = contents.iter().collect();
            prop_assert_eq!(all.duplicates, contents.len() - different.len());
            if let Ok(corpus) = all.split(1, share) {
                let (train, validation) = (documents(&corpus.train), documents(&corpus.validation));
                for text in different {
                    prop_assert_eq!(validation.contains(text.as_bytes()), side(text));
                    prop_assert_eq!(train.contains(text.as_bytes()), !side(text));
                }
            }
        }
    }

    #[test]
    fn duplicates_are_dropped_and_counted() {
        let plain = load(numbered(8, |n| n.to_string()).path(), &OPTIONS).unwrap();
        let again = numbered(8, |n| n.to_string());
        fs::write(again.path().join("data/copy.gz"), gzip(b"document 3")).unwrap();
        fs::write(again.path().join("data/empty"), b"").unwrap();
        let again = load(again.path(), &OPTIONS).unwrap();
        assert_eq!((again.summary.duplicates, again.summary.files), (1, 10));
        assert_eq!((&again.train, &again.validation), (&plain.train, &plain.validation));
        assert_eq!(again.summary.digest, plain.summary.digest);
        assert_eq!(plain.summary.digest.len(), 64);
    }

    #[test]
    fn large_files_are_cut_and_any_bytes_are_kept() {
        let bytes: Vec<u8> = (0..10_000_u32).flat_map(|n| (n * 7919).to_le_bytes()).collect();
        let plain = load(folder(&[("one", &bytes)]).path(), &OPTIONS).unwrap();
        let parts = plain.summary.train_documents + plain.summary.validation_documents;
        assert_eq!(parts, 10);
        assert_eq!(plain.train.len() + plain.validation.len(), bytes.len() + parts);
        let packed = load(folder(&[("one.GZ", &gzip(&bytes))]).path(), &OPTIONS).unwrap();
        assert_eq!(packed, plain);
    }

    #[test]
    fn gzip_members_are_joined() {
        let files = numbered(8, |n| n.to_string());
        let members = [gzip(b"docu"), gzip(b"ment 3")].concat();
        fs::write(files.path().join("data/parts.gz"), members).unwrap();
        assert_eq!(load(files.path(), &OPTIONS).unwrap().summary.duplicates, 1);
    }

    #[test]
    fn bad_input_gets_a_message() {
        let three = || numbered(3, |n| n.to_string());
        let cut_short = &gzip(&[7; 3000])[..20];
        let with = |validation_share, max_bytes| CorpusOptions { validation_share, max_bytes, ..OPTIONS };
        for (folder, options, parts) in [
            (folder(&[("a", b""), ("b", b"")]), OPTIONS, ["2 file(s)", "0 bytes"]),
            (folder(&[("a.gz", b"not gzip")]), OPTIONS, ["cannot decompress", "data/a.gz"]),
            (folder(&[("a.gz", cut_short)]), OPTIONS, ["cannot decompress", "data/a.gz"]),
            (three(), with(0.5, 20), ["`max_bytes` = 20", "data/2"]),
            (three(), with(1.0, 99), ["left for training: 3", "lower `validation_share`"]),
            (three(), with(0.0, 99), ["left for validation: 3", "raise `validation_share`"]),
        ] {
            let error = load(folder.path(), &options).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    /// 30 MB of zeros in 30 kB, and a limit of 1 MiB.
    #[test]
    fn a_small_file_that_unpacks_without_end_is_stopped() {
        let bomb = gzip(&vec![0; 30_000_000]);
        assert!(bomb.len() < 50_000);
        let files = folder(&[("bomb.gz", &bomb)]);
        let mut documents = Documents::default();
        let error = documents.read(&files.path().join("data/bomb.gz"), &OPTIONS).unwrap_err();
        assert!(matches!(error, CorpusError::TooLarge { .. }), "{error}");
        assert!(documents.bytes_read <= OPTIONS.max_bytes + OPTIONS.document_bytes as u64);
    }
}
