//! Streams of bytes: which form a stream takes, and its encoding.

use super::Effort;
use super::cost::{BIT, Histogram, log2, weight};
use super::huffman::HuffmanCoder;
use super::reader::put_varint;
use super::repeats::repeats;
use super::text::TextCoder;

pub(super) const RAW: u8 = 0;
pub(super) const CONSTANT: u8 = 1;
pub(super) const HUFFMAN: u8 = 2;
/// Positions and values of whatever is not the most frequent byte.
pub(super) const SPARSE: u8 = 3;
pub(super) const RUNS: u8 = 4;
/// 2, 4 or 8 symbols of a small alphabet to a byte.
pub(super) const PACKED_2: u8 = 5;
pub(super) const PACKED_4: u8 = 6;
pub(super) const PACKED_8: u8 = 7;
pub(super) const ZSTD: u8 = 8;

/// zstd's level for byte streams: what is left are repeats, and the fast levels find those.
const ZSTD_LEVEL: i32 = 1;
/// Below this many bytes zstd is not asked: its frame and its tables eat what it finds.
const ZSTD_FROM: usize = 256;
/// Below this many bytes repeats are not looked for, since looking takes longer than all else: tables of a hundred columns and more
/// take up to an eighth less time, and no database more than 0.12 % more bytes (bench/runs/2026-11-29-page-broad).
const REPEATS_FROM: usize = 2048;
/// At the default level streams below this many bytes have no Huffman codes.
const CODES_FROM: usize = 256;
/// And below this many they have to halve a stream.
const CODES_FOR_LESS_FROM: usize = 512;
/// Without codes, of more bytes than this a sample of so many is looked at first.
const SAMPLED_FROM: usize = 512;
const SAMPLE_COUNT: usize = 64;
/// What one symbol of a Huffman table takes, about.
const TABLE_SYMBOL: u64 = 4 * BIT;

/// Encodes streams of bytes, each alone.
pub(crate) struct ByteCoder {
    effort: Effort,
    huffman: HuffmanCoder,
    text: TextCoder,
    /// One set of buffers per form that holds streams of its own; those are only raw, constant or Huffman coded.
    parts: Parts,
    trial: Vec<u8>,
}

#[derive(Default)]
struct Parts {
    lengths: Vec<u8>,
    values: Vec<u8>,
    positions: Vec<u32>,
}

impl ByteCoder {
    pub(crate) fn set_effort(&mut self, effort: Effort) {
        self.effort = effort;
    }

    pub(crate) fn new(effort: Effort) -> Self {
        ByteCoder {
            effort,
            huffman: HuffmanCoder::new(),
            text: TextCoder::new(Some(ZSTD_LEVEL), 0),
            parts: Parts::default(),
            trial: Vec::new(),
        }
    }

    /// Appends the stream of `values` to `out`.
    pub(crate) fn encode(&mut self, values: &[u8], out: &mut Vec<u8>) {
        put_varint(values.len() as u64, out);
        self.encode_body(values, out);
    }

    /// The stream without its count, for whoever knows it.
    pub(super) fn encode_body(&mut self, values: &[u8], out: &mut Vec<u8>) {
        let Some(first) = values.first() else { return };
        if values[1..] == values[..values.len() - 1] {
            out.extend_from_slice(&[CONSTANT, *first]);
            return;
        }
        let Some(least_share_saved) = self.least_share_saved(values.len()) else {
            return self.whole_bytes(values, out);
        };
        let counts = Histogram::of(values);
        let costs = Costs::new(&counts, values, least_share_saved);
        let start = out.len();
        if self.effort == Effort::Small {
            self.smallest(values, &counts, &costs, out);
        } else {
            self.form(costs.form(), values, &counts, out);
        }
        if self.wants_zstd(values, out.len() - start) {
            self.try_zstd(values, start, out);
        }
    }

    /// A stream without codes.
    fn whole_bytes(&mut self, values: &[u8], out: &mut Vec<u8>) {
        let run_count = run_count(values);
        if values.len() > SAMPLED_FROM && run_count as usize * 2 + 4 >= values.len() && are_scattered(values) {
            return raw(values, out);
        }
        let counts = Histogram::of(values);
        self.form(Costs::of_whole_bytes(&counts, values.len(), run_count).form(), values, &counts, out);
    }

    fn smallest(&mut self, values: &[u8], counts: &Histogram, costs: &Costs, out: &mut Vec<u8>) {
        let start = out.len();
        self.form(costs.form(), values, counts, out);
        for form in [HUFFMAN, SPARSE, RUNS, PACKED_2, PACKED_4, PACKED_8] {
            // Estimates are not that wrong: what is twice the best need not be tried.
            if form == costs.form() || costs.0[usize::from(form)] / 2 > costs.0[usize::from(costs.form())] {
                continue;
            }
            let mut trial = std::mem::take(&mut self.trial);
            trial.clear();
            self.form(form, values, counts, &mut trial);
            if trial.len() < out.len() - start {
                out.truncate(start);
                out.extend_from_slice(&trial);
            }
            self.trial = trial;
        }
    }

    fn form(&mut self, form: u8, values: &[u8], counts: &Histogram, out: &mut Vec<u8>) {
        match form {
            SPARSE => self.sparse(values, counts, out),
            RUNS => self.runs(values, out),
            PACKED_2 => self.packed::<2>(PACKED_2, values, counts, out),
            PACKED_4 => self.packed::<4>(PACKED_4, values, counts, out),
            PACKED_8 => self.packed::<8>(PACKED_8, values, counts, out),
            _ => self.huffman_or_raw(values, counts, out),
        }
    }

    /// A stream within a stream.
    fn plain(&mut self, values: &[u8], out: &mut Vec<u8>) {
        let Some(first) = values.first() else { return };
        if values[1..] == values[..values.len() - 1] {
            out.extend_from_slice(&[CONSTANT, *first]);
        } else if self.least_share_saved(values.len()).is_none() {
            raw(values, out);
        } else {
            self.huffman_or_raw(values, &Histogram::of(values), out);
        }
    }

    fn huffman_or_raw(&mut self, values: &[u8], counts: &Histogram, out: &mut Vec<u8>) {
        let Some(least_share_saved) = self.least_share_saved(values.len()) else { return raw(values, out) };
        let worth = values.len() - values.len() / least_share_saved;
        if counts.entropy(values.len() as u32) / (8 * BIT) < worth as u64 {
            let size = self.huffman.prepare(counts, values.len());
            if size < worth {
                out.push(HUFFMAN);
                self.huffman.encode(values, out);
                return;
            }
        }
        raw(values, out);
    }

    /// Of how many bytes of a stream of `length` Huffman codes have to spare one; None for never. One in 64 is what decoding costs more
    /// than copying. Where speed is all there are none: they take 3 % of the time on the way there and 5 % on the way back, for 6 % of the
    /// bytes (bench/runs/2026-11-30-page-faster). In between it is one in four; and a short stream takes longer to make its code and the
    /// decoder's table than anything else (bench/runs/2026-11-30-page-short).
    fn least_share_saved(&self, length: usize) -> Option<usize> {
        match self.effort {
            Effort::Fast => None,
            Effort::Default if length < CODES_FROM => None,
            Effort::Default => Some(if length < CODES_FOR_LESS_FROM { 2 } else { 4 }),
            Effort::Thorough | Effort::Small => Some(64),
        }
    }

    fn sparse(&mut self, values: &[u8], counts: &Histogram, out: &mut Vec<u8>) {
        let by_count = counts.symbols().iter().max_by_key(|symbol| counts.counts[usize::from(**symbol)]);
        let most = by_count.copied().unwrap_or(0);
        let mut parts = std::mem::take(&mut self.parts);
        exceptions(values, most, &mut parts.positions);
        parts.lengths.clear();
        parts.values.clear();
        let mut next = 0;
        for position in &parts.positions {
            put_length(position - next, &mut parts.lengths);
            next = position + 1;
            parts.values.push(values[*position as usize]);
        }
        out.extend_from_slice(&[SPARSE, most]);
        self.two_parts(&parts, out);
        self.parts = parts;
    }

    fn runs(&mut self, values: &[u8], out: &mut Vec<u8>) {
        let mut parts = std::mem::take(&mut self.parts);
        parts.lengths.clear();
        parts.values.clear();
        for run in values.chunk_by(|one, other| one == other) {
            put_length(run.len() as u32 - 1, &mut parts.lengths);
            parts.values.push(run[0]);
        }
        out.push(RUNS);
        self.two_parts(&parts, out);
        self.parts = parts;
    }

    fn two_parts(&mut self, parts: &Parts, out: &mut Vec<u8>) {
        put_varint(parts.values.len() as u64, out);
        put_varint((parts.lengths.len() - parts.values.len()) as u64, out);
        self.plain(&parts.lengths, out);
        self.plain(&parts.values, out);
    }

    fn packed<const PER: usize>(&mut self, form: u8, values: &[u8], counts: &Histogram, out: &mut Vec<u8>) {
        let mut index = [0_u8; 256];
        out.extend_from_slice(&[form, 0]);
        let start = out.len();
        for symbol in counts.symbols() {
            index[usize::from(*symbol)] = (out.len() - start) as u8;
            out.push(*symbol);
        }
        out[start - 1] = (out.len() - start) as u8;
        let mut packed = std::mem::take(&mut self.parts.values);
        packed.clear();
        let mut put = |word: [u8; 8]| {
            packed.extend_from_slice(&gathered::<PER>(u64::from_le_bytes(word)).to_le_bytes()[..8 / PER]);
        };
        let (words, rest) = values.as_chunks::<8>();
        let symbol_count = counts.symbols().len();
        if counts.symbols().last().is_some_and(|last| usize::from(*last) < symbol_count) {
            words.iter().for_each(|word| put(*word));
        } else {
            words.iter().for_each(|word| put(word.map(|value| index[usize::from(value)])));
        }
        let mut last = [0; 8];
        last.iter_mut().zip(rest).for_each(|(place, value)| *place = index[usize::from(*value)]);
        put(last);
        packed.truncate(values.len().div_ceil(PER));
        self.plain(&packed, out);
        self.parts.values = packed;
    }

    /// Whether looking for repeats may pay for a stream that took `size` bytes without.
    fn wants_zstd(&self, values: &[u8], size: usize) -> bool {
        let share = match self.effort {
            Effort::Fast => return false,
            Effort::Default => 9,
            Effort::Thorough => 4,
            Effort::Small => return values.len() >= ZSTD_FROM && size > 24,
        };
        values.len() >= REPEATS_FROM && size * 16 > values.len() && size > 64 && repeats(values, size) >= share
    }

    fn try_zstd(&mut self, values: &[u8], start: usize, out: &mut Vec<u8>) {
        let size = out.len() - start;
        let Some(packed) = self.text.pack(values) else { return };
        // Its decoder takes three times as long: it has to be worth it.
        if packed.len() + 4 < size - size / 16 {
            out.truncate(start);
            out.push(ZSTD);
            put_varint(packed.len() as u64, out);
            out.extend_from_slice(packed);
        }
    }
}

/// The lowest 8 / `PER` bits of each of eight bytes, side by side.
#[inline(always)]
fn gathered<const PER: usize>(word: u64) -> u64 {
    match PER {
        2 => {
            let word = (word | word >> 4) & 0x00ff_00ff_00ff_00ff;
            let word = (word | word >> 8) & 0x0000_ffff_0000_ffff;
            word | word >> 16
        }
        4 => {
            let word = (word | word >> 6) & 0x000f_000f_000f_000f;
            let word = (word | word >> 12) & 0x0000_00ff_0000_00ff;
            word | word >> 24
        }
        // Every byte's bit is moved to its place in the top byte.
        _ => word.wrapping_mul(0x0102_0408_1020_4080) >> 56,
    }
}

fn raw(values: &[u8], out: &mut Vec<u8>) {
    out.push(RAW);
    out.extend_from_slice(values);
}

/// Whether a sample has too many different bytes for several of them to go into one, and none that more than a third of it is.
fn are_scattered(values: &[u8]) -> bool {
    let mut counts = [0_u8; 256];
    let stride = values.len() / SAMPLE_COUNT;
    for value in values.iter().step_by(stride).take(SAMPLE_COUNT) {
        counts[usize::from(*value)] += 1;
    }
    let different = counts.iter().map(|count| u8::from(*count > 0)).fold(0, u8::wrapping_add);
    let most = counts.iter().fold(0, |most, count| most.max(*count));
    different > 16 && usize::from(most) * 3 <= SAMPLE_COUNT
}

/// How many runs of one byte there are.
fn run_count(values: &[u8]) -> u32 {
    // Sums of 128 fit a byte, which lets sixteen and more be compared at once.
    let blocks = values[1..].chunks(128).zip(values.chunks(128));
    let changes = |(block, before): (&[u8], &[u8])| {
        block.iter().zip(before).map(|(value, last)| u8::from(value != last)).fold(0_u8, u8::wrapping_add)
    };
    1 + blocks.map(|block| u32::from(changes(block))).sum::<u32>()
}

/// Positions of the bytes that are not `most`.
fn exceptions(values: &[u8], most: u8, positions: &mut Vec<u32>) {
    positions.clear();
    positions.resize(values.len() + 8, 0);
    let pattern = u64::from(most) * 0x0101_0101_0101_0101;
    let mut found = 0;
    let (words, rest) = values.as_chunks::<8>();
    for (at, word) in (0_u32..).step_by(8).zip(words) {
        if u64::from_le_bytes(*word) == pattern {
            continue;
        }
        for (offset, value) in (0_u32..).zip(word) {
            positions[found] = at + offset;
            found += usize::from(*value != most);
        }
    }
    for (at, value) in (values.len() as u32 - rest.len() as u32..).zip(rest) {
        positions[found] = at;
        found += usize::from(*value != most);
    }
    positions.truncate(found);
}

/// A length as bytes: 255 says 255 and more to come.
fn put_length(mut length: u32, lengths: &mut Vec<u8>) {
    while length >= 255 {
        lengths.push(255);
        length -= 255;
    }
    lengths.push(length as u8);
}

/// Of each packed form: symbols to a byte, and how many different ones there may be.
const PACKINGS: [(u8, u32, u64); 3] = [(PACKED_2, 2, 16), (PACKED_4, 4, 4), (PACKED_8, 8, 2)];

/// What each form would cost, by its number, in parts of a bit.
struct Costs([u64; 8]);

impl Costs {
    fn new(counts: &Histogram, values: &[u8], least_share_saved: usize) -> Self {
        let total = values.len() as u32;
        let entropy = counts.entropy(total);
        let symbols = counts.symbols().len() as u64;
        let most = counts.there().max().unwrap_or(0);
        let mut costs = [u64::MAX; 8];
        costs[usize::from(RAW)] = u64::from(total) * 8 * BIT;
        // Whole bits lose a little everywhere; of two halves, the larger one cannot take less than a bit.
        let others = u64::from(total - most);
        let halves = weight(total).saturating_sub(weight(most) + weight(total - most));
        let lost = if most > total / 2 { (u64::from(total) * BIT).saturating_sub(halves) } else { 0 };
        let raw = costs[usize::from(RAW)];
        let huffman = entropy + entropy / 64 + lost + (symbols + 14) * TABLE_SYMBOL;
        costs[usize::from(HUFFMAN)] = if huffman < raw - raw / least_share_saved as u64 { huffman } else { raw };
        if most > total / 2 {
            // Gaps are coded as well as places can be; two tables.
            let gap_symbols = (u64::from(total) / others.max(1) * 4).min(64);
            costs[usize::from(SPARSE)] = entropy + entropy / 32 + (symbols + gap_symbols + 16) * TABLE_SYMBOL;
        }
        let runs = run_count(values);
        if runs <= total / 4 {
            let each = log2(total / runs) + 3 * BIT / 2 + (entropy / u64::from(total) + BIT).min(8 * BIT);
            costs[usize::from(RUNS)] = u64::from(runs) * each + (symbols + 32) * TABLE_SYMBOL;
        }
        for (form, per, symbols_max) in PACKINGS {
            if symbols <= symbols_max {
                let packed = u64::from(total.div_ceil(per));
                let table = symbols.pow(per).min(packed / 2).min(256) * TABLE_SYMBOL;
                let coded = (entropy + entropy / 64).max(packed * BIT) + table + (symbols + 16) * 8 * BIT;
                costs[usize::from(form)] = coded.min(packed * 8 * BIT + (symbols + 3) * 8 * BIT);
            }
        }
        Costs(costs)
    }

    /// Where nothing is coded: what forms of whole bytes take, with their counts and modes.
    fn of_whole_bytes(counts: &Histogram, length: usize, run_count: u32) -> Self {
        let bytes = |count: u64| count * 8 * BIT;
        let (total, symbols) = (length as u64, counts.symbols().len() as u64);
        let most = u64::from(counts.there().max().unwrap_or(0));
        let mut costs = [u64::MAX; 8];
        costs[usize::from(RAW)] = bytes(total);
        costs[usize::from(SPARSE)] = bytes(2 * (total - most) + 5);
        costs[usize::from(RUNS)] = bytes(2 * u64::from(run_count) + 4);
        for (form, per, symbols_max) in PACKINGS {
            if symbols <= symbols_max {
                costs[usize::from(form)] = bytes(total.div_ceil(per.into()) + symbols + 2);
            }
        }
        Costs(costs)
    }

    fn form(&self) -> u8 {
        (0_u8..8).min_by_key(|form| self.0[usize::from(*form)]).unwrap_or(RAW)
    }
}
