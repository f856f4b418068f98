//! First stage of a restore: reads runs of whole frames from the stripes, in order, several stripes at once.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use crossbeam_channel::Sender;

use super::buffer_pool::{Asker, Buffer, BufferPool, FrameSlot, Piece};
use super::control::{Control, Progress, RateLimit};
use super::decoder::{DamageSink, FrameDamage};
use super::errands::Errand;
use super::stats::{Doing, StageClock, StageMeter};
use crate::format::file_table::{FileTable, Place};
use crate::format::stripe::{FrameIndex, STRIPE_HEADER_BYTES};
use crate::storage::ObjectReader;
use crate::terms::{FileId, SetId, SetIndex, StripeIndex};

/// A piece of a file as the frames of one stripe hold it; it may span many frames.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    first_frame: u64,
    file_offset: u64,
    size_bytes: u64,
    file: FileId,
    offset_in_frame: u32,
}

impl Extent {
    /// Whose bytes.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// The extents of all files of `table`, per stripe, in the order of the frames: the stripes of the set itself first,
    /// then those of each prior; `stripe_counts` has one number for each set.
    pub fn by_stripe(table: &FileTable, stripe_counts: &[usize]) -> Vec<Vec<Extent>> {
        let mut stripes = vec![Vec::new(); stripe_counts.iter().sum()];
        let first_of: Vec<usize> =
            stripe_counts.iter().scan(0, |next, count| Some(std::mem::replace(next, *next + count))).collect();
        for file in table.ids() {
            for run in table.runs(file) {
                if let Place::Frames { set, stripe, first_frame, offset_in_frame } = run.place()
                    && let Some(first) = first_of.get(usize::from(set.0))
                    && let Some(extents) = stripes.get_mut(first + usize::from(stripe.0))
                {
                    let (file_offset, size_bytes) = (run.file_offset, run.size_bytes);
                    extents.push(Extent { first_frame, file_offset, size_bytes, file, offset_in_frame });
                }
            }
        }
        for extents in &mut stripes {
            extents.sort_unstable_by_key(|extent| (extent.first_frame, extent.offset_in_frame));
        }
        stripes
    }

    /// What each of its frames holds of it, in order.
    pub fn pieces(&self, frame_size_bytes: u32) -> impl Iterator<Item = ExtentPiece> + use<> {
        let (extent, mut done) = (*self, 0);
        (extent.first_frame..).map_while(move |frame| {
            let offset_in_frame = if done == 0 { extent.offset_in_frame } else { 0 };
            let length = (extent.size_bytes - done).min(u64::from(frame_size_bytes.saturating_sub(offset_in_frame)));
            let file_offset = extent.file_offset + done;
            done += length;
            (length > 0).then_some(ExtentPiece { file: extent.file, file_offset, length, frame, offset_in_frame })
        })
    }

    /// The extents without the pieces that are not `wanted`.
    pub fn only(
        extents: &[Extent],
        frame_size_bytes: u32,
        mut wanted: impl FnMut(&ExtentPiece) -> bool,
    ) -> Vec<Extent> {
        let mut left: Vec<Extent> = Vec::new();
        for extent in extents {
            let mut goes_on = false;
            for piece in extent.pieces(frame_size_bytes) {
                if !wanted(&piece) {
                    goes_on = false;
                    continue;
                }
                match left.last_mut() {
                    Some(last) if goes_on => last.size_bytes += piece.length,
                    _ => left.push(Extent {
                        first_frame: piece.frame,
                        file_offset: piece.file_offset,
                        size_bytes: piece.length,
                        file: piece.file,
                        offset_in_frame: piece.offset_in_frame,
                    }),
                }
                goes_on = true;
            }
        }
        left
    }
}

/// What one frame holds of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentPiece {
    /// Whose bytes.
    pub file: FileId,
    /// Where in the file.
    pub file_offset: u64,
    /// How many.
    pub length: u64,
    /// Sequence of the frame.
    pub frame: u64,
    /// Where in the frame's raw bytes.
    pub offset_in_frame: u32,
}

/// One stripe to read.
pub struct StripeInput {
    /// Which set of the chain it is of.
    pub set: SetIndex,
    /// That set's id.
    pub set_id: SetId,
    /// That set's raw bytes of a full frame.
    pub frame_size_bytes: u32,
    /// Its number.
    pub stripe: StripeIndex,
    /// Its bytes.
    pub object: Box<dyn ObjectReader>,
    /// Its frames.
    pub index: FrameIndex,
    /// What they hold.
    pub extents: Vec<Extent>,
}

/// How far the reading of one stripe is.
#[derive(Debug)]
pub(super) struct Cursor {
    frame: usize,
    offset: u64,
    extent: usize,
    /// Bytes of the current extent that earlier frames held.
    extent_done: u64,
}

impl Default for Cursor {
    fn default() -> Self {
        Cursor { frame: 0, offset: STRIPE_HEADER_BYTES as u64, extent: 0, extent_done: 0 }
    }
}

impl Cursor {
    /// Plans the next frames into `buffer`; gives where they start on the stripe and how long they are together.
    ///
    /// Frames that hold nothing wanted are passed over unless `every_frame` is asked for.
    /// A frame larger than a buffer is none that was ever written: it goes to `lost`.
    fn claim(
        &mut self,
        input: &StripeInput,
        buffer: &mut Buffer,
        limits: &BatchLimits,
        lost: &mut Vec<FrameDamage>,
    ) -> Option<(u64, usize)> {
        let entries = input.index.entries();
        loop {
            let before = self.frame;
            self.pass_over_lost(input, limits, &mut buffer.pieces, lost);
            while !limits.all_of(input) && self.frame < entries.len() && !self.holds_something(input) {
                self.offset += entries[self.frame].size_on_stripe_bytes();
                self.frame += 1;
            }
            if self.frame == before {
                break;
            }
        }
        let start = self.offset;
        let (mut stored, mut raw) = (0usize, 0usize);
        while let Some(entry) = entries.get(self.frame) {
            let size = entry.size_on_stripe_bytes() as usize;
            let next_raw = raw + entry.raw_size_bytes as usize;
            let full = next_raw > limits.raw_bytes || stored + size > limits.stored_bytes;
            if full || (!limits.all_of(input) && !self.holds_something(input)) {
                break;
            }
            let piece_start = buffer.pieces.len();
            self.plan_pieces(input, entry.raw_size_bytes, &mut buffer.pieces);
            buffer.frames.push(FrameSlot {
                start: stored,
                length: size,
                raw_length: entry.raw_size_bytes as usize,
                sequence: self.frame as u64,
                piece_start,
                piece_end: buffer.pieces.len(),
                ..FrameSlot::default()
            });
            stored += size;
            raw = next_raw;
            self.offset += size as u64;
            self.frame += 1;
        }
        (!buffer.frames.is_empty()).then_some((start, stored))
    }

    fn pass_over_lost(
        &mut self,
        input: &StripeInput,
        limits: &BatchLimits,
        pieces: &mut Vec<Piece>,
        lost: &mut Vec<FrameDamage>,
    ) {
        while let Some(entry) = input.index.entries().get(self.frame) {
            let size = entry.size_on_stripe_bytes();
            // What of a prior is lost but not wanted is no damage of this set.
            let wanted = limits.all_of(input) || self.holds_something(input);
            if !wanted || entry.raw_size_bytes as usize <= limits.frame_raw_bytes && size <= limits.stored_bytes as u64
            {
                return;
            }
            self.plan_pieces(input, entry.raw_size_bytes, pieces);
            let mut files: Vec<FileId> = pieces.drain(..).map(|piece| piece.file).collect();
            files.dedup();
            let cause = "the frame's header is lost or its size is out of bounds".to_owned();
            let (sequence, offset) = (self.frame as u64, Some(self.offset));
            lost.push(FrameDamage { set: input.set, stripe: input.stripe, sequence, offset, cause, files });
            self.offset += size;
            self.frame += 1;
        }
    }

    fn holds_something(&self, input: &StripeInput) -> bool {
        input
            .extents
            .get(self.extent)
            .is_some_and(|extent| self.extent_done > 0 || extent.first_frame == self.frame as u64)
    }

    /// The pieces of the current frame, and the position after it.
    fn plan_pieces(&mut self, input: &StripeInput, raw_size_bytes: u32, pieces: &mut Vec<Piece>) {
        while self.holds_something(input) {
            let extent = &input.extents[self.extent];
            let offset_in_frame = if self.extent_done == 0 { extent.offset_in_frame } else { 0 };
            let room = u64::from(raw_size_bytes.saturating_sub(offset_in_frame));
            let length = room.min(extent.size_bytes - self.extent_done);
            let file_offset = extent.file_offset + self.extent_done;
            pieces.push(Piece { file: extent.file, file_offset, offset_in_frame, length: length as u32, crc32c: 0 });
            self.extent_done += length;
            if self.extent_done < extent.size_bytes {
                // It goes on in the next frame; an empty frame here would be a lie of the index, seen by the totals.
                return;
            }
            self.extent += 1;
            self.extent_done = 0;
        }
    }
}

/// What is read at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchLimits {
    /// Raw bytes of one frame, at most: decoded it must fit into a buffer.
    pub(super) frame_raw_bytes: usize,
    /// Raw bytes of all frames of one read, at most.
    pub(super) raw_bytes: usize,
    /// Stored bytes of one read, at most: they lie in one buffer.
    pub(super) stored_bytes: usize,
    /// Every frame of the set itself is read, wanted or not; of priors only what is wanted.
    pub(super) every_frame: bool,
}

impl BatchLimits {
    fn all_of(&self, input: &StripeInput) -> bool {
        self.every_frame && input.set == SetIndex::OWN
    }
}

/// What all stripe readers share.
pub(super) struct StripeReaderStage<'a> {
    pub(super) stripes: &'a [StripeInput],
    pub(super) cursors: &'a [Mutex<Cursor>],
    pub(super) limits: BatchLimits,
    pub(super) pool: &'a BufferPool,
    pub(super) control: &'a Control,
    pub(super) meter: &'a StageMeter,
    pub(super) progress: &'a Progress,
    pub(super) rate: Option<&'a RateLimit>,
    pub(super) damage: &'a DamageSink<'a>,
}

impl StripeReaderStage<'_> {
    /// Runs until every stripe is read, or the run stops.
    pub(super) fn run(&self, number: usize, out: &Sender<Buffer>) {
        let mut clock = StageClock::start(self.meter);
        let post = self.control.post();
        while !self.control.stopped() {
            let Some(mut buffer) = self.pool.acquire(Asker::First) else { return };
            clock.mark(Doing::WaitOutput);
            let Some((stripe, start, length)) = self.claim(number, &mut buffer) else {
                self.pool.release(buffer);
                return;
            };
            if let Some(rate) = self.rate {
                rate.take(length as u64, self.control);
                clock.mark(Doing::WaitOutput);
            }
            let input = &self.stripes[stripe];
            buffer.stripe = stripe as u16;
            let read = post.during(Errand::ReadStripe(buffer.stripe), || {
                let whole = input.object.read_at(&mut buffer.bytes[..length], start);
                whole.or_else(|error| match input.object.is_unanswered(&error) {
                    true => Err(error),
                    // Frame by frame, so that one bad sector costs one frame.
                    false => self.read_singly(input, &mut buffer, start, &error),
                })
            });
            if let Err(error) = read {
                return self.control.fail(error);
            }
            clock.passed(length as u64);
            self.progress.stored_bytes.fetch_add(length as u64, Relaxed);
            clock.mark(Doing::Busy);
            if out.send(buffer).is_err() {
                return;
            }
        }
    }

    /// Each reader stays with one stripe as long as it has frames, then helps with the next.
    fn claim(&self, number: usize, buffer: &mut Buffer) -> Option<(usize, u64, usize)> {
        (0..self.stripes.len()).find_map(|turn| {
            let stripe = (number + turn) % self.stripes.len();
            let mut lost = Vec::new();
            let claimed = {
                let mut cursor = self.cursors[stripe].lock().unwrap_or_else(PoisonError::into_inner);
                cursor.claim(&self.stripes[stripe], buffer, &self.limits, &mut lost)
            };
            for damage in lost {
                if let Err(error) = self.damage.report(damage) {
                    self.control.fail(error);
                    return None;
                }
            }
            claimed.map(|(start, length)| (stripe, start, length))
        })
    }

    fn read_singly(
        &self,
        input: &StripeInput,
        buffer: &mut Buffer,
        start: u64,
        whole: &crate::error::Error,
    ) -> crate::error::Result<()> {
        let Buffer { bytes, frames, pieces, .. } = buffer;
        let mut readable = Vec::with_capacity(frames.len());
        for frame in frames.iter() {
            let offset = start + frame.start as u64;
            match input.object.read_at(&mut bytes[frame.start..frame.start + frame.length], offset) {
                Ok(()) => readable.push(*frame),
                Err(error) if input.object.is_unanswered(&error) => return Err(error),
                Err(_) => {
                    let files = pieces[frame.piece_start..frame.piece_end].iter().map(|piece| piece.file).collect();
                    let damage = FrameDamage {
                        set: input.set,
                        stripe: input.stripe,
                        sequence: frame.sequence,
                        offset: Some(offset),
                        cause: whole.message(),
                        files,
                    };
                    self.damage.report(damage)?;
                }
            }
        }
        *frames = readable;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwanted_frames_are_cut_out_of_extents() {
        let extent =
            Extent { first_frame: 7, file_offset: 1000, size_bytes: 250, file: FileId(3), offset_in_frame: 60 };
        let pieces: Vec<_> = extent.pieces(100).map(|piece| (piece.frame, piece.file_offset, piece.length)).collect();
        assert_eq!(pieces, [(7, 1000, 40), (8, 1040, 100), (9, 1140, 100), (10, 1240, 10)]);
        let left = Extent::only(&[extent], 100, |piece| piece.frame != 8);
        let left: Vec<_> =
            left.iter().map(|one| (one.first_frame, one.file_offset, one.size_bytes, one.offset_in_frame)).collect();
        assert_eq!(left, [(7, 1000, 40, 60), (9, 1140, 110, 0)]);
        assert!(Extent::only(&[extent], 100, |_| false).is_empty());
        let whole = Extent::only(&[extent, extent], 100, |_| true);
        assert_eq!((whole.len(), whole[1].size_bytes), (2, 250));
    }
}
