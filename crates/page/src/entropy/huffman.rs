//! Huffman coding of bytes: canonical codes of at most 11 bits, four streams of bits side by side.

use super::bits::BitWriter;
use super::cost::Histogram;
use super::reader::put_varint;

/// The longest code: tables of 2^11 entries stay in the first cache, and five codes fit a 56-bit window.
pub(super) const LENGTH_MAX: u32 = 11;
/// Codes of at most this length are decoded by the small table, seven to a window.
pub(super) const LENGTH_SMALL: u32 = 8;
/// From this many values on there are four streams of bits: below, their sizes cost more than the time they save.
pub(super) const FOUR_STREAMS_FROM: usize = 256;
/// The length that the first code length is compared with.
pub(super) const LENGTH_BEFORE: u32 = 5;
/// How the table says which symbols there are.
pub(super) const TABLE_LIST: u8 = 0;
pub(super) const TABLE_SPAN: u8 = 1;
pub(super) const TABLE_BITMAP: u8 = 2;

/// Builds codes and writes streams; its buffers are kept.
pub(super) struct HuffmanCoder {
    /// Symbols by rising count, the count in the upper half.
    ranked: Vec<u64>,
    weights: Vec<u64>,
    table: Vec<u8>,
    streams: Vec<u8>,
    /// Of each symbol that occurs the code: the bits, the first to be sent lowest, and from bit 16 on their number.
    codes: Box<[u32; 256]>,
    length_max: u32,
    total_bits: u64,
}

impl HuffmanCoder {
    pub(super) fn new() -> Self {
        HuffmanCoder {
            ranked: Vec::with_capacity(256),
            weights: Vec::with_capacity(256),
            table: Vec::new(),
            streams: Vec::new(),
            codes: Box::new([0; 256]),
            length_max: 0,
            total_bits: 0,
        }
    }

    /// Makes a code for the at least two symbols of `histogram`, of `total` bytes, and its table. What it all takes, in bytes.
    pub(super) fn prepare(&mut self, histogram: &Histogram, total: usize) -> usize {
        let lengths = self.lengths(histogram, total);
        let present = Present::of(histogram.symbols(), &lengths);
        let bits =
            histogram.there().zip(present.lengths()).map(|(count, length)| u64::from(count) * u64::from(*length));
        self.total_bits = bits.sum();
        self.length_max = present.lengths().iter().copied().max().map_or(0, u32::from);
        self.write_table(&lengths, &present);
        self.set_codes(&present);
        let sizes = if total < FOUR_STREAMS_FROM { 1 } else { 9 };
        self.table.len() + (self.total_bits as usize).div_ceil(8) + sizes
    }

    /// Writes the table of the code prepared last and `values` in that code.
    pub(super) fn encode(&mut self, values: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.table);
        let needed = (self.total_bits as usize).div_ceil(8) + 64;
        if self.streams.len() < needed {
            self.streams.resize(needed, 0);
        }
        let quarter = if values.len() < FOUR_STREAMS_FROM { values.len() } else { values.len().div_ceil(4) };
        let mut at = 0;
        for part in values.chunks(quarter) {
            let length = if self.length_max <= LENGTH_SMALL {
                encode_part::<7>(&self.codes, part, &mut self.streams[at..])
            } else {
                encode_part::<5>(&self.codes, part, &mut self.streams[at..])
            };
            put_varint(length as u64, out);
            at += length;
        }
        out.extend_from_slice(&self.streams[..at]);
    }

    /// The length of each symbol's code, 0 where it does not occur.
    fn lengths(&mut self, histogram: &Histogram, total: usize) -> [u8; 256] {
        self.ranked.clear();
        let ranked = histogram.symbols().iter().zip(histogram.there());
        self.ranked.extend(ranked.map(|(symbol, count)| u64::from(count) << 32 | u64::from(*symbol)));
        self.ranked.sort_unstable();
        self.weights.clear();
        self.weights.extend(self.ranked.iter().map(|ranked| ranked >> 32));
        tree_depths(&mut self.weights);
        let symbols = self.ranked.len() as u32;
        // Short streams do not pay for long codes: their decoding table is filled in an eighth of the time.
        let limit =
            (total.ilog2().saturating_sub(1)).clamp(symbols.ilog2() + 2, LENGTH_MAX).clamp(LENGTH_SMALL, LENGTH_MAX);
        limit_depths(&mut self.weights, limit);
        let mut lengths = [0; 256];
        for (ranked, depth) in self.ranked.iter().zip(&self.weights) {
            lengths[(ranked & 0xff) as usize] = *depth as u8;
        }
        lengths
    }

    /// Canonical codes, by length and then by symbol.
    fn set_codes(&mut self, present: &Present) {
        let mut next = first_codes(present.lengths());
        for (symbol, length) in present.symbols().iter().zip(present.lengths()) {
            let code = next[usize::from(*length & 15)];
            next[usize::from(*length & 15)] += 1;
            self.codes[usize::from(*symbol)] = reversed(code, u32::from(*length)) | u32::from(*length) << 16;
        }
    }

    fn write_table(&mut self, lengths: &[u8; 256], present: &Present) {
        self.table.clear();
        let symbols = present.symbols();
        let (first, last) = (symbols[0], symbols[symbols.len() - 1]);
        let all = &lengths[usize::from(first)..=usize::from(last)];
        let present_bits = differences_bits(present.lengths());
        let span_bits = differences_bits(all);
        let list = 1 + symbols.len() + present_bits.div_ceil(8);
        let span = 2 + span_bits.div_ceil(8);
        let bitmap = 32 + present_bits.div_ceil(8);
        if span <= list && span <= bitmap {
            self.table.extend_from_slice(&[TABLE_SPAN, first, last]);
            write_differences(all, span_bits, &mut self.table);
            return;
        }
        if list <= bitmap {
            self.table.extend_from_slice(&[TABLE_LIST, (symbols.len() - 1) as u8]);
            self.table.extend_from_slice(symbols);
        } else {
            self.table.push(TABLE_BITMAP);
            let start = self.table.len();
            self.table.resize(start + 32, 0);
            symbols.iter().for_each(|symbol| self.table[start + usize::from(symbol >> 3)] |= 1 << (symbol & 7));
        }
        write_differences(present.lengths(), present_bits, &mut self.table);
    }
}

/// The symbols that occur, in order, and the lengths of their codes.
pub(super) struct Present {
    symbols: [u8; 256],
    lengths: [u8; 256],
    count: usize,
}

impl Present {
    /// No symbol yet.
    pub(super) fn new() -> Self {
        Present { symbols: [0; 256], lengths: [0; 256], count: 0 }
    }

    fn of(symbols: &[u8], lengths: &[u8; 256]) -> Self {
        let mut present = Present::new();
        for symbol in symbols {
            present.push(*symbol, lengths[usize::from(*symbol)]);
        }
        present
    }

    /// The next symbol, of which there are 256 at most; with a length of 0 it does not occur.
    #[inline]
    pub(super) fn push(&mut self, symbol: u8, length: u8) {
        // Written in any case: no branch to be guessed. Before the last symbol there are not more than fit.
        let place = self.count & 0xff;
        self.symbols[place] = symbol;
        self.lengths[place] = length;
        self.count += usize::from(length > 0);
    }

    pub(super) fn symbols(&self) -> &[u8] {
        &self.symbols[..self.count]
    }

    pub(super) fn lengths(&self) -> &[u8] {
        &self.lengths[..self.count]
    }
}

/// By how much a code length is above the one before: the bits that tell it, see [`differences_bits`].
const DIFFERENCE_BITS: [u8; 256] = {
    let mut bits = [7; 256];
    (bits[0], bits[1], bits[255]) = (1, 2, 3);
    bits
};

/// Bits of one code length after another: 0 the same, 10 one more, 110 one less, 111 and four bits any other.
fn differences_bits(lengths: &[u8]) -> usize {
    let mut before = LENGTH_BEFORE as u8;
    let mut bits = 0;
    for length in lengths {
        bits += usize::from(DIFFERENCE_BITS[usize::from(length.wrapping_sub(before))]);
        before = *length;
    }
    bits
}

fn write_differences(lengths: &[u8], bits: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + bits.div_ceil(8) + 8, 0);
    let mut writer = BitWriter::new(&mut out[start..]);
    let mut before = LENGTH_BEFORE as u8;
    for length in lengths {
        match length.wrapping_sub(before) {
            0 => writer.put(0b0, 1),
            1 => writer.put(0b01, 2),
            255 => writer.put(0b011, 3),
            _ => writer.put(0b111 | u64::from(*length) << 3, 7),
        }
        before = *length;
    }
    let written = writer.finish();
    out.truncate(start + written);
}

/// Turns rising weights into the falling depths of their Huffman tree, in place (Moffat and Katajainen, 1995).
fn tree_depths(weights: &mut [u64]) {
    let count = weights.len();
    if count < 2 {
        weights.fill(1);
        return;
    }
    let (mut root, mut leaf) = (0, 0);
    for next in 0..count - 1 {
        let mut sum = 0;
        for _ in 0..2 {
            if leaf >= count || (root < next && weights[root] < weights[leaf]) {
                sum += weights[root];
                weights[root] = next as u64;
                root += 1;
            } else {
                sum += weights[leaf];
                leaf += 1;
            }
        }
        weights[next] = sum;
    }
    weights[count - 2] = 0;
    for node in (0..count - 2).rev() {
        weights[node] = weights[weights[node] as usize] + 1;
    }
    let (mut available, mut depth) = (1_usize, 0_u64);
    let mut inner = count as isize - 2;
    let mut place = count as isize - 1;
    while available > 0 {
        let mut used = 0;
        while inner >= 0 && weights[inner as usize] == depth {
            used += 1;
            inner -= 1;
        }
        while available > used {
            weights[place as usize] = depth;
            place -= 1;
            available -= 1;
        }
        available = 2 * used;
        depth += 1;
    }
}

/// Makes falling depths at most `limit` and the code complete again; the rarest symbols pay.
fn limit_depths(depths: &mut [u64], limit: u32) {
    if depths.first().is_none_or(|deepest| *deepest <= u64::from(limit)) {
        return;
    }
    let whole = 1_u64 << limit;
    let mut used = 0;
    for depth in depths.iter_mut() {
        *depth = (*depth).min(u64::from(limit));
        used += whole >> *depth;
    }
    // Too much is used: the rarest symbol that can still grow grows.
    while used > whole {
        let Some(depth) = depths.iter_mut().find(|depth| **depth < u64::from(limit)) else { return };
        used -= whole >> (*depth + 1);
        *depth += 1;
    }
    // What that gave away too much goes to the most frequent symbols that it fits.
    while used < whole {
        let Some(depth) = depths.iter_mut().rev().find(|depth| **depth > 1 && whole >> **depth <= whole - used) else {
            return;
        };
        used += whole >> *depth;
        *depth -= 1;
    }
}

/// The first code of each length.
pub(super) fn first_codes(lengths: &[u8]) -> [u32; 16] {
    let mut counts = [0_u32; 16];
    lengths.iter().for_each(|length| counts[usize::from(length & 15)] += 1);
    let mut next = [0; 16];
    let mut code = 0;
    for length in 1..=LENGTH_MAX as usize {
        next[length] = code;
        code = (code + counts[length]) << 1;
    }
    next
}

/// The `length` bits of a code, the first to be sent lowest.
#[inline]
pub(super) fn reversed(code: u32, length: u32) -> u32 {
    code.reverse_bits() >> (32 - length)
}

/// `PER` codes between stores: they must not have more than 56 bits.
fn encode_part<const PER: usize>(entries: &[u32; 256], values: &[u8], bytes: &mut [u8]) -> usize {
    let mut writer = BitWriter::new(bytes);
    let (groups, rest) = values.as_chunks::<PER>();
    for group in groups {
        for value in group {
            let entry = entries[usize::from(*value)];
            writer.hold(u64::from(entry & 0xffff), entry >> 16);
        }
        writer.store();
    }
    for value in rest {
        let entry = entries[usize::from(*value)];
        writer.put(u64::from(entry & 0xffff), entry >> 16);
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limited_codes_are_complete() {
        let mut coder = HuffmanCoder::new();
        for symbols in 2..=256_usize {
            let (mut one, mut two) = (1_usize, 1_usize);
            let mut values = Vec::new();
            for symbol in (0..=255).take(symbols) {
                values.resize(values.len() + one, symbol);
                (one, two) = (two, (one + two).min(1 << 14));
            }
            let lengths = coder.lengths(&Histogram::of(&values), values.len());
            let used: u32 =
                lengths.iter().filter(|length| **length > 0).map(|length| 1 << (LENGTH_MAX - u32::from(*length))).sum();
            assert_eq!(used, 1 << LENGTH_MAX, "{symbols} symbols");
        }
    }
}
