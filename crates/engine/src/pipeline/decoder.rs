//! Middle stage of a restore: checks and decodes frames, and adds up the digest of every file.
//!
//! Takes buffers of stored frames, gives buffers of raw bytes, several for each where they have become small.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crossbeam_channel::{Receiver, Sender};

use super::buffer_pool::{Asker, Buffer, BufferPool, FrameSlot, Piece};
use super::control::{Control, Progress};
use super::stats::{Doing, StageClock, StageMeter};
use super::stripe_reader::StripeInput;
use crate::codec::{CodecId, Decoder, new_decoder};
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::{crc32c, crc32c_of_zeros, shift, xxh3};
use crate::format::file_table::{EntryKind, FileTable, Place};
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::format::stripe::STRIPE_HEADER_BYTES;
use crate::terms::{FileId, SetId, SetIndex, StripeIndex};

/// A frame that is not what was written, and the files it hits.
#[derive(Clone, Debug)]
pub struct FrameDamage {
    /// Of which set of the chain.
    pub set: SetIndex,
    /// On which stripe.
    pub stripe: StripeIndex,
    /// Which frame of it.
    pub sequence: u64,
    /// Where the frame starts on the stripe, where known.
    pub offset: Option<u64>,
    /// What is wrong.
    pub cause: String,
    /// Whose bytes are lost.
    pub files: Vec<FileId>,
}

/// Who hears of damage: a restore stops, a verification goes on.
pub(super) struct DamageSink<'a> {
    pub(super) on_damage: &'a (dyn Fn(FrameDamage) -> Result<()> + Sync),
}

impl DamageSink<'_> {
    pub(super) fn report(&self, damage: FrameDamage) -> Result<()> {
        (self.on_damage)(damage)
    }
}

/// Sums of what has been decoded of each file, by any thread in any order.
#[derive(Debug)]
pub struct FileTotals {
    crcs: Vec<AtomicU32>,
    bytes: Vec<AtomicU64>,
}

impl FileTotals {
    /// Zero for every file of `table`.
    pub fn new(table: &FileTable) -> Self {
        let count = table.entries().len();
        FileTotals {
            crcs: std::iter::repeat_with(AtomicU32::default).take(count).collect(),
            bytes: std::iter::repeat_with(AtomicU64::default).take(count).collect(),
        }
    }

    /// Adds a piece of `file` in `table` that was there already and needs no decoding.
    pub fn add_known(&self, table: &FileTable, file: FileId, file_offset: u64, length: u64, crc: u32) {
        self.add(file, table.entry(file).size_bytes, file_offset + length, length, crc);
    }

    fn add(&self, file: FileId, file_size_bytes: u64, end: u64, length: u64, crc: u32) {
        let part = shift(crc, file_size_bytes.saturating_sub(end));
        self.crcs[file.0 as usize].fetch_xor(part, Relaxed);
        self.bytes[file.0 as usize].fetch_add(length, Relaxed);
    }

    /// The files whose bytes or digest are not what the table says; runs of zeros are added here.
    pub fn mismatches(&self, table: &FileTable) -> Vec<FileId> {
        table
            .ids()
            .filter(|file| {
                let entry = table.entry(*file);
                for run in table.runs(*file).iter().filter(|run| run.place() == Place::Zeros) {
                    let end = run.file_offset + run.size_bytes;
                    self.add(*file, entry.size_bytes, end, run.size_bytes, crc32c_of_zeros(run.size_bytes));
                }
                let index = file.0 as usize;
                let whole = self.bytes[index].load(Relaxed) == entry.size_bytes
                    && self.crcs[index].load(Relaxed) == entry.crc32c;
                entry.kind == EntryKind::File && !whole
            })
            .collect()
    }

    /// Memory for `file_count` files, for the ceiling.
    pub fn memory_bytes(file_count: u64) -> u64 {
        file_count * (size_of::<AtomicU32>() + size_of::<AtomicU64>()) as u64
    }
}

/// What all decoders share.
pub(super) struct DecoderStage<'a> {
    pub(super) stripes: &'a [StripeInput],
    /// Raw bytes of one buffer, at most.
    pub(super) raw_bytes: usize,
    pub(super) table: &'a FileTable,
    pub(super) totals: &'a FileTotals,
    pub(super) pool: &'a BufferPool,
    pub(super) control: &'a Control,
    pub(super) meter: &'a StageMeter,
    pub(super) progress: &'a Progress,
    pub(super) damage: &'a DamageSink<'a>,
}

/// The decoders of one thread, made when the first frame of a codec comes.
#[derive(Default)]
pub(super) struct Decoders {
    by_codec: [Option<Box<dyn Decoder>>; 8],
}

impl Decoders {
    /// Decodes one frame into `raw`, which has its raw length.
    pub(super) fn decode(&mut self, codec: u8, stored: &[u8], raw: &mut [u8]) -> Result<()> {
        let id = CodecId::from_u8(codec)?;
        let slot = self.by_codec.get_mut(usize::from(codec));
        let slot = slot.ok_or_else(|| {
            Error::new(ErrorKind::Bug, format!("find codec {codec}"), "the table of decoders is too small")
        })?;
        if slot.is_none() {
            *slot = Some(new_decoder(id)?);
        }
        match slot {
            Some(decoder) => decoder.decode(stored, raw),
            None => Ok(()),
        }
    }
}

/// Reads a frame's header and checks that it is this frame and that its stored bytes are what was written.
pub(super) fn open_frame(
    bytes: &[u8],
    set_id: SetId,
    stripe: StripeIndex,
    sequence: u64,
    raw_length: usize,
) -> Result<(FrameHeader, &[u8])> {
    let bad = |cause: &str| Error::new(ErrorKind::Damage, "read a frame", cause);
    let header = FrameHeader::from_bytes(bytes)?;
    if header.set_id != set_id {
        return Err(bad("it belongs to another backup set"));
    }
    if header.stripe != stripe || header.sequence != sequence {
        return Err(bad(&format!("it is frame {} of stripe {}, in the wrong place", header.sequence, header.stripe)));
    }
    let stored = &bytes[FRAME_HEADER_BYTES..];
    if header.raw_size_bytes as usize != raw_length || header.stored_size_bytes as usize != stored.len() {
        return Err(bad("its sizes are not those of the index"));
    }
    if header.codec == CodecId::None as u8 && stored.len() != raw_length {
        return Err(bad("it is stored raw, but not with its raw length"));
    }
    if xxh3(stored) != header.stored_xxh3 {
        return Err(bad("the checksum of its stored bytes does not match"));
    }
    Ok((header, stored))
}

impl DecoderStage<'_> {
    /// Runs until the stripe readers are gone and their queue is empty, or the run stops. Without an output the raw
    /// bytes are checked and let go.
    pub(super) fn run(&self, input: &Receiver<Buffer>, output: Option<&Sender<Buffer>>) {
        let mut clock = StageClock::start(self.meter);
        let mut decoders = Decoders::default();
        while let Ok(stored) = input.recv() {
            clock.mark(Doing::WaitInput);
            if self.control.stopped() {
                return;
            }
            if let Err(error) = self.decode_all(stored, &mut decoders, output, &mut clock) {
                return self.control.fail(error);
            }
        }
    }

    /// Decodes all that `stored` holds and hands it on, one buffer after the other.
    fn decode_all(
        &self,
        mut stored: Buffer,
        decoders: &mut Decoders,
        output: Option<&Sender<Buffer>>,
        clock: &mut StageClock<'_>,
    ) -> Result<()> {
        if stored.frames.iter().all(|frame| stored.bytes[frame.start + 5] == CodecId::None as u8) {
            self.check_in_place(&mut stored, output.is_some())?;
            self.hand_on(stored, output, clock);
            return Ok(());
        }
        let mut done = 0;
        while done < stored.frames.len() {
            // None as the run stops.
            let Some(mut raw) = self.pool.acquire(Asker::Middle) else { return Ok(()) };
            clock.mark(Doing::WaitOutput);
            done = self.decode(decoders, &stored, done, &mut raw)?;
            self.hand_on(raw, output, clock);
        }
        self.pool.release(stored);
        Ok(())
    }

    fn hand_on(&self, raw: Buffer, output: Option<&Sender<Buffer>>, clock: &mut StageClock<'_>) {
        let bytes = raw.content_bytes();
        clock.passed(bytes);
        self.progress.done_bytes.fetch_add(bytes, Relaxed);
        clock.mark(Doing::Busy);
        match output {
            Some(output) => drop(output.send(raw)),
            None => self.pool.release(raw),
        }
    }

    /// Frames that are stored raw: their slots are narrowed to the content. What is to be written then moves together, over the
    /// headers: behind its header it is not aligned, and could not be written past the page cache. In memory that the check
    /// has just brought into the caches, that costs less than a buffer of its own.
    fn check_in_place(&self, buffer: &mut Buffer, is_written: bool) -> Result<()> {
        let input = &self.stripes[usize::from(buffer.stripe)];
        let stripe = input.stripe;
        let Buffer { bytes, frames, pieces, .. } = buffer;
        let (mut failed, mut end) = (None, 0);
        frames.retain_mut(|frame| {
            let opened = open_frame(
                &bytes[frame.start..frame.start + frame.length],
                input.set_id,
                stripe,
                frame.sequence,
                frame.raw_length,
            );
            let checked = opened.map(|(header, content)| (header, content.len())).and_then(|(header, length)| {
                let mut start = frame.start + FRAME_HEADER_BYTES;
                if is_written {
                    bytes.copy_within(start..start + length, end);
                    start = end;
                }
                let content = &bytes[start..start + length];
                self.add_pieces(&header, content, &mut pieces[frame.piece_start..frame.piece_end])?;
                Ok((start, length))
            });
            match checked {
                Ok((start, length)) => {
                    (frame.start, frame.length, end) = (start, length, start + length);
                    true
                }
                Err(error) => {
                    failed = failed.take().or(self.note(input, frame, pieces, &error).err());
                    false
                }
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Decodes frames of `stored` into `raw`, from number `first` on, as many as it takes; gives the number of the next one.
    fn decode(&self, decoders: &mut Decoders, stored: &Buffer, first: usize, raw: &mut Buffer) -> Result<usize> {
        let input = &self.stripes[usize::from(stored.stripe)];
        let stripe = input.stripe;
        let mut end = 0;
        for (number, frame) in stored.frames.iter().enumerate().skip(first) {
            if end > 0 && end + frame.raw_length > self.raw_bytes {
                return Ok(number);
            }
            let piece_start = raw.pieces.len();
            raw.pieces.extend_from_slice(&stored.pieces[frame.piece_start..frame.piece_end]);
            let content = &mut raw.bytes[end..end + frame.raw_length];
            let bytes = &stored.bytes[frame.start..frame.start + frame.length];
            let decoded = open_frame(bytes, input.set_id, stripe, frame.sequence, frame.raw_length).and_then(
                |(header, stored)| {
                    decoders.decode(header.codec, stored, content)?;
                    self.add_pieces(&header, content, &mut raw.pieces[piece_start..])
                },
            );
            match decoded {
                Ok(()) => {
                    let (length, piece_end) = (frame.raw_length, raw.pieces.len());
                    raw.frames.push(FrameSlot { start: end, length, piece_start, piece_end, ..*frame });
                    end += frame.raw_length;
                }
                Err(error) => {
                    raw.pieces.truncate(piece_start);
                    self.note(input, frame, &stored.pieces, &error)?;
                }
            }
        }
        Ok(stored.frames.len())
    }

    /// Checks the decoded bytes and adds each piece to its file's sums.
    fn add_pieces(&self, header: &FrameHeader, content: &[u8], pieces: &mut [Piece]) -> Result<()> {
        let whole = crc32c(content);
        if whole != header.raw_crc32c {
            return Err(Error::new(
                ErrorKind::Damage,
                "decode a frame",
                "the checksum of its decoded bytes does not match",
            ));
        }
        for piece in pieces {
            let start = piece.offset_in_frame as usize;
            let bytes = content.get(start..start + piece.length as usize);
            let bytes = bytes.ok_or_else(|| {
                Error::new(ErrorKind::Damage, "find a file's bytes", "the file table points behind the frame's end")
            })?;
            piece.crc32c = if bytes.len() == content.len() { whole } else { crc32c(bytes) };
            let end = piece.file_offset + u64::from(piece.length);
            self.totals.add(
                piece.file,
                self.table.entry(piece.file).size_bytes,
                end,
                u64::from(piece.length),
                piece.crc32c,
            );
        }
        Ok(())
    }

    fn note(&self, input: &StripeInput, frame: &FrameSlot, pieces: &[Piece], error: &Error) -> Result<()> {
        let before = input.index.entries()[..frame.sequence as usize].iter();
        let offset = STRIPE_HEADER_BYTES as u64 + before.map(|entry| entry.size_on_stripe_bytes()).sum::<u64>();
        let mut files: Vec<FileId> =
            pieces[frame.piece_start..frame.piece_end].iter().map(|piece| piece.file).collect();
        files.dedup();
        self.damage.report(FrameDamage {
            set: input.set,
            stripe: input.stripe,
            sequence: frame.sequence,
            offset: Some(offset),
            cause: error.message(),
            files,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One thing is changed in a frame whose own checksums are right: whoever writes such a frame computes them.
    #[test]
    fn a_frame_that_is_not_what_its_index_says_is_damage() {
        let content = [7u8; 100];
        let good = FrameHeader {
            set_id: SetId([1; 16]),
            stripe: StripeIndex(2),
            sequence: 3,
            codec: CodecId::None as u8,
            raw_size_bytes: 100,
            stored_size_bytes: 100,
            raw_crc32c: 0,
            stored_xxh3: xxh3(&content),
        };
        let cause = |header: FrameHeader, raw_length: usize| {
            let bytes = [&header.to_bytes()[..], &content].concat();
            let opened = open_frame(&bytes, good.set_id, good.stripe, good.sequence, raw_length);
            opened.map(|_| ()).map_err(|error| {
                assert_eq!(error.kind(), ErrorKind::Damage);
                error.cause().to_owned()
            })
        };
        assert_eq!(cause(good, 100), Ok(()));
        let zstd = FrameHeader { codec: CodecId::Zstd as u8, raw_size_bytes: 4096, ..good };
        assert_eq!(cause(zstd, 4096), Ok(()));
        for (header, raw_length, word) in [
            (FrameHeader { set_id: SetId([9; 16]), ..good }, 100, "another backup set"),
            (FrameHeader { stripe: StripeIndex(0), ..good }, 100, "in the wrong place"),
            (FrameHeader { sequence: 4, ..good }, 100, "in the wrong place"),
            (good, 99, "not those of the index"),
            (FrameHeader { stored_size_bytes: 99, ..good }, 100, "not those of the index"),
            (FrameHeader { raw_size_bytes: 4096, ..good }, 4096, "not with its raw length"),
            (FrameHeader { stored_xxh3: 0, ..good }, 100, "checksum of its stored bytes"),
        ] {
            let cause = cause(header, raw_length).unwrap_err();
            assert!(cause.contains(word), "{word:?} is not in {cause:?}");
        }
    }
}
