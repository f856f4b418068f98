//! A device of 200 MB/s for programs that know no throttle: a loop device over a file in memory, with the kernel's own
//! limit for block devices. All contestants write to it and read from it alike.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_tune::contestants::stopwatch::run_quietly;

use crate::results::mb_per_s;
use crate::setup::unwritable;

/// Bytes a second that it writes, and that it reads.
pub(crate) const BYTES_PER_S: u64 = 200_000_000;
/// In memory, so that the disk below is not measured too; several times what the largest contestant stores.
const IMAGE: &str = "/dev/shm/pagehaul-bench-device";
const IMAGE_BYTES: u64 = 3 << 30;
/// Limits of the whole system, by the number of the device. Groups of version 2 have none for the root.
const LIMITS: &str = "/sys/fs/cgroup/blkio/blkio.throttle";
/// More than this does not wait in memory to be written: a program that syncs at its end would else write only then.
const WAITING_BYTES_MAX: u64 = 32 << 20;
/// What it is tried with.
const TRIED_BYTES: u64 = 200_000_000;

/// The mounted device; it is taken away when this is dropped.
#[derive(Debug)]
pub(crate) struct Device {
    /// Where it is mounted.
    pub(crate) directory: PathBuf,
    name: String,
    /// How fast a plain write with a sync at the end was.
    pub(crate) write_mb_per_s: f64,
}

impl Device {
    /// Makes it and mounts it on `directory`.
    ///
    /// # Errors
    /// `Configuration` if this system does not let us, or knows no such limits.
    pub(crate) fn make(directory: &Path) -> Result<Self> {
        if !Path::new(&format!("{LIMITS}.write_bps_device")).exists() {
            return Err(failed("this system has no limits of block devices for all processes (blkio of cgroups v1)"));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(failed("it takes root"));
        }
        // What an interrupted run left.
        run_quietly(Command::new("umount").arg(directory)).ok();
        for left in run_quietly(Command::new("losetup").args(["-n", "-O", "NAME", "-j", IMAGE]))?.lines() {
            run_quietly(Command::new("losetup").args(["-d", left.trim()]))?;
        }
        std::fs::create_dir_all(directory).map_err(|cause| unwritable(directory, cause))?;
        File::create(IMAGE).and_then(|image| image.set_len(IMAGE_BYTES)).map_err(failed)?;
        let format = "lazy_itable_init=0,lazy_journal_init=0";
        run_quietly(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", "-E", format, IMAGE]))?;
        let name = run_quietly(Command::new("losetup").args(["-f", "--show", IMAGE]))?.trim().to_owned();
        let mut device = Device { directory: directory.to_owned(), name, write_mb_per_s: 0.0 };
        run_quietly(Command::new("mount").args(["-o", "noatime", &device.name]).arg(directory))?;
        device.limit(BYTES_PER_S, [("max_bytes", WAITING_BYTES_MAX), ("strict_limit", 1)]).map_err(failed)?;
        device.write_mb_per_s = device.tried().map_err(failed)?;
        Ok(device)
    }

    /// Bytes a second each way, 0 is no limit; and settings of what may wait to be written.
    fn limit(&self, bytes_per_s: u64, waiting: [(&str, u64); 2]) -> std::io::Result<()> {
        let block = Path::new("/sys/block").join(self.name.trim_start_matches("/dev/"));
        let number = std::fs::read_to_string(block.join("dev"))?;
        let number = number.trim();
        for way in ["write", "read"] {
            std::fs::write(format!("{LIMITS}.{way}_bps_device"), format!("{number} {bytes_per_s}\n"))?;
        }
        for (setting, value) in waiting {
            // Older kernels do not know all of them; then more waits, of everybody's.
            std::fs::write(Path::new("/sys/class/bdi").join(number).join(setting), value.to_string()).ok();
        }
        Ok(())
    }

    fn tried(&self) -> std::io::Result<f64> {
        let (path, piece) = (self.directory.join("tried"), vec![1; 1 << 20]);
        let (mut file, started) = (File::create(&path)?, Instant::now());
        let mut written = 0;
        while written < TRIED_BYTES {
            file.write_all(&piece)?;
            written += piece.len() as u64;
        }
        file.sync_all()?;
        let speed = mb_per_s(written, started.elapsed().as_secs_f64());
        std::fs::remove_file(&path)?;
        Ok(speed)
    }
}

fn failed(cause: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Configuration, "make a slow device", cause)
}

impl Drop for Device {
    fn drop(&mut self) {
        // They would stay with the number, for whoever gets it next.
        self.limit(0, [("strict_limit", 0), ("max_ratio", 100)]).ok();
        for command in [Command::new("umount").arg(&self.directory), Command::new("losetup").args(["-d", &self.name])] {
            if let Err(error) = run_quietly(command) {
                eprintln!("{error}");
            }
        }
        std::fs::remove_file(IMAGE).ok();
    }
}

/// Takes the files below `directory` out of the page cache, so that whoever reads them next reads the device. They must
/// have been synced.
///
/// # Errors
/// `Target`, naming what cannot be read.
pub(crate) fn forget(directory: &Path) -> Result<()> {
    let mut todo = vec![directory.to_owned()];
    while let Some(path) = todo.pop() {
        let entries = std::fs::read_dir(&path).map_err(|cause| unwritable(&path, cause))?;
        for entry in entries {
            let entry = entry.map_err(|cause| unwritable(&path, cause))?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(|cause| unwritable(&path, cause))?);
            if kind.is_dir() {
                todo.push(path);
            } else if kind.is_file() {
                File::open(&path)
                    .and_then(|file| Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?))
                    .map_err(|cause| unwritable(&path, cause))?;
            }
        }
    }
    Ok(())
}
