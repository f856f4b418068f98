//! The stored side of a block: 16-bit units, each from its highest bit, with bytes between them.
//!
//! The format is defined by a reader that keeps 16 to 31 bits in hand; a byte stands behind the units that reader has
//! taken at that moment. This reader takes up to four units at once, and gives back those the other would not have
//! taken before it reads a byte.

/// The next bits of a block.
pub(super) struct Bits<'a> {
    stored: &'a [u8],
    /// Where the next unit is, also behind the end of `stored`: what is there reads as zeroes.
    position: usize,
    /// The next bits from the highest one; those beyond `bit_count` are zero or those that will come.
    bits: u64,
    /// At most 63.
    bit_count: u32,
}

/// The stored bytes that a fast refill looks at.
pub(super) const FAST_REFILL_SIZE_BYTES: usize = 8;

impl<'a> Bits<'a> {
    /// Begins at `position`.
    pub(super) fn new(stored: &'a [u8], position: usize) -> Self {
        Bits { stored, position, bits: 0, bit_count: 0 }
    }

    /// Whether [`Self::refill_fast`] may be called.
    #[inline]
    pub(super) fn is_far_from_end(&self) -> bool {
        self.position + FAST_REFILL_SIZE_BYTES <= self.stored.len()
    }

    /// Takes up to four units at once; the caller knows that there are 8 bytes.
    #[inline]
    pub(super) fn refill_fast(&mut self) {
        let Some(bytes) = self.stored.get(self.position..self.position + FAST_REFILL_SIZE_BYTES) else { return };
        let mut word = [0; FAST_REFILL_SIZE_BYTES];
        word.copy_from_slice(bytes);
        self.take(u64::from_le_bytes(word));
    }

    /// As [`Self::refill_fast`] anywhere. After both at least 48 bits are in hand.
    pub(super) fn refill(&mut self) {
        let mut word = [0; FAST_REFILL_SIZE_BYTES];
        let rest = self.stored.get(self.position..).unwrap_or_default();
        let len = rest.len().min(word.len());
        word[..len].copy_from_slice(&rest[..len]);
        self.take(u64::from_le_bytes(word));
    }

    /// Adds the units of `word`, the first in its lowest 16 bits, that there is room for.
    ///
    /// Bits of a unit there is only part room for are set already; the next refill sets them to the same again.
    #[inline]
    fn take(&mut self, word: u64) {
        let halves = word.rotate_left(32);
        let units = (halves & 0xFFFF_0000_FFFF_0000) >> 16 | (halves & 0x0000_FFFF_0000_FFFF) << 16;
        self.bits |= units >> self.bit_count;
        let unit_count = (63 - self.bit_count) / 16;
        self.position += 2 * unit_count as usize;
        self.bit_count += 16 * unit_count;
    }

    /// The next bits from the highest one.
    #[inline]
    pub(super) fn peek(&self) -> u64 {
        self.bits
    }

    /// Drops bits that are in hand.
    #[inline]
    pub(super) fn consume(&mut self, count: u32) {
        self.bits <<= count & 63;
        self.bit_count = self.bit_count.wrapping_sub(count);
    }

    /// The next `count` bits (0 to 15) as a number.
    #[inline]
    pub(super) fn number(&mut self, count: u32) -> usize {
        let number = self.bits >> 1 >> (63 - (count & 63));
        self.consume(count);
        number as usize
    }

    /// The next byte among the units; at least 16 bits must be in hand. `None` at the end.
    pub(super) fn byte(&mut self) -> Option<u8> {
        self.position = self.format_position();
        self.bit_count = 16 + self.bit_count % 16;
        self.bits &= !(u64::MAX >> self.bit_count);
        let byte = self.stored.get(self.position).copied();
        self.position += 1;
        byte
    }

    /// Where the format's own reader would take the next unit; beyond the end of `stored` if units are missing.
    pub(super) fn format_position(&self) -> usize {
        (self.position + 2).saturating_sub(2 * (self.bit_count / 16) as usize)
    }
}
