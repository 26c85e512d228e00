//! Top-K and pools by hand, and of any size on the CPU.

use burn::tensor::{DType, Device, Int, Tensor};
use csa2_model::ops::{self, NAN_ROW, NO_ENTRY, PoolUse, SelectSpec, Selection, reference};
use proptest::prelude::*;

use super::common::random::Source;
use super::common::{ints, numbers};
use super::rows;

/// `[B, S, H_I, d_I]`, ratio, K, blocks and block size of the pool.
type Sizes = ([usize; 4], usize, usize, [usize; 2]);

/// Inputs on the CPU.
struct Inputs {
    q: Tensor<4>,
    keys: Tensor<3>,
    weights: Tensor<3>,
}

impl Inputs {
    /// `whole`: whole numbers below 3, so that equal scores and zeros are many and both sides compute the same ones.
    fn new(([batch, seq, heads, dim], ratio, ..): Sizes, start: usize, seed: u64, whole: bool, dtype: DType) -> Self {
        let (device, mut source) = (Device::flex(), Source::new(seed));
        let (q, keys, weights) =
            ([batch, seq, heads, dim], [batch, ((start + seq) / ratio).max(1), dim], [batch, seq, heads]);
        if whole {
            let mut values = |largest| source.whole(q, largest, &device, dtype);
            let q = values(1);
            let keys = source.whole(keys, 1, &device, dtype);
            Self { q, keys, weights: source.whole(weights, 2, &device, dtype) }
        } else {
            let q = source.normal(q, &device, dtype);
            let keys = source.normal(keys, &device, dtype);
            Self { q, keys, weights: source.normal(weights, &device, dtype) }
        }
    }

    fn fast(&self, pool: Option<Tensor<3, Int>>, spec: SelectSpec) -> Selection {
        ops::index_select(self.q.clone(), self.keys.clone(), self.weights.clone(), pool, spec)
    }

    fn exact(&self, pool: Option<Tensor<3, Int>>, spec: SelectSpec) -> Selection {
        reference::index_select(self.q.clone(), self.keys.clone(), self.weights.clone(), pool, spec).unwrap()
    }

    fn compare(&self, what: &str, pool: Option<&Tensor<3, Int>>, spec: SelectSpec) -> Selection {
        let (fast, exact) = (self.fast(pool.cloned(), spec), self.exact(pool.cloned(), spec));
        assert_eq!(fast.topk.dims(), exact.topk.dims(), "{what}");
        assert_eq!(ints(fast.topk), ints(exact.topk.clone()), "{what}: Top-K");
        assert_eq!(fast.pool.map(ints), exact.pool.clone().map(ints), "{what}: pool");
        exact
    }
}

/// All uses of a pool; the pool that is read comes from other scores than those that search in it.
fn check(case: Sizes, start: usize, seed: u64, whole: bool, dtype: DType) {
    let ([_, seq, ..], ratio, topk, [blocks, size]) = case;
    let spec = |pool| SelectSpec { ratio, start, entries: (start + seq) / ratio, topk, pool };
    let what = |pool: &str| format!("{case:?} from {start} seed {seed} whole {whole} {dtype:?} {pool}");
    let (builder, reader) =
        (Inputs::new(case, start, seed, whole, dtype), Inputs::new(case, start, seed + 1000, whole, dtype));
    let plain = builder.compare(&what("no pool"), None, spec(PoolUse::None));
    let built = builder.compare(&what("build"), None, spec(PoolUse::Build { blocks, size }));
    assert_eq!(ints(plain.topk), ints(built.topk), "the builder's own Top-K is from the whole visible range");
    reader.compare(&what("read"), Some(&built.pool.unwrap()), spec(PoolUse::Read { size }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_lists_agree(
        sizes in (1_usize..3, 1_usize..40, 1_usize..4, 1_usize..6),
        ratio in 1_usize..5,
        topk in 1_usize..12,
        blocks in 1_usize..6,
        size in 1_usize..6,
        start in prop_oneof![Just(0), 0_usize..60],
        whole in any::<bool>(),
        seed in 0..u64::MAX / 2,
    ) {
        check(([sizes.0, sizes.1, sizes.2, sizes.3], ratio, topk, [blocks, size]), start, seed, whole, DType::F64);
    }
}

/// One query over entries with the given scores (one head; a weight of -1 makes the negative ones), seen all at once.
fn choose(scores: &[f64], topk: usize, pool: PoolUse, read: Option<Tensor<3, Int>>) -> (Vec<i64>, Option<Vec<i64>>) {
    let device = Device::flex();
    let entries = scores.len();
    let keys: Vec<f64> =
        scores.iter().flat_map(|&s| if s.is_nan() { [s, s] } else { [s.max(0.0), (-s).max(0.0)] }).collect();
    let keys = Tensor::<1>::from_data(keys.as_slice(), (&device, DType::F64)).reshape([1, entries, 2]);
    let q = Tensor::<1>::from_data([1.0, 0.0, 0.0, 1.0], (&device, DType::F64)).reshape([1, 1, 2, 2]);
    let weights = Tensor::<1>::from_data([1.0, -1.0], (&device, DType::F64)).reshape([1, 1, 2]);
    // The last query of a sequence sees every entry.
    let (q, weights) = (q.repeat_dim(1, entries), weights.repeat_dim(1, entries));
    let read = read.map(|pool| pool.repeat_dim(1, entries));
    let spec = SelectSpec { ratio: 1, start: 0, entries, topk, pool };
    let found = ops::index_select(q, keys, weights, read, spec);
    let last = |lists: Tensor<3, Int>| {
        let width = lists.dims()[2];
        ints(lists)[(entries - 1) * width..].to_vec()
    };
    (last(found.topk), found.pool.map(last))
}

#[test]
fn the_best_in_ascending_position() {
    let chosen = |scores: &[f64], topk| choose(scores, topk, PoolUse::None, None).0;
    assert_eq!(chosen(&[1.0, 5.0, -2.0, 3.0, 4.0], 3), [1, 3, 4]);
    assert_eq!(chosen(&[-5.0, -1.0, -3.0], 2), [1, 2]);
    assert_eq!(chosen(&[-5.0, -1.0], 4), [0, 1, -1, -1]);
}

#[test]
fn of_equal_scores_the_lowest_position_wins() {
    let chosen = |scores: &[f64], topk| choose(scores, topk, PoolUse::None, None).0;
    assert_eq!(chosen(&[0.0; 9], 4), [0, 1, 2, 3]);
    assert_eq!(chosen(&[2.0, 3.0, 2.0, 3.0, 2.0], 3), [0, 1, 3]);
    let build = PoolUse::Build { blocks: 3, size: 2 };
    // Blocks 0 to 4; the newest is kept although it is the worst, of the equal others the first two.
    let (_, pool) = choose(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -9.0], 1, build, None);
    assert_eq!(pool.unwrap(), [0, 1, 4]);
}

#[test]
fn a_zero_with_a_sign_equals_one_without() {
    // One head of negative weight makes -0 of every product that the rectifier cuts.
    let device = Device::flex();
    let q = Tensor::<4>::ones([1, 6, 1, 1], &device);
    let keys = Tensor::<3>::full([1, 6, 1], -1.0, &device);
    let weights = Tensor::<3>::full([1, 6, 1], -1.0, &device);
    let inputs = Inputs { q, keys, weights };
    let spec = SelectSpec { ratio: 1, start: 0, entries: 6, topk: 2, pool: PoolUse::Build { blocks: 2, size: 2 } };
    let found = inputs.compare("zeros", None, spec);
    assert_eq!(ints(found.topk)[10..], [0, 1]);
    assert_eq!(ints(found.pool.unwrap())[10..], [0, 2]);
    assert_eq!(reference::candidate_blocks(&[-0.0, -0.0, 0.0, 0.0, 1.0], 1, 3), [0, 1, 4]);
    assert_eq!(reference::candidate_blocks(&[-0.0, 0.0, 0.0, 1.0], 1, 2), [0, 3]);
}

#[test]
fn the_newest_block_stays_however_good_the_others_are() {
    const INF: f64 = f64::INFINITY;
    assert_eq!(reference::candidate_blocks(&[INF, 0.0, INF, 0.0, -1.0], 2, 1), [2]);
    assert_eq!(reference::candidate_blocks(&[INF, 0.0, INF, 0.0, -1.0], 2, 2), [0, 2]);
    assert_eq!(reference::candidate_blocks(&[0.0, 0.0, INF, 0.0, -1.0], 2, 2), [1, 2]);
    assert_eq!(reference::candidate_blocks(&[INF, INF, INF, INF, -INF], 2, 4), [0, 1, 2, NO_ENTRY]);
    assert_eq!(reference::candidate_blocks(&[INF], 2, 3), [0, NO_ENTRY, NO_ENTRY]);
    assert_eq!(reference::candidate_blocks(&[], 2, 2), [NO_ENTRY, NO_ENTRY]);
}

#[test]
fn a_reader_stays_inside_the_pool() {
    let read = |kept: [i32; 2], topk| {
        choose(&[9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0], topk, PoolUse::Read { size: 2 }, Some(rows([kept]))).0
    };
    assert_eq!(read([1, 3], 2), [2, 3]);
    assert_eq!(read([1, 3], 5), [2, 3, 6, -1, -1], "a pool smaller than K; its last block is partial");
    assert_eq!(read([2, NO_ENTRY], 1), [4]);
    assert_eq!(read([NO_ENTRY, NO_ENTRY], 2), [-1, -1]);
}

#[test]
fn scores_that_are_not_numbers_mark_their_rows_alone() {
    let device = Device::flex();
    for dtype in [DType::F32, DType::F64] {
        let mut inputs = Inputs::new(([1, 6, 2, 3], 1, 2, [1, 2]), 0, 5, false, dtype);
        let healthy = inputs.lists(None, PoolUse::None);
        let nan = Tensor::<3>::full([1, 1, 3], f32::NAN, (&device, dtype));
        inputs.keys = inputs.keys.slice_assign([0..1, 3..4, 0..3], nan);
        let broken = inputs.lists(None, PoolUse::None);
        // Entry 3 is seen from query 3 on.
        assert_eq!(broken[..6], healthy[..6]);
        assert!(broken[6..].iter().all(|&i| i == i64::from(NAN_ROW)), "{broken:?}");
        assert_eq!(inputs.lists(None, PoolUse::Build { blocks: 1, size: 2 }), broken);
        // Outside the pool it is not looked at; inside it is.
        let outside = inputs.lists(Some(rows([[0]; 6])), PoolUse::Read { size: 2 });
        assert_eq!(outside, [0, -1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        let inside = inputs.lists(Some(rows([[1]; 6])), PoolUse::Read { size: 2 });
        assert_eq!(inside, [-1, -1, -1, -1, 2, -1, -2, -2, -2, -2, -2, -2]);
    }
}

impl Inputs {
    /// The Top-K lists, on which operator and reference agree.
    fn lists(&self, pool: Option<Tensor<3, Int>>, pool_use: PoolUse) -> Vec<i64> {
        let spec = SelectSpec { ratio: 1, start: 0, entries: self.keys.dims()[1], topk: 2, pool: pool_use };
        let fast = ints(self.fast(pool.clone(), spec).topk);
        assert_eq!(fast, ints(self.exact(pool, spec).topk));
        fast
    }
}

#[test]
fn a_query_or_a_weight_that_is_not_a_number_marks_its_row() {
    let device = Device::flex();
    let nan = |dims| Tensor::<1>::full([1], f32::NAN, &device).reshape(dims);
    for weight in [false, true] {
        let mut inputs = Inputs::new(([1, 4, 2, 3], 1, 2, [1, 2]), 0, 6, false, DType::F32);
        if weight {
            inputs.weights = inputs.weights.slice_assign([0..1, 2..3, 1..2], nan([1, 1, 1]));
        } else {
            let value = nan([1, 1, 1]).unsqueeze_dim::<4>(3);
            inputs.q = inputs.q.slice_assign([0..1, 2..3, 1..2, 0..1], value);
        }
        let lists = inputs.lists(None, PoolUse::None);
        let marked: Vec<bool> = lists.iter().map(|&i| i == i64::from(NAN_ROW)).collect();
        assert_eq!(marked, [false, false, false, false, true, true, false, false], "{lists:?}");
    }
}

#[test]
fn a_marked_row_makes_the_readout_nan() {
    let device = Device::flex();
    let mut inputs = Inputs::new(([1, 3, 1, 2], 1, 2, [1, 2]), 0, 7, false, DType::F32);
    inputs.keys = inputs.keys.mul_scalar(f32::NAN);
    let topk = inputs.fast(None, SelectSpec { ratio: 1, start: 0, entries: 3, topk: 2, pool: PoolUse::None }).topk;
    let vectors = Tensor::<3>::ones([1, 3, 2], &device);
    let sink = Tensor::<1>::zeros([1], &device);
    let output = ops::readout(inputs.q, vectors.clone(), vectors, sink, topk, 1, 1.0).0;
    assert!(numbers(output).iter().all(|value| value.is_nan()));
}

#[test]
fn selections_of_views() {
    let device = Device::flex();
    let mut source = Source::new(8);
    let q = source.normal::<4>([2, 3, 7, 4], &device, DType::F32).swap_dims(1, 2);
    let keys = source.normal::<3>([2, 4, 9], &device, DType::F32).swap_dims(1, 2).narrow(1, 1, 7);
    let weights = source.normal::<3>([1, 7, 3], &device, DType::F32).expand([2, 7, 3]);
    let spec = SelectSpec { ratio: 1, start: 0, entries: 7, topk: 3, pool: PoolUse::None };
    let copies = Inputs { q: super::copied(&q), keys: super::copied(&keys), weights: super::copied(&weights) };
    let views = Inputs { q, keys, weights };
    assert_eq!(ints(views.fast(None, spec).topk), ints(copies.fast(None, spec).topk));
}
