//! Frames of any size as blocks: the codec `xpress` of this engine's own repositories.
//!
//! Every 64 KiB of a frame, and the rest, are one block behind its stored length in 4 bytes. A block as long as its
//! raw bytes is these bytes; one that is made is always shorter. A frame of nothing is one block of nothing.

use super::{BLOCK_SIZE_BYTES_MAX, DecodeState, EncodeState, decode_block, encode_block};
use crate::codec::{CodecId, Decoder, Encoder, check_raw_len, damaged_frame, wrong_length};
use crate::error::Result;

/// The stored length before each block, u32.
const LENGTH_SIZE_BYTES: usize = 4;

/// Encodes frames block by block.
pub(in crate::codec) struct XpressEncoder {
    state: EncodeState,
    frame_size_bytes: usize,
}

impl XpressEncoder {
    pub(in crate::codec) fn new(level: i32, frame_size_bytes: usize) -> Self {
        XpressEncoder { state: EncodeState::new(level), frame_size_bytes }
    }
}

impl Encoder for XpressEncoder {
    fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
        check_raw_len(CodecId::Xpress, raw, self.frame_size_bytes)?;
        let (mut rest, mut used) = (raw, 0);
        loop {
            let (block, behind) = rest.split_at(rest.len().min(BLOCK_SIZE_BYTES_MAX));
            let Some((length, room)) = stored[used..].split_first_chunk_mut::<LENGTH_SIZE_BYTES>() else {
                return Ok(None);
            };
            // Only a block that is shorter than its raw bytes is told from these.
            let shorter = room.len().min(block.len().saturating_sub(1));
            let stored_len = match encode_block(block, &mut room[..shorter], &mut self.state) {
                Some(stored_len) => stored_len,
                None if block.len() <= room.len() => {
                    room[..block.len()].copy_from_slice(block);
                    block.len()
                }
                None => return Ok(None),
            };
            *length = (stored_len as u32).to_le_bytes();
            used += LENGTH_SIZE_BYTES + stored_len;
            rest = behind;
            if rest.is_empty() {
                return Ok(Some(used));
            }
        }
    }
}

/// Decodes frames block by block.
pub(in crate::codec) struct XpressDecoder {
    state: DecodeState,
}

impl XpressDecoder {
    pub(in crate::codec) fn new() -> Self {
        XpressDecoder { state: DecodeState::new() }
    }

    /// Fills `block` from one block with its length, and returns what lies behind it.
    fn decode_one<'a>(&mut self, stored: &'a [u8], block: &mut [u8], raw_offset: usize) -> Result<&'a [u8]> {
        let damaged =
            |cause: String| damaged_frame(CodecId::Xpress, format!("{cause} (block at raw byte {raw_offset})"));
        let Some((length, behind)) = stored.split_first_chunk::<LENGTH_SIZE_BYTES>() else {
            return Err(damaged("it ends before a block's length".to_owned()));
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > block.len() {
            return Err(damaged(format!("a block of {} bytes is said to take {length}", block.len())));
        }
        let Some((stored_block, behind)) = behind.split_at_checked(length) else {
            return Err(damaged(format!("it ends within a block of {length} bytes")));
        };
        if length == block.len() {
            block.copy_from_slice(stored_block);
            return Ok(behind);
        }
        match decode_block(stored_block, block, &mut self.state) {
            Ok(used) if used == length => Ok(behind),
            Ok(used) => Err(damaged(format!("a block of {length} bytes ends after {used}"))),
            Err(error) => Err(damaged(error.cause().to_owned())),
        }
    }
}

impl Decoder for XpressDecoder {
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<()> {
        let (mut rest, mut filled) = (stored, 0);
        loop {
            let block_end = raw.len().min(filled + BLOCK_SIZE_BYTES_MAX);
            rest = self.decode_one(rest, &mut raw[filled..block_end], filled)?;
            filled = block_end;
            if filled == raw.len() {
                break;
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(wrong_length(CodecId::Xpress, rest.len(), filled, raw.len())) }
    }
}
