//! What of a file the page cache holds, and how to make it let go.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::io::{self, ALIGNMENT_BYTES};
use rustix::fs::{Advice, fadvise};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::figures::CacheState;
use crate::source_files::SourceFiles;

/// Bytes of one look into a file.
const WINDOW_BYTES: u64 = 16 << 20;
/// Most looks; a larger source is looked at in places.
const WINDOWS_MAX: u64 = 2048;
/// Shares of cached bytes that count as warm and as cold.
const WARM_SHARE: f64 = 0.9;
const COLD_SHARE: f64 = 0.1;

/// Bytes looked at, and how many of them were cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedBytes {
    /// Looked at.
    pub seen: u64,
    /// In the page cache.
    pub cached: u64,
}

impl CachedBytes {
    /// In a word.
    pub fn state(&self) -> CacheState {
        match self.cached as f64 / self.seen as f64 {
            _ if self.seen == 0 => CacheState::Unknown,
            share if share >= WARM_SHARE => CacheState::Warm,
            share if share <= COLD_SHARE => CacheState::Cold,
            _ => CacheState::Mixed,
        }
    }

    fn add(&mut self, other: CachedBytes) {
        self.seen += other.seen;
        self.cached += other.cached;
    }
}

/// How much of the source's files is in the page cache; `Unknown` where the system does not tell.
///
/// Since Linux 5.2 it tells only who may write to the file or owns it, and says "all of it" to anybody else: run as the
/// owner of the data directory.
pub fn source_cache(source: &SourceFiles) -> CacheState {
    let windows: u64 = source.files.iter().map(|file| file.size_bytes.div_ceil(WINDOW_BYTES)).sum();
    let step = windows.div_ceil(WINDOWS_MAX).max(1);
    let (mut number, mut sum) = (0, CachedBytes::default());
    for (index, file) in source.files.iter().enumerate() {
        let own = file.size_bytes.div_ceil(WINDOW_BYTES);
        let chosen: Vec<u64> = (0..own).filter(|window| (number + window).is_multiple_of(step)).collect();
        number += own;
        if chosen.is_empty() {
            continue;
        }
        let Ok(Some(descriptor)) = source.open(index) else { continue };
        for window in chosen {
            if let Some(cached) = cached_bytes(descriptor.as_fd(), window * WINDOW_BYTES, WINDOW_BYTES) {
                sum.add(cached);
            }
        }
    }
    sum.state()
}

/// How much of these files is in the page cache; those that cannot be looked at do not count.
pub fn files_cache<'a>(paths: impl Iterator<Item = &'a Path>) -> CacheState {
    let mut sum = CachedBytes::default();
    for path in paths {
        let Ok(file) = std::fs::File::open(path) else { continue };
        let size_bytes = file.metadata().map_or(0, |metadata| metadata.len());
        for offset in (0..size_bytes).step_by(WINDOW_BYTES as usize) {
            if let Some(cached) = cached_bytes(file.as_fd(), offset, WINDOW_BYTES) {
                sum.add(cached);
            }
        }
    }
    sum.state()
}

/// Cached bytes among `length` from `offset` (a multiple of the page size) on; None if the system does not tell.
fn cached_bytes(file: BorrowedFd<'_>, offset: u64, length: u64) -> Option<CachedBytes> {
    let size_bytes = io::size_bytes(file).ok()?;
    let length = length.min(size_bytes.checked_sub(offset)?) as usize;
    if length == 0 {
        return Some(CachedBytes::default());
    }
    // SAFETY: a new mapping at an address that the kernel chooses; nobody reads through it, so it does not matter that
    // the file may change or be cut.
    let address =
        unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, offset) }.ok()?;
    let page_size = rustix::param::page_size();
    let mut pages = vec![0u8; length.div_ceil(page_size)];
    // SAFETY: the range is the mapping just made, and `pages` has a byte for each of its pages.
    let told = unsafe { libc::mincore(address, length, pages.as_mut_ptr()) } == 0;
    // SAFETY: the mapping just made; nothing points into it.
    let unmapped = unsafe { munmap(address, length) };
    let resident = pages.iter().filter(|page| **page & 1 == 1).count() * page_size;
    (told && unmapped.is_ok()).then_some(CachedBytes { seen: length as u64, cached: resident.min(length) as u64 })
}

/// Asks the kernel to drop what is cached of one file; only clean pages go.
pub fn drop_file_cache(file: BorrowedFd<'_>) {
    // A hint: what stays is told by `files_cache`.
    fadvise(file, 0, None, Advice::DontNeed).ok();
}

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Writes out everything dirty and empties the page cache of the whole machine, for all its users: only for somebody
/// who asked for cold measurements.
///
/// # Errors
/// `Configuration` if this process may not.
pub fn drop_page_cache() -> Result<()> {
    rustix::fs::sync();
    std::fs::write(DROP_CACHES, "1").map_err(|cause| {
        Error::new(ErrorKind::Configuration, "drop the page cache", cause)
            .hint("run as root, or measure with what is cached")
    })
}

const _: () = assert!(WINDOW_BYTES.is_multiple_of(ALIGNMENT_BYTES as u64));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_just_read_is_warm_and_what_was_dropped_is_not() {
        // tmpfs has nothing but its cache; this wants a disk.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7u8; 40 << 20]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        assert_eq!(files_cache([path.as_path()].into_iter()), CacheState::Warm);
        file.sync_all().unwrap();
        drop_file_cache(file.as_fd());
        let after = files_cache([path.as_path()].into_iter());
        assert!(matches!(after, CacheState::Cold | CacheState::Mixed), "{after:?}");
        assert_eq!(files_cache([Path::new("/nowhere/at/all")].into_iter()), CacheState::Unknown);
    }

    #[test]
    fn shares_have_names() {
        let state = |seen, cached| CachedBytes { seen, cached }.state();
        assert_eq!(state(0, 0), CacheState::Unknown);
        assert_eq!(state(100, 100), CacheState::Warm);
        assert_eq!(state(100, 50), CacheState::Mixed);
        assert_eq!(state(100, 3), CacheState::Cold);
    }
}
