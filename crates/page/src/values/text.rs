//! The text of a frame: what all its streams have of it, packed as one.

use std::ops::Range;

use crate::entropy::{Reader, put_varint};
use crate::error::Decoded;
use crate::postgres::{SHORT_BYTES, append};

/// Text of all streams of a frame, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Text {
    /// While pages are made, values that were not stored as text follow behind.
    pub(crate) bytes: Vec<u8>,
    /// How much of it has been given to streams, of how much.
    used: usize,
    length: usize,
}

impl Text {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.used = 0;
        self.length = 0;
    }

    /// Appends a stream's text; its length goes to `out`.
    pub(crate) fn store(&mut self, stream: &[u8], out: &mut Vec<u8>) {
        put_varint(stream.len() as u64, out);
        self.bytes.extend_from_slice(stream);
    }

    /// Appends texts of these heads, each with a zero byte behind it; their length goes to `out`.
    pub(super) fn store_ended(&mut self, heads: &[u32], texts: &[u8], out: &mut Vec<u8>) {
        put_varint((texts.len() + heads.len()) as u64, out);
        let mut start = 0;
        for head in heads {
            let end = start + (head >> 2) as usize;
            append(&mut self.bytes, texts, start, end);
            self.bytes.push(0);
            start = end;
        }
    }

    /// All text has been decoded. Behind it there is room for its last values to be copied as others are.
    pub(crate) fn seal(&mut self) {
        self.length = self.bytes.len();
        self.bytes.resize(self.length + SHORT_BYTES, 0);
    }

    /// Where the text is of the stream whose length is next in `input`.
    pub(crate) fn next(&mut self, input: &mut Reader<'_>) -> Decoded<Range<usize>> {
        let length = input.count(self.length - self.used)?;
        let start = self.used;
        self.used += length;
        Ok(start..self.used)
    }

    /// Whether all of it has been used.
    pub(crate) fn is_spent(&self) -> bool {
        self.used == self.length
    }
}
