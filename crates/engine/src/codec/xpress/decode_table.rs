//! From a block's 512 code lengths to a table that gives one symbol per look-up.

/// Symbols: 256 literals, then 256 matches of 16 length classes times 16 distance classes.
pub(super) const SYMBOL_COUNT: usize = 512;

/// The longest code a 4-bit length can name.
pub(super) const CODE_LEN_MAX: usize = 15;

/// Two 4-bit code lengths a byte, the even symbol in the low half.
pub(super) const LENGTHS_SIZE_BYTES: usize = SYMBOL_COUNT / 2;

/// Codes of up to this many bits take one look-up; longer ones are rare by nature.
pub(super) const LOOKUP_BITS: u32 = 11;

/// What a symbol means and costs, in 32 bits.
///
/// Bits 0 to 7: length of its code. Bits 8 to 15: the literal, or the length of the match, [`Entry::LENGTH_FOLLOWS`]
/// for lengths that follow in bytes. Bits 16 to 23: distance bits of a match. Bit 24: a match. Bit 25: no symbol, the
/// code is longer than the look-up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(u32);

impl Entry {
    const MATCH: u32 = 1 << 24;
    const LONG: u32 = 1 << 25;

    /// The length class whose value follows in bytes.
    pub(super) const LENGTH_FOLLOWS: usize = 18;

    pub(super) fn of_symbol(symbol: usize, code_len: usize) -> Self {
        let value = if symbol < 256 {
            symbol << 8
        } else {
            Entry::MATCH as usize | ((symbol >> 4) & 15) << 16 | ((symbol & 15) + 3) << 8
        };
        Entry((value | code_len) as u32)
    }

    /// Bits of its code.
    #[inline]
    pub(super) fn code_len(self) -> u32 {
        self.0 & 0xFF
    }

    /// A literal: neither a match nor a long code.
    #[inline]
    pub(super) fn is_literal(self) -> bool {
        self.0 < Entry::MATCH
    }

    /// A code that is longer than the look-up.
    #[inline]
    pub(super) fn is_long(self) -> bool {
        self.0 >= Entry::LONG
    }

    /// The byte of a literal.
    #[inline]
    pub(super) fn literal(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Bytes of a match, or [`Entry::LENGTH_FOLLOWS`].
    #[inline]
    pub(super) fn match_len(self) -> usize {
        (self.0 >> 8) as usize & 0xFF
    }

    /// Bits of a match's distance that follow; the distance's highest bit, which is 1, does not.
    #[inline]
    pub(super) fn distance_bits(self) -> u32 {
        (self.0 >> 16) & 0xFF
    }
}

/// The code of one block.
pub(super) struct DecodeTable {
    /// By the next [`LOOKUP_BITS`] bits.
    lookup: [Entry; 1 << LOOKUP_BITS],
    /// By code, so also by length; the long codes are at the end.
    sorted: [Entry; SYMBOL_COUNT],
    /// Of each code length the first code behind it, left-aligned in 16 bits (so up to 2^16).
    ends: [u32; CODE_LEN_MAX + 1],
    /// Of each code length: place in `sorted` of its last code, plus one.
    sorted_ends: [u32; CODE_LEN_MAX + 1],
}

impl DecodeTable {
    pub(super) fn new() -> Self {
        DecodeTable {
            lookup: [Entry(0); 1 << LOOKUP_BITS],
            sorted: [Entry(0); SYMBOL_COUNT],
            ends: [0; CODE_LEN_MAX + 1],
            sorted_ends: [0; CODE_LEN_MAX + 1],
        }
    }

    /// Takes over the code lengths of a block; `false` if they are not a complete prefix code.
    pub(super) fn fill(&mut self, lengths: &[u8; LENGTHS_SIZE_BYTES]) -> bool {
        let mut counts = [0u32; CODE_LEN_MAX + 1];
        for &pair in lengths {
            counts[usize::from(pair & 15)] += 1;
            counts[usize::from(pair >> 4)] += 1;
        }
        let (mut code_end, mut sorted_end) = (0u32, 0u32);
        let mut next = [0u32; CODE_LEN_MAX + 1];
        for len in 1..=CODE_LEN_MAX {
            next[len] = sorted_end;
            sorted_end += counts[len];
            code_end += counts[len] << (16 - len);
            self.ends[len] = code_end;
            self.sorted_ends[len] = sorted_end;
        }
        if code_end != 1 << 16 {
            return false;
        }
        for symbol in 0..SYMBOL_COUNT {
            let len = usize::from(lengths[symbol / 2] >> (symbol % 2 * 4) & 15);
            if len > 0 {
                // A complete code has at most as many codes as there are symbols.
                self.sorted[next[len] as usize % SYMBOL_COUNT] = Entry::of_symbol(symbol, len);
                next[len] += 1;
            }
        }
        self.fill_lookup(&counts);
        true
    }

    /// Codes in order fill the table in order.
    fn fill_lookup(&mut self, counts: &[u32; CODE_LEN_MAX + 1]) {
        let (mut place, mut from) = (0, 0);
        for (len, count) in counts.iter().enumerate().take(LOOKUP_BITS as usize + 1).skip(1) {
            let (span, to) = (1 << (LOOKUP_BITS as usize - len), from + *count as usize);
            for &entry in &self.sorted[from..to] {
                self.lookup[place..place + span].fill(entry);
                place += span;
            }
            from = to;
        }
        self.lookup[place..].fill(Entry(Entry::LONG));
    }

    /// The entry of the code that the highest bits begin with; at least 15 bits must be there.
    #[inline]
    pub(super) fn entry(&self, bits: u64) -> Entry {
        let entry = self.lookup[(bits >> (64 - LOOKUP_BITS)) as usize];
        if entry.is_long() { self.long_entry(bits) } else { entry }
    }

    /// As [`Self::entry`] for codes longer than the look-up.
    fn long_entry(&self, bits: u64) -> Entry {
        let code = (bits >> 48) as u32;
        let mut len = LOOKUP_BITS as usize + 1;
        while len < CODE_LEN_MAX && code >= self.ends[len] {
            len += 1;
        }
        // The code is complete, so the code lies before the end of its length, counted from there.
        let behind = (self.ends[len] - 1).saturating_sub(code) >> (16 - len);
        self.sorted[(self.sorted_ends[len] - 1).wrapping_sub(behind) as usize % SYMBOL_COUNT]
    }
}
