//! What a signature of a manifest says of content: the digests of frames that the manifest names, and stripes that are read
//! against them.
//!
//! The checksums in stripes are made for accidents, and who wants to can make other content with the same ones. Where
//! somebody said whose signatures count, nothing of a stripe is used before its digest was compared.

use std::sync::Arc;

use super::manifest_lock::check_key;
use super::repository::{Repository, set_prefix};
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::sha256;
use crate::format::frame::FrameDigest;
use crate::format::manifest::Manifest;
use crate::format::object_digest::ObjectHasher;
use crate::format::stripe::{FrameIndex, STRIPE_HEADER_BYTES};
use crate::storage::ObjectReader;
use crate::terms::KeyId;

/// Memory for each frame: its digest and where it starts.
pub(super) const BYTES_PER_FRAME: u64 = (size_of::<FrameDigest>() + size_of::<u64>()) as u64;
/// Digests that are read at once.
const DIGESTS_AT_ONCE: usize = 32 * 1024;

/// The digests of all frames of a stripe.
pub type StripeDigests = Arc<Vec<FrameDigest>>;

/// The digests of all frames of a set, stripe by stripe; None if the process asks for no signatures, or the manifest names
/// none.
///
/// # Errors
/// `Damage` if they are not what the manifest says; those of the storage.
pub fn frame_digests(repository: &Repository, manifest: &Manifest) -> Result<Option<Vec<StripeDigests>>> {
    let Some(record) = manifest.frame_digests.as_ref().filter(|_| repository.keys().asks_for_signatures()) else {
        return Ok(None);
    };
    let name = format!("{}/{}", set_prefix(&manifest.source, &manifest.label), record.name);
    let bad = |cause: &str| {
        Error::new(ErrorKind::Damage, format!("read the digests of frames {name}"), cause).hint(
            "without them nobody can say whether the content is what was signed; take another copy of the set, or read it \
             without --signer",
        )
    };
    let object = repository.storage().open(&name)?.ok_or_else(|| bad("they are missing"))?;
    check_key(manifest, object.as_ref(), &name)?;
    let counts = manifest.stripes.iter().map(|stripe| stripe.frame_count);
    let size_bytes = counts.clone().try_fold(0u64, |sum, count| {
        count.checked_mul(size_of::<FrameDigest>() as u64).and_then(|bytes| sum.checked_add(bytes))
    });
    if size_bytes != Some(object.size_bytes()) {
        return Err(bad("they are not one for each frame"));
    }
    let (mut hasher, mut offset, mut stripes) = (ObjectHasher::default(), 0, Vec::new());
    for count in counts {
        let mut digests = vec![FrameDigest::default(); count as usize];
        for part in digests.chunks_mut(DIGESTS_AT_ONCE) {
            let bytes = part.as_flattened_mut();
            object.read_at(bytes, offset)?;
            hasher.update(bytes);
            offset += bytes.len() as u64;
        }
        stripes.push(Arc::new(digests));
    }
    match record.sha256.is_some() && record.fits(&hasher.finish()) {
        true => Ok(Some(stripes)),
        false => Err(bad("they are not the ones that the manifest names")),
    }
}

/// Memory that [`frame_digests`] takes.
pub fn digests_memory_bytes(repository: &Repository, manifest: &Manifest) -> u64 {
    let is_read = manifest.frame_digests.is_some() && repository.keys().asks_for_signatures();
    let frame_count: u64 = manifest.stripes.iter().map(|stripe| stripe.frame_count).sum();
    if is_read { frame_count * size_of::<FrameDigest>() as u64 } else { 0 }
}

/// Looks whether `bytes` are frame `frame` of the stripe with these digests.
///
/// # Errors
/// `Damage` if not.
pub(super) fn check_signed(digests: &[FrameDigest], frame: usize, bytes: &[u8]) -> Result<()> {
    if digests.get(frame).is_some_and(|digest| *digest == sha256(bytes)) {
        return Ok(());
    }
    let action = format!("read frame {frame}");
    Err(Error::new(ErrorKind::Damage, action, "it is not what was signed: its SHA-256 is another one"))
}

/// A stripe of which no byte of a frame is given that the frame's digest does not stand for.
pub(super) struct BoundStripe {
    object: Box<dyn ObjectReader>,
    /// Where each frame starts, and the last one ends.
    starts: Vec<u64>,
    digests: StripeDigests,
}

impl BoundStripe {
    /// The stripe `object` with the frames of `index`, which has as many as there are digests or fewer.
    pub(super) fn new(object: Box<dyn ObjectReader>, index: &FrameIndex, digests: StripeDigests) -> Self {
        let mut starts = Vec::with_capacity(index.entries().len() + 1);
        let mut offset = STRIPE_HEADER_BYTES as u64;
        starts.push(offset);
        for entry in index.entries() {
            offset += entry.size_on_stripe_bytes();
            starts.push(offset);
        }
        BoundStripe { object, starts, digests }
    }
}

impl ObjectReader for BoundStripe {
    fn size_bytes(&self) -> u64 {
        self.object.size_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.object.read_at(buffer, offset)?;
        let end = offset + buffer.len() as u64;
        let first = self.starts.partition_point(|start| *start <= offset).saturating_sub(1);
        for (frame, place) in self.starts.windows(2).enumerate().skip(first) {
            let (start, stop) = (place[0], place[1]);
            if start >= end {
                break;
            }
            let (from, to) = (start.max(offset), stop.min(end));
            let part = &mut buffer[(from - offset) as usize..(to - offset) as usize];
            if (from, to) == (start, stop) {
                check_signed(&self.digests, frame, part)?;
                continue;
            }
            // Who reads a set reads whole frames; who looks at a header only may wait for all of its frame.
            let mut whole = vec![0u8; (stop - start) as usize];
            self.object.read_at(&mut whole, start)?;
            check_signed(&self.digests, frame, &whole)?;
            part.copy_from_slice(&whole[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    fn is_remote(&self) -> bool {
        self.object.is_remote()
    }

    fn key_id(&self) -> Option<KeyId> {
        self.object.key_id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::frame::FRAME_HEADER_BYTES;
    use crate::format::stripe::IndexEntry;

    struct InMemory(Vec<u8>);

    impl ObjectReader for InMemory {
        fn size_bytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
            buffer.copy_from_slice(&self.0[offset as usize..offset as usize + buffer.len()]);
            Ok(())
        }
    }

    const STORED: [usize; 4] = [100, 0, 7, 300];
    const END: usize = STRIPE_HEADER_BYTES + 4 * FRAME_HEADER_BYTES + 407;

    /// A stripe of four frames and some bytes behind them, and where each frame lies.
    fn stripe(change: impl FnOnce(&mut Vec<u8>)) -> (BoundStripe, Vec<u8>, Vec<std::ops::Range<usize>>) {
        let mut bytes: Vec<u8> = (0..END + 50).map(|byte| (byte * 31 % 251) as u8).collect();
        let (mut index, mut frames, mut start) = (FrameIndex::default(), Vec::new(), STRIPE_HEADER_BYTES);
        for stored in STORED {
            index.push(IndexEntry { stored_size_bytes: stored as u32, raw_size_bytes: 1000 });
            frames.push(start..start + FRAME_HEADER_BYTES + stored);
            start += FRAME_HEADER_BYTES + stored;
        }
        let digests = Arc::new(frames.iter().map(|frame| sha256(&bytes[frame.clone()])).collect());
        change(&mut bytes);
        (BoundStripe::new(Box::new(InMemory(bytes.clone())), &index, digests), bytes, frames)
    }

    #[test]
    fn every_range_of_a_sound_stripe_is_given() {
        let (bound, bytes, _) = stripe(|_| {});
        for start in (0..bytes.len()).step_by(13) {
            for end in (start..=bytes.len()).step_by(17) {
                let mut part = vec![0; end - start];
                bound.read_at(&mut part, start as u64).unwrap();
                assert_eq!(part, bytes[start..end]);
            }
        }
    }

    #[test]
    fn s17_no_byte_of_a_frame_that_was_changed_is_given() {
        for changed in (STRIPE_HEADER_BYTES..END).step_by(5) {
            let (bound, bytes, frames) = stripe(|bytes| bytes[changed] ^= 1);
            for start in (0..bytes.len()).step_by(29) {
                for end in (start + 1..=bytes.len()).step_by(37) {
                    let touches = |frame: &std::ops::Range<usize>| {
                        frame.contains(&changed) && start < frame.end && end > frame.start
                    };
                    let read = bound.read_at(&mut vec![0; end - start], start as u64);
                    assert_eq!(read.is_err(), frames.iter().any(touches), "{changed}: {start} to {end}");
                }
            }
        }
    }
}
