//! Random access: any byte range of any file, by one index look-up and one frame decode for each frame it touches.

use super::decoder::{Decoders, open_frame};
use super::stripe_reader::StripeInput;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::crc32c;
use crate::format::file_table::{FileTable, Place, Run};
use crate::format::stripe::STRIPE_HEADER_BYTES;
use crate::terms::{FileId, SetId, StripeIndex};

/// Reads ranges of files from a set's stripes; keeps the last decoded frame.
pub struct FrameReader {
    set_id: SetId,
    stripes: Vec<StripeInput>,
    frame_size_bytes: u64,
    /// Where each stripe's frames start.
    offsets: Vec<Vec<u64>>,
    decoders: Decoders,
    stored: Vec<u8>,
    raw: Vec<u8>,
    current: Option<(StripeIndex, u64)>,
}

impl FrameReader {
    /// Over the stripes of one set; some may be missing.
    pub fn new(set_id: SetId, stripes: Vec<StripeInput>, frame_size_bytes: u32) -> Self {
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
            set_id,
            frame_size_bytes: u64::from(frame_size_bytes),
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
            Place::Frames { stripe, first_frame, offset_in_frame } => {
                let position = u64::from(offset_in_frame) + within;
                self.load(stripe, first_frame + position / self.frame_size_bytes)?;
                let start = (position % self.frame_size_bytes) as usize;
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

    fn load(&mut self, stripe: StripeIndex, sequence: u64) -> Result<()> {
        if self.current == Some((stripe, sequence)) {
            return Ok(());
        }
        self.current = None;
        let missing = || {
            Error::new(ErrorKind::Damage, format!("find frame {sequence} of stripe {stripe}"), "there is no such frame")
        };
        let position = self.stripes.iter().position(|input| input.stripe == stripe).ok_or_else(missing)?;
        let input = &self.stripes[position];
        let entry = input.index.entries().get(sequence as usize).ok_or_else(missing)?;
        let offset = self.offsets[position][sequence as usize];
        self.stored.resize(entry.size_on_stripe_bytes() as usize, 0);
        input.object.read_at(&mut self.stored, offset)?;
        let (header, stored) = open_frame(&self.stored, self.set_id, stripe, sequence, entry.raw_size_bytes as usize)?;
        self.raw.resize(entry.raw_size_bytes as usize, 0);
        self.decoders.decode(header.codec, stored, &mut self.raw)?;
        if crc32c(&self.raw) != header.raw_crc32c {
            return Err(Error::new(
                ErrorKind::Damage,
                format!("decode frame {sequence} of stripe {stripe}"),
                "its checksum does not match",
            ));
        }
        self.current = Some((stripe, sequence));
        Ok(())
    }
}
