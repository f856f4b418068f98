//! Bits of varying width in a row, the lowest of the first byte first.

/// The most bits that [`BitWriter::put`] takes and [`window`] gives whatever the position.
pub(super) const WIDTH_MAX: u32 = 56;

/// Writes into a buffer of its own that has room for all that will come: one store per value, no branch.
pub(super) struct BitWriter<'a> {
    bytes: &'a mut [u8],
    at: usize,
    pending: u64,
    pending_bits: u32,
}

impl<'a> BitWriter<'a> {
    /// `bytes` must be 8 bytes longer than all bits that will be put; what does not fit is lost.
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
        BitWriter { bytes, at: 0, pending: 0, pending_bits: 0 }
    }

    /// `value` must be less than 2^`width`, `width` at most [`WIDTH_MAX`].
    #[inline(always)]
    pub(super) fn put(&mut self, value: u64, width: u32) {
        self.hold(value, width);
        self.store();
    }

    /// Part of a [`BitWriter::put`]: between two stores at most [`WIDTH_MAX`] bits may be held.
    #[inline(always)]
    pub(super) fn hold(&mut self, value: u64, width: u32) {
        self.pending |= value << self.pending_bits;
        self.pending_bits += width;
    }

    /// Like [`BitWriter::put`] for any `width` up to 64.
    #[inline(always)]
    pub(super) fn put_wide(&mut self, value: u64, width: u32) {
        if width > WIDTH_MAX {
            self.put(value & 0xffff_ffff, 32);
            self.put(value >> 32, width - 32);
        } else {
            self.put(value, width);
        }
    }

    /// Stores what is held.
    #[inline(always)]
    pub(super) fn store(&mut self) {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + 8) {
            place.copy_from_slice(&self.pending.to_le_bytes());
        }
        self.at += (self.pending_bits >> 3) as usize;
        self.pending >>= self.pending_bits & 0x38;
        self.pending_bits &= 7;
    }

    /// How many bytes were written; the last one's unused bits are 0.
    pub(super) fn finish(self) -> usize {
        self.at + usize::from(self.pending_bits > 0)
    }
}

/// The bits from position `bit` on, at least [`WIDTH_MAX`] of them good; beyond the end of `bytes` they are 0.
#[inline(always)]
pub(super) fn window(bytes: &[u8], bit: usize) -> u64 {
    let at = bit >> 3;
    load(bytes, at) >> (bit & 7)
}

/// `width` bits at position `bit`, for any width up to 64.
#[inline(always)]
pub(super) fn bits_wide(bytes: &[u8], bit: usize, width: u32) -> u64 {
    if width > WIDTH_MAX {
        (window(bytes, bit) & 0xffff_ffff) | ((window(bytes, bit + 32) & mask(width - 32)) << 32)
    } else {
        window(bytes, bit) & mask(width)
    }
}

/// 8 bytes from `at`, the lowest first; beyond the end of `bytes` they are 0.
#[inline(always)]
pub(super) fn load(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => load_end(bytes, at),
    }
}

#[cold]
#[inline(never)]
fn load_end(bytes: &[u8], at: usize) -> u64 {
    let mut chunk = [0; 8];
    if let Some(rest) = bytes.get(at..) {
        for (place, byte) in chunk.iter_mut().zip(rest) {
            *place = *byte;
        }
    }
    u64::from_le_bytes(chunk)
}

/// The lowest `width` bits, `width` up to 64.
#[inline(always)]
pub(super) fn mask(width: u32) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_width_come_back() {
        let mut bytes = vec![0; 64 * 65 + 8];
        let mut writer = BitWriter::new(&mut bytes);
        let value = |width: u32, turn: u32| 0x9e37_79b9_7f4a_7c15_u64.rotate_left(turn) & mask(width);
        for width in 0..=64 {
            for turn in 0..8 {
                writer.put_wide(value(width, turn), width);
            }
        }
        let length = writer.finish();
        assert_eq!(length, 8 * 65 * 64 / 2 / 8);
        let mut bit = 0;
        for width in 0..=64 {
            for turn in 0..8 {
                assert_eq!(bits_wide(&bytes[..length], bit, width), value(width, turn), "width {width}");
                bit += width as usize;
            }
        }
    }
}
