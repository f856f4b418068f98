//! The files that a backup reads, in the order in which it reads them, and the calls of the baseline processes.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::postgres::data_directory::{EntryKind, scan};
use serde::{Deserialize, Serialize};

use crate::options::Work;
use crate::setup::{Setup, unwritable};
use pagehaul_tune::contestants::stopwatch::Cost;

/// The files of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileList {
    pub(crate) pgdata: PathBuf,
    /// Relative paths.
    pub(crate) files: Vec<Vec<u8>>,
    pub(crate) bytes: u64,
}

impl FileList {
    /// What a backup of `pgdata` holds: first what lies directly in it and the shared catalogs, then the rest by name.
    ///
    /// # Errors
    /// `Source` if it cannot be read.
    pub(crate) fn of(pgdata: &Path) -> Result<Self> {
        let mut list = FileList { pgdata: pgdata.to_owned(), ..FileList::default() };
        scan(pgdata, &mut |entry| {
            if entry.kind == EntryKind::File {
                list.bytes += entry.size_bytes;
                list.files.push(entry.path);
            }
            Ok(())
        })?;
        list.files.sort_by_key(|path| path.contains(&b'/') && !path.starts_with(b"global/"));
        Ok(list)
    }

    /// Writes it down for a baseline process.
    ///
    /// # Errors
    /// `Target`, naming the file.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let lines = std::iter::once(self.pgdata.as_os_str().as_bytes()).chain(self.files.iter().map(Vec::as_slice));
        let text: Vec<u8> = lines.flat_map(|line| [line, b"\n"].concat()).collect();
        std::fs::write(path, text).map_err(|cause| unwritable(path, cause))
    }

    /// Reads it back, in the baseline process; sizes are those of now.
    ///
    /// # Errors
    /// `Configuration` if it is not there.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path)
            .map_err(|cause| Error::new(ErrorKind::Configuration, format!("read {}", path.display()), cause))?;
        let mut lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec);
        let pgdata = PathBuf::from(std::ffi::OsString::from_vec(lines.next().unwrap_or_default()));
        Ok(FileList { pgdata, files: lines.collect(), bytes: 0 })
    }
}

/// What a baseline process says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct WorkDone {
    /// Wall time of the threads.
    pub(crate) elapsed_s: f64,
    /// Bytes that went through.
    pub(crate) bytes: u64,
    /// Bytes that came out.
    pub(crate) stored_bytes: u64,
    /// Speed of all threads together in the timed part alone.
    pub(crate) mb_per_s: f64,
    /// The same for undoing it, where that was measured.
    pub(crate) undo_mb_per_s: f64,
    /// Mean time to undo one frame.
    pub(crate) undo_frame_us: f64,
    /// CPU seconds of the process.
    pub(crate) cpu_s: f64,
    /// Single parts, by name: speed of all threads together.
    pub(crate) parts_mb_per_s: Vec<(String, f64)>,
}

/// Runs a baseline in a process of its own, as the owner of the cluster.
///
/// # Errors
/// `Configuration` with its words.
pub(crate) fn work(setup: &Setup, work: Work, threads: u16, more: &[String]) -> Result<(Cost, WorkDone)> {
    let name = match work {
        Work::Read => "read",
        Work::EncodeSample => "encode-sample",
        Work::EncodeAll => "encode-all",
        Work::Check => "check",
        Work::DecodeChunks => "decode-chunks",
    };
    work_on(setup, name, threads, &setup.file_list, more)
}

/// Runs the baseline `name` on the files of `list`.
///
/// # Errors
/// As [`work`].
pub(crate) fn work_on(
    setup: &Setup,
    name: &str,
    threads: u16,
    list: &Path,
    more: &[String],
) -> Result<(Cost, WorkDone)> {
    let mut command = setup.owner().command(&setup.own_program, &setup.work);
    command.args(["worker", name, "--threads", &threads.to_string(), "--list"]).arg(list).args(more);
    let (cost, said) = setup.stopwatch.run(&mut command)?;
    let done = serde_json::from_str(&said)
        .map_err(|cause| Error::new(ErrorKind::Bug, format!("understand the baseline {name}"), cause))?;
    Ok((cost, done))
}

/// A plain parallel read of all files.
///
/// # Errors
/// As [`work`].
pub(crate) fn read(setup: &Setup, threads: u16) -> Result<(Cost, WorkDone)> {
    work(setup, Work::Read, threads, &[])
}
