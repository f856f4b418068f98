//! Whether two paths lead to the same place, whatever they are called.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::IoResult;

/// Device and inode of `path`, links followed: two paths with the same are one file.
pub fn identity_of(path: &Path) -> IoResult<(u64, u64)> {
    let stat = rustix::fs::stat(path)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Whether both paths exist and are one file, by whatever names.
pub fn is_same(one: &Path, two: &Path) -> bool {
    matches!((identity_of(one), identity_of(two)), (Ok(one), Ok(two)) if one == two)
}

/// Whether `inner` is `outer` or below it, by whatever names, links and mounts, whether or not they exist yet.
pub fn lies_in(inner: &Path, outer: &Path) -> bool {
    let (inner, outer) = (real_path(inner), real_path(outer));
    // One directory may be mounted in two places.
    inner.starts_with(&outer) || inner.ancestors().any(|ancestor| is_same(ancestor, &outer))
}

/// The path without links, as far as it exists.
fn real_path(path: &Path) -> PathBuf {
    let real = |ancestor: &Path| {
        let (real, rest) = (ancestor.canonicalize().ok()?, path.strip_prefix(ancestor).ok()?);
        // Joined with nothing a path ends in a slash, and no file is found by that.
        Some(if rest.as_os_str().is_empty() { real } else { real.join(rest) })
    };
    path.ancestors().find_map(real).unwrap_or_else(|| path.to_owned())
}

/// The device number of `path`, to tell file systems apart.
pub fn device_of(path: &Path) -> IoResult<u64> {
    Ok(rustix::fs::stat(path)?.st_dev)
}

/// Whether `path` still names the open file.
pub fn is_same_file(file: &impl AsFd, path: &Path) -> bool {
    match (rustix::fs::fstat(file), rustix::fs::stat(path)) {
        (Ok(one), Ok(two)) => one.st_dev == two.st_dev && one.st_ino == two.st_ino,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_are_found_by_inode() {
        let work = tempfile::tempdir().unwrap();
        let real = work.path().join("real");
        std::fs::create_dir_all(real.join("inner")).unwrap();
        let alias = work.path().join("alias");
        std::os::unix::fs::symlink(&real, &alias).unwrap();
        assert!(lies_in(&alias.join("inner"), &real) && lies_in(&real.join("inner"), &alias));
        assert!(lies_in(&alias.join("new/deeper"), &real), "what does not exist yet counts by its parent");
        assert!(lies_in(&alias.join("new/deeper"), &real.join("new")), "neither exists");
        assert!(!lies_in(&real, &alias.join("inner")) && !lies_in(&real, &work.path().join("other")));
        assert!(!lies_in(&work.path().join("real2"), &real));
        // Two hard links have nothing in common but their inode.
        std::fs::write(real.join("file"), b"").unwrap();
        std::fs::hard_link(real.join("file"), work.path().join("twin")).unwrap();
        assert!(lies_in(&work.path().join("twin"), &real.join("file")), "one file by another name");
    }
}
