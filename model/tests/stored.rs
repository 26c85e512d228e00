//! The operators over stored vectors against their plain form, and against the operators over tensors.
#![cfg(feature = "flex")]

mod common;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use common::random::Source;
use common::small::{bits, floats};
use common::stored::{FORMATS, ReadoutCase, SelectCase, SelectOperator, store, window};
use common::{assert_close, ints, numbers};
use csa2_model::ops::stored::reference;
use csa2_model::ops::{
    self, NAN_ROW, NO_ENTRY, Place, PoolUse, SelectSpec, StoredSpec, StoredWindow, stored_readout, stored_select,
};
use csa2_model::quant::Format;
use csa2_model::store::{CHUNK, Store};
use proptest::prelude::*;

fn device() -> Device {
    Device::flex()
}

fn formats() -> impl Strategy<Value = Option<Format>> {
    prop::sample::select(FORMATS.to_vec())
}

fn select_case(longest: usize) -> impl Strategy<Value = SelectCase> {
    let sizes = (1..=4_usize, 1..=9_usize, 1..=3_usize, 1..=40_usize, 1..=6_usize, 1..=37_usize);
    let lengths = prop::collection::vec(1..=longest, 1..=3);
    (any::<u64>(), formats(), lengths, sizes, any::<bool>()).prop_map(
        |(seed, format, lengths, (ratio, heads, groups, topk, blocks, size), whole)| SelectCase {
            seed,
            format,
            lengths,
            ratio,
            heads,
            groups,
            topk,
            blocks,
            size,
            whole,
        },
    )
}

/// Whether the plain form's own order is beyond doubt: f32 sums of numbers in f32 or FP8 are not exact.
fn exact(case: &SelectCase) -> bool {
    case.whole || matches!(case.format, Some(Format::Fp4E8m0 | Format::Fp4E4m3))
}

fn check_select(case: &SelectCase) {
    let asked = case.asked(&device());
    let build = PoolUse::Build { blocks: case.blocks, size: case.size };
    let read = PoolUse::Read { size: case.size };
    for pool in [PoolUse::None, build] {
        let expected = asked.select(reference::select, None, case.spec(pool));
        let found = asked.select(stored_select, None, case.spec(pool));
        assert_eq!(found.2, expected.2);
        if exact(case) {
            assert_eq!(found, expected, "{case:?}");
        } else {
            let same = found.0.iter().zip(&expected.0).filter(|(a, b)| a == b).count();
            assert!(same * 100 >= expected.0.len() * 99, "{case:?}: {same} of {}", expected.0.len());
        }
        if let Some(blocks) = expected.1 {
            let expected = asked.select(reference::select, Some(&blocks), case.spec(read));
            let found = asked.select(stored_select, Some(&blocks), case.spec(read));
            assert_eq!(found.2, expected.2);
            if exact(case) {
                assert_eq!(found, expected, "{case:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn selections_are_those_of_the_definition(case in select_case(150)) {
        check_select(&case);
    }
}

/// Several parts, chunks and threads; blocks that no chunk is a multiple of.
#[test]
fn long_selections_are_those_of_the_definition() {
    for (number, format) in FORMATS.into_iter().enumerate() {
        let lengths = vec![2 * (16 * CHUNK + 4 * CHUNK) + 77, 3];
        let sizes = (2, 3, 1, 40, 7, [8, 24, 7, 1000][number]);
        let (ratio, heads, groups, topk, blocks, size) = sizes;
        let seed = number as u64;
        check_select(&SelectCase { seed, format, lengths, ratio, heads, groups, topk, blocks, size, whole: true });
    }
}

/// The operators over tensors, given what the stores hold, choose the same.
#[test]
fn selections_are_those_of_training() {
    for (number, format) in FORMATS.into_iter().enumerate() {
        for (length, ratio) in [(1, 2), (100, 1), (333, 4)] {
            let mut source = Source::new(number as u64);
            let (dim, heads, entries) = (64, 5, length / ratio);
            let mut keys = store(dim, format, &source.normals(entries * dim));
            let q = source.normal([1, length, heads, dim], &device(), DType::F32);
            let q_read = format.map_or(q.clone(), |format| ops::fake_quantize(q.clone(), format));
            let weights = source.normal([1, length, heads], &device(), DType::F32);
            let places: Vec<Place> = (0..length).map(|position| Place { row: 0, position }).collect();
            let pool = PoolUse::Build { blocks: 3, size: 4 };
            let spec = SelectSpec { ratio, start: 0, entries, topk: 6, pool };
            let values = if entries == 0 { vec![0.0; dim] } else { keys.unpack() };
            let tensor = Tensor::from_data(TensorData::new(values, [1, entries.max(1), dim]), &device());
            let expected = ops::index_select(q_read.clone(), tensor.clone(), weights.clone(), None, spec);
            let stored = StoredSpec { ratio, topk: 6, pool };
            let (found, _) = stored_select(q.clone(), weights.clone(), None, &[&keys], &places, stored).unwrap();
            assert_eq!(ints(found.topk), ints(expected.topk), "{format:?}, {length}");
            let pool = expected.pool.unwrap();
            assert_eq!(ints(found.pool.unwrap()), ints(pool.clone()), "{format:?}, {length}");
            let read = PoolUse::Read { size: 4 };
            let expected = ops::index_select(
                q_read,
                tensor,
                weights.clone(),
                Some(pool.clone()),
                SelectSpec { pool: read, ..spec },
            );
            let stored = StoredSpec { pool: read, ..stored };
            let (found, _) = stored_select(q, weights, Some(pool), &[&keys], &places, stored).unwrap();
            assert_eq!(ints(found.topk), ints(expected.topk), "{format:?}, {length}, pool");
            keys.push(&[]);
        }
    }
}

#[test]
fn what_is_not_a_number_marks_its_queries() {
    for format in FORMATS {
        let (dim, length) = (32, 40);
        let mut source = Source::new(3);
        let mut values = source.normals(length * dim);
        values[20 * dim + 3] = f64::NAN;
        let keys = store(dim, format, &values);
        let places: Vec<Place> = (0..length).map(|position| Place { row: 0, position }).collect();
        let q = source.normal([1, length, 2, dim], &device(), DType::F32);
        let weights = source.normal([1, length, 2], &device(), DType::F32);
        let spec = StoredSpec { ratio: 1, topk: 4, pool: PoolUse::Build { blocks: 2, size: 4 } };
        for operator in [stored_select as SelectOperator, reference::select] {
            let (selection, _) = operator(q.clone(), weights.clone(), None, &[&keys], &places, spec).unwrap();
            let (topk, pool) = (ints(selection.topk), ints(selection.pool.unwrap()));
            for t in 0..length {
                let marked = topk[4 * t..4 * t + 4].iter().all(|&index| index == i64::from(NAN_ROW));
                assert_eq!(marked, t >= 20, "{format:?}, query {t}");
                assert_eq!(pool[2 * t..2 * t + 2].iter().all(|&block| block == -1), t >= 20);
            }
        }
        // A query, and a weight.
        let value = if format.is_some() { f32::INFINITY } else { f32::NAN };
        let broken = q.clone().slice_fill([0..1, 1..2, 0..1, 0..1], value);
        let (selection, _) = stored_select(broken, weights.clone(), None, &[&keys], &places[..], spec).unwrap();
        assert_eq!(ints(selection.topk)[4..8], [i64::from(NAN_ROW); 4]);
        let broken = weights.slice_fill([0..1, 2..3, 0..1], f32::NAN);
        let (selection, _) = stored_select(q, broken, None, &[&keys], &places[..], spec).unwrap();
        assert_eq!(ints(selection.topk)[8..12], [i64::from(NAN_ROW); 4]);
    }
}

fn readout_case() -> impl Strategy<Value = ReadoutCase> {
    let rows = prop::collection::vec((0..=40_usize, 1..=9_usize), 1..=3);
    let width = prop::option::weighted(0.8, 1..=17_usize);
    let sizes = (0..=60_usize, 1..=5_usize, 1..=3_usize, 1..=40_usize);
    let since = prop_oneof![Just(usize::MAX), 0..=20_usize];
    (any::<u64>(), [formats(), formats()], rows, width, sizes, since).prop_map(
        |(seed, formats, rows, width, (entries, heads, groups, topk), since)| ReadoutCase {
            seed,
            formats,
            rows,
            entries,
            width,
            heads,
            groups,
            topk,
            since,
        },
    )
}

fn check_readout(case: &ReadoutCase) {
    let asked = case.asked();
    for listed in [true, false] {
        let expected = asked.readout(reference::readout, &device(), listed);
        let found = asked.readout(stored_readout, &device(), listed);
        assert_close(&format!("{case:?}"), &found[0], &expected[0], 1e-5);
        assert_close(&format!("{case:?}: lse"), &found[1], &expected[1], 1e-5);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn readouts_are_those_of_the_definition(case in readout_case()) {
        check_readout(&case);
    }
}

/// Several parts of a window without a limit, shared out among threads.
#[test]
fn long_readouts_are_those_of_the_definition() {
    for (number, format) in FORMATS.into_iter().enumerate() {
        check_readout(&ReadoutCase {
            seed: number as u64,
            formats: [format, None],
            rows: vec![(4096 * 2 + 55, 2)],
            entries: 300,
            width: None,
            heads: 3,
            groups: 1,
            topk: 200,
            since: if number == 0 { 4096 + 3 } else { usize::MAX },
        });
    }
}

/// The operator over tensors, given what the stores hold, gives the same.
#[test]
fn readouts_are_those_of_training() {
    for (number, format) in FORMATS.into_iter().enumerate() {
        let mut source = Source::new(number as u64);
        let (dim, length, width, entries, heads) = (64, 50, 7, 30, 3);
        let [past, new] = window(&mut source, dim, format, 0, length, Some(width));
        let main = store(dim, format, &source.normals(entries * dim));
        let q = source.normal([1, length, heads, dim], &device(), DType::F32);
        let sink = source.normal([heads], &device(), DType::F32);
        let topk = source.lists([1, length, 9], entries, &device());
        let tensor =
            |store: &Store| Tensor::<3>::from_data(TensorData::new(store.unpack(), [1, store.len(), dim]), &device());
        let expected = ops::readout(q.clone(), tensor(&new), tensor(&main), sink.clone(), topk.clone(), width, 0.125);
        let places: Vec<Place> = (0..length).map(|position| Place { row: 0, position }).collect();
        let windows = [StoredWindow { past: &past, new: &new, start: 0, width: Some(width), since: 0 }];
        let found = stored_readout(q, sink, Some((topk, &[&main])), &windows, &places, 0.125).unwrap();
        // One piece in both: the same sums in the same order, but for where the window ends and the entries begin.
        assert_close(&format!("{format:?}"), &numbers(found.0), &numbers(expected.0), 1e-6);
        assert_close(&format!("{format:?}"), &numbers(found.1), &numbers(expected.1), 1e-6);
    }
}

#[test]
fn marked_rows_and_entries_that_are_not_there_are_not_numbers() {
    let mut source = Source::new(1);
    let [past, new] = window(&mut source, 32, None, 3, 4, Some(5));
    let main = store(32, None, &source.normals(2 * 32));
    let q = source.normal([1, 4, 2, 32], &device(), DType::F32);
    let sink = source.normal([2], &device(), DType::F32);
    let topk = [0, NO_ENTRY, 1, NAN_ROW, 2, NO_ENTRY, NO_ENTRY, NO_ENTRY];
    let topk: Tensor<3, Int> = Tensor::from_data(TensorData::new(topk.to_vec(), [1, 4, 2]), &device());
    let places: Vec<Place> = (3..7).map(|position| Place { row: 0, position }).collect();
    let windows = [StoredWindow { past: &past, new: &new, start: 3, width: Some(5), since: 0 }];
    let main = [&main];
    let entries = || Some((topk.clone(), &main[..]));
    let found = stored_readout(q.clone(), sink.clone(), entries(), &windows, &places, 0.2).unwrap();
    let expected = reference::readout(q, sink, entries(), &windows, &places, 0.2).unwrap();
    for (output, lse) in [found, expected] {
        let (output, lse) = (floats(output), floats(lse));
        for t in 0..4 {
            let broken = t == 1 || t == 2;
            assert!(output[t * 64..(t + 1) * 64].iter().all(|x| x.is_nan() == broken), "query {t}");
            assert!(lse[t * 2..(t + 1) * 2].iter().all(|x| x.is_nan() == broken), "query {t}");
        }
    }
}

/// The number of threads changes nothing.
#[test]
fn results_do_not_depend_on_threads() {
    let mut source = Source::new(9);
    let dim = 32;
    let [past, new] = window(&mut source, dim, Some(Format::Fp8E8m0), 20_000, 1, None);
    let q = source.normal([1, 1, 2, dim], &device(), DType::F32);
    let sink = source.normal([2], &device(), DType::F32);
    let windows = [StoredWindow { past: &past, new: &new, start: 20_000, width: None, since: 0 }];
    let places = [Place { row: 0, position: 20_000 }];
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| bits(&floats(stored_readout(q.clone(), sink.clone(), None, &windows, &places, 0.2).unwrap().0)))
    };
    let one = run(1);
    assert!([2, 3, 5].into_iter().all(|threads| run(threads) == one));
}
