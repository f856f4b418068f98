//! The checks that bytes pass on their way: all that can be known of them without decoding. They hold one frame's header,
//! never a frame.

use std::hash::Hasher;

use sha2::{Digest, Sha256};
use twox_hash::XxHash3_64;

use crate::catalog::StripeDigests;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::xxh3;
use crate::format::frame::{FRAME_HEADER_BYTES, FrameDigest, FrameHeader};
use crate::format::manifest::{ObjectDigest, hex64};
use crate::format::object_digest::ObjectHasher;
use crate::format::stripe::{FOOTER_BYTES, Footer, INDEX_MAGIC, IndexEntry, STRIPE_HEADER_BYTES, StripeHeader};
use crate::pipeline::TransferCheck;

/// What a stripe or a bundle must be, by what names it.
pub(super) struct ExpectedFrames {
    /// What completes "unable to ...".
    pub(super) action: String,
    /// What to do about damage.
    pub(super) hint: String,
    /// Its first bytes.
    pub(super) first_bytes: [u8; STRIPE_HEADER_BYTES],
    /// Its identity in frames and footer.
    pub(super) header: StripeHeader,
    /// How many frames.
    pub(super) frame_count: u64,
    /// XXH3-64 of its index, 16 hexadecimal digits.
    pub(super) index_xxh3: String,
    /// Its size.
    pub(super) size_bytes: u64,
    /// What its frames must be, if a signature says so.
    pub(super) digests: Option<StripeDigests>,
}

impl ExpectedFrames {
    /// Damage of this object.
    pub(super) fn damage(&self, cause: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Damage, self.action.clone(), cause).hint(self.hint.clone())
    }
}

/// Checks a stripe or a bundle: its header, each frame's header and stored bytes, index and footer.
pub(super) struct FramesCheck {
    expected: ExpectedFrames,
    part: Part,
    /// Bytes of a header or footer that is not whole yet.
    pending: Vec<u8>,
    /// Bytes that were taken.
    offset: u64,
    frame_count: u64,
    /// Of the index that the frames make, to compare with the one that is named.
    frames_make: XxHash3_64,
}

/// What comes next.
enum Part {
    Header,
    FrameHeader,
    Stored(Box<Stored>),
    Index { left: u64, hasher: Box<XxHash3_64> },
    Footer,
    Nothing,
}

/// Stored bytes of a frame.
struct Stored {
    /// Where the frame's header begins.
    start: u64,
    left: usize,
    wanted_xxh3: u64,
    /// Where a part of them was seen before.
    hasher: Option<XxHash3_64>,
    /// Of the header and what was seen of them, if the frame must have a digest.
    sha256: Option<Sha256>,
}

impl FramesCheck {
    /// For an object of `size_bytes`.
    ///
    /// # Errors
    /// `Damage` if that is not the size it must have.
    pub(super) fn begin(expected: ExpectedFrames, size_bytes: u64) -> Result<Self> {
        if size_bytes != expected.size_bytes {
            return Err(expected.damage(format!("it has {size_bytes} bytes and should have {}", expected.size_bytes)));
        }
        let mut frames_make = XxHash3_64::new();
        frames_make.write(&INDEX_MAGIC);
        frames_make.write(&expected.frame_count.to_le_bytes());
        let (part, pending) = (Part::Header, Vec::with_capacity(STRIPE_HEADER_BYTES));
        Ok(FramesCheck { expected, part, pending, offset: 0, frame_count: 0, frames_make })
    }

    /// Damage of the frame that begins at `start`.
    fn frame_damage(&self, start: u64, cause: &str) -> Error {
        self.expected.damage(format!("frame {} at byte {start}: {cause}", self.frame_count))
    }

    fn damage_here(&self, cause: impl std::fmt::Display) -> Error {
        self.expected.damage(format!("at byte {}: {cause}", self.offset - self.pending.len() as u64))
    }

    /// Takes what belongs to the next part; gives the rest.
    fn step<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8]> {
        match &mut self.part {
            Part::Header => self.gather(STRIPE_HEADER_BYTES, bytes, Self::header),
            Part::FrameHeader => self.gather(FRAME_HEADER_BYTES, bytes, Self::frame_header),
            Part::Footer => self.gather(FOOTER_BYTES, bytes, Self::footer),
            Part::Nothing => Err(self.damage_here("bytes follow where it should end")),
            Part::Stored(stored) => {
                let (own, rest) = bytes.split_at(stored.left.min(bytes.len()));
                stored.left -= own.len();
                self.offset += own.len() as u64;
                stored.sha256.iter_mut().for_each(|sha256| sha256.update(own));
                let found = match &mut stored.hasher {
                    None if stored.left == 0 => xxh3(own),
                    hasher => {
                        let hasher = hasher.get_or_insert_default();
                        hasher.write(own);
                        hasher.finish()
                    }
                };
                if stored.left == 0 {
                    let (start, is_sound) = (stored.start, found == stored.wanted_xxh3);
                    let digest = stored.sha256.take().map(|sha256| FrameDigest::from(sha256.finalize()));
                    if !is_sound {
                        return Err(self.frame_damage(start, "the checksum of its stored bytes does not match"));
                    }
                    let signed = self.expected.digests.as_ref().map(|digests| digests.get(self.frame_count as usize));
                    if signed.is_some_and(|signed| signed != digest.as_ref()) {
                        return Err(self.frame_damage(start, "it is not what was signed: its SHA-256 is another one"));
                    }
                    self.frame_count += 1;
                    self.next_frame()?;
                }
                Ok(rest)
            }
            Part::Index { left, hasher } => {
                let (own, rest) = bytes.split_at((*left).min(bytes.len() as u64) as usize);
                *left -= own.len() as u64;
                self.offset += own.len() as u64;
                hasher.write(own);
                if *left == 0 {
                    let is_sound = hex64(hasher.finish()) == self.expected.index_xxh3;
                    if !is_sound {
                        return Err(self.damage_here("the checksum of the index before it does not match"));
                    }
                    self.part = Part::Footer;
                }
                Ok(rest)
            }
        }
    }

    /// Takes bytes until there are `length`, and has `then` look at them.
    fn gather<'b>(
        &mut self,
        length: usize,
        bytes: &'b [u8],
        then: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<&'b [u8]> {
        let (own, rest) = bytes.split_at((length - self.pending.len()).min(bytes.len()));
        self.pending.extend_from_slice(own);
        self.offset += own.len() as u64;
        if self.pending.len() == length {
            then(self)?;
            self.pending.clear();
        }
        Ok(rest)
    }

    fn header(&mut self) -> Result<()> {
        if self.pending != self.expected.first_bytes {
            return Err(self.damage_here("its header is damaged, or that of another object"));
        }
        self.next_frame()
    }

    fn frame_header(&mut self) -> Result<()> {
        let start = self.offset - FRAME_HEADER_BYTES as u64;
        let header = FrameHeader::from_bytes(&self.pending)
            .map_err(|error| self.frame_damage(start, &format!("its header: {}", error.cause())))?;
        let expected = &self.expected.header;
        if (header.set_id, header.stripe, header.sequence) != (expected.set_id, expected.stripe, self.frame_count) {
            return Err(self.frame_damage(start, "another frame is in its place"));
        }
        if header.raw_size_bytes > expected.frame_size_bytes {
            return Err(self.frame_damage(start, "it is larger than a frame may be"));
        }
        let entry = IndexEntry { stored_size_bytes: header.stored_size_bytes, raw_size_bytes: header.raw_size_bytes };
        self.frames_make.write(&entry.stored_size_bytes.to_le_bytes());
        self.frames_make.write(&entry.raw_size_bytes.to_le_bytes());
        let left = header.stored_size_bytes as usize;
        let sha256 = self.expected.digests.is_some().then(|| Sha256::new_with_prefix(&self.pending));
        let wanted_xxh3 = header.stored_xxh3;
        self.part = Part::Stored(Box::new(Stored { start, left, wanted_xxh3, hasher: None, sha256 }));
        Ok(())
    }

    /// After header and frames: the next frame, or the index.
    fn next_frame(&mut self) -> Result<()> {
        if self.frame_count < self.expected.frame_count {
            self.part = Part::FrameHeader;
            return Ok(());
        }
        if hex64(self.frames_make.finish()) != self.expected.index_xxh3 {
            return Err(self.expected.damage("its frames are not those that belong to it"));
        }
        let index_size_bytes = self.expected.size_bytes.saturating_sub(self.offset + FOOTER_BYTES as u64);
        self.part = Part::Index { left: index_size_bytes, hasher: Box::default() };
        Ok(())
    }

    fn footer(&mut self) -> Result<()> {
        let footer = Footer::from_bytes(&self.pending, self.expected.size_bytes)
            .map_err(|error| self.damage_here(error.cause()))?;
        if footer.header != self.expected.header || hex64(footer.index_xxh3) != self.expected.index_xxh3 {
            return Err(self.damage_here("the footer is that of another object"));
        }
        self.part = Part::Nothing;
        Ok(())
    }
}

impl TransferCheck for FramesCheck {
    fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            bytes = self.step(bytes)?;
        }
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<()> {
        match self.part {
            Part::Nothing => Ok(()),
            _ => Err(self.damage_here("it ends here, before its last frame or its footer")),
        }
    }
}

/// Checks an object by its size and the checksum of all of it.
pub(super) struct DigestCheck {
    action: String,
    hint: String,
    wanted: ObjectDigest,
    hasher: ObjectHasher,
}

impl DigestCheck {
    /// For an object of `size_bytes` that must be `wanted`; `action` and `hint` are those of its damage.
    ///
    /// # Errors
    /// `Damage` if it has another size.
    pub(super) fn begin(wanted: ObjectDigest, action: String, hint: String, size_bytes: u64) -> Result<Self> {
        if size_bytes != wanted.size_bytes {
            let cause = format!("it has {size_bytes} bytes where the manifest says {}", wanted.size_bytes);
            return Err(Error::new(ErrorKind::Damage, action, cause).hint(hint));
        }
        Ok(DigestCheck { action, hint, wanted, hasher: ObjectHasher::default() })
    }
}

impl TransferCheck for DigestCheck {
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<()> {
        if self.wanted.fits(&self.hasher.finish()) {
            return Ok(());
        }
        let cause =
            format!("the checksum of its {} bytes is not the one that the manifest names", self.wanted.size_bytes);
        Err(Error::new(ErrorKind::Damage, self.action, cause).hint(self.hint))
    }
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
