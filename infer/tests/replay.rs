//! Bounded replay: what it computes by its definition, where it is exact, and what it refuses.
#![cfg(feature = "flex")]

mod common;

use std::fs;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use common::{RELEASED, VOCABULARY, config, difference, floats, model, released, tokens, whole};
use csa2_infer::{FileError, Limit, Options, Session, SessionError, decoder, exact_replay};
use csa2_model::attention::{Cache, Context};
use csa2_model::config::ModelConfig;
use csa2_model::model::Model;
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Mixes with one to four layers in the decoder.
const MIXES: [&str; 5] = [
    "swa full",
    "full reuse*2",
    "swa full@2 stale@2 dense full reuse",
    "full@2+pool reindex reuse full@4+pool reindex reuse",
    "swa (full@2 reuse)*2 full@1+pool reuse reindex reuse",
];

fn options(pass: usize) -> Options {
    Options { pass, memory: Limit::Bytes(1 << 30), ..Options::new(200) }
}

/// The same by the plain cache: whole up to where the replay begins, then the decoder's windows are forgotten.
struct Plain<'a> {
    model: &'a Model,
    config: &'a ModelConfig,
    cache: Cache,
}

impl Plain<'_> {
    /// Logits behind the last of these tokens.
    fn read(&mut self, tokens: &[i32]) -> Vec<f32> {
        let device = Device::flex();
        let input: Tensor<2, Int> = Tensor::from_data(TensorData::new(tokens.to_vec(), [1, tokens.len()]), &device);
        let cx = Context::continued(self.config, self.cache.len(), tokens.len(), DType::F32, &device);
        let logits = self.model.forward_cached(input, &mut self.cache, &cx).logits;
        floats(logits.narrow(1, tokens.len() - 1, 1))
    }

    fn extend_bounded(&mut self, tokens: &[i32], replay: usize) -> Vec<f32> {
        let left_out = tokens.len().saturating_sub(replay);
        if left_out > 0 {
            self.read(&tokens[..left_out]);
            self.cache.forget_windows(decoder(self.config).unwrap().start);
        }
        self.read(&tokens[left_out..])
    }
}

fn configs() -> impl Iterator<Item = ModelConfig> {
    MIXES.into_iter().flat_map(|mix| [config(mix), released(config(mix))])
}

#[test]
fn a_decoder_replay_is_what_it_says() {
    for (seed, config) in configs().enumerate() {
        let model = model(&config, seed as u64, &Device::flex());
        let mut random = StdRng::seed_from_u64(seed as u64);
        // Two prompts one after the other, in two rows of different lengths; then a few tokens.
        let lengths = [[37, 23], [6, 61]];
        let rows: Vec<Vec<i32>> =
            lengths.iter().map(|row| tokens(&mut random, row.iter().sum::<usize>() + 8)).collect();
        for (replay, pass) in [(5, 3), (5, 100), (7, 4), (23, 10), (40, 16)] {
            let mut session = Session::new(&model, &config, 2, options(pass)).unwrap();
            let mut plain: Vec<Plain> = rows
                .iter()
                .map(|_| Plain { model: &model, config: &config, cache: Cache::new(config.layers.len()) })
                .collect();
            let name = format!("{}, {:?}, replay of {replay}", config.layers, config.residual);
            for turn in 0..2 {
                let part = |row: usize| {
                    let start: usize = lengths[row][..turn].iter().sum();
                    &rows[row][start..start + lengths[row][turn]]
                };
                let given = [(1, part(1)), (0, part(0))];
                let found = session.extend_bounded(&given, replay).unwrap();
                let expected: Vec<f32> =
                    [1, 0].into_iter().flat_map(|row| plain[row].extend_bounded(part(row), replay)).collect();
                let off = difference(&floats(found.logits), &expected);
                assert!(off < 1e-4, "{name}: off by {off:e}");
                let left_out: Vec<usize> = [1, 0].map(|row| lengths[row][turn].saturating_sub(replay)).into();
                assert_eq!(found.left_out, left_out, "{name}");
            }
            for step in 0..8 {
                let next: Vec<i32> = (0..2).map(|row| rows[row][lengths[row].iter().sum::<usize>() + step]).collect();
                let found = floats(session.decode(&next).unwrap());
                let expected: Vec<f32> = (0..2).flat_map(|row| plain[row].read(&next[row..=row])).collect();
                let off = difference(&found, &expected);
                assert!(off < 1e-4, "{name}, token {step} behind: off by {off:e}");
            }
        }
    }
}

/// Behind the last token and further on: exact once the replay covers what windows reach; not before.
#[test]
fn a_replay_that_covers_the_windows_is_exact() {
    for (seed, config) in configs().enumerate() {
        let model = model(&config, seed as u64, &Device::flex());
        let all = tokens(&mut StdRng::seed_from_u64(seed as u64), 70);
        let expected = whole(&model, &config, &all, &Device::flex()).logits;
        let layers = decoder(&config).unwrap();
        let behind = |replay: usize| {
            let mut session = Session::new(&model, &config, 1, options(16)).unwrap();
            let mut found = floats(session.extend_bounded(&[(0, &all[..60])], replay).unwrap().logits);
            for &token in &all[60..] {
                found.extend(floats(session.decode(&[token]).unwrap()));
            }
            difference(&found, &expected[59 * VOCABULARY..])
        };
        // What is decoded reads one token less of the prompt each time, so the first is the hardest.
        let exact = exact_replay(&config, &layers);
        assert_eq!(exact, 1 + layers.len() * 4);
        let off = behind(exact);
        assert!(off < 1e-4, "{}: off by {off:e}", config.layers);
        if layers.len() > 1 {
            let off = behind(config.window);
            assert!(
                off > 1e-3,
                "{}: a replay of the window alone cannot be exact, but is off by {off:e}",
                config.layers
            );
        }
    }
}

fn prefilled(config: &ModelConfig, model: &Model, prompts: &[Vec<i32>]) -> Session {
    let mut session = Session::new(model, config, prompts.len(), options(16)).unwrap();
    session.prefill(prompts).unwrap();
    session
}

#[test]
fn windows_are_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (path, after) = (folder.path().join("entries"), folder.path().join("after"));
    for (seed, plain) in configs().filter(|config| !config.layers.to_string().contains("dense")).enumerate() {
        for config in [plain.clone(), ModelConfig { quantization: RELEASED, ..plain }] {
            let model = model(&config, seed as u64, &Device::flex());
            let mut random = StdRng::seed_from_u64(seed as u64);
            let prompts = [tokens(&mut random, 61), tokens(&mut random, 3)];
            let mut session = prefilled(&config, &model, &prompts);
            session.save_entries(&path).unwrap();
            let entries = fs::read(&path).unwrap();
            let mut back = Session::load(&path, &model, &config, options(16)).unwrap();
            assert_eq!((back.lengths(), back.bytes()), (session.lengths(), session.bytes()));
            for refused in [back.decode(&[1, 1]).err(), back.make_up(1, || 0.0).err(), back.extend(&[(1, &[1])]).err()]
            {
                assert!(matches!(refused, Some(SessionError::NoWindows { .. })), "{refused:?}");
            }
            assert!(matches!(back.save(&path), Err(FileError::Session { .. })));
            assert!(matches!(back.fork_rows(&[1]).unwrap().decode(&[1]), Err(SessionError::NoWindows { row: 0 })));
            let exact = exact_replay(&config, &(0..config.layers.len()));
            let last = |count: usize| [(0, &prompts[0][61 - count..]), (1, &prompts[1][..])];
            back.rebuild_windows(&last(exact)).unwrap();
            let mut rough = Session::load(&path, &model, &config, options(7)).unwrap();
            rough.rebuild_windows(&last(5)).unwrap();
            for session in [&back, &rough] {
                session.save_entries(&after).unwrap();
                assert!(fs::read(&after).unwrap() == entries, "a replay changes no entry");
            }
            let mut off = 0.0_f32;
            for token in [3, 1, 4] {
                let expected = floats(session.decode(&[token, token]).unwrap());
                let found = floats(back.decode(&[token, token]).unwrap());
                let rough = floats(rough.decode(&[token, token]).unwrap());
                let name = format!("{}, {:?}", config.layers, config.quantization);
                assert!(difference(&found, &expected) < 1e-4, "{name}: {}", difference(&found, &expected));
                // A row that is shorter than its windows has all of them.
                assert!(difference(&rough[VOCABULARY..], &expected[VOCABULARY..]) < 1e-4, "{name}");
                off = off.max(difference(&rough[..VOCABULARY], &expected[..VOCABULARY]));
            }
            assert!(
                off > 1e-3,
                "{}: a replay of the window alone cannot be exact, but is off by {off:e}",
                config.layers
            );
        }
    }
}

/// Without entries, the replay by its definition: nothing was before its first token.
#[test]
fn windows_alone_are_made_anew_by_the_definition() {
    let config = config("swa*3");
    let model = model(&config, 3, &Device::flex());
    let prompt = tokens(&mut StdRng::seed_from_u64(3), 40);
    let mut session = prefilled(&config, &model, std::slice::from_ref(&prompt));
    session.rebuild_windows(&[(0, &prompt[33..])]).unwrap();
    let mut plain = Plain { model: &model, config: &config, cache: Cache::new(3) };
    plain.read(&prompt[..33]);
    plain.cache.forget_windows(0);
    plain.read(&prompt[33..]);
    for token in [5, 6, 7, 8] {
        let off = difference(&floats(session.decode(&[token]).unwrap()), &plain.read(&[token]));
        assert!(off < 1e-4, "off by {off:e}");
    }
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let text = |result: Result<(), SessionError>| result.unwrap_err().to_string();
    for (mix, expected) in [
        ("swa*2", "bounded replay: no layer of `swa*2` is `full`, so it has no decoder that could be left out"),
        (
            "full reuse dense",
            "bounded replay: layer 2 of `full reuse dense`, in the decoder (layers 0 to 2), is `dense`",
        ),
        ("full@2 reuse stale@2", "is `stale`: it keeps something of every token"),
    ] {
        let config = config(mix);
        let model = model(&config, 1, &Device::flex());
        let mut session = Session::new(&model, &config, 1, options(8)).unwrap();
        let message = text(session.extend_bounded(&[(0, &[1, 2, 3])], 8).map(|_| ()));
        assert!(message.contains(expected), "{message}");
        assert_eq!(session.lengths(), [0]);
    }
    let config = config("full reuse");
    let model = model(&config, 1, &Device::flex());
    let mut session = prefilled(&config, &model, &[vec![1; 9]]);
    let message = text(session.extend_bounded(&[(0, &[1, 2, 3])], 4).map(|_| ()));
    assert!(message.contains("a replay of 4 tokens is shorter than the window of 5"), "{message}");
    assert!(text(session.extend_bounded(&[(0, &[13])], 8).map(|_| ())).contains("is not a token id"));
    for count in [4, 10] {
        let message = text(session.rebuild_windows(&[(0, &vec![1; count])]));
        let expected =
            format!("row 0: {count} tokens cannot make its windows anew; give its last 5 tokens, or more, up to all 9");
        assert!(message.contains(&expected), "{message}");
    }
    assert!(text(session.rebuild_windows(&[(1, &[1; 5])])).contains("row 1"));
    session.rebuild_windows(&[(0, &[1; 5])]).unwrap();
}
