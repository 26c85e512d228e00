//! Reads one file of a corpus piece by piece, decompressed where its name ends in `.gz`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::CorpusError;

/// An open file.
pub enum Reader<'a> {
    /// As it stands.
    Plain(&'a Path, File),
    /// All members of a gzip file, one after another.
    Gzip(&'a Path, MultiGzDecoder<File>),
}

impl<'a> Reader<'a> {
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &'a Path) -> Result<Self, CorpusError> {
        let file = File::open(path).map_err(|problem| unreadable(path, problem))?;
        let compressed = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gz"));
        if compressed { Ok(Self::Gzip(path, MultiGzDecoder::new(file))) } else { Ok(Self::Plain(path, file)) }
    }

    /// The next `most` bytes, fewer at the end of the file, none after it.
    ///
    /// # Errors
    /// When the file cannot be read or decompressed.
    pub fn read_up_to(&mut self, most: usize) -> Result<Vec<u8>, CorpusError> {
        match self {
            Self::Plain(path, file) => take(file, most).map_err(|problem| unreadable(path, problem)),
            Self::Gzip(path, file) => take(file, most).map_err(|problem| {
                let path = path.to_path_buf();
                CorpusError::Decompress { path, problem }
            }),
        }
    }
}

fn take(file: &mut impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    bytes.shrink_to_fit();
    Ok(bytes)
}

fn unreadable(path: &Path, problem: io::Error) -> CorpusError {
    CorpusError::Read { path: path.to_owned(), problem }
}
