//! Folders whose index and files do not belong together.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use csa2_model::checkpoint::Archive;
use serde_json::Value;
use tempfile::TempDir;

use crate::folder::{Tensors, checkpoint, config, file, sharded, write_index};
use crate::memory::peak;

const INDEX: &str = "model.safetensors.index.json";
const SECOND: &str = "model-00002-of-00003.safetensors";

fn tensors() -> Tensors {
    checkpoint(&config(), 32).0
}

/// What opening a folder says, without the folder's name.
fn refused(folder: &Path) -> String {
    let message = Archive::open(folder).err().expect("refused").to_string();
    message.replace(&format!("{}/", folder.display()), "")
}

/// The index of a folder, to be changed.
fn index(folder: &TempDir) -> BTreeMap<String, String> {
    let bytes = fs::read(folder.path().join(INDEX)).unwrap();
    let value: Value = serde_json::from_slice(&bytes).unwrap();
    serde_json::from_value(value["weight_map"].clone()).unwrap()
}

#[test]
fn a_file_that_is_not_there() {
    let folder = sharded(&tensors(), 3);
    fs::remove_file(folder.path().join(SECOND)).unwrap();
    let held: Vec<String> = index(&folder).into_iter().filter(|(_, at)| at == SECOND).map(|(name, _)| name).collect();
    let (first, more) = (&held[0], held.len() - 1);
    assert_eq!(
        refused(folder.path()),
        format!("{INDEX}: {first} and {more} more should be in {SECOND}, which is not in this folder")
    );
}

#[test]
fn tensors_that_only_one_of_them_names() {
    let folder = sharded(&tensors(), 3);
    let whole = index(&folder);
    let (name, file) = whole.iter().find(|(_, file)| *file == SECOND).unwrap();
    let mut map = whole.clone();
    map.remove(name);
    write_index(folder.path(), &map);
    assert_eq!(refused(folder.path()), format!("{file}: has a tensor {name}, which {INDEX} does not say"));
    map.insert(name.clone(), "model-00003-of-00003.safetensors".into());
    write_index(folder.path(), &map);
    assert_eq!(refused(folder.path()), format!("{file}: has a tensor {name}, which {INDEX} does not say"));
    map.insert(name.clone(), file.clone());
    map.insert("layers.0.attn.more".into(), file.clone());
    write_index(folder.path(), &map);
    assert_eq!(
        refused(folder.path()),
        format!("{file}: has no tensor layers.0.attn.more, which {INDEX} says is there")
    );
}

#[test]
fn files_outside_the_folder() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret.safetensors");
    fs::write(&secret, file(&tensors())).unwrap();
    let absolute = secret.display().to_string();
    for place in
        ["../x.safetensors", "a/b.safetensors", "/etc/passwd", "..", ".", "", "./x", "x/", r"a\b", absolute.as_str()]
    {
        let folder = sharded(&tensors(), 3);
        let mut map = index(&folder);
        map.insert("norm.weight".into(), place.into());
        write_index(folder.path(), &map);
        let expected =
            format!("{INDEX}: norm.weight is said to be in {place:?}, which is no plain name of a file in this folder");
        assert_eq!(refused(folder.path()), expected);
    }
}

#[test]
fn indexes_that_are_none() {
    for (text, message) in [
        ("garbage", "expected value"),
        ("", "EOF while parsing a value"),
        ("{}", "missing field `weight_map`"),
        (r#"{"weight_map": 3}"#, "invalid type: integer `3`, expected an object"),
        (r#"{"weight_map": {"norm.weight": 3}}"#, "norm.weight: invalid type: integer `3`, expected a string"),
        (r#"{"weight_map": {"a": "x", "a": "x"}}"#, "a stands in it twice"),
        (r#"{"weight_map": {}, "weight_map": {}}"#, "duplicate field `weight_map`"),
        (r#"{"weight_map": {}, "weights": {}}"#, "unknown field `weights`, expected `metadata` or `weight_map`"),
    ] {
        let folder = sharded(&tensors(), 3);
        fs::write(folder.path().join(INDEX), text).unwrap();
        assert_eq!(refused(folder.path()), format!("{INDEX}: {message}"), "{text}");
    }
}

#[test]
fn an_index_without_end_is_not_read() {
    let folder = sharded(&tensors(), 3);
    let path = folder.path().join(INDEX);
    fs::File::options().write(true).open(&path).and_then(|file| file.set_len(1 << 30)).unwrap();
    let (message, memory) = peak(|| refused(folder.path()));
    assert_eq!(message, format!("{INDEX}: is longer than 200000000 bytes, the most that is read"));
    assert!(memory < 1 << 29, "{memory}");
}

#[test]
fn it_must_be_clear_which_files_are_meant() {
    let folder = sharded(&tensors(), 3);
    fs::write(folder.path().join("model.safetensors"), file(&tensors())).unwrap();
    let expected =
        format!("{INDEX}: there is also model.safetensors, which it does not name; remove the one that is not meant");
    assert_eq!(refused(folder.path()), expected);
    let folder = sharded(&tensors(), 1);
    fs::rename(folder.path().join("model-00001-of-00001.safetensors"), folder.path().join("model.safetensors"))
        .unwrap();
    let map = index(&folder).into_keys().map(|name| (name, "model.safetensors".to_string())).collect();
    write_index(folder.path(), &map);
    assert_eq!(Archive::open(folder.path()).unwrap().names().count(), tensors().len());
}

#[test]
fn a_damaged_file_is_named() {
    let folder = sharded(&tensors(), 3);
    fs::write(folder.path().join(SECOND), "short").unwrap();
    assert!(
        refused(folder.path()).starts_with(&format!("{SECOND}: not a whole safetensors file: it ends after 5 bytes"))
    );
}

#[cfg(unix)]
#[test]
fn links_are_followed_but_only_to_files() {
    use std::os::unix::fs::symlink;
    // A download may keep its files elsewhere and link to them.
    let (folder, elsewhere) = (sharded(&tensors(), 3), tempfile::tempdir().unwrap());
    let (here, there) = (folder.path().join(SECOND), elsewhere.path().join("blob"));
    fs::rename(&here, &there).unwrap();
    symlink(&there, &here).unwrap();
    assert_eq!(Archive::open(folder.path()).unwrap().names().count(), tensors().len());
    for target in [elsewhere.path(), Path::new("/dev/zero")] {
        fs::remove_file(&here).unwrap();
        symlink(target, &here).unwrap();
        assert_eq!(refused(folder.path()), format!("{SECOND}: is no file"));
    }
    fs::remove_file(&here).unwrap();
    symlink(&here, &here).unwrap();
    let message = refused(folder.path());
    assert!(message.contains(SECOND), "{message}");
}
