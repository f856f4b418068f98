//! The row code: Reed-Solomon over GF(2^16), made shard by shard, so that nobody needs all shards of a row at once.
//!
//! A parity shard is the sum of all data shards, each times a coefficient. The coefficients are those of a Cauchy matrix
//! whose columns are scaled so that the first parity is the exclusive or: every square part of it can be inverted, so any
//! K shards can be had from the others. Shards of one row have different lengths; a shorter one counts as padded with zeros.
//!
//! The field and its products are those of `reed-solomon-simd`. Its own coders take all shards of a row at once.

use std::sync::LazyLock;

use reed_solomon_simd::engine::tables::{self, get_exp_log};
use reed_solomon_simd::engine::{DefaultEngine, Engine, GF_MODULUS};

use crate::error::{Error, ErrorKind, Result};

/// Data and parity shards of one row, together at most.
pub const SHARDS_MAX: usize = 256;
/// Shards are made of blocks of 32 elements: the low bytes of all of them, then the high bytes.
pub const BLOCK_BYTES: usize = 64;
/// The library's tables of products, which it makes when the first one is wanted.
const TABLES_BYTES: u64 = 9 << 20;

/// Products are made beside the sum, so many blocks at once: they stay in the nearest cache.
const BLOCKS: usize = 64;

/// Picks the processor's instructions once.
static ENGINE: LazyLock<DefaultEngine> = LazyLock::new(DefaultEngine::new);

fn multiply(a: u16, b: u16) -> u16 {
    let field = get_exp_log();
    if b == 0 { 0 } else { tables::mul(a, field.log[usize::from(b)], &field.exp, &field.log) }
}

fn invert(a: u16) -> u16 {
    let field = get_exp_log();
    field.exp[usize::from(GF_MODULUS - field.log[usize::from(a)])]
}

/// What data shard `data` is multiplied by in parity shard `parity`: `(255 + data) / ((255 - parity) + data)`, where 255,
/// 255 - parity and data are elements of the field and + is the exclusive or. `data + parity` is below 255.
pub fn coefficient(parity: usize, data: usize) -> u16 {
    multiply((255 ^ data) as u16, invert(((255 - parity) ^ data) as u16))
}

/// Memory of the code with so many parity shards, whatever their size: a single one is the exclusive or.
pub fn memory_bytes(parity_count: usize) -> u64 {
    if parity_count > 1 { TABLES_BYTES } else { 0 }
}

/// A row in which shards are missing, and how the missing ones follow from the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// For each data shard, then each parity shard: what it is multiplied by.
    coefficients: Vec<u16>,
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
        let mut coefficients = vec![0u16; data_count + parity_count];
        // What the wanted shard has of each missing one: itself, or what its own row of the code says.
        let mut of_missing: Vec<u16> = missing.iter().map(|data| u16::from(*data == wanted)).collect();
        if wanted >= data_count {
            let parity = wanted - data_count;
            of_missing = missing.iter().map(|data| coefficient(parity, *data)).collect();
            for data in (0..data_count).filter(|data| !missing.contains(data)) {
                coefficients[data] = coefficient(parity, data);
            }
        } else if !missing.contains(&wanted) {
            coefficients[wanted] = 1;
            return Ok(Repair { coefficients });
        }
        let Some(parities) = parities.get(..missing.len()) else {
            let cause = format!("{} shards are lost and {} of parity are there", missing.len(), parities.len());
            return Err(Error::new(ErrorKind::Damage, "rebuild a row", cause));
        };
        let inverse = inverted(missing, parities);
        for (place, parity) in parities.iter().enumerate() {
            let sum = (0..missing.len()).fold(0, |sum, lost| sum ^ multiply(of_missing[lost], inverse[lost][place]));
            coefficients[data_count + parity] ^= sum;
            for data in (0..data_count).filter(|data| !missing.contains(data)) {
                coefficients[data] ^= multiply(sum, coefficient(*parity, data));
            }
        }
        Ok(Repair { coefficients })
    }

    /// The shards it needs, each with what it is multiplied by.
    pub fn parts(&self) -> impl Iterator<Item = (usize, u16)> + '_ {
        self.coefficients.iter().copied().enumerate().filter(|(_, coefficient)| *coefficient != 0)
    }
}

/// The inverse of the part of the code that has the rows `parities` and the columns `missing`; `inverse[column][row]`.
fn inverted(missing: &[usize], parities: &[usize]) -> Vec<Vec<u16>> {
    let count = missing.len();
    // Gauss-Jordan on the part beside the unit matrix.
    let mut rows: Vec<Vec<u16>> = Vec::with_capacity(count);
    for (place, parity) in parities.iter().enumerate() {
        let left = missing.iter().map(|data| coefficient(*parity, *data));
        rows.push(left.chain((0..count).map(|column| u16::from(column == place))).collect());
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

/// Adds `from` times `coefficient`, which is not 0, to `sum`. `from` counts as padded with zeros to whole blocks; what `sum` has no room for
/// is not kept.
pub fn add_product(sum: &mut [u8], from: &[u8], coefficient: u16) {
    if coefficient == 1 {
        return sum.iter_mut().zip(from).for_each(|(sum, from)| *sum ^= from);
    }
    let log = get_exp_log().log[usize::from(coefficient)];
    let mut blocks = [[0u8; BLOCK_BYTES]; BLOCKS];
    for (sum, from) in sum.chunks_mut(BLOCKS * BLOCK_BYTES).zip(from.chunks(BLOCKS * BLOCK_BYTES)) {
        let blocks = &mut blocks[..from.len().div_ceil(BLOCK_BYTES)];
        let bytes = blocks.as_flattened_mut();
        bytes[..from.len()].copy_from_slice(from);
        bytes[from.len()..].fill(0);
        ENGINE.mul(blocks, log);
        sum.iter_mut().zip(blocks.as_flattened()).for_each(|(sum, product)| *sum ^= product);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The product as FORMAT.md has it: elements are sums of a basis, and polynomials are multiplied.
    fn by_definition(a: u16, b: u16) -> u16 {
        const BASIS: [u16; 16] = [
            0x0001, 0xACCA, 0x3C0E, 0x163E, 0xC582, 0xED2E, 0x914C, 0x4012, 0x6C98, 0x10D8, 0x6A72, 0xB900, 0xFDB8,
            0xFB34, 0xFF38, 0x991E,
        ];
        let polynomial =
            |element: u16| (0..16).filter(|bit| element >> bit & 1 == 1).fold(0, |sum, bit| sum ^ BASIS[bit]);
        let (a, mut b, mut product) = (polynomial(a), polynomial(b), 0u16);
        for bit in 0..16 {
            if a >> bit & 1 == 1 {
                product ^= b;
            }
            b = b << 1 ^ if b & 0x8000 == 0 { 0 } else { 0x002D };
        }
        (0..=u16::MAX).find(|element| polynomial(*element) == product).unwrap()
    }

    #[test]
    fn the_field_is_that_of_the_format() {
        for (a, b) in [(1, 77), (2, 2), (2, 0x8000), (0x5312, 0xFFFF), (254, 3), (0, 9), (65_535, 65_535)] {
            assert_eq!(multiply(a, b), by_definition(a, b), "{a} times {b}");
        }
        assert_eq!(multiply(0x5353, invert(0x5353)), 1);
        assert!((0..200).all(|data| coefficient(0, data) == 1), "the first parity is the exclusive or");
        assert_eq!([coefficient(1, 0), coefficient(1, 1), coefficient(2, 3), coefficient(15, 200)], EXAMPLES);
    }

    /// As in FORMAT.md.
    const EXAMPLES: [u16; 4] = [164, 60, 214, 160];

    #[test]
    fn products_are_those_of_the_elements() {
        let from: Vec<u8> = (0..10_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        let before: Vec<u8> = (0..10_048u32).map(|at| at as u8).collect();
        for coefficient in [1, 2, 7, 0x80, 0xFFFF] {
            for length in [0, 1, 31, 32, 33, 64, 999, 4096, 10_000] {
                let mut padded = from[..length].to_vec();
                padded.resize(length.next_multiple_of(BLOCK_BYTES), 0);
                let expected: Vec<u8> =
                    padded.chunks(BLOCK_BYTES).flat_map(|block| products(block, coefficient)).collect();
                for room in [expected.len(), length] {
                    let mut sum = before[..room].to_vec();
                    add_product(&mut sum, &from[..length], coefficient);
                    assert!((0..room).all(|at| sum[at] == before[at] ^ expected[at]));
                }
                let mut longer = before.clone();
                add_product(&mut longer, &from[..length], coefficient);
                assert_eq!(longer[expected.len()..], before[expected.len()..], "what is beyond the blocks stays");
            }
        }
    }

    /// A block times a coefficient, element by element.
    fn products(block: &[u8], coefficient: u16) -> Vec<u8> {
        let (low, high) = block.split_at(BLOCK_BYTES / 2);
        let products: Vec<u16> =
            low.iter().zip(high).map(|(low, high)| multiply(u16::from_le_bytes([*low, *high]), coefficient)).collect();
        let bytes = |which: usize| products.iter().map(move |product| product.to_le_bytes()[which]);
        bytes(0).chain(bytes(1)).collect()
    }

    /// Every choice of lost shards of several codes.
    #[test]
    fn any_lost_shards_come_back() {
        const LENGTH: usize = 3 * BLOCK_BYTES;
        for (data, parity) in [(1, 1), (4, 1), (4, 2), (5, 3), (2, 4)] {
            let count = data + parity;
            let mut shards: Vec<Vec<u8>> =
                (0..data).map(|shard| (0..150 - shard).map(|at| (at * 31 + shard * 7 + 3) as u8).collect()).collect();
            for number in 0..parity {
                let mut sum = vec![0u8; LENGTH];
                for (place, shard) in shards[..data].iter().enumerate() {
                    add_product(&mut sum, shard, coefficient(number, place));
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
                    let mut sum = vec![0u8; LENGTH];
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
