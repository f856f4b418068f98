//! Unsigned numbers of the general form: decoding of their shapes.

use multiversion::multiversion;

use super::bits::{WIDTH_MAX, bits_wide, mask, window};
use super::bytes_decode::ByteDecoder;
use super::number::Number;
use super::numbers::{PLANES, SPLIT, TOKENS};
use super::reader::Reader;
use super::tokens::{TABLES, TokenTable};
use crate::error::{Damaged, Decoded};

pub(super) struct ShapeDecoder {
    bytes: ByteDecoder,
    high: Vec<u8>,
}

impl ShapeDecoder {
    pub(super) fn new() -> Self {
        ShapeDecoder { bytes: ByteDecoder::new(), high: Vec::new() }
    }

    /// The next `count` bytes of a byte stream.
    pub(super) fn bytes(&mut self, input: &mut Reader<'_>, count: usize) -> Decoded<&[u8]> {
        self.high.clear();
        self.bytes.decode_body(input, count, &mut self.high)?;
        Ok(&self.high)
    }

    /// Appends `count` numbers to `values`.
    pub(super) fn decode<N: Number>(
        &mut self,
        shape: u8,
        input: &mut Reader<'_>,
        count: usize,
        values: &mut Vec<N>,
    ) -> Decoded<()> {
        const TOKENS_1: u8 = TOKENS * 2;
        const TOKENS_2: u8 = TOKENS * 3;
        match shape {
            SPLIT => self.split(input, count, values),
            TOKENS => self.tokens(&TABLES[0], input, count, values),
            TOKENS_1 => self.tokens(&TABLES[1], input, count, values),
            TOKENS_2 => self.tokens(&TABLES[2], input, count, values),
            PLANES => self.planes(input, count, values),
            _ => Err(Damaged("a number stream of an unknown shape")),
        }
    }

    fn split<N: Number>(&mut self, input: &mut Reader<'_>, count: usize, values: &mut Vec<N>) -> Decoded<()> {
        let low_bits = u32::from(input.u8()?);
        if low_bits > N::BITS - 8 {
            return Err(Damaged("a number stream of too many bits"));
        }
        self.bytes(input, count)?;
        if low_bits == 0 {
            values.extend(self.high.iter().map(|high| N::from_u64(u64::from(*high))));
            return Ok(());
        }
        put_together(&self.high, input.take((count * low_bits as usize).div_ceil(8))?, low_bits, values);
        Ok(())
    }

    fn tokens<N: Number>(
        &mut self,
        table: &TokenTable,
        input: &mut Reader<'_>,
        count: usize,
        values: &mut Vec<N>,
    ) -> Decoded<()> {
        self.bytes(input, count)?;
        let most = self.high.iter().copied().max().unwrap_or(0);
        if usize::from(most) >= table.end || table.bases[usize::from(most)] > N::from_u64(u64::MAX).to_u64() {
            return Err(Damaged("a token stands for no number"));
        }
        let bits = put_untokened(table, &self.high, input.rest(), values);
        input.take(bits.div_ceil(8)).map(|_| ())
    }

    fn planes<N: Number>(&mut self, input: &mut Reader<'_>, count: usize, values: &mut Vec<N>) -> Decoded<()> {
        let width = u32::from(input.u8()?);
        if width * 8 > N::BITS {
            return Err(Damaged("a number stream of too many bits"));
        }
        let start = values.len();
        values.resize(start + count, N::default());
        for plane in 0..width {
            self.bytes(input, count)?;
            for (value, byte) in values[start..].iter_mut().zip(&self.high) {
                *value = *value | N::from_u64(u64::from(*byte) << (8 * plane));
            }
        }
        Ok(())
    }
}

/// Appends a number for each of `high`, of which its lowest `low_bits` stand in `packed`.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn put_together<N: Number>(high: &[u8], packed: &[u8], low_bits: u32, values: &mut Vec<N>) {
    let start = values.len();
    values.extend(high.iter().map(|high| N::from_u64(u64::from(*high) << low_bits)));
    let values = &mut values[start..];
    match low_bits {
        ..=14 => add_low_bits::<N, 4>(packed, low_bits, values),
        15..=28 => add_low_bits::<N, 2>(packed, low_bits, values),
        _ => add_low_bits::<N, 1>(packed, low_bits, values),
    }
}

/// `TOGETHER` of them are loaded at once.
#[inline(always)]
fn add_low_bits<N: Number, const TOGETHER: usize>(packed: &[u8], low_bits: u32, values: &mut [N]) {
    let (low, width) = (mask(low_bits), low_bits as usize);
    let mut bit = 0;
    let (groups, rest) = values.as_chunks_mut::<TOGETHER>();
    for group in groups {
        let bits = window(packed, bit);
        for (number, value) in group.iter_mut().enumerate() {
            *value = *value | N::from_u64(bits >> (number * width) & low);
        }
        bit += TOGETHER * width;
    }
    for value in rest {
        *value = *value | N::from_u64(window(packed, bit) & low);
        bit += width;
    }
}

/// Appends the number of each token, of which what the token leaves to be told stands in `packed`; how many bits that was.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn put_untokened<N: Number>(table: &TokenTable, tokens: &[u8], packed: &[u8], values: &mut Vec<N>) -> usize {
    let mut bit = 0;
    let number = |token: &u8| {
        let extra = table.extras[usize::from(*token)];
        let low = if N::BITS <= 32 {
            window(packed, bit) & ((1 << extra) - 1)
        } else if u32::from(extra) <= WIDTH_MAX {
            window(packed, bit) & mask(u32::from(extra))
        } else {
            bits_wide(packed, bit, u32::from(extra))
        };
        bit += usize::from(extra);
        N::from_u64(table.bases[usize::from(*token)] + low)
    };
    values.extend(tokens.iter().map(number));
    bit
}
