//! The header of a safetensors file, read from bytes that may be anything: a length, then JSON that says of every tensor
//! its type, shape and place in the data behind.
//!
//! The `safetensors` crate reads headers too, but does not always say which tensor is at fault, and lets a later duplicate of a
//! name replace an earlier one.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use safetensors::Dtype;
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, Error as _, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use thiserror::Error;

/// Bytes of the length before the header.
const LENGTH: usize = 8;

/// The longest header: what the format itself allows.
const LONGEST: u64 = 100_000_000;

/// The most axes of a tensor, so that a short text cannot ask for much memory.
const MOST_AXES: usize = 8;

/// Where texts about a file are kept, the one key that names no tensor.
const METADATA: &str = "__metadata__";

/// What is wrong with a file's header.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HeaderError {
    /// Not even the header's length is there.
    #[error("it ends after {bytes} bytes, before the 8 that tell the header's length")]
    NoLength {
        /// Bytes of the file.
        bytes: usize,
    },
    /// The header is longer than any may be.
    #[error("its header claims {claimed} bytes; a header has at most {LONGEST}")]
    TooLong {
        /// The length stated.
        claimed: u64,
    },
    /// The header goes on behind the end of the file.
    #[error("its header claims {claimed} bytes, but only {left} follow")]
    Cut {
        /// The length stated.
        claimed: u64,
        /// Bytes that follow.
        left: usize,
    },
    /// The header is not the JSON that it should be.
    #[error("its header is wrong: {0}")]
    Json(String),
    /// A tensor cannot be as the header says.
    #[error("{name}: {wrong}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        wrong: String,
    },
    /// The data end before or behind the last tensor.
    #[error("its tensors take {needed} bytes, but {found} follow the header")]
    Size {
        /// Bytes that the tensors take.
        needed: u64,
        /// Bytes that are there.
        found: u64,
    },
}

/// One tensor, as the header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// How a number is stored.
    pub dtype: Dtype,
    /// Size of each axis.
    pub shape: Vec<usize>,
    /// Its bytes in the file.
    pub bytes: std::ops::Range<usize>,
}

/// Reads the header of a whole file: the tensors by name. They fill the data behind the header without gap or overlap.
///
/// # Errors
/// Whatever is wrong; memory stays within a small multiple of the header's own size.
pub fn parse(file: &[u8]) -> Result<BTreeMap<String, Entry>, HeaderError> {
    let (length, rest) = file.split_first_chunk::<LENGTH>().ok_or(HeaderError::NoLength { bytes: file.len() })?;
    let claimed = u64::from_le_bytes(*length);
    if claimed > LONGEST {
        return Err(HeaderError::TooLong { claimed });
    }
    let cut = HeaderError::Cut { claimed, left: rest.len() };
    let (header, data) = rest.split_at_checked(claimed as usize).ok_or(cut)?;
    let Unique(raw) = from_json::<Unique<Value>>(header).map_err(HeaderError::Json)?;
    let start = file.len() - data.len();
    let mut tensors = BTreeMap::new();
    for (name, value) in raw {
        if let Value::Tensor(tensor) = value {
            let entry = tensor.check(data.len() as u64, start);
            let entry = entry.map_err(|wrong| HeaderError::Tensor { name: name.clone(), wrong })?;
            tensors.insert(name, entry);
        }
    }
    check_cover(&tensors, start, file.len())?;
    Ok(tensors)
}

/// The tensors must fill the data, one behind the other.
fn check_cover(tensors: &BTreeMap<String, Entry>, start: usize, end: usize) -> Result<(), HeaderError> {
    let mut order: Vec<(&String, &Entry)> = tensors.iter().collect();
    order.sort_by_key(|(_, entry)| (entry.bytes.start, entry.bytes.end));
    let (mut at, mut before) = (start, None::<&String>);
    for (name, entry) in order {
        let begin = entry.bytes.start;
        if begin != at {
            let what = if begin < at { "overlaps" } else { "leaves a gap behind" };
            let neighbour = before.map_or("the header", |name| name);
            let wrong = format!("its bytes begin at {}, which {what} {neighbour}", begin - start);
            return Err(HeaderError::Tensor { name: name.clone(), wrong });
        }
        (at, before) = (entry.bytes.end, Some(name));
    }
    if at != end {
        return Err(HeaderError::Size { needed: (at - start) as u64, found: (end - start) as u64 });
    }
    Ok(())
}

/// A value of the header.
enum Value {
    /// Texts about the file, which are not needed here.
    About,
    Tensor(RawEntry),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "type, shape and offsets of a tensor")]
struct RawEntry {
    dtype: String,
    #[serde(deserialize_with = "axes")]
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl RawEntry {
    /// Checks that type, shape and place agree, for data of `length` bytes that begin at `start` of the file.
    fn check(self, length: u64, start: usize) -> Result<Entry, String> {
        let Self { dtype: name, shape, data_offsets: [from, to] } = self;
        let deserializer: StrDeserializer<de::value::Error> = name.as_str().into_deserializer();
        let dtype = Dtype::deserialize(deserializer).map_err(|_| format!("{name:?} is no type of numbers"))?;
        let count = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size));
        let count = count.ok_or_else(|| format!("the shape {shape:?} holds more numbers than can be counted"))?;
        let bits = u128::from(count) * dtype.bitsize() as u128;
        if from > to {
            return Err(format!("its bytes run from {from} back to {to}"));
        }
        if !bits.is_multiple_of(8) || bits / 8 != u128::from(to - from) {
            let (needed, found) = (bits.div_ceil(8), to - from);
            return Err(format!("{dtype:?} numbers of shape {shape:?} take {needed} bytes, but it has {found}"));
        }
        if to > length {
            return Err(format!(
                "its bytes end at {to} of the data, but only {length} are there; is the file cut short?"
            ));
        }
        // Both fit the file, and so the address space.
        Ok(Entry {
            dtype,
            shape: shape.into_iter().map(|size| size as usize).collect(),
            bytes: start + from as usize..start + to as usize,
        })
    }
}

/// Sizes of axes; more than [`MOST_AXES`] are refused as they come.
fn axes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    struct Axes;
    impl<'de> Visitor<'de> for Axes {
        type Value = Vec<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MOST_AXES} sizes")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut axes = Vec::new();
            while let Some(size) = list.next_element()? {
                if axes.len() == MOST_AXES {
                    return Err(A::Error::invalid_length(axes.len() + 1, &self));
                }
                axes.push(size);
            }
            Ok(axes)
        }
    }
    deserializer.deserialize_seq(Axes)
}

/// What an object of the header or of an index holds under its keys.
pub(super) trait Named<'de>: Sized {
    /// Reads the value of `key`.
    fn read<A: MapAccess<'de>>(key: &str, map: &mut A) -> Result<Self, A::Error>;
}

impl<'de> Named<'de> for Value {
    fn read<A: MapAccess<'de>>(key: &str, map: &mut A) -> Result<Self, A::Error> {
        if key == METADATA {
            return map.next_value::<BTreeMap<String, String>>().map(|_| Self::About);
        }
        map.next_value().map(Self::Tensor)
    }
}

impl<'de> Named<'de> for String {
    fn read<A: MapAccess<'de>>(_key: &str, map: &mut A) -> Result<Self, A::Error> {
        map.next_value()
    }
}

/// A JSON object in which no key stands twice. Errors name the key.
pub(super) struct Unique<V>(pub BTreeMap<String, V>);

impl<'de, V: Named<'de>> Deserialize<'de> for Unique<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Named<'de>> Visitor<'de> for Entries<V> {
            type Value = Unique<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let value = V::read(&key, &mut map)
                        .map_err(|error| A::Error::custom(format!("{key}: {}", message(&error))))?;
                    if entries.contains_key(&key) {
                        return Err(A::Error::custom(format!("{key} stands in it twice")));
                    }
                    entries.insert(key, value);
                }
                Ok(Unique(entries))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// Reads JSON; the message has no place, which says little in a text of one line.
pub(super) fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| message(&error))
}

fn message(error: &impl ToString) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_string()
}
