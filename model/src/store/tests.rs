use super::*;
use crate::quant::{pack, unpack};

/// Numbers of many sizes, reproducible.
fn numbers(count: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    };
    (0..count).map(|_| (next() >> 8) as f32 / 4e6 * if next() >> 31 == 1 { -1.0 } else { 0.01 }).collect()
}

fn formats() -> impl Iterator<Item = Option<Format>> {
    Format::ALL.into_iter().map(Some).chain([None])
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn what_is_read_is_what_packing_gives() {
    for format in formats() {
        for length in [1, 15, 16, 17, CHUNK, CHUNK + 3] {
            let dim = 96;
            let values = numbers(length * dim);
            let expected = match format {
                Some(format) => unpack(&pack(&values, format).unwrap()).unwrap(),
                None => values.clone(),
            };
            let mut store = Store::new(dim, format);
            // In pieces of any length.
            let (mut rest, mut piece) = (&values[..], 1);
            while !rest.is_empty() {
                let (new, left) = rest.split_at((piece * dim).min(rest.len()));
                store.push(new);
                (rest, piece) = (left, piece * 3 % 700 + 1);
            }
            assert_eq!(store.len(), length);
            assert_eq!(bits(&store.unpack()), bits(&expected), "{format:?}, {length}");
            assert_eq!(store.bytes(), (length * vector_bytes(dim, format)) as u64);
            let parts: usize = store.parts().map(<[u8]>::len).sum();
            assert_eq!(Store::parts_bytes(dim, format, length as u64), Some(parts as u128));
            assert!(store.allocated() >= store.bytes());
            let mut copy = Store::zeros(dim, format, length);
            for (to, from) in copy.parts_mut().zip(store.parts()) {
                to.copy_from_slice(from);
            }
            assert_eq!(bits(&copy.unpack()), bits(&expected), "{format:?}, {length}");
        }
    }
}

#[test]
fn released_vectors_take_288_and_68_bytes() {
    assert_eq!(vector_bytes(512, Some(Format::Fp4E4m3)), 288);
    assert_eq!(vector_bytes(128, Some(Format::Fp4E8m0)), 68);
    assert_eq!(vector_bytes(512, Some(Format::Fp8E8m0)), 528);
}

#[test]
fn a_copy_shares_until_one_writes() {
    for format in formats() {
        let mut store = Store::new(32, format);
        store.push(&numbers(2 * CHUNK * 32));
        let before = bits(&store.unpack());
        let mut copy = store.clone();
        assert_eq!(copy.shared_chunks(), 2);
        copy.replace(CHUNK + 5, &[6.0; 32]);
        assert_eq!((copy.shared_chunks(), store.shared_chunks()), (1, 1));
        let mut row = [0.0; 32];
        copy.read(CHUNK + 5, &mut row);
        assert_eq!(bits(&row), bits(&[6.0; 32]), "6 is a number of every format");
        assert_eq!(bits(&store.unpack()), before);
        let after = bits(&copy.unpack());
        let same = |at: &usize| at / 32 == CHUNK + 5 || after[*at] == before[*at];
        assert!((0..before.len()).all(|at| same(&at)));
        copy.push(&[2.0; 32]);
        assert_eq!((store.len(), copy.len(), copy.shared_chunks()), (2 * CHUNK, 2 * CHUNK + 1, 1));
    }
}

#[test]
fn what_is_not_finite_is_read_as_nan_group_by_group() {
    for format in Format::ALL {
        let mut values = numbers(64);
        values[3] = f32::INFINITY;
        values[60] = f32::NAN;
        let mut store = Store::new(64, Some(format));
        store.push(&values);
        let read = store.unpack();
        for (group, read) in read.chunks(format.group()).enumerate() {
            let broken = group == 0 || group == 64 / format.group() - 1;
            assert!(read.iter().all(|x| x.is_nan() == broken), "{format:?}, group {group}");
        }
    }
}

#[test]
fn panels_keep_what_lies_beside() {
    let format = Format::Fp4E8m0;
    let vectors = numbers(2 * PANEL * 32);
    let mut store = Store::new(32, Some(format));
    store.push(&vectors);
    store.replace(3, &[-6.0; 32]);
    store.replace(PANEL, &vectors[..32]);
    let mut expected = unpack(&pack(&vectors, format).unwrap()).unwrap();
    expected.copy_within(..32, PANEL * 32);
    expected[3 * 32..4 * 32].fill(-6.0);
    assert_eq!(bits(&store.unpack()), bits(&expected));
}
