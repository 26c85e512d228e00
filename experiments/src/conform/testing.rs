//! What the unit tests share: the project's golden cases, and copies of them that are changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tempfile::TempDir;

use super::case::Case;
use super::{Compared, Place, compare};
use crate::backend::Backend;

/// The project's golden cases.
pub fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/goldens")
}

/// The CPU.
pub fn cpu() -> Place {
    let device = || Backend::Flex.device().unwrap();
    Place { backend: Backend::Flex, device: device(), cpu: device() }
}

/// A case without tensors, and the folder that it lies in.
pub fn empty_case() -> (TempDir, Case) {
    let copy = Copy { folder: tempfile::tempdir().unwrap(), name: "x".into(), files: Files::default() };
    copy.write(&copy.files);
    let case = Case::load(copy.folder.path(), "x").unwrap();
    (copy.folder, case)
}

/// One tensor of a file.
#[derive(Clone, Debug)]
pub struct Stored {
    pub dtype: Dtype,
    pub dims: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// The two files of a case.
#[derive(Clone, Debug)]
pub struct Files {
    pub about: Value,
    pub tensors: BTreeMap<String, Stored>,
}

impl Default for Files {
    fn default() -> Self {
        Self { about: serde_json::json!({}), tensors: BTreeMap::new() }
    }
}

/// A copy of a golden case in a folder of its own.
pub struct Copy {
    pub folder: TempDir,
    pub name: String,
    /// As they are in the original.
    pub files: Files,
}

impl Copy {
    /// Of the case `name`, with the files of the cases `others` beside it.
    pub fn of(name: &str, others: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for other in others {
            for ending in ["json", "safetensors"] {
                let file = format!("{other}.{ending}");
                fs::copy(goldens().join(&file), folder.path().join(&file)).unwrap();
            }
        }
        let about = serde_json::from_slice(&fs::read(goldens().join(format!("{name}.json"))).unwrap()).unwrap();
        let bytes = fs::read(goldens().join(format!("{name}.safetensors"))).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.iter().map(|(name, view)| {
            let stored = Stored { dtype: view.dtype(), dims: view.shape().into(), bytes: view.data().into() };
            (name.to_owned(), stored)
        });
        let files = Files { about, tensors: tensors.collect() };
        Self { folder, name: name.into(), files }
    }

    /// Compares the case after a change.
    pub fn changed(&self, change: impl FnOnce(&mut Files)) -> Compared {
        let mut files = self.files.clone();
        change(&mut files);
        self.write(&files);
        compare(self.folder.path(), &self.name, &cpu())
    }

    /// Writes the two files.
    pub fn write(&self, files: &Files) {
        let path = |ending: &str| self.folder.path().join(format!("{}.{ending}", self.name));
        let views = files
            .tensors
            .iter()
            .map(|(name, stored)| (name, TensorView::new(stored.dtype, stored.dims.clone(), &stored.bytes).unwrap()));
        let views: Vec<(&String, TensorView)> = views.collect();
        fs::write(path("safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        fs::write(path("json"), files.about.to_string()).unwrap();
    }
}
