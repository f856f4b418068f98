//! The one door to the file system: exact reads, durable writes, renames that survive a power loss.
//!
//! Interrupted and short calls are continued here, so that nobody else has to think of them. What is durable is
//! said at each function; nothing else is.

use std::ffi::OsStr;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use memmap2::{Advice, MmapMut};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::error::{Error, ErrorKind, Result};

mod paths;
mod sequential;
mod staged;

pub use paths::{device_of, identity_of, is_same, is_same_file, lies_in};
pub use sequential::{SEQUENTIAL_PIECE_BYTES, SequentialWriter};
pub use staged::{StagedFile, is_temporary_name, remove_dead_temporaries, replace_durable, write_new_durable};

/// Result with the system's error.
pub type IoResult<T> = std::result::Result<T, Errno>;

/// Alignment that reads and writes past the page cache need on every common disk; also that of a memory page.
pub const ALIGNMENT_BYTES: usize = 4096;

/// Blocks of this many bytes and more ask for huge pages: blocks that are made one after the other lie side by side, and two of them
/// fill a page of 2 MiB. It spares half of a small backup's page faults (bench/runs/2026-11-30-page-huge).
const HUGE_FROM_BYTES: usize = 1 << 20;

/// A fixed block of memory that starts at a page boundary; its pages come from the system when they are first used, and go back to it
/// with the block. An allocator would clear what it gives a second time, and all of it: a process that makes more than one backup would
/// pay for every buffer that nobody fills.
#[derive(Debug, Default)]
pub struct AlignedBytes {
    /// None: no bytes.
    pages: Option<MmapMut>,
}

impl AlignedBytes {
    /// A block of `length` zero bytes.
    ///
    /// # Errors
    /// `Configuration` if the system does not give this process so many more bytes.
    pub fn new(length: usize) -> Result<Self> {
        if length == 0 {
            return Ok(AlignedBytes::default());
        }
        let refused =
            |cause| Error::new(ErrorKind::Configuration, format!("get {length} bytes of memory for a buffer"), cause);
        let pages = MmapMut::map_anon(length).map_err(refused)?;
        if length >= HUGE_FROM_BYTES {
            // Where the system has no huge pages, or none to spare, small ones come.
            pages.advise(Advice::HugePage).ok();
        }
        Ok(AlignedBytes { pages: Some(pages) })
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.pages.as_deref().unwrap_or_default()
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.pages.as_deref_mut().unwrap_or_default()
    }
}

/// Opens a directory to work below it.
pub fn open_directory(path: &Path) -> IoResult<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a file below `directory` to read it; links are followed, the access time is left alone where we may.
pub fn open_below(directory: BorrowedFd<'_>, path: &[u8]) -> IoResult<OwnedFd> {
    let path = OsStr::from_bytes(path);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(directory, path, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::openat(directory, path, flags, Mode::empty()),
        other => other,
    }
}

/// Opens `path` below `directory`: no part of it may be a link or lead out, whatever others plant there meanwhile.
///
/// Kernels before 5.6, and sandboxes that do not know the call, get the check of the last part only.
fn open_beneath(directory: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode) -> IoResult<OwnedFd> {
    let (path, flags) = (OsStr::from_bytes(path), flags | OFlags::CLOEXEC | OFlags::NOFOLLOW);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(directory, path, flags, mode, resolve) {
            // Somebody renamed a directory on the way; the kernel asks to try again.
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::NOSYS | Errno::PERM) => return rustix::fs::openat(directory, path, flags, mode),
            other => return other,
        }
    }
}

/// Creates a file below `directory` that was not there, to write it; no part of the path may be a link.
pub fn create_below(directory: BorrowedFd<'_>, path: &[u8], mode: u32) -> IoResult<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    // The call refuses other bits than permissions.
    open_beneath(directory, path, flags, Mode::from_raw_mode(mode & 0o7777))
}

/// Opens a file below `directory` to write into it; no part of the path may be a link.
pub fn open_below_for_write(directory: BorrowedFd<'_>, path: &[u8]) -> IoResult<OwnedFd> {
    open_beneath(directory, path, OFlags::WRONLY, Mode::empty())
}

/// As [`open_below_for_write`], but past the page cache; None where the file system has no such writes.
pub fn open_below_for_direct_write(directory: BorrowedFd<'_>, path: &[u8]) -> Option<OwnedFd> {
    open_beneath(directory, path, OFlags::WRONLY | OFlags::DIRECT, Mode::empty()).ok()
}

/// Opens a directory below `directory` to work in it; no part of the path may be a link.
pub fn open_directory_below(directory: BorrowedFd<'_>, path: &[u8]) -> IoResult<OwnedFd> {
    open_beneath(directory, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Opens a regular file below `directory` to read it; no part of the path may be a link. Other kinds are `INVAL`.
pub fn open_regular_below(directory: BorrowedFd<'_>, path: &[u8]) -> IoResult<OwnedFd> {
    let file = open_beneath(directory, path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        _ => Err(Errno::INVAL),
    }
}

/// Asks the kernel to forget the cached pages of a file that are written already, so that reads come from the disk.
pub fn drop_cached_pages(file: BorrowedFd<'_>) {
    // A hint: where it is not known, reads may come from the cache.
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).ok();
}

/// Makes `length` bytes from `offset` read as zeros; the file's length stays.
pub fn zero_range(file: BorrowedFd<'_>, offset: u64, length: u64) -> IoResult<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, offset, length) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        other => return other,
    }
    let zeros = [0u8; 64 * 1024];
    let mut done = 0;
    while done < length {
        let count = (length - done).min(zeros.len() as u64);
        write_all_at(file, &zeros[..count as usize], offset + done)?;
        done += count;
    }
    Ok(())
}

/// Whether a write of `bytes` at `offset` may go past the page cache.
pub fn is_aligned(bytes: &[u8], offset: u64) -> bool {
    bytes.as_ptr().addr().is_multiple_of(ALIGNMENT_BYTES)
        && bytes.len().is_multiple_of(ALIGNMENT_BYTES)
        && offset.is_multiple_of(ALIGNMENT_BYTES as u64)
}

/// Length of an open file in bytes.
pub fn size_bytes(file: BorrowedFd<'_>) -> IoResult<u64> {
    Ok(rustix::fs::fstat(file)?.st_size as u64)
}

/// Reads at `offset` until `buffer` is full or the file ends; gives the bytes read.
pub fn read_full_at(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> IoResult<usize> {
    fill(buffer, offset, |rest, offset| rustix::io::pread(file, rest, offset))
}

/// Reads until `buffer` is full or nothing more comes, however little comes at once.
fn fill(buffer: &mut [u8], offset: u64, mut read: impl FnMut(&mut [u8], u64) -> IoResult<usize>) -> IoResult<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match read(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// RWF_DONTCACHE of Linux 6.14 (include/uapi/linux/fs.h): pages that this read brings into the page cache leave it
/// again; pages that were there stay.
const READ_DONT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// As [`read_full_at`], but leaves the page cache as it was where the kernel and the file system can; `supported`
/// remembers whether they can.
pub fn read_full_at_cache_neutral(
    file: BorrowedFd<'_>,
    buffer: &mut [u8],
    offset: u64,
    supported: &mut bool,
) -> IoResult<usize> {
    fill(buffer, offset, |rest, offset| {
        if *supported {
            match rustix::io::preadv2(file, &mut [IoSliceMut::new(rest)], offset, READ_DONT_CACHE) {
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => *supported = false,
                outcome => return outcome,
            }
        }
        rustix::io::pread(file, rest, offset)
    })
}

/// Writes all of `bytes` at `offset`.
pub fn write_all_at(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> IoResult<()> {
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::pwrite(file, &bytes[written..], offset + written as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reserves `size_bytes` of disk for a file, so that a full disk is seen before its content is written.
///
/// File systems that cannot reserve get the length only.
pub fn preallocate(file: BorrowedFd<'_>, size_bytes: u64) -> IoResult<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size_bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => rustix::fs::ftruncate(file, size_bytes),
        other => other,
    }
}

/// Makes a file's content and length durable.
pub fn sync_file(file: BorrowedFd<'_>) -> IoResult<()> {
    rustix::fs::fdatasync(file)
}

/// Makes a directory's entries durable.
pub fn sync_directory(path: &Path) -> IoResult<()> {
    rustix::fs::fsync(open_directory(path)?)
}

/// Makes everything written to the file system of `directory` durable, and reports write-back errors since it was
/// opened (Linux 5.8 and later).
pub fn sync_file_system(directory: BorrowedFd<'_>) -> IoResult<()> {
    rustix::fs::syncfs(directory)
}

/// Tells the kernel to begin writing a range and to drop what is written, without waiting.
pub fn start_write_back(file: BorrowedFd<'_>, offset: u64, length: u64) {
    // A hint: a file system that does not know it just writes later.
    rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(length), rustix::fs::Advice::DontNeed).ok();
}

/// Creates `path` and its missing parents with mode 0700, each entry durable.
pub fn create_directory_durable(path: &Path) -> IoResult<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create_directory_durable(parent)?;
    }
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) => sync_parent(path),
        Err(Errno::EXIST) if path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes the entry of `path` in its directory durable.
pub fn sync_parent(path: &Path) -> IoResult<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync_directory(Path::new(".")),
        Some(parent) => sync_directory(parent),
        None => Ok(()),
    }
}

/// Renames `from` to `to`, which must not be there yet, and makes the entry durable; the content must be synced before.
///
/// A file system without rename-exclusive (some network ones) gets a hard link and an unlink, which is as exclusive.
pub fn durable_rename_new(from: &Path, to: &Path) -> IoResult<()> {
    match rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, rustix::fs::RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::link(from, to)?;
            rustix::fs::unlink(from)?;
        }
        other => other?,
    }
    sync_parent(to)
}

/// Renames `from` over `to`, whether or not that is there. The new name need not survive a power failure.
pub fn rename_over(from: &Path, to: &Path) -> IoResult<()> {
    rustix::fs::rename(from, to)
}

/// Free bytes for this user on the file system of `path`.
pub fn free_bytes(path: &Path) -> IoResult<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Bytes of disk that the files below `path` take, on its file system; what cannot be looked at does not count.
pub fn disk_bytes_below(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(top) = std::fs::symlink_metadata(path) else { return 0 };
    let mut bytes = top.blocks() * 512;
    if top.is_dir() {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let below = entries
            .map(|entry| entry.path())
            .filter(|entry| std::fs::symlink_metadata(entry).is_ok_and(|metadata| metadata.dev() == top.dev()));
        bytes += below.map(|entry| disk_bytes_below(&entry)).sum::<u64>();
    }
    bytes
}

/// Takes an exclusive lock on an open file, without waiting; it ends with the process that holds it.
pub fn try_lock(file: &File) -> IoResult<bool> {
    match rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A file whose lock this process holds, until this is dropped.
#[derive(Debug)]
pub struct Locked(pub File);

impl Drop for Locked {
    fn drop(&mut self) {
        unlock(&self.0);
    }
}

/// Gives a lock back. Closing the file is not enough for that at once: a child that is just being started has a copy of the
/// descriptor until it executes its program, and the lock is the file's as long as any copy is open.
pub fn unlock(file: &File) {
    // A lock that stays for that moment is all that a failure means.
    rustix::fs::flock(file, rustix::fs::FlockOperation::Unlock).ok();
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// How many pages of memory `bytes` holds: bit 63 of each page's entry (Documentation/admin-guide/mm/pagemap.rst of Linux).
    fn held_pages(bytes: &[u8]) -> usize {
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let mut entries = vec![0; bytes.len() / ALIGNMENT_BYTES * 8];
        let first = bytes.as_ptr().addr() / ALIGNMENT_BYTES;
        assert_eq!(read_full_at(pagemap.as_fd(), &mut entries, first as u64 * 8).unwrap(), entries.len());
        entries.chunks(8).filter(|entry| entry[7] & 0x80 != 0).count()
    }

    #[test]
    fn a_block_that_nobody_fills_takes_no_memory_after_others_too() {
        const LENGTH: usize = 8 << 20;
        for round in 0..3 {
            let mut block = AlignedBytes::new(LENGTH).unwrap();
            assert!(block.len() == LENGTH && block.as_ptr().addr().is_multiple_of(ALIGNMENT_BYTES));
            assert_eq!(held_pages(&block), 0, "round {round}");
            assert!(block.iter().all(|byte| *byte == 0), "round {round}");
            block.fill(0xEE);
            assert_eq!(held_pages(&block), LENGTH / ALIGNMENT_BYTES);
        }
        assert!(AlignedBytes::new(0).unwrap().is_empty());
    }

    /// Reads of one byte and of any other number of bytes, with interruptions, give what one read gives.
    #[test]
    fn b08_short_reads_are_gone_on_with() {
        let (content, mut state): (Vec<u8>, u64) = ((0..10_000u32).map(|n| ((n * n) >> 5) as u8).collect(), 1);
        for longest in [1, 2, 7, 512, 20_000] {
            for (offset, length) in [(0, 10_000), (3, 4096), (9_990, 100), (10_000, 5), (20_000, 5)] {
                let (mut buffer, mut interrupted) = (vec![0xEE; length], false);
                let count = fill(&mut buffer, offset, |rest, at| {
                    interrupted = !interrupted;
                    if interrupted {
                        return Err(Errno::INTR);
                    }
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let left = &content[(at as usize).min(content.len())..];
                    let most = rest.len().min(left.len()).min(longest);
                    let count = if most > 1 { 1 + (state >> 33) as usize % most } else { most };
                    rest[..count].copy_from_slice(&left[..count]);
                    Ok(count)
                });
                let expected =
                    &content[content.len().min(offset as usize)..content.len().min(offset as usize + length)];
                let is_same = buffer[..expected.len()] == *expected;
                assert_eq!((count, is_same), (Ok(expected.len()), true), "at {offset}, at most {longest} bytes");
            }
        }
    }

    #[test]
    fn reads_stop_at_the_end_and_writes_are_whole() {
        let dir = tempfile::tempdir().unwrap();
        let directory = open_directory(dir.path()).unwrap();
        let file = create_below(directory.as_fd(), b"f", 0o600).unwrap();
        write_all_at(file.as_fd(), b"0123456789", 5).unwrap();
        let mut buffer = [9u8; 20];
        assert_eq!(read_full_at(file.as_fd(), &mut buffer, 0).unwrap(), 15);
        assert_eq!(&buffer[..15], b"\0\0\0\0\x000123456789");
        assert_eq!(create_below(directory.as_fd(), b"f", 0o600).unwrap_err(), Errno::EXIST);
    }
}
