//! Folders of weights made for the tests, stored as a released checkpoint is, and what their numbers are.

use std::collections::BTreeMap;
use std::path::Path;

use csa2_model::checkpoint::{TensorSpec, tensors};
use csa2_model::config::{FfnConfig, ModelConfig, Residual, ScoreFunction};
use rand::RngExt;
use rand::rngs::StdRng;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;
use tempfile::TempDir;

use crate::common::random::named;
use crate::common::small;

/// A tensor as a file holds it.
#[derive(Clone, Debug)]
pub struct Raw {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// Tensors by stored name.
pub type Tensors = BTreeMap<String, Raw>;

/// Numbers by official name.
pub type Numbers = BTreeMap<String, Vec<f64>>;

/// A model with every mode that a released checkpoint has, experts and hyper-connections. Rows and columns of quantized matrices
/// are no multiples of 32 where they need not be.
pub fn config() -> ModelConfig {
    ModelConfig {
        d_model: 64,
        head_dim: 10,
        query_rank: Some(33),
        output_rank: Some(35),
        index_dim: 6,
        ffn: FfnConfig::Moe {
            experts: 3,
            active: 2,
            shared: 1,
            width: 32,
            route_scale: 1.5,
            swiglu_limit: None,
            score: ScoreFunction::default(),
        },
        residual: Residual::Hyper { streams: 2 },
        ..small::config("swa full@2 reuse full+pool reuse reindex reuse")
    }
}

/// Two to the power of `exponent`.
fn power(exponent: i32) -> f64 {
    2.0_f64.powi(exponent)
}

/// What a byte of E4M3 stands for, by the format's definition.
fn e4m3(byte: u8) -> f64 {
    let (sign, exponent, mantissa) = (byte >> 7, i32::from(byte >> 3 & 15), f64::from(byte & 7));
    let size = if exponent == 0 { mantissa / 8.0 * power(-6) } else { (1.0 + mantissa / 8.0) * power(exponent - 7) };
    if sign == 1 { -size } else { size }
}

/// What four bits of E2M1 stand for.
fn e2m1(code: u8) -> f64 {
    let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

/// Every byte but the two that are no numbers.
fn fp8_byte(random: &mut StdRng) -> u8 {
    loop {
        let byte: u8 = random.random();
        if byte & 0x7f != 0x7f {
            return byte;
        }
    }
}

/// Bytes of scales, around 1 and at the ends of what leaves every number finite.
fn scale_bytes(random: &mut StdRng, count: usize) -> Vec<u8> {
    let byte = |random: &mut StdRng| match random.random_range(0..10) {
        0 => 0,
        1 => 246,
        _ => random.random_range(110..140),
    };
    (0..count).map(|_| byte(random)).collect()
}

/// A quantized matrix of FP8 with one scale per block, and its numbers.
pub fn fp8(random: &mut StdRng, [rows, columns]: [usize; 2], block: usize) -> (Raw, Raw, Vec<f64>) {
    let codes: Vec<u8> = (0..rows * columns).map(|_| fp8_byte(random)).collect();
    let grid = [rows.div_ceil(block), columns.div_ceil(block)];
    let scales = scale_bytes(random, grid[0] * grid[1]);
    let scale_at = |row: usize, column: usize| scales[row / block * grid[1] + column / block];
    let number = |(at, &code): (usize, &u8)| e4m3(code) * power(i32::from(scale_at(at / columns, at % columns)) - 127);
    let numbers = codes.iter().enumerate().map(number).collect();
    let weight = Raw { dtype: Dtype::F8_E4M3, shape: vec![rows, columns], bytes: codes };
    (weight, Raw { dtype: Dtype::F8_E8M0, shape: grid.to_vec(), bytes: scales }, numbers)
}

/// An expert's matrix of packed E2M1 codes with one scale per 32 along the input, and its numbers.
pub fn fp4(random: &mut StdRng, [rows, columns]: [usize; 2]) -> (Raw, Raw, Vec<f64>) {
    let bytes: Vec<u8> = (0..rows * columns / 2).map(|_| random.random()).collect();
    let scales = scale_bytes(random, rows * columns / 32);
    let number = |at: usize| {
        let pair = bytes[at / 2];
        let code = if at.is_multiple_of(2) { pair & 15 } else { pair >> 4 };
        e2m1(code) * power(i32::from(scales[at / 32]) - 127)
    };
    let numbers = (0..rows * columns).map(number).collect();
    let scale = Raw { dtype: Dtype::F8_E8M0, shape: vec![rows, columns / 32], bytes: scales };
    (Raw { dtype: Dtype::I8, shape: vec![rows, columns / 2], bytes }, scale, numbers)
}

/// Floats that every one of the three formats holds exactly.
pub fn floats(random: &mut StdRng, dtype: Dtype, shape: &[usize]) -> (Raw, Vec<f64>) {
    let count: usize = shape.iter().product();
    let numbers: Vec<f32> =
        (0..count).map(|_| random.random_range(-127_i16..=127).into()).map(|x: f32| x / 32.0).collect();
    let bytes = numbers.iter().flat_map(|&x| match dtype {
        // The upper half of an f32; these numbers have nothing in the lower one.
        Dtype::BF16 => x.to_bits().to_le_bytes()[2..].to_vec(),
        Dtype::F16 => half(x).to_le_bytes().to_vec(),
        Dtype::F32 => x.to_le_bytes().to_vec(),
        Dtype::F64 => f64::from(x).to_le_bytes().to_vec(),
        other => panic!("{other:?} is not made here"),
    });
    (Raw { dtype, shape: shape.to_vec(), bytes: bytes.collect() }, numbers.into_iter().map(f64::from).collect())
}

/// The half-precision bits of a number with few digits: sign, five bits of exponent, ten of mantissa.
fn half(x: f32) -> u16 {
    let bits = x.to_bits();
    let exponent = (bits >> 23 & 255) as i32 - 127 + 15;
    let sign = (bits >> 16 & 0x8000) as u16;
    if x == 0.0 { sign } else { sign | (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16 }
}

/// A whole checkpoint in the released storage, with blocks of `block`, and its numbers.
pub fn checkpoint(config: &ModelConfig, block: usize) -> (Tensors, Numbers) {
    let (mut stored, mut numbers) = (Tensors::new(), Numbers::new());
    for spec in tensors(config).unwrap() {
        let released = spec.released();
        let random = &mut named(&spec.name, block as u64);
        let values = match (&released[..], &spec.shape[..]) {
            ([(name, Dtype::F8_E4M3, _), (scale_name, _, _)], &[rows, columns]) => {
                let (weight, scale, values) = fp8(random, [rows, columns], block);
                stored.extend([(name.clone(), weight), (scale_name.clone(), scale)]);
                values
            }
            ([(name, Dtype::I8, _), (scale_name, _, _)], &[rows, columns]) => {
                let (weight, scale, values) = fp4(random, [rows, columns]);
                stored.extend([(name.clone(), weight), (scale_name.clone(), scale)]);
                values
            }
            ([(name, dtype, _)], shape) => {
                let (raw, values) = floats(random, *dtype, shape);
                stored.insert(name.clone(), raw);
                values
            }
            other => panic!("{other:?}"),
        };
        numbers.insert(spec.name, values);
    }
    (stored, numbers)
}

/// A whole checkpoint of plain floats.
pub fn plain(config: &ModelConfig, dtype: Dtype) -> (Tensors, Numbers) {
    let made = tensors(config).unwrap().into_iter().map(|TensorSpec { name, shape, .. }| {
        let (raw, numbers) = floats(&mut named(&name, 1), dtype, &shape);
        ((name.clone(), raw), (name, numbers))
    });
    made.unzip()
}

/// The bytes of one file, as the `safetensors` crate writes it.
pub fn file(tensors: &Tensors) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|(name, raw)| (name.as_str(), TensorView::new(raw.dtype, raw.shape.clone(), &raw.bytes).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

/// A folder with one file.
pub fn single(tensors: &Tensors) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), file(tensors)).unwrap();
    folder
}

/// A folder of `count` files and an index; tensors are dealt out in turn, so that a scale lies elsewhere than its weight.
pub fn sharded(tensors: &Tensors, count: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let name = |shard: usize| format!("model-{:05}-of-{count:05}.safetensors", shard + 1);
    let mut shards = vec![Tensors::new(); count];
    let mut map = BTreeMap::new();
    for (at, (tensor, raw)) in tensors.iter().enumerate() {
        shards[at % count].insert(tensor.clone(), raw.clone());
        map.insert(tensor.clone(), name(at % count));
    }
    for (at, shard) in shards.iter().enumerate() {
        std::fs::write(folder.path().join(name(at)), file(shard)).unwrap();
    }
    write_index(folder.path(), &map);
    folder
}

/// Writes the index of a folder.
pub fn write_index(folder: &Path, map: &BTreeMap<String, String>) {
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

/// The same tensors under Transformers' names.
pub fn in_transformers(tensors: &Tensors) -> Tensors {
    let rename = |name: &str| match name {
        "head.weight" => "lm_head.weight".to_string(),
        name => format!("model.{name}"),
    };
    tensors.iter().map(|(name, raw)| (rename(name), raw.clone())).collect()
}
