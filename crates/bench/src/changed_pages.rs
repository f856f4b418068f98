//! The pages of a cluster, told apart by their digests: which have changed, what these come to compressed, and whether a
//! restored cluster has them.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pagehaul_engine::codec::{CodecSpec, new_encoder};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::format::checksum::xxh3;
use pagehaul_engine::source::postgres::path_class::{Fork, PathClass, classify};

use crate::workload::FileList;

const PAGE_BYTES: usize = 8192;
/// What is read at once.
const READ_BYTES: usize = 1 << 20;
/// Relations of users have numbers from here on; what the server itself writes now and then does not.
const FIRST_USER_NUMBER: u32 = 16_384;

/// A digest of each page of each relation, by the relation's path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PagePrints {
    pgdata: PathBuf,
    files: BTreeMap<Vec<u8>, Vec<u64>>,
}

/// What the changed pages come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangedPages {
    /// Pages of the whole cluster.
    pub(crate) all_pages: u64,
    /// Those that changed.
    pub(crate) pages: u64,
    /// All of them, put together and encoded frame by frame.
    pub(crate) stored_bytes: u64,
}

impl ChangedPages {
    /// Bytes of the changed pages.
    pub(crate) fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }
}

impl PagePrints {
    /// Reads all relations of the cluster in `pgdata`, which nobody writes to meanwhile.
    ///
    /// # Errors
    /// `Source`, naming the file.
    pub(crate) fn of(pgdata: &Path) -> Result<Self> {
        Self::of_files(pgdata, FileList::of(pgdata)?.files)
    }

    fn of_files(pgdata: &Path, paths: Vec<Vec<u8>>) -> Result<Self> {
        let mut prints = PagePrints { pgdata: pgdata.to_owned(), files: BTreeMap::new() };
        let mut buffer = vec![0; READ_BYTES];
        for path in paths {
            if !matches!(classify(&path), PathClass::Relation { .. }) {
                continue;
            }
            let (file, failed) = (open(pgdata, &path)?, |cause| unreadable(&path, cause));
            let mut pages = Vec::new();
            loop {
                let at = (pages.len() * PAGE_BYTES) as u64;
                let length = read_full(&file, &mut buffer, at).map_err(failed)?;
                pages.extend(buffer[..length].chunks(PAGE_BYTES).map(xxh3));
                if length < buffer.len() {
                    break;
                }
            }
            prints.files.insert(path, pages);
        }
        Ok(prints)
    }

    /// What has changed from these pages to `after`, encoded by `codec` in frames of its usual size.
    ///
    /// # Errors
    /// `Source`, naming the file; whatever the codec returns.
    pub(crate) fn changed(&self, after: &PagePrints, codec: CodecSpec) -> Result<ChangedPages> {
        let frame_bytes = codec.default_frame_size_bytes() as usize;
        let mut encoder = new_encoder(codec.without_decode_back(), frame_bytes)?;
        let (mut frame, mut stored) = (Vec::with_capacity(frame_bytes), vec![0; frame_bytes]);
        let mut found = ChangedPages { all_pages: 0, pages: 0, stored_bytes: 0 };
        let mut encode = |frame: &mut Vec<u8>| {
            let room = frame.len().saturating_sub(1);
            let length = encoder.encode(frame, &mut stored[..room])?.unwrap_or(frame.len());
            frame.clear();
            Ok::<u64, Error>(length as u64)
        };
        for (path, pages) in &after.files {
            found.all_pages += pages.len() as u64;
            let before = self.files.get(path).map(Vec::as_slice).unwrap_or_default();
            let file = open(&after.pgdata, path)?;
            for number in (0..pages.len()).filter(|number| before.get(*number) != pages.get(*number)) {
                let start = frame.len();
                frame.resize(start + PAGE_BYTES, 0);
                read_full(&file, &mut frame[start..], (number * PAGE_BYTES) as u64)
                    .map_err(|cause| unreadable(path, cause))?;
                found.pages += 1;
                if frame.len() == frame_bytes {
                    found.stored_bytes += encode(&mut frame)?;
                }
            }
        }
        if !frame.is_empty() {
            found.stored_bytes += encode(&mut frame)?;
        }
        Ok(found)
    }

    /// How many pages of users' tables and indexes another cluster has not, or has otherwise.
    pub(crate) fn missing_in(&self, other: &PagePrints) -> usize {
        let mut missing = 0;
        for (path, pages) in &self.files {
            let is_users = matches!(classify(path), PathClass::Relation { file_number, fork: Fork::Main, .. }
                if file_number >= FIRST_USER_NUMBER);
            let others = other.files.get(path).map(Vec::as_slice).unwrap_or_default();
            if is_users {
                missing += (0..pages.len()).filter(|number| others.get(*number) != pages.get(*number)).count();
            }
        }
        missing
    }
}

fn open(pgdata: &Path, path: &[u8]) -> Result<File> {
    File::open(pgdata.join(Path::new(std::ffi::OsStr::from_bytes(path)))).map_err(|cause| unreadable(path, cause))
}

fn unreadable(path: &[u8], cause: std::io::Error) -> Error {
    Error::new(ErrorKind::Source, format!("read {}", String::from_utf8_lossy(path)), cause)
}

/// Fills the beginning of `buffer` from `offset` on; gives how much there was.
fn read_full(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], offset + length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A little cluster: two relations of users, one of the server's, a file that has no pages.
    fn cluster(fill: &dyn Fn(u32, usize) -> u8) -> (tempfile::TempDir, PagePrints) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("base/5")).unwrap();
        std::fs::write(directory.path().join("PG_VERSION"), b"17\n").unwrap();
        let mut paths = vec![b"PG_VERSION".to_vec()];
        for (number, pages) in [(16_384_u32, 300), (16_385, 2), (1259, 2)] {
            let content: Vec<u8> = (0..pages).flat_map(|page| vec![fill(number, page); PAGE_BYTES]).collect();
            std::fs::write(directory.path().join(format!("base/5/{number}")), content).unwrap();
            paths.push(format!("base/5/{number}").into_bytes());
        }
        let prints = PagePrints::of_files(directory.path(), paths).unwrap();
        (directory, prints)
    }

    #[test]
    fn changed_pages_are_counted_compressed_and_looked_for() {
        let (_before, before) = cluster(&|_, page| page as u8);
        let (_after, after) = cluster(&|number, page| if number == 1259 || page == 299 { 77 } else { page as u8 });
        let codec: CodecSpec = "zstd:1".parse().unwrap();
        let changed = before.changed(&after, codec).unwrap();
        assert_eq!((changed.all_pages, changed.pages, changed.bytes()), (304, 3, 3 * 8192));
        assert!((1..8192).contains(&changed.stored_bytes), "{changed:?}");
        assert_eq!(before.changed(&before, codec).unwrap().stored_bytes, 0);
        assert_eq!((after.missing_in(&before), after.missing_in(&after)), (1, 0), "the server's own do not count");
        let raw = before.changed(&after, "none".parse().unwrap()).unwrap();
        assert_eq!(raw.stored_bytes, raw.bytes());
    }
}
