//! Raw bytes to blocks: matches by a hash of the next bytes, then one Huffman code for the block.

use super::decode_table::LENGTHS_SIZE_BYTES;
use super::huffman::{Code, CodeMaker, Counts};
use super::matches::{Effort, MATCH_LEN_MIN, MatchFinder, Sequence};
use super::{BLOCK_SIZE_BYTES_MAX, END_OF_BLOCK};

/// Memory for encoding blocks; one per thread, nothing is allocated for a block.
pub struct EncodeState {
    effort: Effort,
    finder: Box<MatchFinder>,
    maker: Box<CodeMaker>,
    code: Box<Code>,
    counts: Box<Counts>,
}

impl EncodeState {
    /// What one holds, in bytes.
    pub const SIZE_BYTES: usize =
        MatchFinder::SIZE_BYTES + size_of::<CodeMaker>() + size_of::<Code>() + size_of::<Counts>();

    /// A state for blocks of `level`: 1 takes each match where it finds it, 2 and above looks for a better one behind
    /// it. Every block begins afresh.
    pub fn new(level: i32) -> Self {
        EncodeState {
            effort: if level < 2 { Effort::Greedy } else { Effort::Lazy },
            finder: Box::new(MatchFinder::new()),
            maker: Box::new(CodeMaker::new()),
            code: Box::new(Code::new()),
            counts: Box::new([0; 512]),
        }
    }
}

/// Makes a block of `raw`, 1 to 65,536 bytes, in `stored`, ended by the symbol 256 as Microsoft's encoders end it.
///
/// Returns its length; `None` if the block does not fit into `stored`, or `raw` is empty or larger than a block. The
/// same input gives the same block.
pub fn encode_block(raw: &[u8], stored: &mut [u8], state: &mut EncodeState) -> Option<usize> {
    if raw.is_empty() || raw.len() > BLOCK_SIZE_BYTES_MAX {
        return None;
    }
    let EncodeState { effort, finder, maker, code, counts } = state;
    let sequences = finder.find(raw, *effort);
    let length_bytes = count_symbols(raw, sequences, counts);
    maker.make(counts, code);
    let distance_bits: usize = (1..16).map(|bits| bits * count_of_distance_bits(counts, bits)).sum();
    let bit_count = code.cost_bits(counts) + distance_bits;
    let stored_len = LENGTHS_SIZE_BYTES + 2 * (bit_count.div_ceil(16) + 1) + length_bytes;
    let stored = stored.get_mut(..stored_len)?;
    let (lengths, codes) = stored.split_first_chunk_mut()?;
    code.write_lengths(lengths);
    let mut writer = Writer::new(codes);
    write_symbols(raw, sequences, code, &mut writer);
    writer.end();
    Some(stored_len)
}

/// Matches of a block whose distance has that many bits below its highest.
fn count_of_distance_bits(counts: &Counts, bits: usize) -> usize {
    counts[256 + 16 * bits..][..16].iter().sum::<u32>() as usize
}

/// Counts all symbols of a block; returns how many bytes its long lengths take.
fn count_symbols(raw: &[u8], sequences: &[Sequence], counts: &mut Counts) -> usize {
    counts.fill(0);
    let (mut at, mut length_bytes) = (0, 0);
    for sequence in sequences {
        let literals_end = at + usize::from(sequence.literal_count);
        for &byte in &raw[at..literals_end] {
            counts[usize::from(byte)] += 1;
        }
        counts[sequence.symbol()] += 1;
        let len = usize::from(sequence.match_len);
        length_bytes += match len - MATCH_LEN_MIN {
            0..15 => 0,
            15..270 => 1,
            _ => 3,
        };
        at = literals_end + len;
    }
    for &byte in &raw[at..] {
        counts[usize::from(byte)] += 1;
    }
    counts[END_OF_BLOCK] += 1;
    length_bytes
}

/// Writes all symbols of a block.
fn write_symbols(raw: &[u8], sequences: &[Sequence], code: &Code, writer: &mut Writer<'_>) {
    let mut at = 0;
    for sequence in sequences {
        let literals_end = at + usize::from(sequence.literal_count);
        write_literals(&raw[at..literals_end], code, writer);
        let (symbol, excess) = (sequence.symbol(), usize::from(sequence.match_len) - MATCH_LEN_MIN);
        writer.put(code.codes[symbol], code.lengths[symbol]);
        match excess {
            0..15 => {}
            15..270 => {
                writer.flush();
                writer.byte((excess - 15) as u8);
            }
            _ => {
                writer.flush();
                writer.byte(255);
                writer.byte(excess as u8);
                writer.byte((excess >> 8) as u8);
            }
        }
        let distance_bits = sequence.distance_bits();
        writer.put(sequence.distance & !(1 << distance_bits), distance_bits as u8);
        writer.flush();
        at = literals_end + usize::from(sequence.match_len);
    }
    write_literals(&raw[at..], code, writer);
    writer.put(code.codes[END_OF_BLOCK], code.lengths[END_OF_BLOCK]);
    writer.flush();
}

/// Three codes of 15 bits fit with the 16 bits that may be pending.
fn write_literals(literals: &[u8], code: &Code, writer: &mut Writer<'_>) {
    for group in literals.chunks(3) {
        for &byte in group {
            writer.put(code.codes[usize::from(byte)], code.lengths[usize::from(byte)]);
        }
        writer.flush();
    }
}

/// Puts units and bytes where the format's reader looks for them.
///
/// That reader is always one unit ahead, so the next two units have their places before a byte has its own.
struct Writer<'a> {
    stored: &'a mut [u8],
    /// Where the pending bits go, and the unit after them.
    places: [usize; 2],
    /// Where the next unit or byte goes that has no place yet.
    next: usize,
    /// The low `bit_count` bits are pending.
    bits: u64,
    bit_count: u32,
}

impl<'a> Writer<'a> {
    fn new(stored: &'a mut [u8]) -> Self {
        Writer { stored, places: [0, 2], next: 4, bits: 0, bit_count: 0 }
    }

    /// Adds up to 15 bits; 64 may be pending.
    #[inline]
    fn put(&mut self, bits: u16, count: u8) {
        self.bits = self.bits << (count & 63) | u64::from(bits);
        self.bit_count += u32::from(count);
    }

    /// Writes units until at most one is pending; a full one stays, or the reader would be further ahead.
    #[inline]
    fn flush(&mut self) {
        while self.bit_count > 16 {
            self.bit_count -= 16;
            self.unit((self.bits >> (self.bit_count & 63)) as u16);
        }
    }

    #[inline]
    fn unit(&mut self, unit: u16) {
        if let Some(place) = self.stored.get_mut(self.places[0]..self.places[0] + 2) {
            place.copy_from_slice(&unit.to_le_bytes());
        }
        self.places = [self.places[1], self.next];
        self.next += 2;
    }

    /// Adds a byte; nothing but one unit may be pending.
    #[inline]
    fn byte(&mut self, byte: u8) {
        if let Some(place) = self.stored.get_mut(self.next) {
            *place = byte;
        }
        self.next += 1;
    }

    /// Fills up the pending unit and the one the reader takes ahead.
    fn end(&mut self) {
        let pending = (self.bits << (16 - self.bit_count)) as u16;
        self.unit(pending);
        self.unit(0);
    }
}
