//! Ways to damage a file on purpose.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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
