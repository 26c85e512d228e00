//! Weights as safetensors, under the names and in the layout of the released checkpoints (Linear weights `[out, in]`).

mod archive;
mod error;
mod header;
mod names;
mod selection;
mod storage;
mod tensors;
mod writer;

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use safetensors::tensor::Dtype;

pub use archive::{Archive, INDEX, Naming, SINGLE, Shards, View, read_limited};
pub use error::CheckpointError;
pub use header::HeaderError;
pub use names::{ParameterPath, is_indexer, is_variant};
pub use selection::{Amount, Options, Selection, Skipped, attention_prefix};
pub use storage::Kind;
pub use tensors::{TensorSpec, attention_tensors, scale_name, tensors};
pub use writer::FileWriter;

/// One weight, in the official layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Size of each axis.
    pub dims: Vec<usize>,
    /// The numbers, last axis fastest.
    pub values: Vec<f32>,
}

/// Reads every weight of `module`, by official name.
///
/// # Errors
/// When the device cannot be read.
pub fn weights<M: Module>(module: &M) -> Result<BTreeMap<String, Weight>, CheckpointError> {
    let mut reader = Reader { path: ParameterPath::default(), weights: Ok(BTreeMap::new()) };
    module.visit(&mut reader);
    reader.weights
}

struct Reader {
    path: ParameterPath,
    weights: Result<BTreeMap<String, Weight>, CheckpointError>,
}

impl ModuleVisitor for Reader {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Ok(weights) = &mut self.weights else { return };
        let name = self.path.official();
        let tensor = if self.path.is_transposed() { param.val().swap_dims(0, 1) } else { param.val() };
        let dims = tensor.dims().to_vec();
        match tensor
            .try_into_data()
            .map_err(|e| e.to_string())
            .and_then(|data| data.convert::<f32>().try_to_vec::<f32>().map_err(|e| e.to_string()))
        {
            Ok(values) => {
                weights.insert(name, Weight { dims, values });
            }
            Err(error) => self.weights = Err(CheckpointError::Device { name, error }),
        }
    }
}

/// Writes named arrays as one safetensors file in memory, in f32.
///
/// # Errors
/// When an array's length does not fit its sizes.
pub fn encode(arrays: &BTreeMap<String, Weight>) -> Result<Vec<u8>, CheckpointError> {
    for (name, Weight { dims, values }) in arrays {
        if dims.iter().try_fold(1_usize, |product, &size| product.checked_mul(size)) != Some(values.len()) {
            return Err(CheckpointError::Encode { name: name.clone(), count: values.len(), dims: dims.clone() });
        }
    }
    let tensors = arrays.iter().map(|(name, weight)| (name.as_str(), weight.dims.as_slice()));
    let written = FileWriter::start(Vec::new(), &[], tensors).and_then(|mut writer| {
        arrays.values().try_for_each(|weight| writer.put(&weight.values))?;
        writer.finish()
    });
    Ok(written.expect("memory can be written"))
}

/// Reads what [`encode`] wrote. `source_name` is told in errors.
///
/// # Errors
/// When the bytes are not a whole safetensors file or hold other than f32.
pub fn decode(bytes: &[u8], source_name: &str) -> Result<BTreeMap<String, Weight>, CheckpointError> {
    let entries =
        header::parse(bytes).map_err(|error| CheckpointError::Format { source_name: source_name.into(), error })?;
    let (mut weights, mut problems) = (BTreeMap::new(), Vec::new());
    for (name, entry) in entries {
        if entry.dtype != Dtype::F32 {
            problems.push(format!("{name}: stored as {:?}, expected F32", entry.dtype));
            continue;
        }
        let numbers = bytes[entry.bytes].chunks_exact(4);
        let values = numbers.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        weights.insert(name, Weight { dims: entry.shape, values });
    }
    if problems.is_empty() {
        Ok(weights)
    } else {
        Err(CheckpointError::Mismatch { source_name: source_name.into(), problems })
    }
}

/// Sets every weight of `module` from `weights`, by official name. `source_name` is told in errors.
///
/// # Errors
/// When weights are missing, left over or of another shape; then nothing is set.
pub fn load<M: Module>(module: M, weights: BTreeMap<String, Weight>, source_name: &str) -> Result<M, CheckpointError> {
    let mut problems = Vec::new();
    let mut expected = Shapes::default();
    module.visit(&mut expected);
    for (name, dims) in &expected.shapes {
        match weights.get(name) {
            None => problems.push(format!("{name}: missing, expected {dims:?}")),
            Some(found) if found.dims != *dims => {
                problems.push(format!("{name}: has shape {:?}, expected {dims:?}", found.dims));
            }
            Some(found) if found.values.len() != dims.iter().product::<usize>() => {
                problems.push(format!("{name}: has {} numbers for shape {dims:?}", found.values.len()));
            }
            Some(_) => {}
        }
    }
    let left = weights.keys().filter(|name| !expected.shapes.contains_key(*name));
    problems.extend(left.map(|name| format!("{name}: unexpected, this model has no such weight")));
    if !problems.is_empty() {
        problems.sort();
        return Err(CheckpointError::Mismatch { source_name: source_name.into(), problems });
    }
    Ok(module.map(&mut Writer { path: ParameterPath::default(), weights: weights.into_iter().collect() }))
}

#[derive(Default)]
struct Shapes {
    path: ParameterPath,
    shapes: BTreeMap<String, Vec<usize>>,
}

impl ModuleVisitor for Shapes {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let mut dims = param.shape().to_vec();
        if self.path.is_transposed() {
            dims.reverse();
        }
        self.shapes.insert(self.path.official(), dims);
    }
}

struct Writer {
    path: ParameterPath,
    weights: HashMap<String, Weight>,
}

impl ModuleMapper for Writer {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let transposed = self.path.is_transposed();
        let Some(weight) = self.weights.remove(&self.path.official()) else { return param };
        param.map(|old| {
            let tracked = old.is_require_grad();
            let options = (&old.device(), old.dtype());
            let new = Tensor::<D>::from_data(TensorData::new(weight.values, weight.dims), options);
            // Row by row in memory again, so that a loaded model computes bit for bit what the saved one did.
            let new = if transposed { contiguous(new.swap_dims(0, 1)) } else { new };
            new.set_require_grad(tracked)
        })
    }
}

fn contiguous<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    let options = (&tensor.device(), tensor.dtype());
    Tensor::from_data(tensor.into_data(), options)
}
