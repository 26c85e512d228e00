//! Caches on disk: one file, written beside its place and moved there when it is whole.
//!
//! | part | bytes |
//! |---|---|
//! | magic | 8 |
//! | version, length of the header | 4 + 4, little-endian like everything else |
//! | header: JSON, see [`Header`] | as said |
//! | checksum of all that (XXH3, 64 bits) | 8 |
//! | the caches' memory, layer by layer, row by row | follows from configuration and lengths |
//! | checksum of the caches' memory | 8 |

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use csa2_model::config::ModelConfig;
use csa2_model::mix::Mode;
use csa2_model::model::Model;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::Xxh3;

use crate::identity::Identity;
use crate::{Caches, FileError, Options, Session, SessionError};

const MAGIC: &[u8; 8] = b"csa2kv\r\n";
const VERSION: u32 = 2;

/// Bytes that a header has at most: some 100 thousand rows.
const HEADER_LIMIT: u32 = 1 << 20;

/// What a cache file says of itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    model: Identity,
    /// Whether vectors are stored in the model's number formats.
    quantize: bool,
    /// Whether windows are in the file.
    windows: bool,
    /// Tokens of every row.
    lengths: Vec<u64>,
}

impl Session {
    /// Writes the caches to a file, which is replaced once the new one is whole and on disk.
    ///
    /// # Errors
    /// When the file cannot be written, a row has no windows yet, or the session has ended.
    pub fn save(&self, path: &Path) -> Result<(), FileError> {
        if let Some(row) = self.without_windows.iter().position(|&without| without) {
            return Err(FileError::Session { path: path.into(), source: Box::new(SessionError::NoWindows { row }) });
        }
        self.write(path, true)
    }

    /// As [`save`](Self::save), without windows: what grows with the context alone, to be completed after loading by
    /// [`rebuild_windows`](Self::rebuild_windows).
    ///
    /// # Errors
    /// When the file cannot be written, or a layer is `dense`, whose window is all that it keeps.
    pub fn save_entries(&self, path: &Path) -> Result<(), FileError> {
        let mix = &self.config().layers;
        if let Some(layer) = mix.layers().iter().find(|layer| layer.mode == Mode::Dense) {
            let message = format!("layer {} of `{mix}` is `dense`: its window holds every token", layer.index);
            return Err(FileError::Session { path: path.into(), source: Box::new(SessionError::Replay(message)) });
        }
        self.write(path, false)
    }

    fn write(&self, path: &Path, windows: bool) -> Result<(), FileError> {
        self.whole().map_err(|source| FileError::Session { path: path.into(), source: Box::new(source) })?;
        let writing = FileError::io(path);
        let lengths = self.lengths().iter().map(|&length| length as u64).collect();
        let header = Header { model: self.identity().clone(), quantize: self.options().quantize, windows, lengths };
        let header = serde_json::to_vec(&header).map_err(|error| writing(error.into()))?;
        let size = u32::try_from(header.len()).ok().filter(|&size| size <= HEADER_LIMIT);
        let size = size.ok_or_else(|| writing(io::Error::other("too many rows for one file")))?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut file = NamedTempFile::new_in(folder).map_err(&writing)?;
        let parts = [&MAGIC[..], &VERSION.to_le_bytes(), &size.to_le_bytes(), &header];
        write(BufWriter::with_capacity(1 << 20, file.as_file_mut()), &parts, self.caches.parts(windows))
            .map_err(&writing)?;
        file.as_file().sync_all().map_err(&writing)?;
        file.persist(path).map_err(|error| writing(error.error))?;
        // The new name is on disk when the folder is; only Unix opens folders as files.
        #[cfg(unix)]
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(&writing)?;
        Ok(())
    }

    /// A session with the caches of a file that [`save`](Self::save) or [`save_entries`](Self::save_entries) has written: of as many rows as it has, made by this very model.
    /// Nothing is allocated for what the file merely claims to hold.
    ///
    /// # Errors
    /// When the file cannot be read, is not whole, or belongs to another model, version or way of storing; and where
    /// [`Session::new`] refuses.
    pub fn load(path: &Path, model: &Model, config: &ModelConfig, options: Options) -> Result<Self, FileError> {
        let reading = FileError::io(path);
        let damaged = |what: &str| FileError::damaged(path, what);
        let refused = |source| FileError::Session { path: path.into(), source: Box::new(source) };
        let file = File::open(path).map_err(&reading)?;
        let length = file.metadata().map_err(&reading)?.len();
        let mut file = BufReader::with_capacity(1 << 20, file);
        let (header, start) = read_header(&mut file, length, path)?;

        let rows = header.lengths.len();
        let mut session = Self::new(model, config, rows, options).map_err(refused)?;
        let model = session.identity();
        let way = |quantize: bool| if quantize { "the model's number formats" } else { "f32" }.to_string();
        for (what, found, expected) in [
            ("another configuration", header.model.config, model.config.clone()),
            ("other weights", header.model.weights, model.weights.clone()),
            ("another way of storing", way(header.quantize), way(options.quantize)),
        ] {
            if found != expected {
                return Err(FileError::Foreign { path: path.into(), what, found, expected });
            }
        }
        for (row, &tokens) in header.lengths.iter().enumerate() {
            let limit = options.max_tokens;
            if tokens > limit as u64 {
                let tokens = usize::try_from(tokens).unwrap_or(usize::MAX);
                return Err(refused(SessionError::TooLong { row, tokens, limit }));
            }
        }
        let expected = Caches::bytes_of(config, &header.lengths, options.quantize, header.windows)
            .saturating_add(u128::from(start) + 8);
        if expected != u128::from(length) {
            return Err(damaged(&format!("{length} bytes where there should be {expected}")));
        }
        let lengths: Vec<usize> = header.lengths.iter().map(|&tokens| tokens as usize).collect();
        let mut caches = Caches::zeros(config, &lengths, options.quantize);
        let mut hash = Xxh3::new();
        for part in caches.parts_mut(header.windows) {
            file.read_exact(part).map_err(&reading)?;
            hash.update(part);
        }
        if read_u64(&mut file).map_err(&reading)? != hash.digest() {
            return Err(damaged("the checksum does not fit: bytes have changed"));
        }
        session.caches = caches;
        session.without_windows = vec![!header.windows; rows];
        Ok(session)
    }
}

/// The header, and how many bytes it and its checksum take.
fn read_header(file: &mut impl Read, length: u64, path: &Path) -> Result<(Header, u64), FileError> {
    let reading = FileError::io(path);
    let damaged = |what: &str| FileError::damaged(path, what);
    let mut start = [0; 16];
    if length < start.len() as u64 {
        return Err(damaged("it is too short for a header"));
    }
    file.read_exact(&mut start).map_err(&reading)?;
    if start[..8] != *MAGIC {
        return Err(damaged("it does not begin as a cache file does"));
    }
    let number = |at: usize| u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
    let (version, size) = (number(8), number(12));
    if version != VERSION {
        return Err(FileError::Version { path: path.into(), found: version, known: VERSION });
    }
    let end = start.len() as u64 + u64::from(size) + 8;
    if size > HEADER_LIMIT || end > length {
        return Err(damaged("its header is longer than a header or than the file"));
    }
    let mut header = vec![0; size as usize];
    file.read_exact(&mut header).map_err(&reading)?;
    let mut hash = Xxh3::new();
    hash.update(&start);
    hash.update(&header);
    if read_u64(file).map_err(&reading)? != hash.digest() {
        return Err(damaged("the header's checksum does not fit: bytes have changed"));
    }
    let header = serde_json::from_slice(&header).map_err(|error| damaged(&format!("its header: {error}")))?;
    Ok((header, end))
}

fn write<'a>(mut file: impl Write, header: &[&[u8]], parts: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
    let mut hash = Xxh3::new();
    for part in header {
        file.write_all(part)?;
        hash.update(part);
    }
    file.write_all(&hash.digest().to_le_bytes())?;
    let mut hash = Xxh3::new();
    for part in parts {
        file.write_all(part)?;
        hash.update(part);
    }
    file.write_all(&hash.digest().to_le_bytes())?;
    file.flush()
}

fn read_u64(file: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Numbers lie in files as in memory.
#[cfg(target_endian = "big")]
compile_error!("cache files are little-endian: their parts must be turned around on this machine");
