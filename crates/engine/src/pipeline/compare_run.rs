//! One run that only reads: the digests of files as they are on disk, to compare them with those of a set.
//!
//! Every reader sums what it reads itself; there are no further stages. Pages that the cache holds are forgotten first
//! where that is possible, so that it is the disk that is compared and not what was once read from it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use rustix::io::Errno;

use super::buffer_pool::Piece;
use super::control::{Control, Progress};
use super::encode_run::{TICK, spawn};
use super::errands::Errand;
use super::file_writer::WriteRoot;
use super::stats::{Doing, PipelineStats, StageClock, StageMeter};
use super::work::{Claim, WorkFeed};
use super::{LiveView, PipelineSettings, Tick};
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::{combine, crc32c};
use crate::format::file_table::FileTable;
use crate::io::{self, AlignedBytes};
use crate::terms::FileId;

/// Stands for "could not be read in full": no CRC32C has so many bits.
const UNKNOWN: u64 = u64::MAX;
/// Beside a sum: the piece is right and stays.
const KEPT: u64 = 1 << 32;

/// What is compared.
pub struct CompareInput<'a> {
    /// Counts and sizes; as many threads as readers and decoders together, each with one transfer buffer.
    pub settings: PipelineSettings,
    /// Where the files are.
    pub root: &'a WriteRoot,
    /// What they ought to be.
    pub table: &'a FileTable,
    /// Which of them.
    pub files: Vec<FileId>,
    /// Counters for the display.
    pub progress: &'a Progress,
}

/// CRC32C of pieces of files, cut at multiples of the frame size.
#[derive(Debug)]
pub struct OldSums {
    /// Where each file's pieces start in `sums`; files that were not compared have none.
    starts: Vec<u64>,
    sums: Vec<AtomicU64>,
    frame_size_bytes: u64,
}

impl OldSums {
    fn new(table: &FileTable, files: &[FileId], frame_size_bytes: u32) -> Self {
        let frame_size_bytes = u64::from(frame_size_bytes);
        let mut counts = vec![0u64; table.entries().len() + 1];
        for file in files {
            counts[file.0 as usize] = table.entry(*file).size_bytes.div_ceil(frame_size_bytes);
        }
        let mut total = 0;
        let starts = counts.iter().map(|count| {
            let start = total;
            total += count;
            start
        });
        let starts = starts.collect();
        let sums = std::iter::repeat_with(|| AtomicU64::new(UNKNOWN)).take(total as usize).collect();
        OldSums { starts, sums, frame_size_bytes }
    }

    fn set(&self, piece: &Piece, crc: u32) {
        let position = self.starts[piece.file.0 as usize] + piece.file_offset / self.frame_size_bytes;
        if piece.length > 0 {
            self.sums[position as usize].store(u64::from(crc), Relaxed);
        }
    }

    fn of_file(&self, file: FileId) -> &[AtomicU64] {
        &self.sums[self.starts[file.0 as usize] as usize..self.starts[file.0 as usize + 1] as usize]
    }

    /// CRC32C of `length` bytes at `offset` of `file`; None if these are not whole pieces, or were not there.
    pub fn range(&self, table: &FileTable, file: FileId, offset: u64, length: u64) -> Option<u32> {
        let sums = self.of_file(file).get(self.pieces_of(table, file, offset, length)?)?;
        sums.iter().enumerate().try_fold(0, |whole, (number, sum)| {
            let own = (length - number as u64 * self.frame_size_bytes).min(self.frame_size_bytes);
            Some(combine(whole, u32::try_from(sum.load(Relaxed)).ok()?, own))
        })
    }

    /// The numbers of the pieces that a range of a file is made of.
    fn pieces_of(&self, table: &FileTable, file: FileId, offset: u64, length: u64) -> Option<std::ops::Range<usize>> {
        let (step, end) = (self.frame_size_bytes, offset + length);
        let is_whole = offset.is_multiple_of(step) && (end.is_multiple_of(step) || end == table.entry(file).size_bytes);
        is_whole.then_some((offset / step) as usize..end.div_ceil(step) as usize)
    }

    /// CRC32C of the file's first bytes, as many as the table says it has; None if it has not so many.
    pub fn whole(&self, table: &FileTable, file: FileId) -> Option<u32> {
        self.range(table, file, 0, table.entry(file).size_bytes)
    }

    /// Notes that a range of whole pieces of `file` stays.
    pub fn keep(&mut self, table: &FileTable, file: FileId, offset: u64, length: u64) {
        let Some(pieces) = self.pieces_of(table, file, offset, length) else { return };
        let start = self.starts[file.0 as usize] as usize;
        for sum in self.sums[start + pieces.start..start + pieces.end].iter_mut().map(AtomicU64::get_mut) {
            *sum |= KEPT;
        }
    }

    /// Offset, length and CRC32C of the file's pieces that stay.
    pub fn kept_pieces(&self, table: &FileTable, file: FileId) -> impl Iterator<Item = (u64, u64, u32)> {
        let (size_bytes, step) = (table.entry(file).size_bytes, self.frame_size_bytes);
        self.of_file(file).iter().enumerate().filter_map(move |(number, sum)| {
            let (offset, sum) = (number as u64 * step, sum.load(Relaxed));
            (sum != UNKNOWN && sum & KEPT != 0).then_some((offset, (size_bytes - offset).min(step), sum as u32))
        })
    }

    /// Memory for the files of `table`, for the ceiling.
    pub fn memory_bytes(table: &FileTable, frame_size_bytes: u32) -> u64 {
        let pieces = table.content_bytes() / u64::from(frame_size_bytes) + table.entries().len() as u64;
        (pieces + table.entries().len() as u64) * size_of::<u64>() as u64
    }
}

/// Reads the files and sums their pieces; one that is not there, or shorter, has pieces that are not known.
///
/// # Errors
/// `Target`, naming the file that cannot be read; those of `tick`. All threads have ended when this returns.
pub fn run_compare(input: &CompareInput<'_>, tick: Tick<'_>) -> Result<OldSums> {
    let (settings, started) = (&input.settings, Instant::now());
    let sums = OldSums::new(input.table, &input.files, settings.frame_size_bytes);
    let threads = u32::from(settings.readers + settings.encoders).min(settings.buffer_count) as u16;
    let feed =
        WorkFeed::new(input.table, vec![input.files.clone()], settings.frame_size_bytes, settings.transfer_size_bytes);
    let (control, meter) = (Control::new(usize::from(threads)), StageMeter::default());
    let stage = Comparison { input, feed: &feed, sums: &sums, control: &control, meter: &meter };
    let nothing = || ();
    std::thread::scope(|scope| {
        for number in 0..usize::from(threads) {
            let stage = &stage;
            spawn(scope, "comparing reader", &control, &nothing, move || stage.run(number));
        }
        control.supervise(TICK, &nothing, &mut || {
            let elapsed_s = started.elapsed().as_secs_f64();
            let stats = PipelineStats { first: meter.stats(threads), elapsed_s, ..PipelineStats::default() };
            let overdue = control.overdue(&|errand| errand.text(Some(input.table)));
            tick(&LiveView { progress: input.progress, stats, overdue })
        });
    });
    control.into_result()?;
    Ok(sums)
}

/// What all threads of a comparison share.
struct Comparison<'a> {
    input: &'a CompareInput<'a>,
    feed: &'a WorkFeed,
    sums: &'a OldSums,
    control: &'a Control,
    meter: &'a StageMeter,
}

impl Comparison<'_> {
    fn run(&self, number: usize) {
        let mut clock = StageClock::start(self.meter);
        let post = self.control.post();
        let mut bytes = match AlignedBytes::new(self.input.settings.transfer_size_bytes as usize) {
            Ok(bytes) => bytes,
            Err(cause) => return self.control.fail(cause),
        };
        let (mut planned, mut cache_neutral) = (Vec::new(), true);
        let mut open: Option<(FileId, Option<OwnedFd>)> = None;
        while !self.control.stopped() {
            planned.clear();
            if self.feed.claim(self.input.table, number, &mut planned) == Claim::Done {
                return;
            }
            let mut read = 0;
            for piece in &planned {
                let into = &mut bytes[..piece.length as usize];
                let errand = Errand::ReadTargetFile(piece.file);
                match post.during(errand, || self.read(piece, into, &mut open, &mut cache_neutral)) {
                    Ok(true) => self.sums.set(piece, crc32c(into)),
                    Ok(false) => {}
                    Err(cause) => return self.control.fail(self.error(piece, cause)),
                }
                read += u64::from(piece.length);
            }
            clock.passed(read);
            self.input.progress.done_bytes.fetch_add(read, Relaxed);
            clock.mark(Doing::Busy);
        }
    }

    /// Fills `into` from the file; false if it does not have so many bytes there.
    fn read(
        &self,
        piece: &Piece,
        into: &mut [u8],
        open: &mut Option<(FileId, Option<OwnedFd>)>,
        cache_neutral: &mut bool,
    ) -> io::IoResult<bool> {
        if open.as_ref().is_none_or(|(file, _)| *file != piece.file) {
            let (directory, path) = self.input.root.locate(self.input.table.path(piece.file));
            let opened = match io::open_regular_below(directory, path) {
                Ok(file) => Some(file),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL) => None,
                Err(cause) => return Err(cause),
            };
            opened.as_ref().inspect(|file| io::drop_cached_pages(file.as_fd()));
            *open = Some((piece.file, opened));
        }
        let Some((_, Some(file))) = open else { return Ok(false) };
        let length = io::read_full_at_cache_neutral(file.as_fd(), into, piece.file_offset, cache_neutral);
        Ok(length? == into.len())
    }

    fn error(&self, piece: &Piece, cause: Errno) -> Error {
        let path = self.input.table.path_text(piece.file);
        let action = format!("read {path} in the target at byte {}", piece.file_offset);
        Error::new(ErrorKind::Target, action, cause)
            .hint("remove that file and run the restore again, or restore into an empty directory")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::file_table::EntryKind;

    #[test]
    fn sums_are_those_of_pieces_and_whole_files() {
        let directory = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..200_000u32).map(|number| (number / 7) as u8).collect();
        std::fs::write(directory.path().join("large"), &content).unwrap();
        std::fs::write(directory.path().join("short"), b"abc").unwrap();
        std::os::unix::fs::symlink("large", directory.path().join("link")).unwrap();
        let mut table = FileTable::default();
        let mut add = |name: &str, size| table.push(name.as_bytes(), b"", EntryKind::File, 0o600, 0, size).unwrap();
        let files = vec![add("large", 200_000), add("short", 4), add("link", 200_000), add("gone", 1), add("none", 0)];
        let root = WriteRoot {
            directory: io::open_directory(directory.path()).unwrap(),
            mounts: Vec::new(),
            owner: None,
            frame_size_bytes: 65_536,
            zeros_are_holes: false,
        };
        let settings = PipelineSettings {
            readers: 2,
            encoders: 1,
            writers: 1,
            buffer_count: 4,
            transfer_size_bytes: 131_072,
            frame_size_bytes: 65_536,
            max_rate_bytes_per_s: None,
        };
        let progress = Progress::default();
        let input = CompareInput { settings, root: &root, table: &table, files: files.clone(), progress: &progress };
        let mut sums = run_compare(&input, &mut |_| Ok(())).unwrap();
        assert_eq!(sums.whole(&table, files[0]), Some(crc32c(&content)));
        assert_eq!(sums.range(&table, files[0], 65_536, 65_536), Some(crc32c(&content[65_536..131_072])));
        assert_eq!(
            sums.range(&table, files[0], 65_536, 131_072),
            Some(crc32c(&content[65_536..196_608])),
            "two pieces"
        );
        assert_eq!(sums.range(&table, files[0], 196_608, 3392), Some(crc32c(&content[196_608..])));
        assert_eq!(sums.range(&table, files[0], 65_536, 8192), None, "not a whole piece");
        assert_eq!(sums.range(&table, files[0], 8192, 65_536), None, "not at a piece's start");
        for file in &files[1..4] {
            assert_eq!(sums.whole(&table, *file), None, "{}", table.path_text(*file));
        }
        sums.keep(&table, files[0], 131_072, 68_928);
        let kept: Vec<_> = sums.kept_pieces(&table, files[0]).collect();
        let crcs = (crc32c(&content[131_072..196_608]), crc32c(&content[196_608..]));
        assert_eq!(kept, [(131_072, 65_536, crcs.0), (196_608, 3392, crcs.1)]);
    }
}
