//! The restore target alone: files written in the manner of a restore's file writers, then the file system synced.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::io::{self, AlignedBytes};
use rustix::io::Errno;

use super::{Bounds, Watch, allowed_bytes, grow};
use crate::figures::SpeedAt;
use crate::threads::{fill_random, in_threads, interrupted};

/// Files that are written at once, as a restore with several tables does.
const FILE_COUNT: u64 = 4;
/// Mode of the files, as the server's own.
const FILE_MODE: u32 = 0o600;

/// Writes files below `directory` with each number of threads; the speeds in the same order.
///
/// The directory must be there; a directory of its own is made in it, with `scratch_name`, and removed in all cases.
///
/// # Errors
/// `Target` if it cannot be written or has too little space; `Interrupted`.
pub fn measure_restore_target(
    directory: &Path,
    scratch_name: &str,
    thread_counts: &[u16],
    transfer_size_bytes: u32,
    bounds: &Bounds,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<SpeedAt>> {
    in_scratch(directory, scratch_name, |scratch| {
        let mut speeds = Vec::new();
        for &threads in thread_counts {
            let free = io::free_bytes(directory).ok();
            let place = directory.display().to_string();
            let bytes_max = allowed_bytes(bounds.bytes_max, free, &place, ErrorKind::Target)?;
            let bounds = Bounds { bytes_max, ..*bounds };
            speeds.push(grow(&bounds, |bytes| {
                let watch = Watch::new(&bounds, cancelled, "measure the restore target");
                write_files(scratch, threads, transfer_size_bytes, bytes, &watch)
            })?);
        }
        Ok(speeds)
    })
}

/// Runs `work` in a new directory that is removed afterwards.
fn in_scratch<T>(directory: &Path, name: &str, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let scratch = directory.join(name);
    std::fs::create_dir(&scratch).map_err(|cause| {
        Error::new(ErrorKind::Target, format!("make the scratch directory {}", scratch.display()), cause)
            .hint("the directory must be there, and this user must be allowed to write to it")
    })?;
    let result = work(&scratch);
    let removed = std::fs::remove_dir_all(&scratch)
        .map_err(|cause| Error::new(ErrorKind::Target, format!("remove {}", scratch.display()), cause));
    match (result, removed) {
        (Ok(value), Ok(())) => Ok(value),
        (Ok(_), Err(error)) => Err(error),
        (Err(mut error), removed) => {
            if let Err(later) = removed {
                error.attach(later);
            }
            Err(error)
        }
    }
}

/// One file, as a file writer opens it.
struct TargetFile {
    path: PathBuf,
    cached: OwnedFd,
    direct: Option<OwnedFd>,
}

impl TargetFile {
    fn create(scratch: &OwnedFd, directory: &Path, number: u64, size_bytes: u64) -> Result<Self> {
        let name = format!("file-{number}");
        let path = directory.join(&name);
        let failed = |cause| write_error(&path, cause);
        let cached = io::create_below(scratch.as_fd(), name.as_bytes(), FILE_MODE).map_err(failed)?;
        io::preallocate(cached.as_fd(), size_bytes).map_err(failed)?;
        let direct = io::open_below_for_direct_write(scratch.as_fd(), name.as_bytes());
        Ok(TargetFile { path, cached, direct })
    }

    /// Past the page cache where that can be; otherwise through it, with write-back begun at once.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let failed = |cause| write_error(&self.path, cause);
        if let Some(direct) = self.direct.as_ref().filter(|_| io::is_aligned(bytes, offset)) {
            match io::write_all_at(direct.as_fd(), bytes, offset) {
                // The flag was accepted at open, but this file system cannot write so.
                Err(Errno::INVAL) => {}
                other => return other.map_err(failed),
            }
        }
        io::write_all_at(self.cached.as_fd(), bytes, offset).map_err(failed)?;
        io::start_write_back(self.cached.as_fd(), offset, bytes.len() as u64);
        Ok(())
    }
}

fn write_error(path: &Path, cause: Errno) -> Error {
    Error::new(ErrorKind::Target, format!("write {}", path.display()), cause)
}

/// Writes `bytes` into files with `threads` threads that take piece after piece, and syncs the file system.
fn write_files(
    directory: &Path,
    threads: u16,
    transfer_size_bytes: u32,
    bytes: u64,
    watch: &Watch<'_>,
) -> Result<SpeedAt> {
    let failed = |cause| write_error(directory, cause);
    let piece = u64::from(transfer_size_bytes);
    let pieces_per_file = bytes.div_ceil(FILE_COUNT * piece).max(1);
    let scratch = io::open_directory(directory).map_err(failed)?;
    let create = |number| TargetFile::create(&scratch, directory, number, pieces_per_file * piece);
    let files = (0..FILE_COUNT).map(create).collect::<Result<Vec<_>>>()?;
    let mut buffer = AlignedBytes::new(transfer_size_bytes as usize)?;
    fill_random(&mut buffer, u64::from(threads));
    let next = AtomicU64::new(0);
    let done = in_threads(threads, |_| {
        let mut done = 0;
        loop {
            let number = next.fetch_add(1, Relaxed);
            let Some(file) = files.get((number / pieces_per_file) as usize) else { return Ok(done) };
            if !watch.goes_on(done)? {
                return Ok(done);
            }
            file.write(&buffer, number % pieces_per_file * piece)?;
            done += piece;
        }
    })?;
    let sync_started = Instant::now();
    io::sync_file_system(scratch.as_fd()).map_err(failed)?;
    let speed = done.speed(sync_started.elapsed().as_secs_f64());
    for file in files {
        std::fs::remove_file(&file.path)
            .map_err(|cause| Error::new(ErrorKind::Target, format!("remove {}", file.path.display()), cause))?;
    }
    Ok(speed)
}

/// Small files that are made to learn what a file costs, and their size: a page, as most of an empty cluster's.
const SMALL_FILES: u32 = 500;
const SMALL_FILE_BYTES: usize = 8192;

/// Seconds that a small file costs a restore below `directory`: created, written, closed, and its part of the sync.
///
/// # Errors
/// `Target` if it cannot be written; `Interrupted`.
pub fn measure_file_cost(directory: &Path, scratch_name: &str, cancelled: &(dyn Fn() -> bool + Sync)) -> Result<f64> {
    in_scratch(directory, scratch_name, |path| {
        let failed = |cause| write_error(path, cause);
        let scratch = io::open_directory(path).map_err(failed)?;
        // What others have not yet written is not ours to time.
        io::sync_file_system(scratch.as_fd()).map_err(failed)?;
        let started = Instant::now();
        for number in 0..SMALL_FILES {
            if cancelled() {
                return Err(interrupted("measure the cost of a file"));
            }
            let file = io::create_below(scratch.as_fd(), format!("small-{number}").as_bytes(), FILE_MODE);
            let file = file.map_err(failed)?;
            io::write_all_at(file.as_fd(), &[7; SMALL_FILE_BYTES], 0).map_err(failed)?;
        }
        io::sync_file_system(scratch.as_fd()).map_err(failed)?;
        Ok(started.elapsed().as_secs_f64() / f64::from(SMALL_FILES))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Bounds = Bounds { bytes_max: 24 << 20, time_max: std::time::Duration::from_secs(1) };

    fn is_empty(directory: &Path) -> bool {
        std::fs::read_dir(directory).unwrap().next().is_none()
    }

    #[test]
    fn files_are_written_timed_and_removed() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let speeds = measure_restore_target(dir.path(), "scratch", &[1, 2], 1 << 20, &SMALL, &|| false).unwrap();
        assert_eq!(speeds.iter().map(|speed| speed.threads).collect::<Vec<_>>(), [1, 2]);
        assert!(speeds.iter().all(|speed| speed.bytes_per_s > 0.0 && speed.cpu_s_per_byte > 0.0), "{speeds:?}");
        let cost = measure_file_cost(dir.path(), "scratch", &|| false).unwrap();
        assert!(cost > 0.0 && cost < 1.0, "{cost}");
        assert!(is_empty(dir.path()));
    }

    #[test]
    fn nothing_is_left_when_it_is_stopped() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let stopped = measure_restore_target(dir.path(), "scratch", &[2], 1 << 20, &SMALL, &|| true);
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
        assert!(is_empty(dir.path()));
    }

    #[test]
    fn a_directory_that_is_not_there_or_a_name_that_is_taken_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |directory: &Path| {
            measure_restore_target(directory, "scratch", &[1], 1 << 20, &SMALL, &|| false).unwrap_err().kind()
        };
        assert_eq!(refused(&dir.path().join("absent")), ErrorKind::Target);
        std::fs::create_dir(dir.path().join("scratch")).unwrap();
        std::fs::write(dir.path().join("scratch/precious"), "x").unwrap();
        assert_eq!(refused(dir.path()), ErrorKind::Target);
        assert!(dir.path().join("scratch/precious").exists(), "what others made stays");
    }
}
