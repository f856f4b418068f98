//! The identity of a file's content, without reading it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A write within so long of the one before it may leave the same time: the kernel's clock for files ticks every 10 ms
/// at most.
const CLOCK_TICK: Duration = Duration::from_millis(20);

/// As long as it is equal, so is the content: every write, truncation and rename sets the inode's time, which nobody
/// else can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileStamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of the file at `path` now, if there is one.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
        Some(FileStamp {
            device: file.dev(),
            inode: file.ino(),
            size_bytes: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }

    /// Whether a change from now on is sure to show.
    pub(super) fn is_settled(&self) -> bool {
        let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(self.changed.0), u32::try_from(self.changed.1)) else {
            return false;
        };
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        // A time in the future says that the clock was set back: nothing is sure.
        SystemTime::now().duration_since(changed).is_ok_and(|age| age >= CLOCK_TICK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_happens_to_a_file_shows() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("segment");
        std::fs::write(&path, b"one").unwrap();
        assert!(!FileStamp::of(&path).unwrap().is_settled(), "it was written this instant");
        let changes: [&dyn Fn(); 5] = [
            &|| std::fs::write(&path, b"two").unwrap(),
            // The old times are put back, as rsync and touch do.
            &|| {
                let times = std::fs::metadata(&path).unwrap();
                std::fs::write(&path, b"six").unwrap();
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                file.set_modified(times.modified().unwrap()).unwrap();
            },
            &|| std::fs::rename(&path, directory.path().join("recycled")).unwrap(),
            &|| std::fs::rename(directory.path().join("recycled"), &path).unwrap(),
            &|| {
                std::fs::copy(&path, directory.path().join("copy")).unwrap();
                std::fs::rename(directory.path().join("copy"), &path).unwrap();
            },
        ];
        for (number, change) in changes.iter().enumerate() {
            std::thread::sleep(2 * CLOCK_TICK);
            let before = FileStamp::of(&path);
            assert!(before.is_none_or(|stamp| stamp.is_settled()));
            assert_eq!(FileStamp::of(&path), before);
            change();
            assert_ne!(FileStamp::of(&path), before, "change {number}");
        }
        assert!(FileStamp::of(directory.path()).is_none(), "a directory is no segment");
    }
}
