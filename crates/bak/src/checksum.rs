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

/// Words of a compressed chunk that are summed side by side; a multiple of the eight that a register holds.
const LANES: usize = 32;

/// The sum of a compressed chunk: words of 32 bits, the last one filled up with zeros.
pub fn chunk_sum(stored: &[u8]) -> u32 {
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    // A rotation goes through an exclusive or, and 32 of them change nothing: the words of one lane need none in between.
    let mut lanes = [0u32; LANES];
    let rows = stored.chunks_exact(4 * LANES);
    let behind = rows.remainder();
    for row in rows {
        for (lane, bytes) in lanes.iter_mut().zip(row.chunks_exact(4)) {
            *lane ^= word(bytes);
        }
    }
    let words = behind.chunks_exact(4);
    let mut last = [0; 4];
    let rest = words.remainder();
    last[..rest.len()].copy_from_slice(rest);
    let end = (!rest.is_empty()).then(|| u32::from_le_bytes(last));
    lanes.into_iter().chain(words.map(word)).chain(end).fold(0, |sum, word| sum.rotate_left(1) ^ word)
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
        let bytes: Vec<u8> = (0..1000u32).map(|number| ((number * 167) >> 3) as u8).collect();
        for length in 0..bytes.len() {
            let padded = [&bytes[..length], &[0; 3]].concat();
            let one_by_one = padded
                .chunks_exact(4)
                .fold(0u32, |sum, word| sum.rotate_left(1) ^ u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            assert_eq!(chunk_sum(&bytes[..length]), one_by_one, "{length}");
        }
        let mut sum = SectorSum::default();
        sum.add(0x8000_0001);
        sum.add(0);
        assert_eq!(sum.value(), 3);
    }
}
