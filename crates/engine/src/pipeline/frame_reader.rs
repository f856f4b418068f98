//! Random access: any byte range of any file, by one index look-up and one frame decode for each frame it touches.

use std::collections::BTreeMap;

use super::decoder::{Decoders, open_frame};
use super::stripe_reader::StripeInput;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::crc32c;
use crate::format::file_table::{FileTable, Place, Run};
use crate::format::stripe::STRIPE_HEADER_BYTES;
use crate::terms::{FileId, SetIndex, StripeIndex};

/// Reads ranges of files from the stripes of a set and its priors; keeps the last decoded frame.
pub struct FrameReader {
    stripes: Vec<StripeInput>,
    /// Where each stripe is in the list.
    positions: BTreeMap<(SetIndex, StripeIndex), usize>,
    /// Where each stripe's frames start.
    offsets: Vec<Vec<u64>>,
    decoders: Decoders,
    stored: Vec<u8>,
    raw: Vec<u8>,
    current: Option<(usize, u64)>,
}

impl FrameReader {
    /// Over the stripes of one chain; some may be missing.
    pub fn new(stripes: Vec<StripeInput>) -> Self {
        let starts = |stripe: &StripeInput| {
            let mut offset = STRIPE_HEADER_BYTES as u64;
            let next = stripe.index.entries().iter().map(|entry| {
                let start = offset;
                offset += entry.size_on_stripe_bytes();
                start
            });
            next.collect()
        };
        FrameReader {
            positions: stripes.iter().enumerate().map(|(at, input)| ((input.set, input.stripe), at)).collect(),
            offsets: stripes.iter().map(starts).collect(),
            decoders: Decoders::default(),
            stored: Vec::new(),
            raw: Vec::new(),
            current: None,
            stripes,
        }
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
                let input = self.positions.get(&(set, stripe)).copied().ok_or_else(|| {
                    Error::new(ErrorKind::Damage, format!("find stripe {stripe} of the set"), "it was not opened")
                })?;
                let position = u64::from(offset_in_frame) + within;
                let frame_size_bytes = u64::from(self.stripes[input].frame_size_bytes);
                self.load(input, first_frame + position / frame_size_bytes)?;
                let start = (position % frame_size_bytes) as usize;
                let content = self.raw.get(start..).unwrap_or_default();
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

    fn load(&mut self, position: usize, sequence: u64) -> Result<()> {
        if self.current == Some((position, sequence)) {
            return Ok(());
        }
        self.current = None;
        let input = &self.stripes[position];
        let stripe = input.stripe;
        let missing = || {
            Error::new(ErrorKind::Damage, format!("find frame {sequence} of stripe {stripe}"), "there is no such frame")
        };
        let entry = input.index.entries().get(sequence as usize).ok_or_else(missing)?;
        let offset = self.offsets[position][sequence as usize];
        self.stored.resize(entry.size_on_stripe_bytes() as usize, 0);
        input.object.read_at(&mut self.stored, offset)?;
        let (header, stored) = open_frame(&self.stored, input.set_id, stripe, sequence, entry.raw_size_bytes as usize)?;
        self.raw.resize(entry.raw_size_bytes as usize, 0);
        self.decoders.decode(header.codec, stored, &mut self.raw)?;
        if crc32c(&self.raw) != header.raw_crc32c {
            return Err(Error::new(
                ErrorKind::Damage,
                format!("decode frame {sequence} of stripe {stripe}"),
                "its checksum does not match",
            ));
        }
        self.current = Some((position, sequence));
        Ok(())
    }
}
