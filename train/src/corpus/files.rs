//! Finds the files of a corpus: plain paths, folders and patterns.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::CorpusError;

/// All files that the entries name, each once, in order of their paths.
///
/// # Errors
/// No entry, an entry that is no path and no pattern or that fits no file, an unreadable folder.
pub fn find(entries: &[String], base_dir: &Path) -> Result<BTreeSet<PathBuf>, CorpusError> {
    if entries.is_empty() {
        return Err(CorpusError::NothingListed);
    }
    let mut files = BTreeSet::new();
    for entry in entries {
        let found = find_entry(entry, base_dir)?;
        if found.is_empty() {
            return Err(CorpusError::NoMatch { entry: entry.clone(), path: base_dir.join(entry) });
        }
        files.extend(found);
    }
    Ok(files)
}

/// A path that exists is taken as it stands, even if it looks like a pattern.
fn find_entry(entry: &str, base_dir: &Path) -> Result<Vec<PathBuf>, CorpusError> {
    if entry.is_empty() {
        return Err(entry_error(entry, "is empty; use \".\" for the configuration's own folder"));
    }
    let path = base_dir.join(entry);
    match fs::metadata(&path) {
        Ok(found) if found.is_file() => Ok(vec![path]),
        Ok(found) if found.is_dir() => files_below(path),
        Ok(_) => Err(entry_error(entry, "is neither a regular file nor a folder")),
        Err(_) if entry.contains(['*', '?', '[']) => find_pattern(entry, base_dir),
        Err(problem) if problem.kind() == ErrorKind::NotFound => Ok(vec![]),
        Err(problem) => Err(CorpusError::Read { path, problem }),
    }
}

/// Files that fit the pattern, and all files below folders that fit it.
fn find_pattern(entry: &str, base_dir: &Path) -> Result<Vec<PathBuf>, CorpusError> {
    let Some(base) = base_dir.to_str() else {
        let problem = "is a pattern, but the name of the configuration's folder is not Unicode; \
                       list paths instead";
        return Err(entry_error(entry, problem));
    };
    let pattern = Path::new(&glob::Pattern::escape(base)).join(entry);
    let paths = glob::glob(&pattern.to_string_lossy())
        .map_err(|error| entry_error(entry, format!("is not a pattern: {error}")))?;
    let mut files = vec![];
    for path in paths {
        let path = path.map_err(|error| read_error(error.path().to_owned())(error.into()))?;
        if path.is_dir() {
            files.extend(files_below(path)?);
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

/// All regular files below a folder. Links to files count; links to folders are not followed, since
/// they can lead back.
fn files_below(folder: PathBuf) -> Result<Vec<PathBuf>, CorpusError> {
    let mut files = vec![];
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(&folder).map_err(read_error(folder.clone()))? {
            let item = item.map_err(read_error(folder.clone()))?;
            let path = item.path();
            let kind = item.file_type().map_err(read_error(path.clone()))?;
            if kind.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                files.push(path);
            }
        }
    }
    Ok(files)
}

fn entry_error(entry: &str, problem: impl Into<String>) -> CorpusError {
    CorpusError::Entry { entry: entry.to_owned(), problem: problem.into() }
}

fn read_error(path: PathBuf) -> impl FnOnce(io::Error) -> CorpusError {
    move |problem| CorpusError::Read { path, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a.txt`, `b.rst`, `sub/c.txt`, `sub/deep/d.txt`, `[x].txt`, all with content.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("sub/deep")).unwrap();
        for name in ["a.txt", "b.rst", "sub/c.txt", "sub/deep/d.txt", "[x].txt"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        folder
    }

    fn find_names(base: &Path, entries: &[&str]) -> Result<Vec<String>, CorpusError> {
        let entries: Vec<String> = entries.iter().map(ToString::to_string).collect();
        let name = |path: &PathBuf| path.strip_prefix(base).unwrap().to_string_lossy().into_owned();
        find(&entries, base).map(|files| files.iter().map(name).collect())
    }

    #[test]
    fn files_folders_and_patterns() {
        let folder = folder();
        let found = |entries: &[&str]| find_names(folder.path(), entries).unwrap();
        assert_eq!(found(&["b.rst", "a.txt"]), ["a.txt", "b.rst"]);
        assert_eq!(found(&["sub"]), ["sub/c.txt", "sub/deep/d.txt"]);
        assert_eq!(found(&["*.txt"]), ["[x].txt", "a.txt"]);
        assert_eq!(found(&["**/*.txt"]), ["[x].txt", "a.txt", "sub/c.txt", "sub/deep/d.txt"]);
        assert_eq!(found(&["s?b"]), ["sub/c.txt", "sub/deep/d.txt"]);
        assert_eq!(found(&["[x].txt"]), ["[x].txt"]);
        assert_eq!(found(&["a.txt", "*.txt", "a.txt"]), ["[x].txt", "a.txt"]);
        let absolute = folder.path().join("a.*");
        assert_eq!(found(&[absolute.to_str().unwrap()]), ["a.txt"]);
    }

    #[test]
    fn a_base_folder_that_looks_like_a_pattern() {
        let outer = tempfile::tempdir().unwrap();
        let base = outer.path().join("run [1]*");
        fs::create_dir(&base).unwrap();
        fs::write(base.join("a.txt"), "a").unwrap();
        assert_eq!(find_names(&base, &["*.txt"]).unwrap(), ["a.txt"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_to_folders_are_not_followed_and_dead_ones_are_passed_over() {
        let folder = folder();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("sub/loop")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("sub/dead")).unwrap();
        std::os::unix::fs::symlink("../a.txt", folder.path().join("sub/link")).unwrap();
        let found = find_names(folder.path(), &["sub"]).unwrap();
        assert_eq!(found, ["sub/c.txt", "sub/deep/d.txt", "sub/link"]);
        let error = find_names(folder.path(), &["/dev/null"]).unwrap_err().to_string();
        assert!(error.contains("neither a regular file nor a folder"), "{error}");
    }

    #[test]
    fn bad_entries_get_a_message() {
        let folder = folder();
        let message = |entries: &[&str]| find_names(folder.path(), entries).unwrap_err().to_string();
        assert!(message(&[]).contains("list at least one file"));
        assert!(message(&[""]).contains("is empty"));
        for nothing in ["a.md", "*.md", "none/here"] {
            let error = message(&["a.txt", nothing]);
            assert!(error.contains(nothing) && error.contains("no file is found"), "{error}");
        }
        let error = message(&["a***"]);
        assert!(error.contains("`a***`") && error.contains("is not a pattern"), "{error}");
        let error = message(&["a.txt/b"]);
        assert!(error.contains("cannot read") && error.contains("a.txt/b"), "{error}");
        let error = message(&["a\0b"]);
        assert!(error.contains("cannot read"), "{error}");
    }
}
