//! Files that lie about themselves: one clear message that names file and tensor, and little memory.

use std::fs::File;
use std::path::Path;

use csa2_model::checkpoint::{Archive, Options, Selection, decode};
use proptest::prelude::*;

use crate::folder::{checkpoint, config, file, single};
use crate::memory::peak;

/// A file with this header and `data` bytes behind it.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &vec![0; data]].concat()
}

fn open(bytes: &[u8]) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let (opened, memory) = peak(|| Archive::open(folder.path()).map(|_| ()).map_err(|error| error.to_string()));
    assert!(memory <= 20 * bytes.len() + 100_000, "{memory} bytes for a file of {}", bytes.len());
    opened.map_err(|message| {
        let start = format!("{}: ", path.display());
        message.strip_prefix(&start).unwrap_or_else(|| panic!("names no file: {message}")).to_string()
    })
}

/// What opening a file with this header and `data` bytes says, behind the file's name.
fn refused(header: &str, data: usize) -> String {
    let bytes = with_header(header, data);
    let message = open(&bytes).unwrap_err();
    // The same bytes as a checkpoint of a run.
    assert_eq!(decode(&bytes, "run").unwrap_err().to_string(), format!("run: {message}"));
    message.strip_prefix("not a whole safetensors file: ").expect("the same start").to_string()
}

fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

#[test]
fn lengths_that_cannot_be() {
    for (bytes, message) in [
        (vec![], "it ends after 0 bytes, before the 8 that tell the header's length"),
        (vec![0; 7], "it ends after 7 bytes, before the 8 that tell the header's length"),
        (
            (1_u64 << 60).to_le_bytes().to_vec(),
            "its header claims 1152921504606846976 bytes; a header has at most 100000000",
        ),
        (
            u64::MAX.to_le_bytes().to_vec(),
            "its header claims 18446744073709551615 bytes; a header has at most 100000000",
        ),
        (99_999_999_u64.to_le_bytes().to_vec(), "its header claims 99999999 bytes, but only 0 follow"),
        ([&9_u64.to_le_bytes()[..], b"{\"a\": 12"].concat(), "its header claims 9 bytes, but only 8 follow"),
        (vec![0; 8], "its header is wrong: EOF while parsing a value"),
    ] {
        assert_eq!(open(&bytes).unwrap_err(), format!("not a whole safetensors file: {message}"));
    }
}

#[test]
fn headers_that_are_no_header() {
    for (header, message) in [
        ("garbage!", "its header is wrong: expected value"),
        ("[]", "its header is wrong: invalid type: sequence, expected an object"),
        ("{} {}", "its header is wrong: trailing characters"),
        (
            r#"{"a":3}"#,
            "its header is wrong: a: invalid type: integer `3`, expected type, shape and offsets of a tensor",
        ),
        (r#"{"a":{"dtype":"F32"}}"#, "its header is wrong: a: missing field `shape`"),
        (
            r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"more":1}}"#,
            "its header is wrong: a: unknown field `more`, expected one of `dtype`, `shape`, `data_offsets`",
        ),
        (r#"{"__metadata__":3}"#, "its header is wrong: __metadata__: invalid type: integer `3`, expected a map"),
        (
            r#"{"__metadata__":{"a":[]}}"#,
            "its header is wrong: __metadata__: invalid type: sequence, expected a string",
        ),
    ] {
        assert_eq!(refused(header, 0), message);
    }
    let deep = format!(r#"{{"a":{}"#, "[".repeat(1000));
    assert!(refused(&deep, 0).starts_with("its header is wrong: a: "));
    let not_text = [&4_u64.to_le_bytes()[..], b"{\"\xff\"".as_slice()].concat();
    assert!(open(&not_text).unwrap_err().starts_with("not a whole safetensors file: its header is wrong: "));
}

#[test]
fn entries_that_cannot_be() {
    let cases = [
        (entry("w", "F32", "[2,2]", "[0,12]"), 12, "w: F32 numbers of shape [2, 2] take 16 bytes, but it has 12"),
        (entry("w", "F31", "[1]", "[0,4]"), 4, r#"w: "F31" is no type of numbers"#),
        (entry("w", "F32", "[1]", "[4,0]"), 4, "w: its bytes run from 4 back to 0"),
        (
            entry("w", "F32", "[1152921504606846976]", "[0,4611686018427387904]"),
            4,
            "w: its bytes end at 4611686018427387904 of the data, but only 4 are there; is the file cut short?",
        ),
        (
            entry("w", "F32", "[4294967296,4294967296]", "[0,4]"),
            4,
            "w: the shape [4294967296, 4294967296] holds more numbers than can be counted",
        ),
        (
            entry("w", "F32", "[2305843009213693951]", "[0,4]"),
            4,
            "w: F32 numbers of shape [2305843009213693951] take 9223372036854775804 bytes, but it has 4",
        ),
        (
            entry("w", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"),
            4,
            "its header is wrong: w: invalid length 9, expected a list of at most 8 sizes",
        ),
        (entry("w", "F32", "[-1]", "[0,4]"), 4, "its header is wrong: w: invalid value: integer `-1`, expected u64"),
        (entry("w", "F32", "[1]", "[4,8]"), 8, "w: its bytes begin at 4, which leaves a gap behind the header"),
        (entry("w", "F32", "[1]", "[0,4]"), 8, "its tensors take 4 bytes, but 8 follow the header"),
        (entry("w", "F4", "[3]", "[0,2]"), 2, "w: F4 numbers of shape [3] take 2 bytes, but it has 2"),
    ];
    for (entry, data, message) in cases {
        assert_eq!(refused(&format!("{{{entry}}}"), data), message);
    }
    let two = |first: &str, second: &str| {
        format!("{{{},{}}}", entry("a", "F32", "[2]", first), entry("b", "F32", "[2]", second))
    };
    assert_eq!(refused(&two("[0,8]", "[4,12]"), 12), "b: its bytes begin at 4, which overlaps a");
    assert_eq!(refused(&two("[0,8]", "[0,8]"), 8), "b: its bytes begin at 0, which overlaps a");
    assert_eq!(refused(&two("[0,8]", "[12,20]"), 20), "b: its bytes begin at 12, which leaves a gap behind a");
    let twice = format!("{{{},{}}}", entry("a", "F32", "[2]", "[0,8]"), entry("a", "F32", "[2]", "[0,8]"));
    assert_eq!(refused(&twice, 8), "its header is wrong: a stands in it twice");
    assert!(
        safetensors::SafeTensors::deserialize(&with_header(&twice, 8)).is_ok(),
        "the reason for a reader of our own"
    );
}

#[test]
fn offsets_near_the_largest_number() {
    // Seven tensors that together end next to 2^64, where adding the header's length would wrap around.
    let size = 1_u64 << 61;
    let mut at = 0_u64;
    let mut entries = Vec::new();
    for number in 0..8 {
        let length = if number == 7 { size - 8 } else { size - 1 };
        let end = at.saturating_add(length);
        entries.push(entry(&format!("t{number}"), "U8", &format!("[{}]", end - at), &format!("[{at},{end}]")));
        at = end;
    }
    let message = refused(&format!("{{{}}}", entries.join(",")), 0);
    assert!(
        message.starts_with("t0: its bytes end at 2305843009213693951 of the data, but only 0 are there"),
        "{message}"
    );
}

#[test]
fn empty_tensors_and_files_are_whole() {
    assert_eq!(open(&with_header("{}", 0)), Ok(()));
    let empty = format!("{{{}}}", entry("w", "F32", "[0,18446744073709551615]", "[0,0]"));
    assert_eq!(open(&with_header(&empty, 0)), Ok(()));
    let scalar = format!(r#"{{"__metadata__":{{"format":"pt"}},{}}}"#, entry("w", "F32", "[]", "[0,4]"));
    assert_eq!(open(&with_header(&scalar, 4)), Ok(()));
}

#[test]
fn a_large_header_takes_a_small_multiple_of_its_size() {
    // The shortest entries that can be, a hundred thousand of them, valid but for the last.
    let mut entries: Vec<String> = (0..100_000).map(|n| entry(&format!("{n}"), "U8", "[0]", "[0,0]")).collect();
    entries.push(entry("last", "U8", "[1]", "[0,0]"));
    let message = refused(&format!("{{{}}}", entries.join(",")), 0);
    assert_eq!(message, "last: U8 numbers of shape [1] take 1 bytes, but it has 0");
    let axes = format!("{{{}}}", entry("w", "U8", &format!("[{}0]", "0,".repeat(1_000_000)), "[0,0]"));
    assert!(refused(&axes, 0).ends_with("expected a list of at most 8 sizes"));
}

#[test]
fn a_whole_file_is_refused_wherever_it_is_cut() {
    let (tensors, _) = checkpoint(&config(), 32);
    let bytes = file(&tensors);
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let places = (0..24).chain(header - 4..header + 4).chain((0..bytes.len()).step_by(6007)).chain([bytes.len() - 1]);
    for place in places {
        let message = open(&bytes[..place]).unwrap_err();
        assert!(message.starts_with("not a whole safetensors file: "), "{place}: {message}");
    }
    assert_eq!(open(&bytes), Ok(()));
    let longer = [&bytes[..], &[0]].concat();
    assert!(open(&longer).unwrap_err().contains("bytes, but "));
}

#[test]
fn a_large_file_is_mapped_and_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let size = 1_u64 << 38;
    let header = format!("{{{}}}", entry("embed.weight", "BF16", &format!("[{}]", size / 2), &format!("[0,{size}]")));
    std::fs::write(&path, with_header(&header, 0)).unwrap();
    // A file with a hole: 256 GB by its length, a few bytes on the disk.
    let grown = File::options().write(true).open(&path).and_then(|file| file.set_len(8 + header.len() as u64 + size));
    if grown.is_err() {
        println!("not run: this file system has no files with holes of that size");
        return;
    }
    let (archive, memory) = peak(|| Archive::open(folder.path()).unwrap());
    assert!(memory < 100_000, "{memory}");
    assert!(archive.bytes() > size);
    let message = Selection::whole(&archive, &config(), Options::default()).err().unwrap().to_string();
    assert!(message.contains("embed.weight: has shape [137438953472] as BF16, expected [11, 64]"), "{message}");
}

#[test]
fn places_that_hold_no_checkpoint() {
    let refused = |path: &Path| Archive::open(path).err().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere");
    assert!(refused(&nowhere).starts_with(&format!("{}: cannot be read: No such file", nowhere.display())));
    let nothing = "holds no weights: neither model.safetensors nor model.safetensors.index.json is there";
    assert_eq!(refused(folder.path()), format!("{}: {nothing}", folder.path().display()));
    std::fs::write(&nowhere, "").unwrap();
    assert!(refused(&nowhere).ends_with(": is no folder; a checkpoint is a folder with config.json and weights"));
    let path = folder.path().join("model.safetensors");
    std::fs::create_dir(&path).unwrap();
    assert_eq!(refused(folder.path()), format!("{}: is no file", path.display()));
}

#[test]
fn mixed_names_are_refused() {
    let (mut tensors, _) = checkpoint(&config(), 32);
    let head = tensors.remove("head.weight").unwrap();
    tensors.insert("lm_head.weight".into(), head);
    let message = Archive::open(single(&tensors).path()).err().unwrap().to_string();
    assert!(
        message.contains("mixes the names of the released checkpoints (embed.weight) and of Transformers"),
        "{message}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn decoding_a_damaged_checkpoint_gives_an_answer(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        header in any::<bool>(),
    ) {
        let (tensors, _) = checkpoint(&config(), 32);
        let mut bytes = file(&tensors);
        let end = if header { 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize } else { bytes.len() };
        for (place, byte) in changes {
            bytes[place.index(end)] = byte;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors"), &bytes).unwrap();
        let ((), memory) = peak(|| {
            let Ok(archive) = Archive::open(folder.path()) else { return };
            let Ok(selection) = Selection::whole(&archive, &config(), Options::default()) else { return };
            for place in 0..selection.specs().count() {
                let _ = selection.decode(place);
            }
        });
        prop_assert!(memory < 20 * bytes.len());
    }
}
