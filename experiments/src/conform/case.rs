//! One golden case: its tensors, and what its JSON says of them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use csa2_model::checkpoint::Weight;
use csa2_model::config::ModelConfig;
use safetensors::Dtype;
use serde_json::Value;

use super::error::CaseError;
use super::stored::{Stored, about, dtype_named, sizes, tensors, type_name};

/// A case, read as a whole; its tensors are looked at where a family asks for them.
#[derive(Debug)]
pub struct Case {
    name: String,
    folder: PathBuf,
    about: Value,
    bytes: Vec<u8>,
    tensors: BTreeMap<String, Stored>,
    read: RefCell<BTreeSet<String>>,
}

/// Numbers of one tensor.
#[derive(Clone, Debug)]
pub struct Array<T = f64> {
    /// Name in the file.
    pub name: String,
    /// Size of each axis.
    pub dims: Vec<usize>,
    /// The numbers, last axis fastest.
    pub values: Vec<T>,
}

impl<T> Array<T> {
    /// The rows along the last axis.
    pub fn rows(&self) -> impl Iterator<Item = &[T]> {
        self.values.chunks(self.dims.last().copied().unwrap_or(1).max(1))
    }
}

/// Where in a tensor of sizes `dims` the number `at` stands.
pub fn place(dims: &[usize], mut at: usize) -> Vec<usize> {
    let mut place = vec![0; dims.len()];
    for (axis, &size) in dims.iter().enumerate().rev() {
        place[axis] = at % size.max(1);
        at /= size.max(1);
    }
    place
}

impl Case {
    /// The case `name` of `folder`.
    ///
    /// # Errors
    /// When one of the two files cannot be read or is not what its name says, or when they contradict each other.
    pub fn load(folder: &Path, name: &str) -> Result<Self, CaseError> {
        let (bytes, tensors) = tensors(folder, &format!("{name}.safetensors"))?;
        let case = Self {
            name: name.into(),
            folder: folder.into(),
            about: about(folder, name)?,
            bytes,
            tensors,
            read: RefCell::default(),
        };
        case.check_list()?;
        Ok(case)
    }

    /// The name of its files.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Another case of the same folder, which this one's JSON names as `key`.
    ///
    /// # Errors
    /// As [`load`](Self::load), or when the key is missing or leaves the folder.
    pub fn sibling(&self, key: &str) -> Result<Self, CaseError> {
        Self::load(&self.folder, self.file_named(key, "")?)
    }

    /// The weights below `prefix`: of this case, or of the file that its JSON names as `weights_file`.
    ///
    /// # Errors
    /// When there are none, or not in f32.
    pub fn weights_anywhere(&self, prefix: &str) -> Result<BTreeMap<String, Weight>, CaseError> {
        if self.about.get("weights_file").is_none() {
            return self.weights(prefix);
        }
        let file = self.file_named("weights_file", ".safetensors")?;
        let (bytes, tensors) = tensors(&self.folder, &format!("{file}.safetensors"))?;
        let other = Self {
            name: file.into(),
            folder: self.folder.clone(),
            about: Value::Null,
            bytes,
            tensors,
            read: RefCell::default(),
        };
        other.weights(prefix)
    }

    /// What the JSON has as `key`: the name of a file of this folder, without its `ending`.
    fn file_named(&self, key: &str, ending: &str) -> Result<&str, CaseError> {
        let name = self.text(key)?;
        let plain = name.strip_suffix(ending).filter(|name| !name.is_empty() && !name.contains(['/', '\\']));
        plain.ok_or_else(|| {
            CaseError::key(key, format!("is {name:?}; it must name a file of the same folder, as NAME{ending}"))
        })
    }

    /// The JSON lists the tensors: a file that lost or gained some is not the case.
    fn check_list(&self) -> Result<(), CaseError> {
        let Some(listed) = self.about.get("tensors") else { return Ok(()) };
        let wrong = || CaseError::key("tensors", "must give every tensor's dtype and shape");
        let listed = listed.as_object().ok_or_else(wrong)?;
        for (name, entry) in listed {
            let dtype = entry.get("dtype").and_then(Value::as_str).ok_or_else(wrong)?;
            let stored = self.stored(name, || "the JSON lists it".into())?;
            let right = dtype_named(dtype).ok_or_else(|| {
                CaseError::key(format!("tensors.{name}.dtype"), format!("is {dtype:?}, which no tensor here can have"))
            })?;
            stored.check_type(name, right)?;
            let dims = sizes(entry.get("shape").ok_or_else(wrong)?).ok_or_else(wrong)?;
            stored.check_shape(name, &dims)?;
        }
        match self.tensors.keys().find(|name| !listed.contains_key(*name)) {
            None => Ok(()),
            Some(name) => Err(CaseError::key("tensors", format!("does not list {name}, which is stored"))),
        }
    }

    fn stored(&self, name: &str, needed: impl FnOnce() -> String) -> Result<&Stored, CaseError> {
        self.tensors.get(name).ok_or_else(|| CaseError::Missing { name: name.into(), needed: needed() })
    }

    /// Whether there is a tensor `name`.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The names of all tensors, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensors that nobody has looked at, empty ones left out.
    pub fn unread(&self) -> Vec<String> {
        let read = self.read.borrow();
        let unread = |(name, stored): &(&String, &Stored)| !read.contains(*name) && !stored.dims.contains(&0);
        self.tensors.iter().filter(unread).map(|(name, _)| name.clone()).collect()
    }

    /// Sizes of a tensor of any number of axes.
    ///
    /// # Errors
    /// When it is missing.
    pub fn shape(&self, name: &str) -> Result<Vec<usize>, CaseError> {
        Ok(self.stored(name, || "the case needs it".into())?.dims.clone())
    }

    /// Sizes of a tensor of D axes, none of which may be empty.
    ///
    /// # Errors
    /// When it is missing or has another number of axes.
    pub fn dims<const D: usize>(&self, name: &str) -> Result<[usize; D], CaseError> {
        let stored = self.stored(name, || format!("the case needs it, with {D} axes"))?;
        let dims = <[usize; D]>::try_from(stored.dims.as_slice()).ok().filter(|dims| !dims.contains(&0));
        dims.ok_or_else(|| CaseError::Shape {
            name: name.into(),
            found: stored.dims.clone(),
            expected: format!("{D} axes, none of them empty"),
        })
    }

    fn view(&self, name: &str, dtype: Dtype, dims: &[usize]) -> Result<&[u8], CaseError> {
        let stored = self.stored(name, || format!("expected as {} of shape {dims:?}", type_name(dtype)))?;
        stored.check_type(name, dtype)?;
        stored.check_shape(name, dims)?;
        if dims.contains(&0) {
            let expected = "an axis that is not empty".into();
            return Err(CaseError::Shape { name: name.into(), found: dims.into(), expected });
        }
        self.read.borrow_mut().insert(name.into());
        Ok(&self.bytes[stored.bytes.clone()])
    }

    /// Numbers of sizes `dims`: f64 below the name `f64.`, f32 elsewhere.
    ///
    /// # Errors
    /// When the tensor is missing or has another type or shape.
    pub fn floats(&self, name: &str, dims: &[usize]) -> Result<Array, CaseError> {
        if name.starts_with("f64.") {
            return self.doubles(name, dims);
        }
        let values = self.singles(name, dims)?.values.into_iter().map(f64::from).collect();
        Ok(Array { name: name.into(), dims: dims.into(), values })
    }

    /// f64 numbers of sizes `dims`.
    ///
    /// # Errors
    /// When the tensor is missing or has another type or shape.
    pub fn doubles(&self, name: &str, dims: &[usize]) -> Result<Array, CaseError> {
        let bytes = self.view(name, Dtype::F64, dims)?.as_chunks().0;
        let values = bytes.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        Ok(Array { name: name.into(), dims: dims.into(), values })
    }

    /// f32 numbers of sizes `dims`.
    ///
    /// # Errors
    /// When the tensor is missing or has another type or shape.
    pub fn singles(&self, name: &str, dims: &[usize]) -> Result<Array<f32>, CaseError> {
        let bytes = self.view(name, Dtype::F32, dims)?.as_chunks().0;
        let values = bytes.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        Ok(Array { name: name.into(), dims: dims.into(), values })
    }

    /// Whole numbers of sizes `dims`, each inside `range`.
    ///
    /// # Errors
    /// When the tensor is missing, has another type or shape, or holds a number outside the range.
    pub fn ints(&self, name: &str, dims: &[usize], range: Range<i64>) -> Result<Array<i64>, CaseError> {
        let bytes = self.view(name, Dtype::I32, dims)?.as_chunks().0;
        let values: Vec<i64> = bytes.iter().map(|bytes| i64::from(i32::from_le_bytes(*bytes))).collect();
        match values.iter().position(|value| !range.contains(value)) {
            None => Ok(Array { name: name.into(), dims: dims.into(), values }),
            Some(at) => Err(CaseError::Value {
                name: name.into(),
                place: place(dims, at),
                found: values[at],
                right: format!("it must be from {} to {}", range.start, range.end - 1),
            }),
        }
    }

    /// Bytes of sizes `dims`.
    ///
    /// # Errors
    /// When the tensor is missing or has another type or shape.
    pub fn octets(&self, name: &str, dims: &[usize]) -> Result<Array<i64>, CaseError> {
        let values = self.view(name, Dtype::U8, dims)?.iter().map(|&byte| i64::from(byte)).collect();
        Ok(Array { name: name.into(), dims: dims.into(), values })
    }

    /// A mask of sizes `dims`, as 0 and 1.
    ///
    /// # Errors
    /// As [`octets`](Self::octets), or when it holds other numbers.
    pub fn mask(&self, name: &str, dims: &[usize]) -> Result<Array<i64>, CaseError> {
        let mask = self.octets(name, dims)?;
        match mask.values.iter().position(|&value| value > 1) {
            None => Ok(mask),
            Some(at) => Err(CaseError::Value {
                name: name.into(),
                place: place(dims, at),
                found: mask.values[at],
                right: "a mask holds 0 and 1".into(),
            }),
        }
    }

    /// As [`floats`](Self::floats), as a tensor.
    ///
    /// # Errors
    /// As [`floats`](Self::floats).
    pub fn tensor<const D: usize>(
        &self,
        name: &str,
        dims: [usize; D],
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor<D>, CaseError> {
        let values = self.floats(name, &dims)?.values;
        Ok(Tensor::from_data(TensorData::new(values, dims), (device, dtype)))
    }

    /// As [`ints`](Self::ints), as a tensor.
    ///
    /// # Errors
    /// As [`ints`](Self::ints).
    pub fn int_tensor<const D: usize>(
        &self,
        name: &str,
        dims: [usize; D],
        range: Range<i64>,
        device: &Device,
    ) -> Result<Tensor<D, Int>, CaseError> {
        Ok(int_tensor(self.ints(name, &dims, range)?.values, dims, device))
    }

    /// The f32 tensor `name`, of any shape, as a weight.
    ///
    /// # Errors
    /// When it is missing or has another type.
    pub fn weight(&self, name: &str) -> Result<Weight, CaseError> {
        let dims = self.shape(name)?;
        Ok(Weight { values: self.singles(name, &dims)?.values, dims })
    }

    /// The f32 tensors below `prefix`, as weights by the rest of their name.
    ///
    /// # Errors
    /// When there are none, or one has another type.
    pub fn weights(&self, prefix: &str) -> Result<BTreeMap<String, Weight>, CaseError> {
        let inside = self.names().filter_map(|name| Some((name, name.strip_prefix(prefix)?)));
        let weights = inside.map(|(name, short)| Ok((short.to_owned(), self.weight(name)?)));
        let weights = weights.collect::<Result<BTreeMap<_, _>, CaseError>>()?;
        if weights.is_empty() {
            let needed = format!("{}.safetensors must hold weights below that name", self.name);
            return Err(CaseError::Missing { name: format!("{prefix}*"), needed });
        }
        Ok(weights)
    }

    /// What the JSON has as `key`, a path with dots, if anything.
    pub fn find(&self, key: &str) -> Option<&Value> {
        key.split('.').try_fold(&self.about, |value, key| value.get(key)).filter(|value| !value.is_null())
    }

    /// What the JSON has as `key`, a path with dots.
    ///
    /// # Errors
    /// When it has nothing.
    pub fn value(&self, key: &str) -> Result<&Value, CaseError> {
        self.find(key).ok_or_else(|| CaseError::key(key, format!("is missing in {}.json", self.name)))
    }

    /// A finite number of the JSON.
    ///
    /// # Errors
    /// When the key is missing or holds something else.
    pub fn number(&self, key: &str) -> Result<f64, CaseError> {
        let found = self.value(key)?;
        found.as_f64().ok_or_else(|| CaseError::key(key, format!("is {found}; it must be a number")))
    }

    /// A count of the JSON.
    ///
    /// # Errors
    /// When the key is missing or holds something else.
    pub fn size(&self, key: &str) -> Result<usize, CaseError> {
        let found = self.value(key)?;
        let size = found.as_u64().and_then(|number| number.try_into().ok());
        size.ok_or_else(|| CaseError::key(key, format!("is {found}; it must be a whole number")))
    }

    /// A text of the JSON.
    ///
    /// # Errors
    /// When the key is missing or holds something else.
    pub fn text(&self, key: &str) -> Result<&str, CaseError> {
        let found = self.value(key)?;
        found.as_str().ok_or_else(|| CaseError::key(key, format!("is {found}; it must be a text")))
    }

    /// The model that the case belongs to.
    ///
    /// # Errors
    /// When the JSON has none, or one that cannot be.
    pub fn config(&self) -> Result<ModelConfig, CaseError> {
        Ok(ModelConfig::from_hf(self.value("hf_text_config")?)?)
    }
}

/// Whole numbers as a tensor.
pub fn int_tensor<const D: usize>(values: Vec<i64>, dims: [usize; D], device: &Device) -> Tensor<D, Int> {
    let values: Vec<i32> = values.into_iter().map(|value| value as i32).collect();
    Tensor::from_data(TensorData::new(values, dims), device)
}
