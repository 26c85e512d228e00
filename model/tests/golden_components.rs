//! The parts of a layer against the golden cases `d_candidate_blocks`, `f_compressor` and `h_components`.
#![cfg(feature = "flex")]

mod common;

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use common::{Golden, TakeGradient, assert_close, ints, numbers, small};
use csa2_model::attention::{Compressor, RopeTable, rope_frequencies_in};
use csa2_model::checkpoint::{load, weights};
use csa2_model::config::{ModelConfig, YarnConfig};
use csa2_model::ops::{self, NO_ENTRY, PoolUse, SelectSpec, reference};

/// One case of `d_candidate_blocks`.
struct BlockRow {
    name: String,
    /// Scores of all entries, those behind the visible ones included.
    scores: Vec<f32>,
    visible: usize,
    size: usize,
    blocks: usize,
    /// The blocks to keep, filled up.
    expected: Vec<i64>,
}

impl BlockRow {
    /// The query's pool by the operator, from heads that make any score: `relu(max(s, 0)) - relu(max(-s, 0))`.
    fn by_operator(&self, dtype: DType) -> Vec<i64> {
        let device = Device::flex();
        let entries = self.scores.len();
        // What lies behind the visible range must not matter.
        let lure = |(j, &s): (usize, &f32)| if j < self.visible { s } else { 1e6 };
        let keys = self.scores.iter().enumerate().map(lure).flat_map(|s| [s.max(0.0), (-s).max(0.0)]);
        let keys = TensorData::new(keys.collect::<Vec<f32>>(), [1, entries, 2]);
        // A query sees nothing where its group of two tokens is incomplete.
        let (seq, ratio) = if self.visible == 0 { (1, 2) } else { (self.visible, 1) };
        let row =
            |values: [f32; 2]| Tensor::<3>::from_data(TensorData::new(values.to_vec(), [1, 1, 2]), (&device, dtype));
        let first = row([1.0, 0.0]).unsqueeze_dim::<4>(2);
        let second = row([0.0, 1.0]).unsqueeze_dim::<4>(2);
        let q = Tensor::cat(vec![first, second], 2).repeat_dim(1, seq);
        let weights = row([1.0, -1.0]).repeat_dim(1, seq);
        let pool = PoolUse::Build { blocks: self.blocks, size: self.size };
        let spec = SelectSpec { ratio, start: 0, entries, topk: 4, pool };
        let keys = Tensor::<3>::from_data(keys, (&device, dtype));
        let built = ints(ops::index_select(q, keys, weights, None, spec).pool.unwrap());
        built[(seq - 1) * self.blocks..].to_vec()
    }
}

fn block_rows() -> Vec<BlockRow> {
    let golden = Golden::load("d_candidate_blocks");
    let rows = golden.about["rows"].as_array().unwrap();
    let row = |(at, about): (usize, &serde_json::Value)| {
        let number = |key: &str| about[key].as_u64().unwrap() as usize;
        let scores = golden.values(&format!("row{at:03}.scores")).iter().map(|&s| s as f32).collect();
        let mask = golden.values(&format!("row{at:03}.mask"));
        let (size, blocks) = (number("block_size"), number("topk_blocks"));
        let kept = |block: &usize| mask[block * size] != 0.0;
        let mut expected: Vec<i64> = (0..mask.len().div_ceil(size)).filter(kept).map(|block| block as i64).collect();
        for (j, &inside) in mask.iter().enumerate() {
            assert_eq!(inside != 0.0, expected.contains(&((j / size) as i64)), "the mask is made of whole blocks");
        }
        expected.resize(blocks, i64::from(NO_ENTRY));
        BlockRow { name: format!("row {at}"), scores, visible: number("visible"), size, blocks, expected }
    };
    rows.iter().enumerate().map(row).collect()
}

#[test]
fn candidate_blocks_of_the_reference() {
    let rows = block_rows();
    assert_eq!(rows.len(), 108);
    for row in rows {
        let scores: Vec<f64> = row.scores[..row.visible].iter().map(|&s| f64::from(s)).collect();
        let blocks = reference::candidate_blocks(&scores, row.size, row.blocks);
        let blocks: Vec<i64> = blocks.into_iter().map(i64::from).collect();
        assert_eq!(blocks, row.expected, "{}", row.name);
    }
}

#[test]
fn candidate_blocks_of_the_operator() {
    for row in block_rows() {
        assert_eq!(row.by_operator(DType::F32), row.expected, "{} in f32", row.name);
        assert_eq!(row.by_operator(DType::F64), row.expected, "{} in f64", row.name);
    }
}

fn check_compressor(golden: &Golden, config: &ModelConfig, ratio: usize, length: usize) {
    let device = Device::flex().autodiff();
    let case = format!("r{ratio}.len{length}");
    let compressor = Compressor::new(config, ratio, &device);
    let compressor = load(compressor, golden.weights(&format!("r{ratio}.weights.")), &case).unwrap();
    let x = golden.tensor::<3>(&format!("{case}.x"), &device, DType::F32).require_grad();
    let latent = compressor.forward(x.clone());
    assert_eq!(compressor.entries(length), length / ratio);
    let expected = golden.has(&format!("{case}.latent"));
    assert_eq!(expected, length >= ratio, "{case}");
    if !expected {
        assert_eq!(latent.dims(), [x.dims()[0], 1, config.head_dim], "{case}: one padding row");
        assert!(numbers(latent).iter().all(|&value| value == 0.0), "{case}: padding is zero");
        return;
    }
    assert_close(&case, &numbers(latent.clone()), &golden.values(&format!("{case}.latent")), 1e-5);
    let weight = golden.tensor::<3>(&format!("{case}.grad_latent"), &device, DType::F32);
    let grads = (latent * weight).sum().backward();
    assert_close(&format!("{case}.dx"), &numbers(x.grad(&grads).unwrap()), &golden.values(&format!("{case}.dx")), 1e-5);

    let found = weights(&compressor.map(&mut TakeGradient(&grads))).unwrap();
    let expected = golden.weights(&format!("{case}.grad."));
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{case}");
    for (name, expected) in expected {
        let to_f64 = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        let (found, expected) = (to_f64(&found[&name].values), to_f64(&expected.values));
        assert_close(&format!("{case}: gradient of {name}"), &found, &expected, 1e-5);
    }
}

#[test]
fn compressor_latents_and_gradients() {
    let golden = Golden::load("f_compressor");
    let size = |key: &str| golden.about[key].as_u64().unwrap() as usize;
    let config = ModelConfig {
        d_model: size("dim"),
        head_dim: size("head_dim"),
        norm_eps: golden.about["norm_eps"].as_f64().unwrap(),
        ..small::config("full")
    };
    for ratio in [1, 2, 4] {
        for length in golden.about["lens"].as_array().unwrap() {
            check_compressor(&golden, &config, ratio, length.as_u64().unwrap() as usize);
        }
    }
}

/// Angles per position as the goldens' setting `case` makes them.
fn frequencies(golden: &Golden, case: &str, dtype: DType) -> Vec<f64> {
    let about = &golden.about["rope"][case];
    let number = |key: &str| about[key].as_f64().unwrap();
    let yarn = (number("original_seq_len") > 0.0).then(|| YarnConfig {
        factor: number("factor"),
        original_length: number("original_seq_len") as usize,
        beta_fast: number("beta_fast"),
        beta_slow: number("beta_slow"),
    });
    rope_frequencies_in(dtype, number("dim") as usize, number("theta"), yarn.as_ref())
}

#[test]
fn rotary_tables() {
    let golden = Golden::load("h_components");
    let device = Device::flex();
    for case in ["released_main", "released_compress", "tiny_main", "tiny_compress"] {
        let name = |part: &str| format!("rope.{case}.{part}");
        let frequencies = frequencies(&golden, case, DType::F32);
        let exact = self::frequencies(&golden, case, DType::F64);
        for ((found, exact), expected) in frequencies.iter().zip(exact).zip(golden.values(&name("inv_freq"))) {
            assert!((found / expected - 1.0).abs() < 1e-6, "{case}: frequency {found} against {expected}");
            assert!((found / exact - 1.0).abs() < 3e-7, "{case}: frequency {found} against {exact}");
        }
        let pairs = frequencies.len();
        let (cos, sin) = (golden.values(&name("cos")), golden.values(&name("sin")));
        for (row, position) in golden.values(&name("positions")).into_iter().enumerate() {
            // Row 1 of a table whose stride is the position.
            let table = RopeTable::new(&frequencies, 2, position as usize, DType::F32, &device);
            let place = row * pairs..(row + 1) * pairs;
            let what = format!("{case} at {position}");
            assert_close(&what, &numbers(table.cos())[pairs..], &cos[place.clone()], 1e-6);
            assert_close(&what, &numbers(table.sin())[pairs..], &sin[place], 1e-6);
        }
    }
}

#[test]
fn entries_stand_at_multiples_of_the_ratio() {
    let golden = Golden::load("h_components");
    let frequencies = frequencies(&golden, "tiny_compress", DType::F32);
    let device = Device::flex();
    let every = RopeTable::new(&frequencies, 17, 1, DType::F32, &device);
    for ratio in [1, 2, 4] {
        let entries = RopeTable::new(&frequencies, 4, ratio, DType::F32, &device);
        let rows = |table: Tensor<2>| numbers(table).chunks(frequencies.len()).map(<[f64]>::to_vec).collect::<Vec<_>>();
        let expected: Vec<_> = rows(every.sin()).into_iter().step_by(ratio).take(4).collect();
        assert_eq!(rows(entries.sin()), expected);
    }
    assert_eq!(RopeTable::new(&frequencies, 0, 4, DType::F32, &device).cos().dims()[0], 1, "a row for the padding");
}

#[test]
fn rotation_forwards_and_backwards() {
    let golden = Golden::load("h_components");
    let device = Device::flex();
    let x = golden.tensor::<4>("rope_apply.x", &device, DType::F32);
    let table = RopeTable::new(&frequencies(&golden, "tiny_main", DType::F32), x.dims()[1], 1, DType::F32, &device);
    for (name, inverse) in [("rope_apply.y", false), ("rope_apply.y_inverse", true)] {
        let expected = golden.values(name);
        for (kind, run) in [("operator", ops::rotate as fn(_, _, _, _) -> _), ("reference", reference::rotate)] {
            let found: Tensor<4> = run(x.clone(), table.cos(), table.sin(), inverse);
            assert_close(&format!("{name}: {kind}"), &numbers(found), &expected, 1e-6);
        }
        let by_table = if inverse { table.rotate_back(x.clone()) } else { table.rotate(x.clone()) };
        assert_close(&format!("{name}: table"), &numbers(by_table), &expected, 1e-6);
    }
}

#[test]
fn root_mean_square_norm() {
    let golden = Golden::load("h_components");
    let expected = golden.values("rmsnorm.y");
    for dtype in [DType::F32, DType::F64] {
        let device = Device::flex();
        let x = golden.tensor::<2>("rmsnorm.x", &device, dtype);
        let y = ops::rms_norm(x, golden.tensor("rmsnorm.weight", &device, dtype), 1e-20);
        assert_close("rmsnorm.y", &numbers(y), &expected, 1e-6);
    }
}

#[test]
fn window_indices() {
    let golden = Golden::load("h_components");
    for (name, seq, width) in [("w5.s12", 12, 5), ("w8.s20", 20, 8), ("w8.s5", 5, 8)] {
        let name = format!("window_idx.{name}");
        let found = reference::window_positions(seq, seq, width, &Device::flex());
        assert_eq!(found.dims().to_vec(), golden.dims(&name), "{name}");
        let expected: Vec<i64> = golden.values(&name).iter().map(|&i| i as i64).collect();
        assert_eq!(ints(found), expected, "{name}");
    }
}
