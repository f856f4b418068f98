//! The checksums of SQL Server's backup files, one for each layer.
//!
//! | layer | covers | sum |
//! |---|---|---|
//! | descriptor block | the 50 bytes before it | exclusive or of words of 16 bits |
//! | stream header | the 20 bytes before it | the same |
//! | compressed chunk | the compressed bytes | rotate by one bit, then exclusive or, words of 32 bits |
//! | page | 16 sectors, its own field taken as zero | [`SectorSum`] |
//! | `CSUM` of a set made WITH CHECKSUM | all sectors of the stream before it | [`SectorSum`] |

/// Bytes of a sector, the unit of page and backup checksums.
pub const SECTOR_BYTES: usize = 512;

/// Exclusive or of the little-endian words of 16 bits in `bytes`; an odd last byte is left out.
pub fn header_sum(bytes: &[u8]) -> u16 {
    bytes.chunks_exact(2).fold(0, |sum, word| sum ^ u16::from_le_bytes([word[0], word[1]]))
}

/// Exclusive or of the little-endian words of 32 bits in `bytes`; up to three last bytes are left out.
pub fn sector_xor(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(4).fold(0, |sum, word| sum ^ u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The sum of a compressed chunk: words of 32 bits, the last one filled up with zeros.
pub fn chunk_sum(stored: &[u8]) -> u32 {
    let words = stored.chunks_exact(4);
    let rest = words.remainder();
    let sum =
        words.fold(0u32, |sum, word| sum.rotate_left(1) ^ u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    if rest.is_empty() {
        return sum;
    }
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum.rotate_left(1) ^ u32::from_le_bytes(last)
}

/// The running sum over sectors: of the 16 of a page, or of all of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SectorSum(u32);

impl SectorSum {
    /// Adds the next sector by its [`sector_xor`].
    pub fn add(&mut self, xor: u32) {
        self.0 = self.0.rotate_left(1) ^ xor;
    }

    /// The sum so far.
    pub fn value(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_known_bytes() {
        assert_eq!(header_sum(&[1, 2, 4, 8, 99]), 0x0a05);
        assert_eq!(sector_xor(&[1, 0, 0, 0, 3, 0, 0, 0x80, 7]), 0x8000_0002);
        assert_eq!(chunk_sum(&[]), 0);
        assert_eq!(chunk_sum(&[0, 0, 0, 0x80, 5]), 1 ^ 5);
        assert_eq!(chunk_sum(&[1, 0, 0, 0, 2]), chunk_sum(&[1, 0, 0, 0, 2, 0, 0, 0]));
        let mut sum = SectorSum::default();
        sum.add(0x8000_0001);
        sum.add(0);
        assert_eq!(sum.value(), 3);
    }
}
