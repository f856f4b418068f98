//! Blocks back to raw bytes: no length and no distance found in a block is trusted.

use super::bits::Bits;
use super::decode_table::{DecodeTable, Entry, LENGTHS_SIZE_BYTES};
use super::{BLOCK_SIZE_BYTES_MAX, END_OF_BLOCK};
use crate::error::{Error, ErrorKind, Result};

/// Output that must be free for the fast loop: two literals and what copies of a short match may write too much.
const FAST_OUTPUT_SIZE_BYTES: usize = 2 + Entry::LENGTH_FOLLOWS + COPY_SIZE_BYTES;

/// What a match copies at once.
const COPY_SIZE_BYTES: usize = 16;

/// What is wrong with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    TooShortForLengths,
    LengthsAreNoCode,
    EndsTooEarly,
    ReachesBeforeStart { distance: usize },
    RunsPastEnd { len: usize },
    LengthTooSmall { len: usize },
}

/// Memory for decoding blocks, about 11 KiB; one per thread.
pub struct DecodeState {
    table: Box<DecodeTable>,
}

impl DecodeState {
    /// What one holds, in bytes.
    pub const SIZE_BYTES: usize = size_of::<DecodeTable>();

    /// A state; every block begins afresh.
    pub fn new() -> Self {
        DecodeState { table: Box::new(DecodeTable::new()) }
    }
}

impl Default for DecodeState {
    fn default() -> Self {
        DecodeState::new()
    }
}

/// Fills `raw`, at most 65,536 bytes, from the block that `stored` begins with, and tells how many bytes of `stored`
/// that block took.
///
/// A symbol 256 behind the last byte, with which Microsoft's encoders end a block, belongs to the block if the bytes
/// that hold it are there. After an error the content of `raw` is undefined.
///
/// # Errors
/// `Damage`, with the offset in `stored` and in `raw`, if the code lengths are no complete prefix code, the block ends
/// before `raw` is full, a match begins before `raw` or ends behind it, or `raw` is larger than a block can be.
pub fn decode_block(stored: &[u8], raw: &mut [u8], state: &mut DecodeState) -> Result<usize> {
    if raw.len() > BLOCK_SIZE_BYTES_MAX {
        let cause = format!("it should hold {} bytes, more than the {BLOCK_SIZE_BYTES_MAX} of a block", raw.len());
        return Err(damaged_block(cause));
    }
    let Some((lengths, _)) = stored.split_first_chunk::<LENGTHS_SIZE_BYTES>() else {
        return Err(fault_error(Fault::TooShortForLengths, stored.len(), 0));
    };
    if !state.table.fill(lengths) {
        return Err(fault_error(Fault::LengthsAreNoCode, 0, 0));
    }
    let mut run = Run { table: &state.table, bits: Bits::new(stored, LENGTHS_SIZE_BYTES), raw, filled: 0 };
    match run.decode(stored.len()) {
        Ok(()) => Ok(run.end(stored.len())),
        Err(fault) => Err(fault_error(fault, run.bits.format_position().min(stored.len()), run.filled)),
    }
}

/// The error of a block.
#[cold]
fn fault_error(fault: Fault, stored_offset: usize, raw_offset: usize) -> Error {
    let what = match fault {
        Fault::TooShortForLengths => "it ends within its code lengths".to_owned(),
        Fault::LengthsAreNoCode => "its code lengths are not a complete prefix code".to_owned(),
        Fault::EndsTooEarly => "it ends too early".to_owned(),
        Fault::ReachesBeforeStart { distance } => format!("a match reaches back {distance} bytes, before its start"),
        Fault::RunsPastEnd { len } => format!("a match of {len} bytes runs past its end"),
        Fault::LengthTooSmall { len } => format!("a long match is said to have {len} bytes"),
    };
    damaged_block(format!("{what} (stored byte {stored_offset}, raw byte {raw_offset} of the block)"))
}

fn damaged_block(cause: String) -> Error {
    Error::new(ErrorKind::Damage, "decode an xpress block", cause)
}

/// One block at work.
struct Run<'a> {
    table: &'a DecodeTable,
    bits: Bits<'a>,
    raw: &'a mut [u8],
    filled: usize,
}

impl Run<'_> {
    /// Fills all of `raw`.
    fn decode(&mut self, stored_len: usize) -> std::result::Result<(), Fault> {
        while self.bits.is_far_from_end() && self.filled + FAST_OUTPUT_SIZE_BYTES <= self.raw.len() {
            self.step_fast()?;
        }
        while self.filled < self.raw.len() {
            self.bits.refill();
            let entry = self.table.entry(self.bits.peek());
            self.bits.consume(entry.code_len());
            if entry.is_literal() {
                self.put(entry.literal());
            } else {
                self.put_match(entry)?;
            }
            if self.bits.format_position() > stored_len {
                return Err(Fault::EndsTooEarly);
            }
        }
        Ok(())
    }

    /// Two symbols, or one match, where there is room at both ends.
    ///
    /// 48 bits are two codes of 15 bits and the 16 bits that have to be in hand when bytes follow them.
    #[inline]
    fn step_fast(&mut self) -> std::result::Result<(), Fault> {
        self.bits.refill_fast();
        let mut entry = self.table.entry(self.bits.peek());
        self.bits.consume(entry.code_len());
        if entry.is_literal() {
            self.put(entry.literal());
            entry = self.table.entry(self.bits.peek());
            self.bits.consume(entry.code_len());
            if entry.is_literal() {
                self.put(entry.literal());
                return Ok(());
            }
        }
        self.put_match(entry)
    }

    #[inline]
    fn put(&mut self, byte: u8) {
        if let Some(place) = self.raw.get_mut(self.filled) {
            *place = byte;
            self.filled += 1;
        }
    }

    /// Reads the rest of a match whose code is consumed, and copies it.
    #[inline]
    fn put_match(&mut self, entry: Entry) -> std::result::Result<(), Fault> {
        let mut len = entry.match_len();
        if len == Entry::LENGTH_FOLLOWS {
            len = self.long_match_len()?;
        }
        let distance_bits = entry.distance_bits();
        let distance = (1usize << distance_bits) + self.bits.number(distance_bits);
        if distance > self.filled {
            return Err(Fault::ReachesBeforeStart { distance });
        }
        if len > self.raw.len() - self.filled {
            return Err(Fault::RunsPastEnd { len });
        }
        copy_match(self.raw, self.filled, distance, len);
        self.filled += len;
        Ok(())
    }

    /// The length of a match that stands in bytes between the units: one, or 255 and two, or these as 0 and four.
    fn long_match_len(&mut self) -> std::result::Result<usize, Fault> {
        let mut next = || self.bits.byte().map(usize::from).ok_or(Fault::EndsTooEarly);
        let first = next()?;
        if first < 255 {
            return Ok(first + Entry::LENGTH_FOLLOWS);
        }
        let mut len = next()? | next()? << 8;
        if len == 0 {
            len = next()? | next()? << 8 | next()? << 16 | next()? << 24;
        }
        if len < Entry::LENGTH_FOLLOWS - 3 {
            return Err(Fault::LengthTooSmall { len: len + 3 });
        }
        Ok(len + 3)
    }

    /// Where the block ends, once `raw` is full: behind the symbol that ends a block, if it is there and whole.
    fn end(&mut self, stored_len: usize) -> usize {
        let before = self.bits.format_position();
        self.bits.refill();
        let entry = self.table.entry(self.bits.peek());
        if entry != Entry::of_symbol(END_OF_BLOCK, entry.code_len() as usize) {
            return before;
        }
        self.bits.consume(entry.code_len());
        let after = self.bits.format_position();
        if after <= stored_len { after } else { before }
    }
}

/// Copies `len` bytes from `distance` bytes before `to`; where both overlap, what was copied is copied again.
#[inline]
fn copy_match(raw: &mut [u8], to: usize, distance: usize, len: usize) {
    let from = to - distance;
    if to + len + COPY_SIZE_BYTES > raw.len() {
        for place in 0..len {
            raw[to + place] = raw[from + place];
        }
    } else if distance >= COPY_SIZE_BYTES {
        let mut done = 0;
        while done < len {
            copy_bytes::<COPY_SIZE_BYTES>(raw, from + done, to + done);
            done += COPY_SIZE_BYTES;
        }
    } else if distance == 1 {
        let byte = raw[from];
        raw[to..to + len].fill(byte);
    } else {
        copy_pattern(raw, to, distance, len);
    }
}

/// As [`copy_match`] for 2 to 15 bytes that repeat: written out once or more, eight bytes and more lie behind.
fn copy_pattern(raw: &mut [u8], to: usize, distance: usize, len: usize) {
    let repeated = distance * 8usize.div_ceil(distance);
    let mut done = 0;
    while done < repeated - distance {
        raw[to + done] = raw[to + done - distance];
        done += 1;
    }
    while done < len {
        copy_bytes::<8>(raw, to + done - repeated, to + done);
        done += 8;
    }
}

/// Moves `N` bytes through registers.
#[inline]
fn copy_bytes<const N: usize>(raw: &mut [u8], from: usize, to: usize) {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&raw[from..from + N]);
    raw[to..to + N].copy_from_slice(&bytes);
}
