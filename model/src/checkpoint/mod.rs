//! Weights as safetensors, under the names and in the layout of the released checkpoints (Linear weights `[out, in]`).

mod names;

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView};
use thiserror::Error;

pub use names::{ParameterPath, is_indexer, is_variant};

/// Why weights cannot be written or read.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The file is not a safetensors file, or is cut short.
    #[error("{source_name}: not a whole safetensors file: {error}")]
    Format {
        /// Where the bytes came from.
        source_name: String,
        /// What the reader says.
        error: SafeTensorError,
    },
    /// Tensors are missing, left over or of another shape or type.
    #[error("{source_name} does not fit this model:{}", list(problems))]
    Mismatch {
        /// Where the bytes came from.
        source_name: String,
        /// One line a tensor.
        problems: Vec<String>,
    },
    /// A weight could not be read from the device.
    #[error("weight {name} could not be read from the device: {error}")]
    Device {
        /// Official name of the weight.
        name: String,
        /// What the backend says.
        error: String,
    },
}

fn list(problems: &[String]) -> String {
    const SHOWN: usize = 20;
    let mut lines: Vec<String> = problems.iter().take(SHOWN).cloned().collect();
    if problems.len() > SHOWN {
        lines.push(format!("and {} more", problems.len() - SHOWN));
    }
    lines.into_iter().flat_map(|line| ["\n  ".to_string(), line]).collect()
}

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
    let format = |error| CheckpointError::Format { source_name: "weights".into(), error };
    let bytes: Vec<Vec<u8>> =
        arrays.values().map(|w| w.values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = arrays
        .iter()
        .zip(&bytes)
        .map(|((name, weight), bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, weight.dims.clone(), bytes)?)));
    let views = views.collect::<Result<Vec<_>, _>>().map_err(format)?;
    safetensors::serialize(views, None).map_err(format)
}

/// Reads what [`encode`] wrote. `source_name` is told in errors.
///
/// # Errors
/// When the bytes are not a whole safetensors file or hold other than f32.
pub fn decode(bytes: &[u8], source_name: &str) -> Result<BTreeMap<String, Weight>, CheckpointError> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|error| CheckpointError::Format { source_name: source_name.into(), error })?;
    let (mut weights, mut problems) = (BTreeMap::new(), Vec::new());
    for (name, view) in file.iter() {
        if view.dtype() != Dtype::F32 {
            problems.push(format!("{name}: stored as {:?}, expected F32", view.dtype()));
            continue;
        }
        let values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        weights.insert(name.to_string(), Weight { dims: view.shape().to_vec(), values });
    }
    if problems.is_empty() {
        Ok(weights)
    } else {
        problems.sort();
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
