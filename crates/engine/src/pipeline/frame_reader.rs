//! Random access: any byte range of any file, by one index look-up and one frame decode for each frame it touches.

use std::sync::Arc;

use super::decoder::Decoders;
use super::frame_cache::FrameCache;
use super::frame_store::{FrameAt, FrameStore};
use super::stripe_reader::StripeInput;
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{FileTable, Place, Run};
use crate::terms::FileId;

/// Reads ranges of files from the stripes of a set and its priors; keeps the last decoded frames.
pub struct FrameReader {
    frames: FrameStore,
    decoders: Decoders,
    stored: Vec<u8>,
    cache: FrameCache,
}

impl FrameReader {
    /// Over the stripes of one chain; some may be missing.
    pub fn new(stripes: Vec<StripeInput>) -> Self {
        FrameReader::keeping(stripes, 1)
    }

    /// The same, with so many decoded frames that are kept: the pages of a file of a chain take turns over those of its sets.
    pub fn keeping(stripes: Vec<StripeInput>, frame_count: usize) -> Self {
        FrameReader {
            frames: FrameStore::new(stripes),
            decoders: Decoders::default(),
            stored: Vec::new(),
            cache: FrameCache::new(frame_count),
        }
    }

    /// The stripes, for another reader.
    pub fn into_stripes(self) -> Vec<StripeInput> {
        self.frames.into_stripes()
    }

    /// Fills `into` with the bytes of `file` in `table` from `offset`.
    ///
    /// # Errors
    /// `Damage` if the file is shorter or a frame does not read; those of the storage.
    pub fn read(&mut self, table: &FileTable, file: FileId, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut done = 0usize;
        while done < into.len() {
            let at = offset + done as u64;
            let runs = table.runs(file);
            let next = runs.partition_point(|run| run.file_offset + run.size_bytes <= at);
            let Some(run) = runs.get(next).copied() else {
                let action = format!("read byte {at} of {}", table.path_text(file));
                return Err(Error::new(ErrorKind::Damage, action, "the stored file is shorter"));
            };
            done += self.read_from_run(&run, at - run.file_offset, &mut into[done..])?;
        }
        Ok(())
    }

    fn read_from_run(&mut self, run: &Run, within: u64, into: &mut [u8]) -> Result<usize> {
        let left = (run.size_bytes - within).min(into.len() as u64) as usize;
        match run.place() {
            Place::Zeros => {
                into[..left].fill(0);
                Ok(left)
            }
            Place::Frames { set, stripe, first_frame, offset_in_frame } => {
                let position = self.frames.position(set, stripe)?;
                let start = u64::from(offset_in_frame) + within;
                let frame_size_bytes = u64::from(self.frames.stripe(position).frame_size_bytes);
                let frame = self.load(FrameAt { position, sequence: first_frame + start / frame_size_bytes })?;
                let content = frame.get((start % frame_size_bytes) as usize..).unwrap_or_default();
                let count = left.min(content.len());
                if count == 0 {
                    return Err(Error::new(
                        ErrorKind::Damage,
                        "find a file's bytes",
                        "the file table points behind the frame's end",
                    ));
                }
                into[..count].copy_from_slice(&content[..count]);
                Ok(count)
            }
        }
    }

    fn load(&mut self, frame: FrameAt) -> Result<Arc<Vec<u8>>> {
        if let Some(raw) = self.cache.get(frame) {
            return Ok(raw);
        }
        let mut raw = self.cache.take_room();
        raw.resize(self.frames.entry(frame)?.raw_size_bytes as usize, 0);
        self.frames.decode(frame, &mut self.decoders, &mut self.stored, &mut raw)?;
        Ok(self.cache.keep(frame, raw))
    }
}
