//! Caches saved, loaded and forked; files that must be refused; requests that must be refused.
#![cfg(feature = "flex")]

mod common;

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use common::{RELEASED, config, floats, model, tokens};
use csa2_infer::{FileError, Limit, Options, Session, SessionError};
use csa2_model::config::{ModelConfig, QuantizationConfig, Values};
use csa2_model::model::Model;
use rand::SeedableRng;
use rand::rngs::StdRng;

const MIX: &str = "swa full@2+pool reuse reindex stale@2 dense";

fn options() -> Options {
    Options { memory: Limit::Bytes(1 << 30), ..Options::new(3000) }
}

fn made(quantization: QuantizationConfig) -> (ModelConfig, Model, Session) {
    let device = Device::flex();
    let config = ModelConfig { quantization, ..config(MIX) };
    let model = model(&config, 1, &device);
    let mut session = Session::new(&model, &config, 2, options()).unwrap();
    let mut random = StdRng::seed_from_u64(1);
    session.prefill(&[tokens(&mut random, 31), tokens(&mut random, 4)]).unwrap();
    (config, model, session)
}

fn loaded(path: &Path, model: &Model, config: &ModelConfig) -> Result<Session, FileError> {
    Session::load(path, model, config, options())
}

#[test]
fn a_saved_cache_goes_on_as_if_it_had_not_been_saved() {
    let folder = tempfile::tempdir().unwrap();
    for quantization in [QuantizationConfig::default(), RELEASED] {
        let path = folder.path().join("cache");
        let (config, model, mut session) = made(quantization);
        session.save(&path).unwrap();
        let mut back = loaded(&path, &model, &config).unwrap();
        assert_eq!((back.lengths(), back.bytes()), (session.lengths(), session.bytes()));
        for token in [3, 1, 4, 1] {
            let [a, b] = [&mut session, &mut back].map(|session| floats(session.decode(&[token, token]).unwrap()));
            assert_eq!(a, b);
        }
        // Saved over the old one.
        back.save(&path).unwrap();
        assert_eq!(loaded(&path, &model, &config).unwrap().lengths(), [35, 8]);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn a_cache_is_refused_by_what_did_not_make_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let (config, model, session) = made(RELEASED);
    session.save(&path).unwrap();
    let device = Device::flex();
    let message = |result: Result<Session, FileError>| result.unwrap_err().to_string();
    let other = common::model(&config, 2, &device);
    assert!(message(loaded(&path, &other, &config)).contains("made with other weights"));
    let mix = ModelConfig { layers: "swa full@2+pool reuse reindex stale@2 swa".parse().unwrap(), ..config.clone() };
    let other = common::model(&mix, 1, &device);
    assert!(message(loaded(&path, &other, &mix)).contains("made with another configuration"));
    let unlike = Options { quantize: false, ..options() };
    let error = message(Session::load(&path, &model, &config, unlike));
    assert!(
        error.contains("made with another way of storing (the model's number formats), not with this one (f32)"),
        "{error}"
    );
    let short = Options { max_tokens: 30, ..options() };
    assert!(message(Session::load(&path, &model, &config, short)).contains("row 0: 31 tokens are more than the 30"));
    let little = Options { memory: Limit::Bytes(1000), ..options() };
    assert!(message(Session::load(&path, &model, &config, little)).contains("there are 1000"));
    assert!(matches!(loaded(&folder.path().join("none"), &model, &config), Err(FileError::Io { .. })));
    assert!(matches!(session.save(&folder.path().join("none/cache")), Err(FileError::Io { .. })));
}

#[test]
fn a_damaged_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let (config, model, session) = made(RELEASED);
    session.save(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    let refused = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).unwrap();
        let error = loaded(&path, &model, &config).expect_err(what);
        assert!(matches!(error, FileError::Damaged { .. } | FileError::Version { .. }), "{what}: {error}");
    };
    // Cut short anywhere, or longer.
    for length in (0..whole.len()).step_by(53).chain([whole.len() - 1]) {
        refused(&whole[..length], &format!("{length} bytes"));
    }
    let mut longer = whole.clone();
    longer.push(0);
    refused(&longer, "one byte more");
    // A bit anywhere.
    for at in (0..whole.len()).step_by(11).chain([whole.len() - 1]) {
        let mut altered = whole.clone();
        altered[at] ^= 1 << (at % 8);
        refused(&altered, &format!("byte {at}"));
    }
    fs::write(&path, &whole).unwrap();
    loaded(&path, &model, &config).unwrap();
}

/// A header that fits its checksum but claims more than any machine holds: refused by its size before anything is allocated.
#[test]
fn a_header_that_claims_much_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let (config, model, session) = made(RELEASED);
    session.save(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    let size = u32::from_le_bytes(whole[12..16].try_into().unwrap()) as usize;
    let header = String::from_utf8(whole[16..16 + size].to_vec()).unwrap();
    let with = |header: &str| {
        let mut bytes = whole[..12].to_vec();
        bytes.extend((header.len() as u32).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes());
        bytes.extend(&whole[16 + size + 8..]);
        fs::write(&path, bytes).unwrap();
        let options = Options { memory: Limit::Bytes(u64::MAX), max_tokens: usize::MAX, ..Options::new(0) };
        let error = Session::load(&path, &model, &config, options).unwrap_err();
        assert!(!error.to_string().is_empty());
        error
    };
    assert!(header.contains("[31,4]"), "{header}");
    for claim in ["[1152921504606846976,4]", "[18446744073709551615,18446744073709551615]", "[32,4]"] {
        let error = with(&header.replace("[31,4]", claim));
        assert!(!matches!(error, FileError::Io { .. }), "{claim}: {error}");
    }
    for wrong in
        [header.replace("[31,4]", "[-1]"), header.replace("quantize", "quantise"), String::from("{}"), String::new()]
    {
        assert!(matches!(with(&wrong), FileError::Damaged { .. }));
    }
    let error = with(&header.replace("[31,4]", "[]"));
    assert!(matches!(error, FileError::Session { .. }), "{error}");
    // Not even room for the header that is claimed.
    let mut bytes = whole[..12].to_vec();
    bytes.extend(u32::MAX.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    assert!(matches!(loaded(&path, &model, &config), Err(FileError::Damaged { .. })));
}

#[test]
fn forks_share_and_go_their_own_ways() {
    let (config, model, mut session) = made(RELEASED);
    session
        .make_up(2500, {
            let mut at = 0.0_f32;
            move || {
                at += 0.7;
                at.sin()
            }
        })
        .unwrap();
    let mut fork = session.fork();
    let (shared, all) = fork.caches().shared_chunks();
    assert_eq!(shared, all);
    let mut alone = Session::new(&model, &config, 2, options()).unwrap();
    drop(std::mem::replace(&mut alone, session.clone()));
    let [a, b] = [&mut session, &mut fork].map(|session| floats(session.decode(&[1, 2]).unwrap()));
    assert_eq!(a, b);
    // Full chunks are shared still; windows and the last chunks are not.
    let (shared, all) = fork.caches().shared_chunks();
    assert!(shared > 0 && shared < all, "{shared} of {all}");
    let after = floats(session.decode(&[3, 3]).unwrap());
    fork.decode(&[4, 4]).unwrap();
    assert_ne!(after, floats(fork.decode(&[3, 3]).unwrap()));
    // What the others did has changed nothing here.
    assert_eq!(floats(alone.decode(&[1, 2]).unwrap()), a);
    assert_eq!(floats(alone.decode(&[3, 3]).unwrap()), after);
}

#[test]
fn rows_can_be_forked() {
    let (_, _, mut session) = made(RELEASED);
    let mut fork = session.fork_rows(&[1, 0, 1]).unwrap();
    assert_eq!(fork.lengths(), [4, 31, 4]);
    let (two, three) = (floats(session.decode(&[5, 6]).unwrap()), floats(fork.decode(&[6, 5, 6]).unwrap()));
    let width = common::VOCABULARY;
    let row = |all: &[f32], row: usize| all[row * width..(row + 1) * width].to_vec();
    for (from, to) in [(1, 0), (0, 1), (1, 2)] {
        assert!(common::difference(&row(&three, to), &row(&two, from)) < 1e-5, "{from} to {to}");
    }
    assert!(matches!(session.fork_rows(&[2]), Err(SessionError::Row { row: 2, rows: 2 })));
    assert!(matches!(session.fork_rows(&[]), Err(SessionError::NoRows)));
}

#[test]
fn wrong_requests_are_refused_and_change_nothing() {
    let (config, model, mut session) = made(QuantizationConfig::default());
    let mut untouched = session.fork();
    let text = |result: Result<burn::tensor::Tensor<2>, SessionError>| result.unwrap_err().to_string();
    assert_eq!(text(session.prefill(&[vec![1]])), "1 prompts or tokens for 2 rows: give one for each");
    assert_eq!(text(session.prefill(&[vec![1], vec![]])), "row 1: the prompt is empty; give at least one token");
    assert_eq!(text(session.decode(&[1, 13])), "row 1, token 0: 13 is not a token id of this model (0 to 12)");
    assert_eq!(
        text(session.extend(&[(0, &[1, 2, -1])])),
        "row 0, token 2: -1 is not a token id of this model (0 to 12)"
    );
    assert_eq!(text(session.extend(&[(2, &[1])])), "row 2 is given twice, or is not one of the 2 rows (0 to 1)");
    assert_eq!(
        text(session.extend(&[(1, &[1]), (1, &[1])])),
        "row 1 is given twice, or is not one of the 2 rows (0 to 1)"
    );
    assert!(text(session.extend(&[])).starts_with("0 prompts"));
    assert_eq!(
        text(session.extend(&[(0, &[1; 2970])])),
        "row 0: 3001 tokens are more than the 3000 that this session is made for; raise its maximum"
    );
    assert!(matches!(session.make_up(2970, || 0.0), Err(SessionError::TooLong { .. })));
    let [a, b] = [&mut session, &mut untouched].map(|session| floats(session.decode(&[1, 2]).unwrap()));
    assert_eq!(a, b);

    let refused = |config: &ModelConfig, rows, options| Session::new(&model, config, rows, options).unwrap_err();
    assert!(matches!(refused(&config, 0, options()), SessionError::NoRows));
    let mix = ModelConfig { layers: "swa full@2+pool reuse reindex stale@2 swa".parse().unwrap(), ..config.clone() };
    assert!(matches!(refused(&mix, 1, options()), SessionError::Configuration(_)));
    let plain = QuantizationConfig::default();
    let unrotated = ModelConfig { values: Values::Unrotated, quantization: plain, ..config.clone() };
    assert!(matches!(refused(&unrotated, 1, options()), SessionError::Values));
    let wide = ModelConfig { d_model: 32, ..config.clone() };
    assert!(matches!(refused(&wide, 1, options()), SessionError::Configuration(_)));
}

/// Refused before anything is allocated, with what it would need: here all that full caches hold, exactly.
#[test]
fn caches_that_do_not_fit_are_refused() {
    let (config, model, _) = made(RELEASED);
    let fill = |tokens: usize| {
        let mut session = Session::new(&model, &config, 1, Options::new(tokens)).unwrap();
        session.make_up(tokens, || 1.0).unwrap();
        session.bytes().total()
    };
    // A multiple of a panel and of every ratio.
    let held = fill(1600);
    let with = |bytes| Session::new(&model, &config, 1, Options { memory: Limit::Bytes(bytes), ..Options::new(1600) });
    assert!(with(held).is_ok());
    let error = with(held - 1).unwrap_err();
    assert!(matches!(error, SessionError::Memory { needed, .. } if needed == u128::from(held)), "{error}");
    for (rows, tokens) in [(1, usize::MAX), (usize::MAX, usize::MAX), (1 << 30, 1 << 40)] {
        let error = Session::new(&model, &config, rows, Options::new(tokens)).unwrap_err();
        assert!(matches!(error, SessionError::Memory { .. }), "{error}");
    }
}
