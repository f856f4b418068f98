//! The stripes' targets alone: objects written through the engine's own storage, made durable, and read back.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::io::AlignedBytes;
use pagehaul_engine::storage::{ObjectWriter, Storage, open_storage};

use super::page_cache::{drop_file_cache, files_cache};
use super::{Bounds, Watch, allowed_bytes, grow};
use crate::figures::{CacheState, SpeedAt};
use crate::threads::{fill_random, in_threads};

/// What is measured, and where.
pub struct StripeBench<'a> {
    /// Stores as `--repo` and `--stripe-to` take them; stripes go round them.
    pub targets: &'a [String],
    /// Below which the objects are made, in every target; the caller's own, so that nothing else lies there.
    pub scratch_prefix: &'a str,
    /// Bytes of one append or read.
    pub transfer_size_bytes: u32,
    /// Of each measurement.
    pub bounds: Bounds,
    /// Asked between pieces.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// Speeds of the targets, by number of stripes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StripeSpeeds {
    /// Writing, durable, one thread a stripe.
    pub write: Vec<SpeedAt>,
    /// Reading back, one thread a stripe; empty for targets that keep nothing.
    pub read: Vec<SpeedAt>,
    /// Whether the stripes were cached when they were read back.
    pub read_cache: CacheState,
}

impl StripeBench<'_> {
    /// Measures each number of stripes; everything written is deleted, also after an error.
    ///
    /// # Errors
    /// Those of the storage; `Repository` if there is too little space; `Interrupted`.
    pub fn measure(&self, stripe_counts: &[u16]) -> Result<StripeSpeeds> {
        let stores = self.targets.iter().map(|target| open_storage(target)).collect::<Result<Vec<_>>>()?;
        if stores.is_empty() {
            return Err(Error::new(ErrorKind::Usage, "measure the stripes' targets", "there are none"));
        }
        let mut speeds = StripeSpeeds::default();
        for &stripes in stripe_counts {
            self.measure_count(&stores, stripes, &mut speeds)?;
        }
        Ok(speeds)
    }

    fn measure_count(&self, stores: &[Box<dyn Storage>], stripes: u16, speeds: &mut StripeSpeeds) -> Result<()> {
        let mut bounds = self.bounds;
        for store in stores {
            bounds.bytes_max =
                allowed_bytes(bounds.bytes_max, store.free_bytes(), &store.describe(), ErrorKind::Repository)?;
        }
        let mut round = 0;
        // What is read back is the last, largest round.
        let mut measured = grow(&bounds, |bytes| {
            self.delete(stores, stripes, round)?;
            round += 1;
            self.write(stores, stripes, round, bytes)
        });
        if let Ok(write) = &measured
            && !stores.iter().any(|store| store.discards())
        {
            let read = self.read_back(stores, stripes, round, &mut speeds.read_cache);
            match read {
                Ok(read) => {
                    speeds.write.push(*write);
                    speeds.read.push(read);
                }
                Err(error) => measured = Err(error),
            }
        } else if let Ok(write) = &measured {
            speeds.write.push(*write);
        }
        let deleted = self.delete(stores, stripes, round);
        measured.map(drop).and(deleted)
    }

    fn name(&self, stripe: usize, round: u32) -> String {
        format!("{}/stripe-{round}-{stripe}", self.scratch_prefix)
    }

    /// Writes `bytes` over all stripes, from one thread each.
    fn write(&self, stores: &[Box<dyn Storage>], stripes: u16, round: u32, bytes: u64) -> Result<SpeedAt> {
        let mut buffer = AlignedBytes::new(self.transfer_size_bytes as usize)?;
        fill_random(&mut buffer, u64::from(round));
        // Made before the clock starts: a backup creates its stripes before its data path.
        let create = |stripe: usize| {
            let object = stores[stripe % stores.len()].create(&self.name(stripe, round), 0)?;
            Ok(Mutex::new(Some(object)))
        };
        let objects = (0..usize::from(stripes)).map(create).collect::<Result<Vec<Mutex<Option<_>>>>>()?;
        let watch = Watch::new(&self.bounds, self.cancelled, "measure the writing of stripes");
        let each = bytes.div_ceil(u64::from(stripes));
        let done = in_threads(stripes, |stripe| {
            let object = objects[stripe].lock().ok().and_then(|mut object| object.take());
            object.map_or(Ok(0), |object| fill(object, &buffer, each, &watch))
        })?;
        Ok(done.speed(0.0))
    }

    /// Reads the stripes of a round, one thread each.
    fn read_back(
        &self,
        stores: &[Box<dyn Storage>],
        stripes: u16,
        round: u32,
        cache: &mut CacheState,
    ) -> Result<SpeedAt> {
        let names: Vec<String> = (0..usize::from(stripes)).map(|stripe| self.name(stripe, round)).collect();
        let local: Vec<PathBuf> =
            names.iter().enumerate().filter_map(|(stripe, name)| self.local_path(stripe, name)).collect();
        for file in local.iter().filter_map(|path| std::fs::File::open(path).ok()) {
            use std::os::fd::AsFd;
            drop_file_cache(file.as_fd());
        }
        *cache = files_cache(local.iter().map(PathBuf::as_path));
        let watch = Watch::new(&self.bounds, self.cancelled, "measure the reading of stripes");
        let done = in_threads(stripes, |stripe| {
            let store = &stores[stripe % stores.len()];
            let gone = || {
                let action = format!("read {} in {}", names[stripe], store.describe());
                Error::new(ErrorKind::Repository, action, "it was written a moment ago and is gone")
            };
            let object = store.open(&names[stripe])?.ok_or_else(gone)?;
            let mut buffer = AlignedBytes::new(self.transfer_size_bytes as usize)?;
            let mut offset = 0;
            while offset < object.size_bytes() && watch.goes_on(offset)? {
                let length = (object.size_bytes() - offset).min(u64::from(self.transfer_size_bytes)) as usize;
                object.read_at(&mut buffer[..length], offset)?;
                offset += length as u64;
            }
            Ok(offset)
        })?;
        Ok(done.speed(0.0))
    }

    /// Where an object lies if its target is a directory.
    fn local_path(&self, stripe: usize, name: &str) -> Option<PathBuf> {
        let path = Path::new(&self.targets[stripe % self.targets.len()]).join(name);
        path.is_file().then_some(path)
    }

    /// Deletes the objects of a round and the prefix; the first error is the result, and all are tried.
    fn delete(&self, stores: &[Box<dyn Storage>], stripes: u16, round: u32) -> Result<()> {
        let mut result = Ok(());
        for stripe in 0..usize::from(stripes) {
            let deleted = stores[stripe % stores.len()].delete(&self.name(stripe, round));
            result = result.and(deleted);
        }
        for store in
            stores.iter().filter(|store| matches!(store.list(self.scratch_prefix), Ok(names) if names.is_empty()))
        {
            result = result.and(store.remove_prefix(self.scratch_prefix));
        }
        result
    }
}

/// Appends `bytes` in pieces of the buffer's size and makes them durable; gives how many that were.
fn fill(mut object: Box<dyn ObjectWriter>, buffer: &AlignedBytes, bytes: u64, watch: &Watch<'_>) -> Result<u64> {
    let mut done = 0;
    while done < bytes && watch.goes_on(done)? {
        object.append(buffer)?;
        done += buffer.len() as u64;
    }
    object.finish()?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench<'a>(targets: &'a [String], cancelled: &'a (dyn Fn() -> bool + Sync)) -> StripeBench<'a> {
        let bounds = Bounds { bytes_max: 24 << 20, ..Bounds::default() };
        StripeBench { targets, scratch_prefix: "scratch/own", transfer_size_bytes: 1 << 20, bounds, cancelled }
    }

    fn left_over(directory: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { found.extend(left_over(&path)) } else { found.push(path) }
        }
        found
    }

    #[test]
    fn stripes_are_written_over_all_targets_read_back_and_removed() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let targets: Vec<String> = ["a", "b"].map(|name| dir.path().join(name).display().to_string()).to_vec();
        let speeds = bench(&targets, &|| false).measure(&[1, 3]).unwrap();
        assert_eq!(speeds.write.iter().map(|speed| speed.threads).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(speeds.read.len(), 2);
        for speed in speeds.write.iter().chain(&speeds.read) {
            assert!(
                speed.bytes_per_s > 0.0 && speed.bytes_per_s.is_finite() && speed.cpu_s_per_byte > 0.0,
                "{speed:?}"
            );
        }
        assert_eq!(left_over(dir.path()), Vec::<PathBuf>::new());
        assert!(!dir.path().join("a/scratch/own").exists() && !dir.path().join("b/scratch/own").exists());
    }

    #[test]
    fn nothing_is_left_when_it_is_stopped() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let targets = [dir.path().display().to_string()];
        let calls = std::sync::atomic::AtomicU32::new(0);
        let cancelled = || calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 20;
        let error = bench(&targets, &cancelled).measure(&[2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        assert_eq!(left_over(dir.path()), Vec::<PathBuf>::new());
    }

    #[test]
    fn what_discards_is_written_and_not_read() {
        let speeds = bench(&["NUL".to_owned()], &|| false).measure(&[2]).unwrap();
        assert_eq!((speeds.write.len(), speeds.read.len()), (1, 0));
    }

    #[test]
    fn a_target_that_cannot_be_written_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let targets = [file.display().to_string()];
        assert_eq!(bench(&targets, &|| false).measure(&[1]).unwrap_err().kind(), ErrorKind::Repository);
        assert_eq!(bench(&[], &|| false).measure(&[1]).unwrap_err().kind(), ErrorKind::Usage);
    }
}
