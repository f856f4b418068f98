//! The codec that stores bytes as they are: the yardstick for every other one.

use super::{CodecId, Decoder, Encoder, check_raw_len, damaged_frame};
use crate::error::Result;

/// Copies.
pub(super) struct NoneEncoder {
    frame_size_bytes: usize,
}

impl NoneEncoder {
    pub(super) fn new(frame_size_bytes: usize) -> Self {
        NoneEncoder { frame_size_bytes }
    }
}

impl Encoder for NoneEncoder {
    fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
        check_raw_len(CodecId::None, raw, self.frame_size_bytes)?;
        let Some(stored) = stored.get_mut(..raw.len()) else { return Ok(None) };
        stored.copy_from_slice(raw);
        Ok(Some(raw.len()))
    }
}

/// Copies back.
pub(super) struct NoneDecoder;

impl Decoder for NoneDecoder {
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<()> {
        if stored.len() != raw.len() {
            let cause = format!("{} bytes are stored instead of {}", stored.len(), raw.len());
            return Err(damaged_frame(CodecId::None, cause));
        }
        raw.copy_from_slice(stored);
        Ok(())
    }
}
