use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use csa2_model::ops::{self, PoolUse, SelectSpec, reference};

use super::common::ints;
use super::common::random::Source;
use super::{copied, device};

/// Lists and pools on wgpu and from the reference, which must be equal.
fn compare(
    what: &str,
    wgpu: &Device,
    [q, keys, weights]: [Tensor<3>; 3],
    heads: usize,
    pool: Option<&Tensor<3, Int>>,
    spec: SelectSpec,
) -> (Vec<i64>, Option<Tensor<3, Int>>) {
    let [batch, seq, width] = q.dims();
    let q = q.reshape([batch, seq, heads, width / heads]);
    let exact = reference::index_select(q.clone(), keys.clone(), weights.clone(), pool.cloned(), spec).unwrap();
    let there = pool.map(|pool| Tensor::from_data(pool.to_data(), wgpu));
    let found = ops::index_select(copied(&q, wgpu), copied(&keys, wgpu), copied(&weights, wgpu), there, spec);
    let exact_list = ints(exact.topk);
    assert_eq!(ints(found.topk), exact_list, "{what}: Top-K");
    assert_eq!(found.pool.map(ints), exact.pool.clone().map(ints), "{what}: pool");
    (exact_list, exact.pool)
}

#[test]
fn lists_and_pools_of_every_shape() {
    let Some(wgpu) = device() else { return };
    // [B, S, H_I, d_I], ratio, start, K, blocks and their size.
    let cases = [
        ([2, 13, 2, 4], 2, 0, 3, [2, 2]),
        ([1, 19, 3, 5], 4, 0, 2, [2, 3]),
        ([2, 3, 2, 3], 4, 0, 2, [1, 2]),
        ([1, 1, 1, 1], 1, 0, 1, [1, 1]),
        // The pool holds fewer entries than K; later queries than the first of a sequence.
        ([2, 7, 12, 33], 1, 30, 9, [2, 3]),
        // More entries than a workgroup has threads, and than it scores together.
        ([1, 5, 4, 70], 1, 300, 140, [50, 5]),
    ];
    for (seed, ([batch, seq, heads, dim], ratio, start, topk, [blocks, size])) in cases.into_iter().enumerate() {
        let entries = (start + seq) / ratio;
        let mut source = Source::new(seed as u64);
        // Whole numbers: equal scores are many, and every order of addition gives the same ones.
        let mut whole = |dims| source.whole(dims, 1, &Device::flex(), DType::F32);
        let mut inputs =
            || [whole([batch, seq, heads * dim]), whole([batch, entries.max(1), dim]), whole([batch, seq, heads])];
        let spec = |pool| SelectSpec { ratio, start, entries, topk, pool };
        let what = format!("case {seed}");
        let built = inputs();
        compare(&what, &wgpu, built.clone(), heads, None, spec(PoolUse::None));
        let (_, pool) = compare(&what, &wgpu, built, heads, None, spec(PoolUse::Build { blocks, size }));
        compare(&what, &wgpu, inputs(), heads, pool.as_ref(), spec(PoolUse::Read { size }));
    }
}

/// Six entries with the given scores, seen by the one query.
fn scored(scores: [f32; 6]) -> [Tensor<3>; 3] {
    let device = &Device::flex();
    // One head for positive scores and one, with a weight of -1, for negative ones.
    let keys = scores.map(|s| if s.is_nan() { [s, s] } else { [s.max(0.0), (-s).max(0.0)] });
    let tensor = |values: Vec<f32>, dims: [usize; 3]| Tensor::from_data(TensorData::new(values, dims), device);
    [tensor(vec![1.0, 0.0, 0.0, 1.0], [1, 1, 4]), tensor(keys.concat(), [1, 6, 2]), tensor(vec![1.0, -1.0], [1, 1, 2])]
}

#[test]
fn special_scores() {
    let Some(wgpu) = device() else { return };
    let choose = |scores, topk, pool, read: Option<&Tensor<3, Int>>| {
        let spec = SelectSpec { ratio: 1, start: 5, entries: 6, topk, pool };
        let there = read.map(|pool| Tensor::from_data(pool.to_data(), &wgpu));
        let [q, keys, weights] = scored(scores).map(|tensor| copied(&tensor, &wgpu));
        let found = ops::index_select(q.reshape([1, 1, 2, 2]), keys, weights, there, spec);
        (ints(found.topk), found.pool.map(ints))
    };
    let build = |blocks| PoolUse::Build { blocks, size: 2 };
    // -0 and 0 are equal, and above anything negative.
    assert_eq!(choose([-3.0, -0.0, 0.0, -1.0, 0.0, -2.0], 2, PoolUse::None, None).0, [1, 2]);
    let far = f32::MAX;
    assert_eq!(choose([-far, -1e-30, -far, 1e-30, far, -1.0], 3, PoolUse::None, None).0, [1, 3, 4]);
    // The newest block stays, also against the largest number there is.
    assert_eq!(choose([far, 0.0, far, 0.0, 1.0, -far], 1, build(2), None), (vec![0], Some(vec![0, 2])));
    assert_eq!(choose([1.0, 0.0, 2.0, 0.0, 1.0, 3.0], 3, build(1), None), (vec![0, 2, 5], Some(vec![2])));
    // Not a number: the row says so, and builds no pool.
    let broken = [1.0, f32::NAN, 2.0, 0.0, 1.0, 3.0];
    assert_eq!(choose(broken, 2, build(2), None), (vec![-2, -2], Some(vec![-1, -1])));
    // Outside the pool it is not looked at; blocks may come in any order, and twice.
    let read = |blocks: [i32; 3]| Tensor::from_data(TensorData::new(blocks.to_vec(), [1, 1, 3]), &Device::flex());
    let within = PoolUse::Read { size: 2 };
    assert_eq!(choose(broken, 5, within, Some(&read([2, 1, 2]))).0, [2, 3, 4, 5, -1]);
    assert_eq!(choose(broken, 2, within, Some(&read([0, -1, -1]))).0, [-2, -2]);
    assert_eq!(choose(broken, 2, within, Some(&read([-1, -1, -1]))).0, [-1, -1]);
}

#[test]
fn the_newest_block_stays_against_infinity() {
    let Some(wgpu) = device() else { return };
    // An infinite product: one head, so that no infinity meets a 0.
    let options = (&wgpu, DType::F32);
    let keys = [f32::INFINITY, 1.0, f32::INFINITY, 1.0, 2.0];
    let keys = Tensor::<3>::from_data(TensorData::new(keys.to_vec(), [1, 5, 1]), options);
    let spec = SelectSpec { ratio: 1, start: 4, entries: 5, topk: 3, pool: PoolUse::Build { blocks: 2, size: 2 } };
    let found =
        ops::index_select(Tensor::ones([1, 1, 1, 1], options), keys, Tensor::ones([1, 1, 1], options), None, spec);
    assert_eq!(ints(found.topk), [0, 2, 4]);
    assert_eq!(found.pool.map(ints), Some(vec![0, 2]));
}
