//! The row code: Reed-Solomon over GF(2^8), made shard by shard, so that nobody needs all shards of a row at once.
//!
//! A parity shard is the sum of all data shards, each times a coefficient. The coefficients are those of a Cauchy matrix
//! whose columns are scaled so that the first parity is the exclusive or: every square part of it can be inverted, so any
//! K shards can be had from the others. Shards of one row have different lengths; a shorter one counts as padded with zeros.

use crate::error::{Error, ErrorKind, Result};

/// x^8 + x^4 + x^3 + x^2 + 1; x generates the field.
const POLYNOMIAL: u16 = 0x11D;
/// Data and parity shards of one row, together at most.
pub const SHARDS_MAX: usize = 256;

struct Tables {
    exp: [u8; 512],
    log: [u8; 256],
}

const TABLES: Tables = {
    let (mut exp, mut log) = ([0u8; 512], [0u8; 256]);
    let (mut value, mut power) = (1u16, 0usize);
    while power < 255 {
        exp[power] = value as u8;
        exp[power + 255] = value as u8;
        log[value as usize] = power as u8;
        value <<= 1;
        if value & 0x100 != 0 {
            value ^= POLYNOMIAL;
        }
        power += 1;
    }
    Tables { exp, log }
};

const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    TABLES.exp[TABLES.log[a as usize] as usize + TABLES.log[b as usize] as usize]
}

const fn invert(a: u8) -> u8 {
    TABLES.exp[255 - TABLES.log[a as usize] as usize]
}

/// What data shard `data` is multiplied by in parity shard `parity`: `(255 + data) / ((255 - parity) + data)`, where 255,
/// 255 - parity and data are elements of the field and + is the exclusive or. `data + parity` is below 255.
pub const fn coefficient(parity: u8, data: u8) -> u8 {
    multiply(255 ^ data, invert((255 - parity) ^ data))
}

/// A row in which shards are missing, and how the missing ones follow from the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// For each data shard, then each parity shard: what it is multiplied by.
    coefficients: Vec<u8>,
}

impl Repair {
    /// How shard `wanted` follows from all data shards but `missing`, and from as many of the parity shards, of which
    /// `parities` are there. Shards are numbered from 0: `data_count` of data, then those of parity.
    ///
    /// # Errors
    /// `Damage` if there are not enough parity shards.
    pub fn of(
        wanted: usize,
        data_count: usize,
        parity_count: usize,
        missing: &[usize],
        parities: &[usize],
    ) -> Result<Self> {
        let mut coefficients = vec![0u8; data_count + parity_count];
        let code = |parity: usize, data: usize| coefficient(parity as u8, data as u8);
        // What the wanted shard has of each missing one: itself, or what its own row of the code says.
        let mut of_missing: Vec<u8> = missing.iter().map(|data| u8::from(*data == wanted)).collect();
        if wanted >= data_count {
            let parity = wanted - data_count;
            of_missing = missing.iter().map(|data| code(parity, *data)).collect();
            for data in (0..data_count).filter(|data| !missing.contains(data)) {
                coefficients[data] = code(parity, data);
            }
        } else if !missing.contains(&wanted) {
            coefficients[wanted] = 1;
            return Ok(Repair { coefficients });
        }
        let Some(parities) = parities.get(..missing.len()) else {
            let cause = format!("{} shards are lost and {} of parity are there", missing.len(), parities.len());
            return Err(Error::new(ErrorKind::Damage, "rebuild a row", cause));
        };
        let inverse = inverted(missing, parities, code);
        for (place, parity) in parities.iter().enumerate() {
            let sum = (0..missing.len()).fold(0, |sum, lost| sum ^ multiply(of_missing[lost], inverse[lost][place]));
            coefficients[data_count + parity] ^= sum;
            for data in (0..data_count).filter(|data| !missing.contains(data)) {
                coefficients[data] ^= multiply(sum, code(*parity, data));
            }
        }
        Ok(Repair { coefficients })
    }

    /// The shards it needs, each with what it is multiplied by.
    pub fn parts(&self) -> impl Iterator<Item = (usize, u8)> + '_ {
        self.coefficients.iter().copied().enumerate().filter(|(_, coefficient)| *coefficient != 0)
    }
}

/// The inverse of the part of the code that has the rows `parities` and the columns `missing`; `inverse[column][row]`.
fn inverted(missing: &[usize], parities: &[usize], code: impl Fn(usize, usize) -> u8) -> Vec<Vec<u8>> {
    let count = missing.len();
    // Gauss-Jordan on the part beside the unit matrix.
    let mut rows: Vec<Vec<u8>> = Vec::with_capacity(count);
    for (place, parity) in parities.iter().enumerate() {
        let left = missing.iter().map(|data| code(*parity, *data));
        rows.push(left.chain((0..count).map(|column| u8::from(column == place))).collect());
    }
    for pivot in 0..count {
        // Every square part of a Cauchy matrix is regular, so there is one.
        if let Some(found) = (pivot..count).find(|row| rows[*row][pivot] != 0) {
            rows.swap(pivot, found);
        }
        let scale = invert(rows[pivot][pivot]);
        rows[pivot].iter_mut().for_each(|value| *value = multiply(*value, scale));
        let pivot_row = rows[pivot].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(number, _)| *number != pivot) {
            let factor = row[pivot];
            row.iter_mut().zip(&pivot_row).for_each(|(value, from)| *value ^= multiply(factor, *from));
        }
    }
    rows.iter().map(|row| row[count..].to_vec()).collect()
}

/// Adds `from` times `coefficient` to the first bytes of `sum`, which is as long or longer.
pub fn add_product(sum: &mut [u8], from: &[u8], coefficient: u8) {
    product::<true>(&mut sum[..from.len()], from, coefficient);
}

/// Makes the first bytes of `sum` those of `from` times `coefficient`.
pub fn set_product(sum: &mut [u8], from: &[u8], coefficient: u8) {
    product::<false>(&mut sum[..from.len()], from, coefficient);
}

fn product<const ADD: bool>(sum: &mut [u8], from: &[u8], coefficient: u8) {
    match coefficient {
        0 if ADD => {}
        0 => sum.fill(0),
        1 if ADD => sum.iter_mut().zip(from).for_each(|(sum, from)| *sum ^= from),
        1 => sum.copy_from_slice(from),
        _ => general::<ADD>(sum, from, &Nibbles::of(coefficient)),
    }
}

/// Products of all low and all high halves of a byte: a product of a byte is the sum of two of them.
struct Nibbles {
    low: [u8; 16],
    high: [u8; 16],
}

impl Nibbles {
    fn of(coefficient: u8) -> Self {
        Nibbles {
            low: std::array::from_fn(|half| multiply(coefficient, half as u8)),
            high: std::array::from_fn(|half| multiply(coefficient, (half as u8) << 4)),
        }
    }
}

fn general<const ADD: bool>(sum: &mut [u8], from: &[u8], nibbles: &Nibbles) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: this processor has AVX2.
        unsafe { general_avx2::<ADD>(sum, from, nibbles) };
        return;
    }
    #[cfg(target_arch = "aarch64")]
    {
        general_neon::<ADD>(sum, from, nibbles);
        return;
    }
    #[cfg_attr(target_arch = "aarch64", expect(unreachable_code, reason = "every such processor has NEON"))]
    general_bytes::<ADD>(sum, from, nibbles);
}

fn general_bytes<const ADD: bool>(sum: &mut [u8], from: &[u8], nibbles: &Nibbles) {
    for (sum, from) in sum.iter_mut().zip(from) {
        let product = nibbles.low[usize::from(from & 15)] ^ nibbles.high[usize::from(from >> 4)];
        *sum = if ADD { *sum ^ product } else { product };
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn general_avx2<const ADD: bool>(sum: &mut [u8], from: &[u8], nibbles: &Nibbles) {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
        _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256,
    };
    // SAFETY: both are 16 bytes, and the load needs no alignment.
    let low = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(nibbles.low.as_ptr().cast::<__m128i>()) });
    // SAFETY: as above.
    let high = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(nibbles.high.as_ptr().cast::<__m128i>()) });
    let mask = _mm256_set1_epi8(15);
    let mut sums = sum.chunks_exact_mut(32);
    let mut parts = from.chunks_exact(32);
    for (sum, from) in (&mut sums).zip(&mut parts) {
        // SAFETY: the chunk is 32 bytes, and the load needs no alignment.
        let bytes = unsafe { _mm256_loadu_si256(from.as_ptr().cast::<__m256i>()) };
        let of_low = _mm256_shuffle_epi8(low, _mm256_and_si256(bytes, mask));
        let of_high = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64(bytes, 4), mask));
        let mut product = _mm256_xor_si256(of_low, of_high);
        if ADD {
            // SAFETY: as above.
            product = _mm256_xor_si256(product, unsafe { _mm256_loadu_si256(sum.as_ptr().cast::<__m256i>()) });
        }
        // SAFETY: the chunk is 32 bytes, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(sum.as_mut_ptr().cast::<__m256i>(), product) };
    }
    general_bytes::<ADD>(sums.into_remainder(), parts.remainder(), nibbles);
}

#[cfg(target_arch = "aarch64")]
fn general_neon<const ADD: bool>(sum: &mut [u8], from: &[u8], nibbles: &Nibbles) {
    use std::arch::aarch64::{vandq_u8, vdupq_n_u8, veorq_u8, vld1q_u8, vqtbl1q_u8, vshrq_n_u8, vst1q_u8};
    // SAFETY: both are 16 bytes.
    let (low, high) = unsafe { (vld1q_u8(nibbles.low.as_ptr()), vld1q_u8(nibbles.high.as_ptr())) };
    let mut sums = sum.chunks_exact_mut(16);
    let mut parts = from.chunks_exact(16);
    for (sum, from) in (&mut sums).zip(&mut parts) {
        // SAFETY: every such processor has NEON, and both chunks are 16 bytes.
        unsafe {
            let bytes = vld1q_u8(from.as_ptr());
            let of_low = vqtbl1q_u8(low, vandq_u8(bytes, vdupq_n_u8(15)));
            let mut product = veorq_u8(of_low, vqtbl1q_u8(high, vshrq_n_u8::<4>(bytes)));
            if ADD {
                product = veorq_u8(product, vld1q_u8(sum.as_ptr()));
            }
            vst1q_u8(sum.as_mut_ptr(), product);
        }
    }
    general_bytes::<ADD>(sums.into_remainder(), parts.remainder(), nibbles);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_that_of_the_format() {
        assert_eq!(multiply(2, 0x80), 0x1D);
        assert_eq!(multiply(0x53, invert(0x53)), 1);
        assert!((0..200).all(|data| coefficient(0, data) == 1), "the first parity is the exclusive or");
        assert_eq!([coefficient(1, 0), coefficient(1, 1), coefficient(2, 3), coefficient(15, 200)], EXAMPLES);
    }

    /// As in FORMAT.md.
    const EXAMPLES: [u8; 4] = [127, 252, 253, 22];

    #[test]
    fn products_are_the_same_on_every_way() {
        let from: Vec<u8> = (0..1000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        for coefficient in [0, 1, 2, 7, 0x80, 0xFF] {
            for length in [0, 1, 31, 32, 33, 64, 999] {
                let before: Vec<u8> = (0..1000u32).map(|at| at as u8).collect();
                let (mut added, mut made) = (before.clone(), before.clone());
                add_product(&mut added, &from[..length], coefficient);
                set_product(&mut made, &from[..length], coefficient);
                for at in 0..1000 {
                    let product = if at < length { multiply(coefficient, from[at]) } else { 0 };
                    assert_eq!(added[at], before[at] ^ product);
                    assert_eq!(made[at], if at < length { product } else { before[at] });
                }
            }
        }
    }

    /// Every choice of lost shards of several codes.
    #[test]
    fn any_lost_shards_come_back() {
        for (data, parity) in [(1, 1), (4, 1), (4, 2), (5, 3), (2, 4)] {
            let count = data + parity;
            let mut shards: Vec<Vec<u8>> =
                (0..data).map(|shard| (0..50 - shard).map(|at| (at * 31 + shard * 7 + 3) as u8).collect()).collect();
            for number in 0..parity {
                let mut sum = vec![0u8; 50];
                for (place, shard) in shards[..data].iter().enumerate() {
                    add_product(&mut sum, shard, coefficient(number as u8, place as u8));
                }
                shards.push(sum);
            }
            for lost in 0u32..1 << count {
                let is_lost = |shard: usize| lost & 1 << shard != 0;
                let missing: Vec<usize> = (0..data).filter(|shard| is_lost(*shard)).collect();
                let parities: Vec<usize> = (0..parity).filter(|shard| !is_lost(data + shard)).collect();
                for wanted in (0..count).filter(|shard| is_lost(*shard)) {
                    let repair = Repair::of(wanted, data, parity, &missing, &parities);
                    if missing.len() > parities.len() {
                        assert!(repair.is_err());
                        continue;
                    }
                    let mut sum = vec![0u8; 50];
                    for (part, coefficient) in repair.unwrap().parts() {
                        assert!(!is_lost(part), "{data}+{parity}, lost {lost:b}: {part} is needed for {wanted}");
                        add_product(&mut sum, &shards[part], coefficient);
                    }
                    assert_eq!(sum[..shards[wanted].len()], shards[wanted], "{data}+{parity}, lost {lost:b}");
                    assert!(sum[shards[wanted].len()..].iter().all(|byte| *byte == 0));
                }
            }
        }
    }
}
