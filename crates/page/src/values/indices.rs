//! Which entry of a dictionary each value of a column is.

use super::ValueDecoders;
use crate::entropy::{ByteCoder, NumberCoder, Reader};
use crate::error::{Damaged, Decoded};

/// The most entries. Half as many make a database of words 0.6 % larger.
pub(super) const ENTRIES_MAX: usize = 8192;
/// Up to this many entries an index is a byte, whose code is chosen freely; of more it is a number.
pub(super) const NARROW_ENTRIES_MAX: usize = 255;

/// So many slots of a table are looked at for a value. More are needed only if somebody made values whose hashes are alike.
pub(super) const PROBES_MAX: usize = 256;

pub(super) const BAD_ENTRY: Damaged = Damaged("a dictionary does not have the entries that it says");

/// The number of its entry for each value.
#[derive(Debug, Default)]
pub(super) struct Indices {
    pub(super) values: Vec<u32>,
    /// The same where they are stored as bytes.
    narrow: Vec<u8>,
}

impl Indices {
    pub(super) fn clear(&mut self) {
        self.values.clear();
        self.narrow.clear();
    }

    /// Appends them, which are of so many entries, to `out`.
    pub(super) fn encode(
        &mut self,
        entry_count: usize,
        bytes: &mut ByteCoder,
        numbers: &mut NumberCoder,
        out: &mut Vec<u8>,
    ) {
        if entry_count <= NARROW_ENTRIES_MAX {
            self.narrow.extend(self.values.iter().map(|index| *index as u8));
            bytes.encode(&self.narrow, out);
        } else {
            numbers.encode_u32(&self.values, None, out);
        }
    }

    /// Takes the next ones of `input`, after a [`Indices::clear`]. All are of one of the `entry_count` entries.
    pub(super) fn decode(
        &mut self,
        entry_count: usize,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
    ) -> Decoded<()> {
        if entry_count <= NARROW_ENTRIES_MAX {
            decoders.decode_bytes(input, &mut self.narrow)?;
            self.values.extend(self.narrow.iter().map(|index| u32::from(*index)));
        } else {
            decoders.numbers.decode_u32(input, decoders.budget.count(4), None, &mut self.values)?;
        }
        let most = self.values.iter().copied().max();
        if most.is_none_or(|most| (most as usize) < entry_count) { Ok(()) } else { Err(BAD_ENTRY) }
    }
}
