//! zstd frames, with contexts that are kept and parameters that follow the frame size.

use zstd_safe::zstd_sys::{self, ZSTD_ErrorCode};
use zstd_safe::{CCtx, CParameter, DCtx};

use super::state_memory::{OutputAnchor, anchored};
use super::{CodecId, Decoder, Encoder, check_raw_len, damaged_frame, no_memory, wrong_length};
use crate::error::{Error, ErrorKind, Result};

/// The first bytes of a zstd frame; skippable frames begin otherwise and are not ours.
const FRAME_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// The content sizes up to which zstd has a parameter table of its own, in its 1.5 releases.
const PARAMETER_TIERS_BYTES: [usize; 3] = [16 << 10, 128 << 10, 256 << 10];

/// What zstd may add to its estimate: slack of its workspace between allocations of different alignment.
const WORKSPACE_SLACK_BYTES: u64 = 4096;

/// What one context of `level` grows to at most, over all frames of up to `frame_size_bytes`.
///
/// Small frames have parameter tables of their own, some with larger hash tables than the next tier, so the bound is
/// the largest of the tiers. Estimates for a content size include the context itself.
pub(super) fn encoder_state_size_bytes(level: i32, frame_size_bytes: usize) -> u64 {
    let tiers = PARAMETER_TIERS_BYTES.into_iter().filter(|&tier| tier < frame_size_bytes);
    let largest = tiers.chain([frame_size_bytes]).map(|size| estimate(level, size)).max();
    largest.unwrap_or(0) + WORKSPACE_SLACK_BYTES
}

/// zstd's own estimate for content of exactly that size.
fn estimate(level: i32, content_size_bytes: usize) -> u64 {
    // SAFETY: a pure function of its arguments; it clamps levels it does not know.
    let parameters = unsafe { zstd_sys::ZSTD_getCParams(level, content_size_bytes as u64, 0) };
    // SAFETY: a pure function of the parameters zstd has just given.
    let size = unsafe { zstd_sys::ZSTD_estimateCCtxSize_usingCParams(parameters) };
    size as u64
}

/// What a decoder holds: frames decode straight into the caller's memory, so there is no window.
pub(super) fn decoder_state_size_bytes() -> u64 {
    // SAFETY: returns a constant of the library.
    let size = unsafe { zstd_sys::ZSTD_estimateDCtxSize() };
    size as u64
}

/// Compresses with one context.
pub(super) struct ZstdEncoder {
    context: CCtx<'static>,
    frame_size_bytes: usize,
}

impl ZstdEncoder {
    /// A context with its memory already taken, so that a lack of it shows before the run and not during it.
    pub(super) fn new(level: i32, frame_size_bytes: usize) -> Result<Self> {
        let mut context = CCtx::try_create().ok_or_else(|| no_memory("a zstd encoder"))?;
        let parameters = [
            CParameter::CompressionLevel(level),
            CParameter::ContentSizeFlag(true),
            // The frame header's checksum covers the stored bytes already.
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ];
        for parameter in parameters {
            context.set_parameter(parameter).map_err(|code| refused("set up a zstd encoder", code))?;
        }
        let mut encoder = ZstdEncoder { context, frame_size_bytes };
        encoder.take_memory()?;
        Ok(encoder)
    }

    /// The first frame makes the context take its tables; zeroes are the cheapest frame and have a tiny result.
    fn take_memory(&mut self) -> Result<()> {
        let zeroes = vec![0u8; self.frame_size_bytes];
        let mut stored = vec![0u8; 1024 + self.frame_size_bytes / 1024];
        self.encode(&zeroes, &mut stored).map(drop)
    }

    /// Encodes at `level` from the next frame on. The context keeps the memory of the largest level it has had for
    /// a while and never holds more than that level's own.
    pub(super) fn set_level(&mut self, level: i32) -> Result<()> {
        let set = self.context.set_parameter(CParameter::CompressionLevel(level));
        set.map(drop).map_err(|code| refused("change the level of a zstd encoder", code))
    }

    /// What the context holds now.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> u64 {
        self.context.sizeof() as u64
    }
}

/// The error for a call of zstd that fails with our parameters for want of memory, or not at all.
fn refused(action: &str, code: usize) -> Error {
    if is(code, ZSTD_ErrorCode::ZSTD_error_memory_allocation) {
        return no_memory("a zstd encoder");
    }
    Error::new(ErrorKind::Bug, action, zstd_safe::get_error_name(code))
}

/// Whether `code` is zstd's way to return `error`: the number, negated.
fn is(code: usize, error: ZSTD_ErrorCode) -> bool {
    code.wrapping_neg() == error as usize
}

impl Encoder for ZstdEncoder {
    fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
        check_raw_len(CodecId::Zstd, raw, self.frame_size_bytes)?;
        // No codec has an empty result, and no library has to show that it knows.
        if stored.is_empty() {
            return Ok(None);
        }
        let raw = anchored(raw);
        // compress2 begins with a reset of the session, so a frame that did not fit leaves nothing behind.
        match self.context.compress2(stored, raw) {
            Ok(stored_len) => Ok(Some(stored_len)),
            Err(code) if is(code, ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall) => Ok(None),
            Err(code) => Err(refused("encode a zstd frame", code)),
        }
    }
}

/// Decompresses with one context.
pub(super) struct ZstdDecoder {
    context: DCtx<'static>,
}

impl ZstdDecoder {
    pub(super) fn new() -> Result<Self> {
        let context = DCtx::try_create().ok_or_else(|| no_memory("a zstd decoder"))?;
        Ok(ZstdDecoder { context })
    }
}

impl Decoder for ZstdDecoder {
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<()> {
        check_is_one_frame(stored, raw.len())?;
        let mut anchor = OutputAnchor::new();
        let raw = anchor.hold(raw);
        match self.context.decompress(raw, stored) {
            Ok(len) if len == raw.len() => Ok(()),
            Ok(len) => Err(wrong_length(CodecId::Zstd, 0, len, raw.len())),
            Err(code) if is(code, ZSTD_ErrorCode::ZSTD_error_memory_allocation) => Err(no_memory("a zstd decoder")),
            Err(code) => Err(damaged_frame(CodecId::Zstd, zstd_safe::get_error_name(code))),
        }
    }
}

/// Refuses all that zstd itself would take: several frames in a row, skippable frames, frames without their size.
fn check_is_one_frame(stored: &[u8], raw_len: usize) -> Result<()> {
    let damaged = |cause: String| Err(damaged_frame(CodecId::Zstd, cause));
    if !stored.starts_with(&FRAME_MAGIC) {
        return damaged("it does not begin like a zstd frame".to_owned());
    }
    match zstd_safe::get_frame_content_size(stored) {
        Ok(Some(len)) if len == raw_len as u64 => {}
        Ok(Some(len)) => return damaged(format!("it holds {len} bytes instead of {raw_len}")),
        Ok(None) => return damaged("it does not say how many bytes it holds".to_owned()),
        Err(_) => return damaged("its header is not valid".to_owned()),
    }
    match zstd_safe::find_frame_compressed_size(stored) {
        Ok(len) if len == stored.len() => Ok(()),
        Ok(len) => damaged(format!("it ends after {len} of {} stored bytes", stored.len())),
        Err(code) => damaged(zstd_safe::get_error_name(code).to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::conformance::sample_data::pages;
    use crate::codec::{CodecSpec, encoder_state_size_bytes};

    #[test]
    fn the_state_never_grows_beyond_the_promise() {
        for frame_size_bytes in [1 << 12, 1 << 16, 1 << 17, (1 << 17) + 1, 1 << 18, 1 << 20] {
            // What a context takes follows from the length alone.
            let raw = vec![0u8; frame_size_bytes];
            let mut stored = vec![0u8; 4096];
            for spec in CodecSpec::all_of(CodecId::Zstd) {
                let promise = encoder_state_size_bytes(spec, frame_size_bytes);
                let mut encoder = ZstdEncoder::new(spec.level(), frame_size_bytes).unwrap();
                for len in [0, 1, 255, 256, 1000, 1 << 14, (1 << 14) + 1, 100_000, 1 << 17, 200_000, 1 << 18, 1 << 20] {
                    encoder.encode(&raw[..len.min(frame_size_bytes)], &mut stored).unwrap();
                    let held = encoder.context.sizeof() as u64;
                    assert!(held <= promise, "{spec} frame {frame_size_bytes} len {len}: {held} > {promise}");
                }
            }
        }
    }

    #[test]
    fn f38_a_lack_of_memory_is_neither_a_bug_nor_damage() {
        let code = |error: ZSTD_ErrorCode| (error as usize).wrapping_neg();
        let kind = |error| refused("encode", code(error)).kind();
        assert_eq!(kind(ZSTD_ErrorCode::ZSTD_error_memory_allocation), ErrorKind::Configuration);
        assert_eq!(kind(ZSTD_ErrorCode::ZSTD_error_GENERIC), ErrorKind::Bug);
    }

    #[test]
    fn the_first_frame_finds_all_memory_taken() {
        let raw = pages(1 << 16);
        let mut stored = vec![0u8; 1 << 16];
        for level in [-7, 1, 5, 12, 19] {
            let mut encoder = ZstdEncoder::new(level, raw.len()).unwrap();
            let before = encoder.context.sizeof();
            encoder.encode(&raw, &mut stored).unwrap();
            assert_eq!(before, encoder.context.sizeof(), "level {level}");
        }
    }

    #[test]
    fn a_decoder_keeps_its_size() {
        let mut decoder = ZstdDecoder::new().unwrap();
        let raw = pages(1 << 20);
        let mut stored = vec![0u8; 1 << 20];
        let stored_len = ZstdEncoder::new(19, raw.len()).unwrap().encode(&raw, &mut stored).unwrap().unwrap();
        let mut back = vec![0u8; raw.len()];
        decoder.decode(&stored[..stored_len], &mut back).unwrap();
        assert!(decoder.context.sizeof() as u64 <= decoder_state_size_bytes());
    }

    #[test]
    fn frames_carry_their_size_and_nothing_else() {
        let raw = pages(1 << 16);
        let mut stored = vec![0u8; 1 << 16];
        ZstdEncoder::new(1, raw.len()).unwrap().encode(&raw, &mut stored).unwrap().unwrap();
        let descriptor = stored[4];
        assert_eq!(descriptor & 0b11, 0, "dictionary id");
        assert_eq!(descriptor & 0b100, 0, "checksum");
        assert!(matches!(zstd_safe::get_frame_content_size(&stored), Ok(Some(len)) if len == raw.len() as u64));
    }

    #[test]
    fn other_things_that_zstd_reads_are_refused() {
        let mut decoder = ZstdDecoder::new().unwrap();
        let mut stored = [0u8; 64];
        let empty_len = ZstdEncoder::new(1, 1).unwrap().encode(&[], &mut stored).unwrap().unwrap();
        let empty = stored[..empty_len].to_vec();
        decoder.decode(&empty, &mut []).unwrap();
        let skippable = [0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0];
        for bad in [[&empty[..], &empty].concat(), skippable.to_vec(), [&empty[..], &skippable].concat()] {
            assert_eq!(decoder.decode(&bad, &mut []).unwrap_err().kind(), ErrorKind::Damage);
        }
        // A frame of one raw block without content size: valid zstd, but not what we write.
        let unsized_frame = [0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x58, 0x09, 0x00, 0x00, b'a'];
        assert!(decoder.decode(&unsized_frame, &mut [0u8; 1]).is_err());
    }
}
