//! The two files of a case, read as they are.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::error::CaseError;

/// Bytes that give the length of a safetensors header.
const LENGTH_BYTES: usize = 8;

/// Where a tensor lies in the file.
#[derive(Debug)]
pub struct Stored {
    /// Type of its numbers.
    pub dtype: Dtype,
    /// Size of each axis.
    pub dims: Vec<usize>,
    /// Its place among the file's bytes.
    pub bytes: Range<usize>,
}

impl Stored {
    /// Refuses the tensor `name` where it has another type.
    pub fn check_type(&self, name: &str, right: Dtype) -> Result<(), CaseError> {
        if self.dtype == right {
            return Ok(());
        }
        Err(CaseError::Type { name: name.into(), found: format!("{:?}", self.dtype), expected: type_name(right) })
    }

    /// Refuses the tensor `name` where it has another shape.
    pub fn check_shape(&self, name: &str, right: &[usize]) -> Result<(), CaseError> {
        if self.dims == right {
            return Ok(());
        }
        Err(CaseError::Shape { name: name.into(), found: self.dims.clone(), expected: format!("{right:?}") })
    }
}

/// The bytes of a safetensors file, and where its tensors lie in them.
pub type Tensors = (Vec<u8>, BTreeMap<String, Stored>);

/// Reads a safetensors file.
pub fn tensors(folder: &Path, file: &str) -> Result<Tensors, CaseError> {
    let bytes = read(folder, file)?;
    let wrong =
        |error| CaseError::Format { file: file.into(), wrong: format!("not a whole safetensors file: {error}") };
    let (header, metadata) = SafeTensors::read_metadata(&bytes).map_err(wrong)?;
    let start = LENGTH_BYTES + header;
    let stored = metadata.tensors().into_iter().map(|(name, info)| {
        let (first, end) = info.data_offsets;
        (name, Stored { dtype: info.dtype, dims: info.shape.clone(), bytes: start + first..start + end })
    });
    let stored = stored.collect();
    Ok((bytes, stored))
}

/// Reads the JSON of the case `name`.
pub fn about(folder: &Path, name: &str) -> Result<Value, CaseError> {
    let file = format!("{name}.json");
    let wrong = |wrong: String| CaseError::Format { file: file.clone(), wrong };
    let about: Value =
        serde_json::from_slice(&read(folder, &file)?).map_err(|error| wrong(format!("not JSON: {error}")))?;
    if about.is_object() { Ok(about) } else { Err(wrong("must hold one object".into())) }
}

fn read(folder: &Path, file: &str) -> Result<Vec<u8>, CaseError> {
    std::fs::read(folder.join(file)).map_err(|error| CaseError::File { file: file.into(), error })
}

/// The types that cases hold, by the names that their JSON uses.
pub fn dtype_named(name: &str) -> Option<Dtype> {
    [Dtype::F32, Dtype::F64, Dtype::I32, Dtype::U8].into_iter().find(|dtype| type_name(*dtype) == name)
}

/// The name that the JSON uses.
pub fn type_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "float32",
        Dtype::F64 => "float64",
        Dtype::I32 => "int32",
        Dtype::U8 => "uint8",
        _ => "another type",
    }
}

/// A shape of the JSON.
pub fn sizes(shape: &Value) -> Option<Vec<usize>> {
    shape.as_array()?.iter().map(|size| size.as_u64()?.try_into().ok()).collect()
}
