//! Ways to damage a file on purpose.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use pagehaul_engine::format::checksum::xxh3;

/// Flips one bit.
pub fn flip_bit(path: &Path, byte: u64, bit: u8) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut value = [0u8];
    file.read_exact_at(&mut value, byte).unwrap();
    value[0] ^= 1 << bit;
    file.write_all_at(&value, byte).unwrap();
}

/// Overwrites a range.
pub fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// Cuts a file.
pub fn cut(path: &Path, length: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

/// All files below a directory.
pub fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Everything below a directory by relative path: kind, permissions, length and hash of the content, or link target.
pub fn tree(directory: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut tree = BTreeMap::new();
    add_to_tree(directory, directory, &mut tree);
    tree
}

fn add_to_tree(root: &Path, directory: &Path, tree: &mut BTreeMap<Vec<u8>, String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        let mode = metadata.permissions().mode() & 0o7777;
        let what = if metadata.is_symlink() {
            format!("link to {}", std::fs::read_link(&path).unwrap().display())
        } else if metadata.is_dir() {
            add_to_tree(root, &path, tree);
            format!("directory {mode:o}")
        } else {
            format!("file {mode:o} {} {:016x}", metadata.len(), xxh3(&std::fs::read(&path).unwrap()))
        };
        tree.insert(path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec(), what);
    }
}

/// What two trees differ in, for people; empty if they are equal.
pub fn differences(one: &BTreeMap<Vec<u8>, String>, two: &BTreeMap<Vec<u8>, String>) -> Vec<String> {
    let paths: std::collections::BTreeSet<_> = one.keys().chain(two.keys()).collect();
    let differ = paths.into_iter().filter(|path| one.get(*path) != two.get(*path));
    differ.map(|path| format!("{}: {:?} / {:?}", path.escape_ascii(), one.get(path), two.get(path))).collect()
}

/// Copies a directory with everything in it, owners and modes included.
pub fn copy_tree(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "cp -a {} {}", from.display(), to.display());
}
