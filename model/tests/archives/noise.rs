//! Random bytes as files and as indexes: an answer, never a panic.

use csa2_model::checkpoint::{Archive, Options, Selection};
use proptest::prelude::*;

use crate::folder::config;
use crate::memory::peak;

/// Opens a folder with these bytes as its weights, or as its index beside a whole file.
fn open(name: &str, bytes: &[u8]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(name), bytes).unwrap();
    let ((), memory) = peak(|| {
        if let Ok(archive) = Archive::open(folder.path()) {
            let _ = Selection::whole(&archive, &config(), Options { block: None, skip_unsupported: true });
        }
    });
    memory
}

/// Text that is often almost a header: the format's own words and numbers, in any order.
fn almost_json() -> impl Strategy<Value = String> {
    const WORDS: [&str; 26] = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"dtype\"",
        "\"shape\"",
        "\"data_offsets\"",
        "\"F32\"",
        "\"BF16\"",
        "\"I8\"",
        "\"F8_E4M3\"",
        "\"norm.weight\"",
        "\"layers.0.attn.wkv.weight\"",
        "\"layers.0.attn.wkv.scale\"",
        "\"__metadata__\"",
        "\"weight_map\"",
        "\"../x\"",
        "0",
        "1",
        "64",
        "256",
        "-1",
        "1e9",
        "18446744073709551615",
    ];
    prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..60).prop_map(|words| words.concat())
}

/// A header whose entries are whole, with any types, shapes and offsets.
fn almost_header() -> impl Strategy<Value = String> {
    let number = || prop_oneof![Just(0_u64), Just(1), Just(64), Just(128), Just(1 << 32), Just(u64::MAX), any::<u64>()];
    let types = ["F32", "BF16", "F16", "F64", "I8", "F8_E4M3", "F8_E8M0", "F4", "X"];
    let names =
        ["norm.weight", "embed.weight", "layers.0.attn.wkv.weight", "layers.0.attn.wkv.scale", "mtp.a", "model.a"];
    let entry = (
        prop::sample::select(names.to_vec()),
        prop::sample::select(types.to_vec()),
        prop::collection::vec(number(), 0..4),
        [number(), number()],
    );
    let entry = entry.prop_map(|(name, dtype, shape, offsets)| {
        format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":{offsets:?}}}")
    });
    prop::collection::vec(entry, 0..5).prop_map(|entries| format!("{{{}}}", entries.join(",")))
}

fn headed(header: &str, length: u64, data: usize) -> Vec<u8> {
    [&length.to_le_bytes()[..], header.as_bytes(), &vec![1; data]].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn bytes_as_weights(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(open("model.safetensors", &bytes) < 100_000);
    }

    #[test]
    fn words_as_weights(header in almost_json(), more in 0_u64..3, data in 0_usize..300) {
        let length = (header.len() as u64).saturating_add(more).saturating_sub(1);
        prop_assert!(open("model.safetensors", &headed(&header, length, data)) < 200_000);
    }

    #[test]
    fn entries_as_weights(header in almost_header(), data in prop_oneof![Just(0_usize), Just(256), 0..600_usize]) {
        prop_assert!(open("model.safetensors", &headed(&header, header.len() as u64, data)) < 200_000);
    }

    #[test]
    fn words_as_an_index(text in almost_json()) {
        prop_assert!(open("model.safetensors.index.json", text.as_bytes()) < 100_000);
    }
}
