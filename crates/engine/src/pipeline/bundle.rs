//! Frames of a bundle: encoded and decoded by several threads, in order, with a bounded number of them in memory.

use std::cell::RefCell;

use super::decoder::{Decoders, open_frame};
use super::in_order::{Caller, Work, in_order, items_under_way};
use super::machine_cores;
use crate::codec::{CodecId, CodecSpec, Encoder, Part, RelationLayout, new_encoder};
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::{combine, crc32c, crc32c_of_zeros, xxh3};
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::format::stripe::{FrameIndex, IndexEntry, STRIPE_HEADER_BYTES};
use crate::format::wal_bundle::{BundleHeader, Member};
use crate::storage::ObjectReader;
use crate::terms::StripeIndex;

/// Threads that encode or decode a bundle unless somebody says otherwise: one a core, four at most, because the server
/// that archives or recovers wants the machine too.
pub fn default_threads() -> u16 {
    machine_cores().clamp(1, 4)
}

/// How frames are made.
#[derive(Clone, Copy, Debug)]
pub struct FrameSettings {
    /// Codec and level; not `auto`.
    pub codec: CodecSpec,
    /// Threads that encode or decode.
    pub threads: u16,
    /// Raw bytes of a full frame.
    pub frame_size_bytes: u32,
}

impl FrameSettings {
    /// Most memory that encoding takes: frames under way, raw and stored, and the state of the encoders.
    pub fn memory_bytes(&self) -> u64 {
        let frame = 2 * (u64::from(self.frame_size_bytes) + FRAME_HEADER_BYTES as u64);
        let state =
            super::encoder_state_bytes(self.codec, self.frame_size_bytes) + super::encode_run::STACK_BYTES as u64;
        items_under_way(self.threads) as u64 * frame + u64::from(self.threads) * state
    }
}

/// What a frame was filled with.
#[derive(Debug, Default)]
pub struct Filled {
    /// CRC32C of its bytes.
    pub crc32c: u32,
    /// Where pages start in it that reach to its end, and what they hold; None if it has none.
    pub pages: Option<(usize, RelationLayout)>,
}

/// A frame on its way.
#[derive(Default)]
struct Frame {
    raw: Vec<u8>,
    /// Room for the header, then the stored bytes.
    stored: Vec<u8>,
    stored_length: usize,
    codec: u8,
    filled: Filled,
    stored_xxh3: u64,
}

/// Encodes the frames that `next` fills in and gives each to `sink`, header first; their sizes are added to `index`, whose
/// length is the first frame's number. `next` gets a buffer with old bytes in it and tells of the new ones; None if there
/// are no more.
///
/// # Errors
/// Those of `next` and `sink`; `Usage` for a codec of no fixed level.
pub fn encode_frames(
    settings: &FrameSettings,
    header: &BundleHeader,
    index: &mut FrameIndex,
    next: &mut dyn FnMut(&mut Vec<u8>) -> Result<Option<Filled>>,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let FrameSettings { codec, frame_size_bytes, .. } = *settings;
    // Fails here rather than in a thread.
    drop(new_encoder(codec, frame_size_bytes as usize)?);
    let unused: RefCell<Vec<Frame>> = RefCell::default();
    let mut read = || {
        let mut frame: Frame = unused.borrow_mut().pop().unwrap_or_default();
        Ok(next(&mut frame.raw)?.map(|filled| Frame { filled, ..frame }))
    };
    let make_work = move || -> Work<'static, Frame, Frame> {
        let mut encoder = new_encoder(codec, frame_size_bytes as usize);
        Box::new(move |mut frame| {
            match encoder.as_mut() {
                Ok(encoder) => encode(encoder.as_mut(), codec.codec(), &mut frame)?,
                Err(error) => return Err(Error::new(error.kind(), "make an encoder", error.message())),
            }
            Ok(frame)
        })
    };
    let mut write = |mut frame: Frame| {
        let entry =
            IndexEntry { stored_size_bytes: frame.stored_length as u32, raw_size_bytes: frame.raw.len() as u32 };
        let frame_header = FrameHeader {
            set_id: header.bundle_id,
            stripe: StripeIndex(0),
            sequence: index.frame_count(),
            codec: frame.codec,
            raw_size_bytes: entry.raw_size_bytes,
            stored_size_bytes: entry.stored_size_bytes,
            raw_crc32c: frame.filled.crc32c,
            stored_xxh3: frame.stored_xxh3,
        };
        frame.stored[..FRAME_HEADER_BYTES].copy_from_slice(&frame_header.to_bytes());
        sink(&frame.stored[..FRAME_HEADER_BYTES + frame.stored_length])?;
        index.push(entry);
        unused.borrow_mut().push(frame);
        Ok(())
    };
    in_order(settings.threads, Caller::Feeds, &mut read, &make_work, &mut write)
}

fn encode(encoder: &mut dyn Encoder, codec: CodecId, frame: &mut Frame) -> Result<()> {
    frame.stored.resize(FRAME_HEADER_BYTES + frame.raw.len(), 0);
    let stored = &mut frame.stored[FRAME_HEADER_BYTES..];
    // What does not shrink is stored as it is.
    let room = frame.raw.len().saturating_sub(1);
    let part = frame.filled.pages.as_ref().map(|(start, layout)| Part {
        start: *start,
        length: frame.raw.len() - start,
        first_page: 0,
        layout,
    });
    let shrunk = match codec {
        CodecId::None => None,
        _ => encoder.encode_parts(&frame.raw, part.as_slice(), &mut stored[..room])?,
    };
    match shrunk {
        Some(length) => (frame.stored_length, frame.codec) = (length, codec as u8),
        None => {
            stored.copy_from_slice(&frame.raw);
            (frame.stored_length, frame.codec) = (frame.raw.len(), CodecId::None as u8);
        }
    }
    frame.stored_xxh3 = xxh3(&stored[..frame.stored_length]);
    Ok(())
}

/// A frame's sequence, its bytes with the header, and room for what they decode to.
type StoredFrame = (u64, Vec<u8>, Vec<u8>);
/// CRC32C of a frame's raw bytes, its stored bytes, the raw ones.
type RawFrame = (u32, Vec<u8>, Vec<u8>);

/// Zeros that a member's end is made of, so many at once.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Decodes all of `member`, with every check there is, and gives its bytes in order to `sink`.
///
/// # Errors
/// `Damage` if a frame is not what was written, or the whole is not; those of the storage and of `sink`. What `sink` got
/// before an error must not be used.
pub fn decode_member(
    object: &dyn ObjectReader,
    header: &BundleHeader,
    index: &FrameIndex,
    member: &Member,
    threads: u16,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let before = index.entries().iter().take(member.first_frame as usize);
    let mut offset = STRIPE_HEADER_BYTES as u64 + before.map(|entry| entry.size_on_stripe_bytes()).sum::<u64>();
    let mut entries =
        index.entries().iter().enumerate().skip(member.first_frame as usize).take(member.frame_count as usize);
    let unused: RefCell<Vec<(Vec<u8>, Vec<u8>)>> = RefCell::default();
    let mut read = || {
        let Some((sequence, entry)) = entries.next() else { return Ok(None) };
        let (mut stored, mut raw) = unused.borrow_mut().pop().unwrap_or_default();
        stored.resize(entry.size_on_stripe_bytes() as usize, 0);
        raw.resize(entry.raw_size_bytes as usize, 0);
        object.read_at(&mut stored, offset)?;
        offset += entry.size_on_stripe_bytes();
        Ok(Some((sequence as u64, stored, raw)))
    };
    let bundle_id = header.bundle_id;
    let make_work = move || -> Work<'static, StoredFrame, RawFrame> {
        let mut decoders = Decoders::default();
        Box::new(move |(sequence, bytes, mut raw)| {
            let (header, stored) = open_frame(&bytes, bundle_id, StripeIndex(0), sequence, raw.len())?;
            decoders.decode(header.codec, stored, &mut raw)?;
            let crc = crc32c(&raw);
            if crc != header.raw_crc32c {
                let action = format!("decode frame {sequence}");
                return Err(Error::new(ErrorKind::Damage, action, "its checksum does not match"));
            }
            Ok((crc, bytes, raw))
        })
    };
    let mut crc = 0;
    let mut write = |(frame_crc, stored, raw): RawFrame| {
        sink(&raw)?;
        crc = combine(crc, frame_crc, raw.len() as u64);
        unused.borrow_mut().push((stored, raw));
        Ok(())
    };
    let threads = threads.min(member.frame_count.clamp(1, u32::from(u16::MAX)) as u16);
    in_order(threads, Caller::Feeds, &mut read, &make_work, &mut write)?;
    let mut left = member.size_bytes - member.content_bytes;
    crc = combine(crc, crc32c_of_zeros(left), left);
    if crc != member.crc32c {
        let action = format!("decode {}", member.name);
        return Err(Error::new(ErrorKind::Damage, action, "the checksum of the whole does not match"));
    }
    while left > 0 {
        let count = left.min(ZEROS.len() as u64);
        sink(&ZEROS[..count as usize])?;
        left -= count;
    }
    Ok(())
}

/// The raw bytes of frame `sequence`, with every check there is for a frame alone.
///
/// # Errors
/// `Damage` if it is not there or not what was written; those of the storage.
pub fn decode_one_frame(
    object: &dyn ObjectReader,
    header: &BundleHeader,
    index: &FrameIndex,
    sequence: u64,
) -> Result<Vec<u8>> {
    let action = || format!("decode frame {sequence}");
    let entry = index.entries().get(sequence as usize);
    let entry = entry.ok_or_else(|| Error::new(ErrorKind::Damage, action(), "the object has no such frame"))?;
    let before = index.entries().iter().take(sequence as usize).map(|entry| entry.size_on_stripe_bytes());
    let offset = STRIPE_HEADER_BYTES as u64 + before.sum::<u64>();
    let mut bytes = vec![0; entry.size_on_stripe_bytes() as usize];
    let mut raw = vec![0; entry.raw_size_bytes as usize];
    object.read_at(&mut bytes, offset)?;
    let (frame, stored) = open_frame(&bytes, header.bundle_id, StripeIndex(0), sequence, raw.len())?;
    Decoders::default().decode(frame.codec, stored, &mut raw)?;
    match crc32c(&raw) == frame.raw_crc32c {
        true => Ok(raw),
        false => Err(Error::new(ErrorKind::Damage, action(), "its checksum does not match")),
    }
}
