//! The baselines: a plain read, the codec alone, the checks alone. Each runs in a process of its own, so that its CPU
//! time and memory can be told, and so that the process that measures stays small.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use pagehaul_engine::codec::{CodecId, CodecSpec, Decoder, Encoder, new_decoder, new_deflate_decoder, new_encoder};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::format::checksum::{crc32c, xxh3};
use pagehaul_engine::limits::{FRAME_SIZE_BYTES_DEFAULT, FRAME_SIZE_BYTES_MAX};
use pagehaul_engine::pipeline::usage::ProcessUsage;
use pagehaul_engine::source::postgres::page::PageJudge;
use pagehaul_engine::source::postgres::path_class::{PathClass, classify};
use pagehaul_engine::terms::Lsn;

use crate::bak_chunks::Chunks;
use crate::libwim::{self, Libwim};
use crate::options::{Work, WorkerOptions};
use crate::workload::{FileList, WorkDone};

/// What a plain read reads at once, as pagehaul's default transfer buffer.
const READ_BYTES: u64 = 1 << 20;
/// Pieces of the sample: the largest frames must be whole in them.
const SAMPLE_PIECE_BYTES: u64 = FRAME_SIZE_BYTES_MAX as u64;
/// How much of the data the sample holds.
const SAMPLE_BYTES: u64 = 256 << 20;
/// The sample is gone through at least so often and so long.
const PASSES_MIN: u32 = 3;
const SAMPLE_S_MIN: f64 = 2.0;
/// PostgreSQL's page, and how many of them a segment has.
const PAGE_BYTES: usize = 8192;
const PAGES_PER_SEGMENT: u32 = 131_072;

/// A piece of a file.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: usize,
    offset: u64,
    length: usize,
}

/// A piece in memory.
struct Loaded {
    bytes: Vec<u8>,
    /// Block number of its first page; None if it has no pages.
    first_block: Option<u32>,
}

/// What one thread did.
#[derive(Clone, Debug, Default)]
struct Share {
    bytes: u64,
    stored_bytes: u64,
    timed_s: f64,
    undo_s: f64,
    undone_frames: u64,
}

/// Does the work and prints one JSON document.
///
/// # Errors
/// `Source` if a file cannot be read; whatever codecs return.
pub(crate) fn run(options: &WorkerOptions) -> Result<()> {
    let list = FileList::read(&options.list)?;
    let done = match options.work {
        Work::Read => read(&list, options.threads)?,
        Work::EncodeAll => encode_all(&list, options)?,
        Work::EncodeSample => encode_sample(&load_sample(&list)?, options)?,
        Work::Check => check_sample(&load_sample(&list)?, options),
        Work::DecodeChunks => decode_chunks(&list, options.threads)?,
    };
    let usage = ProcessUsage::now();
    let done = WorkDone { cpu_s: usage.cpu_user_s + usage.cpu_system_s, ..done };
    let text = serde_json::to_string(&done)
        .map_err(|cause| Error::new(ErrorKind::Bug, "write the result of a baseline", cause))?;
    println!("{text}");
    Ok(())
}

/// All pieces of all files; files that are gone are left out.
fn places(list: &FileList, piece_bytes: u64) -> Vec<Place> {
    let mut places = Vec::new();
    for (file, path) in list.files.iter().enumerate() {
        let size_bytes = std::fs::metadata(full_path(list, path)).map_or(0, |metadata| metadata.len());
        for offset in (0..size_bytes).step_by(piece_bytes as usize) {
            places.push(Place { file, offset, length: (size_bytes - offset).min(piece_bytes) as usize });
        }
    }
    places
}

fn full_path(list: &FileList, path: &[u8]) -> std::path::PathBuf {
    list.pgdata.join(Path::new(std::ffi::OsStr::from_bytes(path)))
}

/// One thread's open file.
struct Reader<'a> {
    list: &'a FileList,
    open: Option<(usize, File)>,
}

impl Reader<'_> {
    /// Fills the beginning of `buffer`; gives how much there was.
    fn fill(&mut self, place: Place, buffer: &mut [u8]) -> Result<usize> {
        let path = &self.list.files[place.file];
        let failed = |cause| Error::new(ErrorKind::Source, format!("read {}", String::from_utf8_lossy(path)), cause);
        if self.open.as_ref().is_none_or(|(file, _)| *file != place.file) {
            self.open = Some((place.file, File::open(full_path(self.list, path)).map_err(failed)?));
        }
        let Some((_, file)) = &self.open else { return Ok(0) };
        let mut length = 0;
        while length < place.length {
            match file.read_at(&mut buffer[length..place.length], place.offset + length as u64).map_err(failed)? {
                0 => break,
                more => length += more,
            }
        }
        Ok(length)
    }
}

/// Runs `work` in `threads` threads at once; gives their shares and the wall time.
fn in_threads(threads: u16, work: impl Fn(usize) -> Result<Share> + Sync) -> Result<(Vec<Share>, f64)> {
    let barrier = Barrier::new(usize::from(threads));
    let started = Instant::now();
    let shares = std::thread::scope(|scope| {
        let spawn = |number| {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(number)
            })
        };
        let handles: Vec<_> = (0..usize::from(threads)).map(spawn).collect();
        let lost = || Err(Error::new(ErrorKind::Bug, "run a baseline thread", "it panicked"));
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(|_| lost())).collect::<Result<Vec<Share>>>()
    })?;
    Ok((shares, started.elapsed().as_secs_f64()))
}

/// Sums of all threads; the speed is the sum of theirs, so that one that ended first does not count as idle.
fn sum(shares: &[Share], elapsed_s: f64) -> WorkDone {
    let rate = |bytes: u64, seconds: f64| if seconds > 0.0 { bytes as f64 / 1e6 / seconds } else { 0.0 };
    let undo_s: f64 = shares.iter().map(|share| share.undo_s).sum();
    let frames: u64 = shares.iter().map(|share| share.undone_frames).sum();
    WorkDone {
        elapsed_s,
        bytes: shares.iter().map(|share| share.bytes).sum(),
        stored_bytes: shares.iter().map(|share| share.stored_bytes).sum(),
        mb_per_s: shares.iter().map(|share| rate(share.bytes, share.timed_s)).sum(),
        undo_mb_per_s: shares.iter().map(|share| rate(share.bytes, share.undo_s)).sum(),
        undo_frame_us: if frames > 0 { undo_s * 1e6 / frames as f64 } else { 0.0 },
        ..WorkDone::default()
    }
}

fn read(list: &FileList, threads: u16) -> Result<WorkDone> {
    let places = places(list, READ_BYTES);
    let next = AtomicUsize::new(0);
    let (shares, elapsed_s) = in_threads(threads, |_| {
        let mut reader = Reader { list, open: None };
        let mut buffer = vec![0u8; READ_BYTES as usize];
        let mut share = Share::default();
        let started = Instant::now();
        while let Some(place) = places.get(next.fetch_add(1, Relaxed)) {
            share.bytes += reader.fill(*place, &mut buffer)? as u64;
        }
        share.timed_s = started.elapsed().as_secs_f64();
        Ok(share)
    })?;
    let done = sum(&shares, elapsed_s);
    Ok(WorkDone { stored_bytes: 0, mb_per_s: done.bytes as f64 / 1e6 / elapsed_s, ..done })
}

/// A thread's codec; frames that are all zeros or do not get smaller count as in the pipeline.
struct Codec {
    encoder: Box<dyn Encoder>,
    decoder: Box<dyn Decoder>,
    frame_size: usize,
    stored: Vec<u8>,
    back: Vec<u8>,
}

impl Codec {
    fn new(options: &WorkerOptions) -> Result<Self> {
        let frame_size = frame_size(options)?;
        let (encoder, decoder) = coders(&options.compression, frame_size)?;
        let (stored, back) = (vec![0; frame_size], vec![0; frame_size]);
        Ok(Codec { encoder, decoder, frame_size, stored, back })
    }

    /// Encodes `bytes` frame by frame; with `undo` decodes each again, timed apart.
    fn go_through(&mut self, bytes: &[u8], share: &mut Share, undo: bool) -> Result<()> {
        let mut started = Instant::now();
        for frame in bytes.chunks(self.frame_size).filter(|frame| frame.iter().any(|byte| *byte != 0)) {
            let length = self.encoder.encode(frame, &mut self.stored[..frame.len() - 1])?;
            share.stored_bytes += length.unwrap_or(frame.len()) as u64;
            if let (Some(length), true) = (length, undo) {
                share.timed_s += started.elapsed().as_secs_f64();
                started = Instant::now();
                self.decoder.decode(&self.stored[..length], &mut self.back[..frame.len()])?;
                share.undo_s += started.elapsed().as_secs_f64();
                share.undone_frames += 1;
                started = Instant::now();
            }
        }
        share.timed_s += started.elapsed().as_secs_f64();
        share.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// The codec's own, if nobody asked for another.
fn frame_size(options: &WorkerOptions) -> Result<usize> {
    match options.frame_size {
        Some(frame_size) => Ok(frame_size),
        None if options.compression.starts_with(libwim::PREFIX) => Ok(FRAME_SIZE_BYTES_DEFAULT as usize),
        None => Ok(options.compression.parse::<CodecSpec>()?.default_frame_size_bytes() as usize),
    }
}

/// Of a codec of ours, or of `libwim:LEVEL`; deflate is decoded by the engine that was named.
fn coders(name: &str, frame_size: usize) -> Result<(Box<dyn Encoder>, Box<dyn Decoder>)> {
    if let Some(level) = name.strip_prefix(libwim::PREFIX) {
        let level = level.parse().map_err(|cause| Error::new(ErrorKind::Usage, format!("use {name}"), cause))?;
        return Ok((Box::new(Libwim::new(level)?), Box::new(Libwim::new(level)?)));
    }
    let spec: CodecSpec = name.parse()?;
    let decoder = match spec.codec() {
        CodecId::Deflate => new_deflate_decoder(spec.engine())?,
        codec => new_decoder(codec)?,
    };
    // What the library costs; a backup decodes back, too.
    Ok((new_encoder(spec.without_decode_back(), frame_size)?, decoder))
}

fn encode_all(list: &FileList, options: &WorkerOptions) -> Result<WorkDone> {
    let places = places(list, frame_size(options)? as u64);
    let next = AtomicUsize::new(0);
    let (shares, elapsed_s) = in_threads(options.threads, |_| {
        let mut reader = Reader { list, open: None };
        let (mut codec, mut share) = (Codec::new(options)?, Share::default());
        let mut buffer = vec![0u8; codec.frame_size];
        while let Some(place) = places.get(next.fetch_add(1, Relaxed)) {
            let length = reader.fill(*place, &mut buffer)?;
            codec.go_through(&buffer[..length], &mut share, false)?;
        }
        Ok(share)
    })?;
    Ok(sum(&shares, elapsed_s))
}

/// Every k-th full piece, up to the sample's size: of all parts of the data alike.
fn load_sample(list: &FileList) -> Result<Vec<Loaded>> {
    let places = places(list, SAMPLE_PIECE_BYTES);
    let full: Vec<Place> = places.iter().copied().filter(|place| place.length as u64 == SAMPLE_PIECE_BYTES).collect();
    let pool = if full.is_empty() { places } else { full };
    let step = pool.len().div_ceil((SAMPLE_BYTES / SAMPLE_PIECE_BYTES) as usize).max(1);
    let mut reader = Reader { list, open: None };
    let mut sample = Vec::new();
    for place in pool.into_iter().step_by(step) {
        let mut bytes = vec![0u8; place.length];
        let length = reader.fill(place, &mut bytes)?;
        bytes.truncate(length);
        let page = (place.offset / PAGE_BYTES as u64) as u32;
        let first_block = match classify(&list.files[place.file]) {
            PathClass::Relation { segment_number, .. } => Some(segment_number * PAGES_PER_SEGMENT + page),
            PathClass::Other => None,
        };
        sample.push(Loaded { bytes, first_block });
    }
    Ok(sample)
}

/// Goes through one thread's part of the sample until it has been gone through often and long enough.
fn passes(sample: &[Loaded], number: usize, threads: u16, mut each: impl FnMut(&Loaded) -> Result<()>) -> Result<()> {
    let (started, mut done) = (Instant::now(), 0);
    while done < PASSES_MIN || started.elapsed().as_secs_f64() < SAMPLE_S_MIN {
        for loaded in sample.iter().skip(number).step_by(usize::from(threads)) {
            each(loaded)?;
        }
        done += 1;
    }
    Ok(())
}

fn encode_sample(sample: &[Loaded], options: &WorkerOptions) -> Result<WorkDone> {
    let threads = options.threads;
    let (encoded, elapsed_s) = in_threads(threads, |number| {
        let (mut codec, mut share) = (Codec::new(options)?, Share::default());
        passes(sample, number, threads, |loaded| codec.go_through(&loaded.bytes, &mut share, false))?;
        Ok(share)
    })?;
    // Apart, so that decoding between frames does not cool the encoder's caches.
    let (decoded, _) = in_threads(threads, |number| {
        let (mut codec, mut share) = (Codec::new(options)?, Share::default());
        for loaded in sample.iter().skip(number).step_by(usize::from(threads)) {
            codec.go_through(&loaded.bytes, &mut share, true)?;
        }
        Ok(share)
    })?;
    let decoded = sum(&decoded, elapsed_s);
    Ok(WorkDone {
        undo_mb_per_s: decoded.undo_mb_per_s,
        undo_frame_us: decoded.undo_frame_us,
        ..sum(&encoded, elapsed_s)
    })
}

/// The decoder alone, on all chunks of the first file.
fn decode_chunks(list: &FileList, threads: u16) -> Result<WorkDone> {
    let Some(path) = list.files.first() else { return Ok(WorkDone::default()) };
    let chunks = Chunks::load(&full_path(list, path))?;
    let (shares, elapsed_s) = in_threads(threads, |number| {
        let (mut share, started) = (Share::default(), Instant::now());
        let mut done = 0;
        while done < PASSES_MIN || started.elapsed().as_secs_f64() < SAMPLE_S_MIN {
            share.bytes += chunks.decode(number, usize::from(threads))?;
            done += 1;
        }
        share.timed_s = started.elapsed().as_secs_f64();
        Ok(share)
    })?;
    Ok(WorkDone { stored_bytes: chunks.stored_bytes(), ..sum(&shares, elapsed_s) })
}

/// What the pipeline does to every frame besides encoding it.
fn check_sample(sample: &[Loaded], options: &WorkerOptions) -> WorkDone {
    let judge = PageJudge::new(PAGE_BYTES as u32, true, Lsn(0));
    let pages = |frame: &[u8], first_block: Option<u32>| {
        let Some(first_block) = first_block else { return 0 };
        let numbered = frame.chunks_exact(PAGE_BYTES).enumerate();
        numbered
            .map(|(number, page)| {
                u64::from(matches!(
                    judge.judge(page, first_block + number as u32, Lsn(u64::MAX)),
                    pagehaul_engine::source::postgres::page::PageVerdict::Suspect(_)
                ))
            })
            .sum()
    };
    let parts: [(&str, &Part<'_>); 4] = [
        ("page checks", &pages),
        ("CRC32C", &|frame, _| u64::from(crc32c(frame))),
        ("XXH3", &|frame, _| xxh3(frame)),
        ("page checks and CRC32C", &|frame, block| pages(frame, block) ^ u64::from(crc32c(frame))),
    ];
    let mut done = WorkDone::default();
    for (name, part) in parts {
        let rate = check_rate(sample, options, part);
        done.parts_mb_per_s.push((name.to_owned(), rate));
        done.mb_per_s = rate;
    }
    done.bytes = sample.iter().map(|loaded| loaded.bytes.len() as u64).sum();
    done
}

/// One check over one frame; None is a frame without pages.
type Part<'a> = dyn Fn(&[u8], Option<u32>) -> u64 + Sync + 'a;

/// Speed of one check on all threads.
fn check_rate(sample: &[Loaded], options: &WorkerOptions, part: &Part<'_>) -> f64 {
    let frame_size = options.frame_size.unwrap_or(FRAME_SIZE_BYTES_DEFAULT as usize);
    let shares = in_threads(options.threads, |number| {
        let (mut share, started) = (Share::default(), Instant::now());
        passes(sample, number, options.threads, |loaded| {
            for (index, frame) in loaded.bytes.chunks(frame_size).enumerate() {
                let block = loaded.first_block.map(|first| first + (index * frame_size / PAGE_BYTES) as u32);
                std::hint::black_box(part(frame, block));
            }
            share.bytes += loaded.bytes.len() as u64;
            Ok(())
        })?;
        share.timed_s = started.elapsed().as_secs_f64();
        Ok(share)
    });
    shares.map_or(0.0, |(shares, elapsed_s)| sum(&shares, elapsed_s).mb_per_s)
}
