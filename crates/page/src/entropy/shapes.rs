//! Unsigned numbers of the general form, in the shape that suits them: split, tokens, planes.

use multiversion::multiversion;

use super::Effort;
use super::bits::{BitWriter, WIDTH_MAX, mask};
use super::bytes::ByteCoder;
use super::estimate::{Shape, shape};
use super::number::Number;
use super::numbers::{PLANES, SPLIT, TOKENS};
use super::tokens::token;

pub(super) struct ShapeCoder {
    effort: Effort,
    bytes: ByteCoder,
    high: Vec<u8>,
    low: Vec<u8>,
}

impl ShapeCoder {
    pub(super) fn set_effort(&mut self, effort: Effort) {
        self.effort = effort;
        self.bytes.set_effort(effort);
    }

    pub(super) fn new(effort: Effort) -> Self {
        ShapeCoder { effort, bytes: ByteCoder::new(effort), high: Vec::new(), low: Vec::new() }
    }

    pub(super) fn bytes(&mut self, values: &[u8], out: &mut Vec<u8>) {
        self.bytes.encode_body(values, out);
    }

    /// Appends `values`, none of which has a bit that `max` has not room for; the shape's bits of the mode.
    pub(super) fn encode<N: Number>(&mut self, values: &[N], max: u64, out: &mut Vec<u8>) -> u8 {
        match shape(self.effort, values, max) {
            Shape::Split(low_bits) => {
                self.split(values, low_bits, out);
                SPLIT
            }
            Shape::Tokens(fine) => {
                match fine {
                    0 => self.tokens::<N, 0>(values, max, out),
                    1 => self.tokens::<N, 1>(values, max, out),
                    _ => self.tokens::<N, 2>(values, max, out),
                }
                TOKENS * (1 + fine as u8)
            }
            Shape::Planes(width) => {
                self.planes(values, width, out);
                PLANES
            }
        }
    }

    fn split<N: Number>(&mut self, values: &[N], low_bits: u32, out: &mut Vec<u8>) {
        out.push(low_bits as u8);
        high_bits(values, low_bits, &mut self.high);
        self.bytes.encode_body(&self.high, out);
        if low_bits == 0 {
            return;
        }
        let start = out.len();
        out.resize(start + (values.len() * low_bits as usize).div_ceil(8) + 8, 0);
        let length = put_low_bits(values, low_bits, &mut out[start..]);
        out.truncate(start + length);
    }

    fn tokens<N: Number, const FINE: u32>(&mut self, values: &[N], max: u64, out: &mut Vec<u8>) {
        let bits = 64 - max.leading_zeros();
        let needed = (values.len() * bits as usize).div_ceil(8) + 8;
        if self.low.len() < needed {
            self.low.resize(needed, 0);
        }
        self.high.clear();
        self.high.resize(values.len(), 0);
        let length = if N::BITS <= 32 || bits <= WIDTH_MAX {
            put_tokens::<N, FINE, false>(values, &mut self.high, &mut self.low[..needed])
        } else {
            put_tokens::<N, FINE, true>(values, &mut self.high, &mut self.low[..needed])
        };
        self.bytes.encode_body(&self.high, out);
        out.extend_from_slice(&self.low[..length]);
    }

    fn planes<N: Number>(&mut self, values: &[N], width: u32, out: &mut Vec<u8>) {
        out.push(width as u8);
        for plane in 0..width {
            high_bits(values, 8 * plane, &mut self.high);
            self.bytes.encode_body(&self.high, out);
        }
    }
}

/// The bits above the lowest `low_bits` of each value, or the lowest eight of them.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn high_bits<N: Number>(values: &[N], low_bits: u32, high: &mut Vec<u8>) {
    high.clear();
    high.extend(values.iter().map(|value| value.shifted_right(low_bits).to_u64() as u8));
}

/// Puts the lowest `low_bits` of each value one behind the other; how many bytes they are. `room` has 8 more.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn put_low_bits<N: Number>(values: &[N], low_bits: u32, room: &mut [u8]) -> usize {
    let mut writer = BitWriter::new(room);
    let low = mask(low_bits);
    let (pairs, rest) = values.as_chunks::<2>();
    if low_bits <= WIDTH_MAX / 2 {
        for [one, other] in pairs {
            writer.put((one.to_u64() & low) | (other.to_u64() & low) << low_bits, 2 * low_bits);
        }
    } else {
        for value in pairs.as_flattened() {
            writer.put_wide(value.to_u64() & low, low_bits);
        }
    }
    for value in rest {
        writer.put_wide(value.to_u64() & low, low_bits);
    }
    writer.finish()
}

/// Puts the token of each value into `tokens`, and the bits that it leaves to be told into `room`; how many bytes these are.
/// Without `WIDE` no value leaves more than [`WIDTH_MAX`].
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn put_tokens<N: Number, const FINE: u32, const WIDE: bool>(values: &[N], tokens: &mut [u8], room: &mut [u8]) -> usize {
    let mut writer = BitWriter::new(room);
    for (place, value) in tokens.iter_mut().zip(values) {
        let value = value.to_u64();
        let (token, extra) = token::<FINE>(value);
        *place = token;
        if WIDE {
            writer.put_wide(value & ((1 << extra) - 1), extra);
        } else {
            writer.put(value & ((1 << extra) - 1), extra);
        }
    }
    writer.finish()
}
