//! The read side alone: the source's files, read as the engine's readers do, the bytes thrown away.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use pagehaul_engine::error::Result;
use pagehaul_engine::io::{self, AlignedBytes};

use super::{Bounds, Watch};
use crate::figures::SpeedAt;
use crate::source_files::SourceFiles;
use crate::threads::{in_threads, thread_cpu_s};

/// A piece of a file.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: usize,
    offset: u64,
    length: usize,
}

/// Reads the source with each number of threads; the speeds in the same order.
///
/// Each number gets its own part of the source where that is large enough, so that it finds the page cache as the first
/// one did even where reading fills it.
///
/// # Errors
/// `Source` if a file cannot be read; `Interrupted`.
pub fn measure_read(
    source: &SourceFiles,
    thread_counts: &[u16],
    transfer_size_bytes: u32,
    bounds: &Bounds,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<SpeedAt>> {
    let places = places(source, u64::from(transfer_size_bytes));
    let total_bytes: u64 = places.iter().map(|place| place.length as u64).sum();
    let mut speeds = Vec::new();
    let mut from = 0;
    for &threads in thread_counts {
        let bytes_max = bounds.bytes_max.min(total_bytes);
        let chosen = from_place(&places, from, bytes_max);
        from = (from + chosen.len()) % places.len().max(1);
        let watch = Watch::new(bounds, cancelled, "measure the reading of the source");
        speeds.push(read_places(source, &chosen, threads, transfer_size_bytes, &watch)?);
    }
    Ok(speeds)
}

/// Pieces of all files, in order.
fn places(source: &SourceFiles, transfer_size_bytes: u64) -> Vec<Place> {
    let mut places = Vec::new();
    for (file, entry) in source.files.iter().enumerate() {
        for offset in (0..entry.size_bytes).step_by(transfer_size_bytes as usize) {
            let length = (entry.size_bytes - offset).min(transfer_size_bytes) as usize;
            places.push(Place { file, offset, length });
        }
    }
    places
}

/// `bytes_max` bytes of pieces from one on, round the end.
fn from_place(places: &[Place], from: usize, bytes_max: u64) -> Vec<Place> {
    let mut bytes = 0;
    let in_turn = places.iter().cycle().skip(from).take(places.len());
    let taken = in_turn.take_while(|place| {
        bytes += place.length as u64;
        bytes <= bytes_max
    });
    taken.copied().collect()
}

fn read_places(
    source: &SourceFiles,
    places: &[Place],
    threads: u16,
    transfer_size_bytes: u32,
    watch: &Watch<'_>,
) -> Result<SpeedAt> {
    let next = AtomicUsize::new(0);
    let done = in_threads(threads, |_| {
        let mut buffer = AlignedBytes::new(transfer_size_bytes as usize)?;
        let mut open: Option<(usize, Option<OwnedFd>)> = None;
        let (mut supported, mut bytes) = (true, 0);
        while let Some(place) = places.get(next.fetch_add(1, Relaxed)) {
            if !watch.goes_on(bytes)? {
                break;
            }
            if open.as_ref().is_none_or(|(file, _)| *file != place.file) {
                open = Some((place.file, source.open(place.file)?));
            }
            let Some((_, Some(descriptor))) = &open else { continue };
            let into = &mut buffer[..place.length];
            let length = io::read_full_at_cache_neutral(descriptor.as_fd(), into, place.offset, &mut supported)
                .map_err(|cause| source.read_error(place.file, cause))?;
            bytes += length as u64;
        }
        Ok(bytes)
    })?;
    Ok(done.speed(0.0))
}

/// Most files that are opened to learn what a file costs.
const FILES_MAX: usize = 2000;
/// Larger files are not opened for that: their bytes would be timed, not they.
const SMALL_FILE_BYTES: u64 = 16 * 1024;

/// CPU seconds that opening, looking at and closing a small file costs; None if there are no small files.
///
/// # Errors
/// `Source` if a file cannot be read.
pub fn measure_file_cost(source: &SourceFiles) -> Result<Option<f64>> {
    let small: Vec<usize> =
        (0..source.files.len()).filter(|file| source.files[*file].size_bytes <= SMALL_FILE_BYTES).collect();
    let step = small.len().div_ceil(FILES_MAX).max(1);
    let chosen: Vec<usize> = small.into_iter().step_by(step).collect();
    let mut buffer = AlignedBytes::new(SMALL_FILE_BYTES as usize)?;
    let (before, started) = (thread_cpu_s(), Instant::now());
    for &file in &chosen {
        if let Some(descriptor) = source.open(file)? {
            let size = io::size_bytes(descriptor.as_fd()).map_err(|cause| source.read_error(file, cause))?;
            let into = &mut buffer[..size.min(SMALL_FILE_BYTES) as usize];
            io::read_full_at(descriptor.as_fd(), into, 0).map_err(|cause| source.read_error(file, cause))?;
        }
        if started.elapsed().as_secs_f64() > 1.0 {
            return Ok(None);
        }
    }
    let spent_s = thread_cpu_s() - before;
    Ok((!chosen.is_empty()).then(|| spent_s / chosen.len() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_go_round_and_end_at_the_bound() {
        let places: Vec<Place> = (0..10).map(|file| Place { file, offset: 0, length: 100 }).collect();
        let files = |from, bytes| from_place(&places, from, bytes).iter().map(|place| place.file).collect::<Vec<_>>();
        assert_eq!(files(8, 300), [8, 9, 0]);
        assert_eq!(files(3, 10_000).len(), 10, "each once");
        assert_eq!(files(0, 99), Vec::<usize>::new());
    }
}
