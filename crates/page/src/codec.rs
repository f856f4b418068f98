//! The two ends: an encoder that proves what it made, and a decoder that checks what it got.

use std::fmt;

use crate::entropy::{repeats_within, text_context_size_bytes};
use crate::error::{Damaged, Decoded, NO_MEMORY};
use crate::frame::{Computed, FrameMaker, FrameStreams, FrameTaker};
use crate::{Level, Part};

/// The largest content of a frame. It bounds every count and length that a decoder meets.
pub const FRAME_SIZE_BYTES_MAX: usize = 1 << 26;

/// Why a frame could not be encoded or decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no memory for the state.
    NoMemory,
    /// The content is larger than the encoder was made for, or than any frame may be.
    FrameTooLarge {
        /// Bytes of content.
        length: usize,
        /// The most there may be.
        length_max: usize,
    },
    /// These are not the bytes of a frame of that length; what is wrong with them.
    Damaged(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoMemory => f.write_str("not enough memory for the state of the page codec"),
            Error::FrameTooLarge { length, length_max } => {
                write!(f, "the frame has {length} bytes, at most {length_max} are allowed")
            }
            Error::Damaged(cause) => f.write_str(cause),
        }
    }
}

impl std::error::Error for Error {}

/// The first byte of a frame: how its content is stored.
mod kind {
    /// One text.
    pub(super) const PLAIN: u8 = 1;
    /// Pages taken apart.
    pub(super) const PAGES: u8 = 2;
}

/// Up to this many bytes of content are tried both ways.
const SHORT_FRAME_BYTES: usize = 32 << 10;
/// Frames with fewer bytes for each of their columns are looked at for rows that repeat.
const COLUMN_BYTES: usize = 48;
/// Of 16 places in such a frame, how many are to begin with what stood nearby before.
const REPEATS_MIN: usize = 14;

/// Kind and digest.
const HEADER_BYTES: usize = 9;

/// Makes frames; one per thread, kept for the whole run.
pub struct PageEncoder {
    taker: FrameTaker,
    prover: Prover,
    streams: FrameStreams,
    frame_size_bytes: usize,
    pages: Vec<u8>,
    text: Vec<u8>,
    /// Which kinds of frames come out wrong.
    #[cfg(test)]
    spoilt: &'static [u8],
}

impl PageEncoder {
    /// For frames of up to `frame_size_bytes`.
    ///
    /// # Errors
    /// [`Error::NoMemory`], and [`Error::FrameTooLarge`] beyond [`FRAME_SIZE_BYTES_MAX`].
    pub fn new(level: Level, frame_size_bytes: usize) -> Result<Self, Error> {
        check_length(frame_size_bytes, FRAME_SIZE_BYTES_MAX)?;
        Ok(PageEncoder {
            taker: FrameTaker::new(level, frame_size_bytes).ok_or(Error::NoMemory)?,
            prover: Prover::new().ok_or(Error::NoMemory)?,
            streams: FrameStreams::new(frame_size_bytes),
            frame_size_bytes,
            pages: Vec::new(),
            text: Vec::new(),
            #[cfg(test)]
            spoilt: &[],
        })
    }

    /// Encodes at `level` from the next frame on, with the bytes that an encoder of that level gives. It keeps the memory of
    /// the largest level it has had.
    pub fn set_level(&mut self, level: Level) {
        self.taker.set_level(level);
    }

    /// How often what was made did not decode to its content. Other ways to encode it were tried then.
    pub fn not_proven(&self) -> u64 {
        self.prover.not_proven
    }

    /// The stored length, or None if the result does not fit into `stored`. `parts` tell what the content is; they are
    /// in order and do not overlap, and bytes that no part has are taken as they are.
    ///
    /// What is given has been decoded again and compared with `raw`. Of heaps and indexes without columns these are looked
    /// for, and those of earlier frames come first: there the bytes of a frame may depend on the frames before it.
    ///
    /// # Errors
    /// [`Error::FrameTooLarge`] if `raw` is larger than the encoder was made for.
    pub fn encode(&mut self, raw: &[u8], parts: &[Part<'_>], stored: &mut [u8]) -> Result<Option<usize>, Error> {
        check_length(raw.len(), self.frame_size_bytes)?;
        self.pages.clear();
        let has_pages = self.taker.take(raw, parts, &mut self.streams, &mut self.pages);
        #[cfg(test)]
        spoil(self.spoilt, kind::PAGES, &mut self.pages);
        let are_few_bytes_a_column = self.pages.len() < COLUMN_BYTES * self.streams.column_count();
        let (streams, computed) = (&mut self.streams, self.taker.computed_checksums());
        let mut proven = None;
        if has_pages && let Some(digest) = self.prover.proves(kind::PAGES, &self.pages, streams, raw, computed) {
            proven = Some((kind::PAGES, &self.pages, digest));
        }
        // On longer frames the text is hardly ever the smaller one: of frames of 64 KiB it would take 0.6 % at most off a
        // database, and up to half of the time. But of a thousand columns of a hundred rows, most of which are zero, what tells how
        // each is coded takes more than their rows do as they are.
        if proven.is_none()
            || raw.len() <= SHORT_FRAME_BYTES
            || are_few_bytes_a_column && repeats_within(raw) >= REPEATS_MIN
        {
            self.text.clear();
            self.taker.take_as_text(raw, &mut self.text);
            #[cfg(test)]
            spoil(self.spoilt, kind::PLAIN, &mut self.text);
            let is_smaller = proven.is_none_or(|(_, pages, _)| self.text.len() <= pages.len());
            if is_smaller && let Some(digest) = self.prover.proves(kind::PLAIN, &self.text, streams, raw, &[]) {
                proven = Some((kind::PLAIN, &self.text, digest));
            }
        }
        // Content that neither brings back is stored as it is, by the caller.
        let Some((kind, body, digest)) = proven else { return Ok(None) };
        let length = HEADER_BYTES + body.len();
        let Some(stored) = stored.get_mut(..length) else { return Ok(None) };
        stored[0] = kind;
        stored[1..HEADER_BYTES].copy_from_slice(&digest.to_le_bytes());
        stored[HEADER_BYTES..].copy_from_slice(body);
        Ok(Some(length))
    }
}

/// Decodes what was encoded and compares.
struct Prover {
    maker: FrameMaker,
    not_proven: u64,
    #[cfg(feature = "bench")]
    is_left_out: bool,
}

impl Prover {
    fn new() -> Option<Self> {
        FrameMaker::new().map(|maker| Prover {
            maker,
            not_proven: 0,
            #[cfg(feature = "bench")]
            is_left_out: false,
        })
    }

    /// The digest of `raw` if `body` gives it again. Its streams are made in `streams`, whatever was there.
    fn proves(
        &mut self,
        kind: u8,
        body: &[u8],
        streams: &mut FrameStreams,
        raw: &[u8],
        computed: &[Computed],
    ) -> Option<u64> {
        #[cfg(feature = "bench")]
        if self.is_left_out {
            return Some(twox_hash::XxHash3_64::oneshot(raw));
        }
        let maker = &mut self.maker;
        let proven = match kind {
            kind::PAGES => maker.proves(body, streams, raw, computed),
            _ => maker.proves_text(body, streams, raw),
        };
        let digest = proven.ok().flatten();
        self.not_proven += u64::from(digest.is_none());
        digest
    }
}

#[cfg(feature = "bench")]
impl PageEncoder {
    /// As [`PageEncoder::encode`], but what it gives has not been decoded. It is there to measure what the proof costs; no
    /// backup may use it.
    ///
    /// # Errors
    /// As [`PageEncoder::encode`].
    pub fn encode_unproven(
        &mut self,
        raw: &[u8],
        parts: &[Part<'_>],
        stored: &mut [u8],
    ) -> Result<Option<usize>, Error> {
        self.prover.is_left_out = true;
        let length = self.encode(raw, parts, stored);
        self.prover.is_left_out = false;
        length
    }
}

/// Fills `raw` from the body of a frame.
fn make(maker: &mut FrameMaker, streams: &mut FrameStreams, kind: u8, body: &[u8], raw: &mut [u8]) -> Decoded<u64> {
    match kind {
        kind::PAGES => maker.make(body, streams, raw),
        kind::PLAIN => maker.make_of_text(body, streams, raw),
        _ => Err(Damaged("it does not begin like a frame of the page codec")),
    }
}

/// Brings frames back; one per thread, kept for the whole run.
pub struct PageDecoder {
    maker: FrameMaker,
    streams: FrameStreams,
}

impl PageDecoder {
    /// For frames of any size.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn new() -> Result<Self, Error> {
        let maker = FrameMaker::new().ok_or(Error::NoMemory)?;
        Ok(PageDecoder { maker, streams: FrameStreams::new(USUAL_FRAME_SIZE_BYTES_MAX) })
    }

    /// Fills `raw` exactly from all of `stored`.
    ///
    /// # Errors
    /// [`Error::Damaged`] for everything that is not one frame of `raw.len()` bytes of content with the digest that
    /// the frame carries; [`Error::NoMemory`]. What `raw` holds then is undefined; the decoder can be used again.
    pub fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<(), Error> {
        check_length(raw.len(), FRAME_SIZE_BYTES_MAX)?;
        let Some((&[kind, ref digest @ ..], body)) = stored.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Error::Damaged("it is too short for a frame of the page codec"));
        };
        let digest: [u8; 8] = *digest;
        let made = make(&mut self.maker, &mut self.streams, kind, body, raw).map_err(|cause| match cause {
            NO_MEMORY => Error::NoMemory,
            Damaged(cause) => Error::Damaged(cause),
        })?;
        if made.to_le_bytes() != digest {
            return Err(Error::Damaged("its content does not have the digest that the frame carries"));
        }
        Ok(())
    }
}

fn check_length(length: usize, length_max: usize) -> Result<(), Error> {
    if length > length_max { Err(Error::FrameTooLarge { length, length_max }) } else { Ok(()) }
}

/// The largest content of a frame for which [`decoder_state_size_bytes`] speaks.
const USUAL_FRAME_SIZE_BYTES_MAX: usize = 4 << 20;

/// What an encoder holds at most, in bytes, for frames of up to 4 MiB.
pub fn encoder_state_size_bytes(level: Level, frame_size_bytes: usize) -> u64 {
    // What earlier frames left, four in streams and two of documents each in the taker and in the prover, and up to eleven of
    // this frame's own; one of where repeats are. Measured with unlike frames in a row, beside what is fixed: 20.6 at 4 MiB and level 2, and
    // from level 3 on, where documents are taken apart, 24.9 (tests/round_trip/memory.rs asserts it).
    let per_byte = if level.number() < 3 { 21 } else { 26 };
    // zstd's contexts of level 1 for streams of bytes, 0.6 MiB each; columns without a value, 3.5 MiB; tables of where
    // values are, half a MiB each; the table by which repeats are found and those of one block, 0.8 MiB.
    const FIXED: u64 = 15 << 20;
    per_byte * frame_size_bytes as u64 + FIXED + text_context_size_bytes(level.of_wal().zstd_level())
}

/// What a decoder holds at most, in bytes, for frames of up to 4 MiB.
pub fn decoder_state_size_bytes() -> u64 {
    // Sixteen MiB that earlier frames left, as much for the values of a frame at its limit, twice that while they grow.
    // Measured with unlike frames of 4 MiB in a row: 31 MiB.
    48 << 20
}

/// Changes a bit of a coder's result, as a bug would.
#[cfg(test)]
fn spoil(spoilt: &[u8], kind: u8, body: &mut [u8]) {
    if spoilt.contains(&kind)
        && let Some(byte) = body.last_mut()
    {
        *byte ^= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RelationKind, RelationLayout};

    #[test]
    fn f54_what_does_not_come_back_is_never_given_out() {
        let raw: Vec<u8> = (0..32 * 8192u32).map(|at| (at / 7 % 251) as u8).collect();
        let layout = RelationLayout { kind: RelationKind::Heap, page_size_bytes: 8192, attributes: Vec::new() };
        let parts = [Part { start: 0, length: raw.len(), first_page: 0, layout: &layout }];
        let mut encoder = PageEncoder::new(Level::DEFAULT, raw.len()).unwrap();
        let (mut stored, mut back) = (vec![0; raw.len()], vec![0; raw.len()]);
        let spoilt: [(&'static [u8], Option<u8>); 4] = [
            (&[], Some(kind::PAGES)),
            (&[kind::PLAIN], Some(kind::PAGES)),
            (&[kind::PAGES], Some(kind::PLAIN)),
            (&[kind::PAGES, kind::PLAIN], None),
        ];
        for (spoilt, left) in spoilt {
            encoder.spoilt = spoilt;
            let before = encoder.not_proven();
            let length = encoder.encode(&raw, &parts, &mut stored).unwrap();
            assert_eq!(length.map(|_| stored[0]), left, "{spoilt:?}");
            // Text is tried only where pages did not come back.
            let expected = if spoilt.contains(&kind::PAGES) { spoilt.len() as u64 } else { 0 };
            assert_eq!(encoder.not_proven() - before, expected, "{spoilt:?}");
            if let Some(length) = length {
                PageDecoder::new().unwrap().decode(&stored[..length], &mut back).unwrap();
                assert!(back == raw);
            }
        }
    }

    #[cfg(feature = "bench")]
    #[test]
    fn the_proof_is_left_out_only_where_that_is_asked() {
        let raw = vec![7; 256 << 10];
        let mut encoder = PageEncoder::new(Level::DEFAULT, raw.len()).unwrap();
        let mut stored = vec![0; raw.len()];
        encoder.spoilt = &[kind::PLAIN];
        assert!(encoder.encode_unproven(&raw, &[], &mut stored).unwrap().is_some());
        assert_eq!(encoder.encode(&raw, &[], &mut stored).unwrap(), None);
    }
}
