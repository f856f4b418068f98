//! Streams of bytes: decoding.

use super::bytes::{CONSTANT, HUFFMAN, PACKED_2, PACKED_4, PACKED_8, RAW, RUNS, SPARSE, ZSTD};
use super::huffman_decode::HuffmanDecoder;
use super::reader::Reader;
use super::text::TextDecoder;
use crate::error::{Damaged, Decoded};

/// Decodes what [`ByteCoder`](super::ByteCoder) wrote.
pub(crate) struct ByteDecoder {
    huffman: HuffmanDecoder,
    text: TextDecoder,
    lengths: Vec<u8>,
    parts: Vec<u8>,
}

impl ByteDecoder {
    pub(crate) fn new() -> Self {
        ByteDecoder { huffman: HuffmanDecoder::new(), text: TextDecoder::new(), lengths: Vec::new(), parts: Vec::new() }
    }

    /// Appends the next stream of `input`, of at most `count_max` bytes, to `values`.
    pub(crate) fn decode(&mut self, input: &mut Reader<'_>, count_max: usize, values: &mut Vec<u8>) -> Decoded<()> {
        let count = input.count(count_max)?;
        self.decode_body(input, count, values)
    }

    /// The stream without its count.
    pub(super) fn decode_body(&mut self, input: &mut Reader<'_>, count: usize, values: &mut Vec<u8>) -> Decoded<()> {
        if count == 0 {
            return Ok(());
        }
        match input.u8()? {
            SPARSE => self.sparse(input, count, values),
            RUNS => self.runs(input, count, values),
            PACKED_2 => self.packed::<2>(input, count, values),
            PACKED_4 => self.packed::<4>(input, count, values),
            PACKED_8 => self.packed::<8>(input, count, values),
            ZSTD => {
                let length = input.count(usize::MAX)?;
                self.text.unpack(input.take(length)?, count, values)
            }
            form => self.plain(form, input, count, values),
        }
    }

    /// The forms that streams within streams may have.
    fn plain(&mut self, form: u8, input: &mut Reader<'_>, count: usize, values: &mut Vec<u8>) -> Decoded<()> {
        let start = values.len();
        match form {
            RAW => values.extend_from_slice(input.take(count)?),
            CONSTANT => {
                let value = input.u8()?;
                values.resize(start + count, value);
            }
            HUFFMAN => {
                values.resize(start + count, 0);
                let decoded = self.huffman.decode(input, &mut values[start..]);
                if decoded.is_err() {
                    values.truncate(start);
                }
                return decoded;
            }
            _ => return Err(Damaged("a byte stream of an unknown form")),
        }
        Ok(())
    }

    fn sparse(&mut self, input: &mut Reader<'_>, count: usize, values: &mut Vec<u8>) -> Decoded<()> {
        let most = input.u8()?;
        self.two_parts(input, count)?;
        let start = values.len();
        values.resize(start + count, most);
        let mut places = values[start..].iter_mut();
        let mut gap = 0;
        let mut parts = self.parts.iter();
        for length in &self.lengths {
            gap += usize::from(*length);
            if *length < 255 {
                let (Some(place), Some(value)) = (places.nth(gap), parts.next()) else {
                    values.truncate(start);
                    return Err(Damaged("an exception lies beyond its stream"));
                };
                *place = *value;
                gap = 0;
            }
        }
        Ok(())
    }

    fn runs(&mut self, input: &mut Reader<'_>, count: usize, values: &mut Vec<u8>) -> Decoded<()> {
        self.two_parts(input, count)?;
        let start = values.len();
        let mut run = 1;
        let mut parts = self.parts.iter();
        for length in &self.lengths {
            run += usize::from(*length);
            if *length < 255 {
                let filled = values.len() - start;
                let value = parts.next().filter(|_| run <= count - filled);
                let Some(value) = value else { break };
                values.resize(values.len() + run, *value);
                run = 1;
            }
        }
        if values.len() - start != count {
            values.truncate(start);
            return Err(Damaged("runs are not as long as their stream"));
        }
        Ok(())
    }

    /// Lengths and values into `self.lengths` and `self.parts`; of both there are at most `count` and a bit.
    fn two_parts(&mut self, input: &mut Reader<'_>, count: usize) -> Decoded<()> {
        let values = input.count(count)?;
        let more = input.count(count / 255)?;
        let mut lengths = std::mem::take(&mut self.lengths);
        let mut parts = std::mem::take(&mut self.parts);
        lengths.clear();
        parts.clear();
        let form = input.u8();
        let decoded = form.and_then(|form| self.plain(form, input, values + more, &mut lengths)).and_then(|()| {
            let form = input.u8()?;
            self.plain(form, input, values, &mut parts)
        });
        self.lengths = lengths;
        self.parts = parts;
        decoded
    }

    fn packed<const PER: usize>(&mut self, input: &mut Reader<'_>, count: usize, values: &mut Vec<u8>) -> Decoded<()> {
        let symbols = usize::from(input.u8()?);
        if symbols > 1 << (8 / PER) {
            return Err(Damaged("more symbols than their bits can tell"));
        }
        let mut symbol = [0; 16];
        symbol[..symbols].copy_from_slice(input.take(symbols)?);
        let unpacked = |packed: usize| -> [u8; PER] {
            std::array::from_fn(|at| symbol[(packed >> (at * 8 / PER)) & ((1 << (8 / PER)) - 1)])
        };
        let mut packed = std::mem::take(&mut self.parts);
        packed.clear();
        let form = input.u8();
        let decoded = form.and_then(|form| self.plain(form, input, count.div_ceil(PER), &mut packed));
        if decoded.is_ok() {
            let start = values.len();
            values.resize(start + packed.len() * PER, 0);
            let (groups, _) = values[start..].as_chunks_mut::<PER>();
            if packed.len() < 256 {
                groups.iter_mut().zip(&packed).for_each(|(group, packed)| *group = unpacked(usize::from(*packed)));
            } else {
                let table: [_; 256] = std::array::from_fn(unpacked);
                groups.iter_mut().zip(&packed).for_each(|(group, packed)| *group = table[usize::from(*packed)]);
            }
            values.truncate(start + count);
        }
        self.parts = packed;
        decoded
    }
}
