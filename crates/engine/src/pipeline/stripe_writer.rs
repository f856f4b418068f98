//! Last stage of a backup: one writer per stripe gives frames their place and writes them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_channel::{Receiver, Sender};

use super::buffer_pool::{Buffer, BufferPool};
use super::control::{Control, Progress};
use super::errands::Errand;
use super::parity_writer::Parity;
use super::stats::{Doing, StageClock, StageMeter};
use crate::error::Result;
use crate::format::checksum::{combine, sha256_of_both, xxh3};
use crate::format::file_table::{Place, Run, StoredRun};
use crate::format::frame::{FRAME_HEADER_BYTES, FrameDigest, FrameHeader};
use crate::format::object_digest::ObjectSums;
use crate::format::page_sums::{PageSumsHeader, PageSumsWriter};
use crate::format::parity::RowShard;
use crate::format::stripe::{FOOTER_BYTES, FrameIndex, IndexEntry, StripeHeader};
use crate::storage::{HeadedBytes, ObjectWriter, at_once};
use crate::terms::SetIndex;

/// A stripe that is being written; it lives through several runs of the pipeline.
pub struct Stripe {
    header: StripeHeader,
    object: Box<dyn ObjectWriter>,
    index: FrameIndex,
    runs: Vec<StoredRun>,
    sums: Option<SumsObject>,
    /// Of each frame, if they are wanted.
    digests: Option<Vec<FrameDigest>>,
    /// The frames of the buffer at hand.
    outgoing: Vec<HeadedBytes>,
}

/// The object that takes the checksums of a stripe's pages.
pub struct SumsObject {
    page_size_bytes: u32,
    writer: PageSumsWriter,
    object: Box<dyn ObjectWriter>,
}

impl SumsObject {
    /// Begins it with its header.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn begin(header: &PageSumsHeader, mut object: Box<dyn ObjectWriter>) -> Result<Self> {
        let writer = PageSumsWriter::begin(header, &mut |bytes| object.append(bytes))?;
        Ok(SumsObject { page_size_bytes: header.page_size_bytes, writer, object })
    }

    fn page_size(&self) -> usize {
        self.page_size_bytes as usize
    }

    fn push(&mut self, sums: &[u32]) -> Result<()> {
        self.writer.push(sums, &mut |bytes| self.object.append(bytes))
    }

    fn finish(mut self) -> Result<ObjectSums> {
        let digest = self.writer.finish(&mut |bytes| self.object.append(bytes))?;
        self.object.finish()?;
        Ok(digest)
    }
}

/// What a finished stripe is.
#[derive(Clone, Debug)]
pub struct FinishedStripe {
    /// Its size.
    pub size_bytes: u64,
    /// Its frames.
    pub frame_count: u64,
    /// XXH3-64 of its index.
    pub index_xxh3: u64,
    /// Size and hash of the object with its pages' checksums.
    pub sums: Option<ObjectSums>,
    /// The digest of each frame, if they were wanted.
    pub digests: Option<Vec<FrameDigest>>,
}

impl Stripe {
    /// Begins a stripe by writing its header.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn begin(header: StripeHeader, mut object: Box<dyn ObjectWriter>, sums: Option<SumsObject>) -> Result<Self> {
        object.append(&header.to_bytes())?;
        let index = FrameIndex::default();
        Ok(Stripe { header, object, index, runs: Vec::new(), sums, digests: None, outgoing: Vec::new() })
    }

    /// From now on each frame's digest is kept.
    #[must_use]
    pub fn with_digests(self) -> Self {
        Stripe { digests: Some(Vec::new()), ..self }
    }

    /// The runs written since the last call.
    pub fn take_runs(&mut self) -> Vec<StoredRun> {
        std::mem::take(&mut self.runs)
    }

    /// Writes the trailer and makes the stripe durable.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn finish(mut self) -> Result<FinishedStripe> {
        let trailer = self.index.to_trailer(&self.header);
        self.object.append(&trailer)?;
        let index_xxh3 = xxh3(&trailer[..trailer.len() - FOOTER_BYTES]);
        let sums = self.sums.map(SumsObject::finish).transpose()?;
        Ok(FinishedStripe {
            size_bytes: self.object.finish()?,
            frame_count: self.index.frame_count(),
            index_xxh3,
            sums,
            digests: self.digests,
        })
    }

    /// Finishes all of `stripes`, several at the same time.
    ///
    /// # Errors
    /// Those of the storages.
    pub fn finish_all(stripes: Vec<Stripe>) -> Result<Vec<FinishedStripe>> {
        at_once(stripes, Stripe::finish)
    }

    /// Writes the frames of a buffer and notes where each piece went.
    fn write(&mut self, buffer: &mut Buffer, parity: Option<&Parity>, control: &Control) -> Result<u64> {
        let mut written = 0;
        self.outgoing.clear();
        for frame in &buffer.frames {
            let sequence = self.index.frame_count();
            if !frame.zeros {
                let stored = &buffer.bytes[frame.start..frame.start + frame.length];
                let header = FrameHeader {
                    set_id: self.header.set_id,
                    stripe: self.header.stripe,
                    sequence,
                    codec: frame.codec,
                    raw_size_bytes: frame.raw_length as u32,
                    stored_size_bytes: frame.length as u32,
                    raw_crc32c: frame.raw_crc32c,
                    stored_xxh3: frame.stored_xxh3,
                };
                let header_bytes = header.to_bytes();
                self.outgoing.push(HeadedBytes { head: header_bytes, bytes: frame.start..frame.start + frame.length });
                let entry =
                    IndexEntry { stored_size_bytes: frame.length as u32, raw_size_bytes: frame.raw_length as u32 };
                self.index.push(entry);
                if let Some(digests) = &mut self.digests {
                    digests.push(sha256_of_both(&header_bytes, stored));
                }
                if let Some(parity) = parity {
                    parity.add(self.header.stripe, RowShard { sequence, entry }, &header_bytes, stored, control);
                }
                if let Some(sums) = &mut self.sums {
                    sums.push(&buffer.sums[frame.sums_start..frame.sums_start + frame.raw_length / sums.page_size()])?;
                }
                written += (FRAME_HEADER_BYTES + frame.length) as u64;
            }
            for piece in &buffer.pieces[frame.piece_start..frame.piece_end] {
                let place = if frame.zeros {
                    Place::Zeros
                } else {
                    Place::Frames {
                        set: SetIndex::OWN,
                        stripe: self.header.stripe,
                        first_frame: sequence,
                        offset_in_frame: piece.offset_in_frame,
                    }
                };
                let run = Run::new(piece.file_offset, u64::from(piece.length), place);
                self.note(StoredRun { file: piece.file, run, crc32c: piece.crc32c });
            }
        }
        // Last, as the memory may not be the same afterwards.
        self.object.append_from(&mut buffer.bytes, &self.outgoing)?;
        Ok(written)
    }

    /// Adds a run, as part of the one before where it continues that one.
    fn note(&mut self, next: StoredRun) {
        let frame_size_bytes = u64::from(self.header.frame_size_bytes);
        match self.runs.last_mut() {
            Some(last) if last.file == next.file && last.run.continues_with(&next.run, frame_size_bytes) => {
                last.run.size_bytes += next.run.size_bytes;
                last.crc32c = combine(last.crc32c, next.crc32c, next.run.size_bytes);
            }
            _ => self.runs.push(next),
        }
    }
}

/// How far each stripe is: what the choice of the next stripe needs.
#[derive(Debug, Default)]
pub(super) struct StripeLoad {
    waiting_buffers: AtomicU64,
    written_buffers: AtomicU64,
    /// Bytes, or frames.
    assigned: AtomicU64,
}

/// One encoder's ends of the queues of all stripe writers.
#[derive(Clone)]
pub(super) struct StripeQueues<'a> {
    pub(super) senders: Vec<Sender<Buffer>>,
    pub(super) loads: &'a [StripeLoad],
    /// Among equals the one with the fewest frames: rows of parity are full then.
    pub(super) by_frames: bool,
}

impl StripeQueues<'_> {
    /// Buffers that wait for all writers, with those that are being written.
    pub(super) fn waiting_buffers(&self) -> usize {
        self.loads.iter().map(|load| load.waiting_buffers.load(Relaxed)).sum::<u64>() as usize
    }

    /// Whether any writer is done with a buffer.
    pub(super) fn any_written(&self) -> bool {
        self.loads.iter().any(|load| load.written_buffers.load(Relaxed) > 0)
    }

    /// Queues a buffer on the stripe that is least behind; among equals, on the one with the fewest bytes.
    pub(super) fn send(&self, buffer: Buffer) {
        // One buffer waiting behind the one that is being written is no delay yet.
        let key =
            |load: &StripeLoad| (load.waiting_buffers.load(Relaxed).saturating_sub(2), load.assigned.load(Relaxed));
        let least = (0..self.senders.len()).min_by_key(|stripe| key(&self.loads[*stripe]));
        if let Some(stripe) = least {
            self.loads[stripe].waiting_buffers.fetch_add(1, Relaxed);
            let size = match self.by_frames {
                true => buffer.frames.iter().filter(|frame| !frame.zeros).count() as u64,
                false => buffer.content_bytes(),
            };
            self.loads[stripe].assigned.fetch_add(size, Relaxed);
            // A writer that is gone after an error loses the buffer; the run ends anyway.
            drop(self.senders[stripe].send(buffer));
        }
    }
}

/// What all writers share.
pub(super) struct WriterStage<'a> {
    pub(super) pool: &'a BufferPool,
    pub(super) control: &'a Control,
    pub(super) meter: &'a StageMeter,
    pub(super) progress: &'a Progress,
    pub(super) parity: Option<&'a Parity>,
}

impl WriterStage<'_> {
    /// Runs until the encoders are gone and the queue is empty, or the run stops.
    pub(super) fn run(&self, stripe: &mut Stripe, input: &Receiver<Buffer>, load: &StripeLoad) {
        let _at_work = self.parity.map(Parity::writer);
        let mut clock = StageClock::start(self.meter);
        let (post, errand) = (self.control.post(), Errand::WriteStripe(stripe.header.stripe.0));
        while let Ok(mut buffer) = input.recv() {
            clock.mark(Doing::WaitInput);
            if self.control.stopped() {
                return;
            }
            match post.during(errand, || stripe.write(&mut buffer, self.parity, self.control)) {
                Ok(written) => {
                    clock.passed(written);
                    self.progress.stored_bytes.fetch_add(written, Relaxed);
                }
                Err(error) => return self.control.fail(error),
            }
            load.waiting_buffers.fetch_sub(1, Relaxed);
            load.written_buffers.fetch_add(1, Relaxed);
            self.pool.release(buffer);
            clock.mark(Doing::Busy);
        }
    }
}
