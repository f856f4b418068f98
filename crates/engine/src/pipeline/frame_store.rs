//! The frames of a chain's stripes: each is found by its place and checked when it is read.

use std::collections::BTreeMap;

use super::decoder::{Decoders, open_frame};
use super::stripe_reader::StripeInput;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::crc32c;
use crate::format::frame::FrameHeader;
use crate::format::stripe::{IndexEntry, STRIPE_HEADER_BYTES};
use crate::terms::{SetIndex, StripeIndex};

/// Stripes of a set and its priors, for reading frames in any order.
pub(super) struct FrameStore {
    stripes: Vec<StripeInput>,
    /// Where each stripe is in the list.
    positions: BTreeMap<(SetIndex, StripeIndex), usize>,
    /// Where each stripe's frames start.
    offsets: Vec<Vec<u64>>,
}

/// One frame: the position of its stripe in the store, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameAt {
    pub(super) position: usize,
    pub(super) sequence: u64,
}

impl FrameStore {
    /// Over the stripes of one chain; some may be missing.
    pub(super) fn new(stripes: Vec<StripeInput>) -> Self {
        let starts = |stripe: &StripeInput| {
            let mut offset = STRIPE_HEADER_BYTES as u64;
            let next = stripe.index.entries().iter().map(|entry| {
                let start = offset;
                offset += entry.size_on_stripe_bytes();
                start
            });
            next.collect()
        };
        FrameStore {
            positions: stripes.iter().enumerate().map(|(at, input)| ((input.set, input.stripe), at)).collect(),
            offsets: stripes.iter().map(starts).collect(),
            stripes,
        }
    }

    /// The stripes, for another store.
    pub(super) fn into_stripes(self) -> Vec<StripeInput> {
        self.stripes
    }

    /// Where a stripe is in the store.
    ///
    /// # Errors
    /// `Damage` if it was not opened.
    pub(super) fn position(&self, set: SetIndex, stripe: StripeIndex) -> Result<usize> {
        self.positions.get(&(set, stripe)).copied().ok_or_else(|| {
            Error::new(ErrorKind::Damage, format!("find stripe {stripe} of the set"), "it was not opened")
        })
    }

    /// The stripe at a position.
    pub(super) fn stripe(&self, position: usize) -> &StripeInput {
        &self.stripes[position]
    }

    /// The sizes of a frame.
    ///
    /// # Errors
    /// `Damage` if there is no such frame, or none that can have been written.
    pub(super) fn entry(&self, frame: FrameAt) -> Result<IndexEntry> {
        let stripe = &self.stripes[frame.position];
        let bad = |cause: &str| {
            let action = format!("find frame {} of stripe {}", frame.sequence, stripe.stripe);
            Error::new(ErrorKind::Damage, action, cause)
        };
        let entry = stripe.index.entries().get(frame.sequence as usize).copied();
        let entry = entry.ok_or_else(|| bad("there is no such frame"))?;
        if entry.raw_size_bytes > stripe.frame_size_bytes || entry.stored_size_bytes > entry.raw_size_bytes {
            return Err(bad("its header is lost or its size is out of bounds"));
        }
        Ok(entry)
    }

    /// Where a frame starts on its stripe, if there is such a frame.
    pub(super) fn offset(&self, frame: FrameAt) -> Option<u64> {
        self.offsets[frame.position].get(frame.sequence as usize).copied()
    }

    /// Reads a frame into `bytes`, which have its size on the stripe, and checks header and stored bytes; both are given.
    ///
    /// # Errors
    /// `Damage` if it is not what was written; those of the storage.
    pub(super) fn read<'b>(&self, frame: FrameAt, bytes: &'b mut [u8]) -> Result<(FrameHeader, &'b [u8])> {
        let entry = self.entry(frame)?;
        let stripe = &self.stripes[frame.position];
        stripe.object.read_at(bytes, self.offset(frame).unwrap_or_default())?;
        open_frame(bytes, stripe.set_id, stripe.stripe, frame.sequence, entry.raw_size_bytes as usize)
    }

    /// Reads a frame into `stored` and decodes it into `raw`, which has its raw size; every checksum is compared.
    ///
    /// # Errors
    /// As [`FrameStore::read`].
    pub(super) fn decode(
        &self,
        frame: FrameAt,
        decoders: &mut Decoders,
        stored: &mut Vec<u8>,
        raw: &mut [u8],
    ) -> Result<()> {
        stored.resize(self.entry(frame)?.size_on_stripe_bytes() as usize, 0);
        let (header, stored) = self.read(frame, stored)?;
        decoders.decode(header.codec, stored, raw)?;
        if crc32c(raw) == header.raw_crc32c {
            return Ok(());
        }
        let action = format!("decode frame {} of stripe {}", frame.sequence, header.stripe);
        Err(Error::new(ErrorKind::Damage, action, "its checksum does not match"))
    }
}
