use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use csa2_model::ops::{NAN_ROW, NO_ENTRY, Place, PoolUse, StoredSpec, StoredWindow, stored_readout, stored_select};
use csa2_model::quant::Format;
use csa2_model::store::{CHUNK, PANEL, Store};

use super::common::random::Source;
use super::common::stored::{FORMATS, ReadoutCase, SelectCase, store, window};
use super::common::{assert_close, ints, numbers};
use super::{copied, device};

/// Lists, pools and counts on wgpu and on the processor, of the same stored keys.
fn compare(wgpu: &Device, case: &SelectCase) {
    let (there, here) = (case.asked(wgpu), case.asked(&Device::flex()));
    let (build, read) = (PoolUse::Build { blocks: case.blocks, size: case.size }, PoolUse::Read { size: case.size });
    let mut blocks = None;
    for pool in [PoolUse::None, build, read] {
        let given = blocks.as_deref().filter(|_| pool == read);
        let expected = here.select(stored_select, given, case.spec(pool));
        let found = there.select(stored_select, given, case.spec(pool));
        assert_eq!(found, expected, "{case:?}, {pool:?}");
        blocks = expected.1.or(blocks);
    }
}

#[test]
fn stored_keys_of_every_format_and_length() {
    let Some(wgpu) = device() else { return };
    // Lengths on both sides of what a block and a chunk hold; rows without entries.
    let rows = [vec![1], vec![15, 16, 17], vec![1, 40, 3], vec![CHUNK + 1, 5]];
    for (number, (format, lengths)) in FORMATS.iter().flat_map(|f| rows.iter().map(move |r| (*f, r))).enumerate() {
        let (heads, groups) = ([1, 2, 5, 9][number % 4], 1 + number % 3);
        let (ratio, topk, blocks, size) =
            (1 + number % 3, [1, 7, 40][number % 3], 1 + number % 5, [2, 8, 37][number % 3]);
        let lengths = lengths.clone();
        let seed = number as u64;
        let case = SelectCase { seed, format, lengths, ratio, heads, groups, topk, blocks, size, whole: true };
        compare(&wgpu, &case);
        // Sums of products of 4-bit numbers are exact as well: scales that are not all alike.
        if matches!(format, Some(Format::Fp4E4m3 | Format::Fp4E8m0)) {
            compare(&wgpu, &SelectCase { whole: false, ..case });
        }
    }
}

/// Prompts in pieces, several rows in one pass, queries that stand side by side and alone.
#[test]
fn stored_runs_of_queries() {
    let Some(wgpu) = device() else { return };
    let mut source = Source::new(5);
    let (dim, heads) = (32, 3);
    let pieces = [(1, 0..9), (0, 30..50), (2, 4..5), (0, 50..51), (1, 20..21)];
    let places: Vec<Place> =
        pieces.into_iter().flat_map(|(row, span)| span.map(move |position| Place { row, position })).collect();
    let keys: Vec<Store> =
        [51, 21, 5].map(|length| store(dim, Some(Format::Fp4E8m0), &source.wholes(length / 2 * dim, 3))).into();
    let keys: Vec<&Store> = keys.iter().collect();
    let q = source.whole([1, places.len(), heads, dim], 2, &Device::flex(), DType::F32);
    let weights = source.whole([1, places.len(), heads], 2, &Device::flex(), DType::F32);
    let spec = StoredSpec { ratio: 2, topk: 6, pool: PoolUse::Build { blocks: 2, size: 3 } };
    let (expected, count) = stored_select(q.clone(), weights.clone(), None, &keys, &places, spec).unwrap();
    let (found, scored) =
        stored_select(copied(&q, &wgpu), copied(&weights, &wgpu), None, &keys, &places, spec).unwrap();
    assert_eq!((ints(found.topk), scored), (ints(expected.topk), count));
    assert_eq!(ints(found.pool.unwrap()), ints(expected.pool.unwrap()));
}

#[test]
fn stored_keys_that_are_not_numbers_mark_their_queries() {
    let Some(wgpu) = device() else { return };
    let (dim, length) = (32, 40);
    for format in FORMATS {
        let mut source = Source::new(3);
        let mut values = source.normals(length * dim);
        values[20 * dim + 3] = f64::NAN;
        let keys = store(dim, format, &values);
        let places: Vec<Place> = (0..length).map(|position| Place { row: 0, position }).collect();
        let q = source.normal([1, length, 2, dim], &wgpu, DType::F32);
        let weights = source.normal([1, length, 2], &wgpu, DType::F32);
        let spec = StoredSpec { ratio: 1, topk: 4, pool: PoolUse::Build { blocks: 2, size: 4 } };
        let (selection, _) = stored_select(q, weights, None, &[&keys], &places, spec).unwrap();
        let (topk, pool) = (ints(selection.topk), ints(selection.pool.unwrap()));
        for t in 0..length {
            let marked = topk[4 * t..4 * t + 4].iter().all(|&index| index == i64::from(NAN_ROW));
            assert_eq!(marked, t >= 20, "{format:?}, query {t}");
            assert_eq!(pool[2 * t..2 * t + 2].iter().all(|&block| block == -1), t >= 20, "{format:?}, query {t}");
        }
    }
}

#[test]
fn stored_latents_of_every_format() {
    let Some(wgpu) = device() else { return };
    // Rows (tokens gone, at hand), entries, width, since: empty stores, rings that are not full, just full and gone round.
    let all = usize::MAX;
    let cases = [
        (vec![(0, 1)], 0, Some(4), all),
        (vec![(0, 9), (3, 2), (40, 1)], 17, Some(5), all),
        (vec![(16, 1), (17, 3), (5, 20)], 60, Some(16), 7),
        (vec![(300, 2), (128, 1)], 33, Some(128), 50),
        (vec![(70, 3), (0, 5)], 16, None, all),
        (vec![(CHUNK + 5, 1)], CHUNK + 3, None, CHUNK - 20),
    ];
    for (number, (rows, entries, width, since)) in cases.into_iter().enumerate() {
        for (place, format) in FORMATS.into_iter().enumerate() {
            let formats = [format, FORMATS[(place + number) % 4]];
            let (heads, groups, topk) = ([1, 3, 5][number % 3], [1, 2, 8][number % 3], [1, 9, 40][number % 3]);
            let (rows, seed) = (rows.clone(), number as u64);
            let case = ReadoutCase { seed, formats, rows, entries, width, heads, groups, topk, since };
            let asked = case.asked();
            for listed in [true, false] {
                let expected = asked.readout(stored_readout, &Device::flex(), listed);
                let found = asked.readout(stored_readout, &wgpu, listed);
                assert_close(&format!("{case:?}"), &found[0], &expected[0], 5e-6);
                assert_close(&format!("{case:?}: lse"), &found[1], &expected[1], 5e-6);
            }
        }
    }
}

#[test]
fn stored_rows_that_are_not_numbers_stay_apart() {
    let Some(wgpu) = device() else { return };
    let mut source = Source::new(1);
    let [past, new] = window(&mut source, 32, Some(Format::Fp8E8m0), 3, 4, Some(5));
    let mut values = source.normals(3 * 32);
    values[2 * 32] = f64::NAN;
    let main = store(32, Some(Format::Fp4E4m3), &values);
    let q = source.normal([1, 4, 2, 32], &wgpu, DType::F32);
    let sink = source.normal([2], &wgpu, DType::F32);
    // Marked, not there, and an entry that is not a number.
    let topk = [0, NO_ENTRY, 1, NAN_ROW, 3, NO_ENTRY, 2, NO_ENTRY];
    let topk: Tensor<3, Int> = Tensor::from_data(TensorData::new(topk.to_vec(), [1, 4, 2]), &wgpu);
    let places: Vec<Place> = (3..7).map(|position| Place { row: 0, position }).collect();
    let windows = [StoredWindow { past: &past, new: &new, start: 3, width: Some(5), since: 0 }];
    let (output, lse) = stored_readout(q, sink, Some((topk, &[&main])), &windows, &places, 0.2).unwrap();
    let (output, lse) = (numbers(output), numbers(lse));
    for t in 0..3 {
        assert!(output[t * 64..(t + 1) * 64].iter().all(|x| x.is_nan() == (t > 0)), "query {t}");
        assert!(lse[t * 2..(t + 1) * 2].iter().all(|x| x.is_nan() == (t > 0)), "query {t}");
    }
    // The first group of the third entry is not a number; nothing else of that query needs to be one.
    assert!(output[3 * 64].is_nan());
}

/// What one query reads that has nothing but one latent, and no sink: that latent.
fn latents(store: &Store, device: &Device) -> Vec<f64> {
    let (rows, dim) = (store.len(), store.dim());
    let places: Vec<Place> = (0..rows).map(|position| Place { row: 0, position }).collect();
    let empty = Store::new(dim, store.format());
    let window = StoredWindow { past: &empty, new: store, start: 0, width: Some(1), since: 0 };
    let q = Tensor::zeros([1, rows, 1, dim], (device, DType::F32));
    let sink = Tensor::from_data([f32::NEG_INFINITY], (device, DType::F32));
    numbers(stored_readout(q, sink, None, &[window], &places, 1.0).unwrap().0)
}

/// Every code with every scale is the number that the host reads.
#[test]
fn stored_codes_are_exact() {
    let Some(wgpu) = device() else { return };
    for format in Format::ALL {
        // A vector per byte of a scale, with every code in it but those that make all of it no number; these in one vector alone.
        let dim = if format.bits() == 4 { 32 } else { 256 };
        let mut store = Store::zeros(dim, Some(format), 256);
        let mut parts = store.parts_mut();
        let (codes, scales) = (parts.next().unwrap(), parts.next().unwrap());
        let (width, groups) = (codes.len() / 256, scales.len() / 256);
        for (at, byte) in codes.iter_mut().enumerate() {
            let code = if width == 256 { at as u8 } else { (at * 37 + at / 256) as u8 };
            *byte = if width == 256 && code % 128 == 127 && at / 256 != 127 { 0 } else { code };
        }
        scales.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / groups) as u8);
        drop(parts);
        let host = store.unpack();
        let found = latents(&store, &wgpu);
        let mut compared = 0;
        for (row, (found, host)) in found.chunks(dim).zip(host.chunks(dim)).enumerate() {
            if host.iter().any(|x| !x.is_finite()) {
                // 0 times infinity is no number.
                assert!(found.iter().all(|x| x.is_nan()), "{format:?}, vector {row}");
                continue;
            }
            for (&found, &host) in found.iter().zip(host) {
                // The softmax may take a subnormal number for 0, and adds -0 to 0.
                let lost = found == 0.0 && !host.is_normal();
                assert!(
                    lost || (found as f32).to_bits() == host.to_bits(),
                    "{format:?}, vector {row}: {found}, {host}"
                );
                compared += usize::from(host.is_normal());
            }
        }
        assert!(compared * 4 > host.len() * 3, "{format:?}: {compared} of {}", host.len());
    }
}

/// A mirror follows its store: vectors that are appended, replaced and overwritten, and copies that go their own ways.
#[test]
fn stored_vectors_that_change_are_read_as_they_are() {
    let Some(wgpu) = device() else { return };
    for format in FORMATS {
        let dim = 32;
        let mut source = Source::new(8);
        let mut vectors =
            |count: usize| -> Vec<f32> { source.normals(count * dim).into_iter().map(|x| x as f32).collect() };
        let check = |store: &Store, what: &str| {
            let expected: Vec<f64> = store.unpack().into_iter().map(f64::from).collect();
            assert!(latents(store, &wgpu) == expected, "{format:?}: {what}");
        };
        let mut store = Store::new(dim, format);
        assert_eq!(store.device_bytes(), 0);
        let mut held = 0;
        for count in [1, 1, 13, 1, 1, 30, 200, CHUNK - 248, 1, 2, CHUNK] {
            store.push(&vectors(count));
            check(&store, &format!("{} vectors", store.len()));
            held = store.device_bytes();
            let whole = store.len().next_multiple_of(PANEL) as u64 * store.bytes() / store.len() as u64;
            assert!((whole..=whole.max(1024) * 2).contains(&held), "{format:?}, {}: {held}", store.len());
        }
        // One after the other, apart, more than are kept apart, and together with new ones.
        for rows in [vec![0], vec![5, 6, 7], vec![1000, 3, 1999], (0..20).map(|i| 37 * i).collect()] {
            for row in rows {
                store.replace(row, &vectors(1));
            }
            check(&store, "replaced");
        }
        store.replace(17, &vectors(1));
        store.push(&vectors(3));
        store.replace(store.len() - 1, &vectors(1));
        check(&store, "replaced and appended");
        assert!(store.device_bytes() >= held);

        // Copies, and copies of them.
        let mut other = store.clone();
        other.replace(2, &vectors(1));
        other.push(&vectors(1));
        check(&store, "a copy was written to");
        check(&other, "a copy that was written to");
        store.replace(2, &vectors(1));
        store.push(&vectors(20));
        check(&other, "the original was written to");
        check(&store, "an original that was written to");
        let copy = other.clone();
        drop(other);
        check(&copy, "a copy of a copy");

        store.parts_mut().for_each(|part| part.fill(0));
        assert_eq!(store.device_bytes(), 0);
        check(&store, "overwritten");
    }
}
