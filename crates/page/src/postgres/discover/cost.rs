//! What the values of a column would cost, in bits: guesses good enough to tell layouts apart.

use super::sample::{Sample, TUPLES_MAX};
use crate::layout::ValueType;
use crate::postgres::numeric;
use crate::postgres::wire::{u16_at, u32_at, u64_at};

/// Bits of a byte of text behind zstd, and of a byte that is none.
const TEXT_BITS: f32 = 2.75;
const BINARY_BITS: f32 = 6.5;
/// Bits of a pointer to a TOAST value.
const EXTERNAL_BITS: f32 = 36.0;
/// Bits of 16 bytes that are all noise.
const UUID_NOISE_BITS: f32 = 100.0;
/// Bits of a float of which all of the mantissa is noise.
const NOISE_FLOAT_BITS: f32 = 56.0;
/// What bytes of no known meaning cost more than their places tell.
const OPAQUE_FACTOR: f32 = 1.5;
/// Logarithms of all counts that a sample can have.
const LOG2: [f32; TUPLES_MAX + 1] = [
    0.0, 0.0, 1.0, 1.585, 2.0, 2.322, 2.585, 2.807, 3.0, 3.170, 3.322, 3.459, 3.585, 3.700, 3.807, 3.907, 4.0, 4.087,
    4.170, 4.248, 4.322, 4.392, 4.459, 4.524, 4.585, 4.644, 4.700, 4.755, 4.807, 4.858, 4.907, 4.954, 5.0,
];
/// How much of a long value is looked at.
const LOOK_BYTES: usize = 32;
/// Exponents of ten that are tried.
const EXPONENTS: [i32; 9] = [0, 1, 2, 3, 4, 5, 6, 9, 12];

/// A column's price and what its values look like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Price {
    pub(super) bits: f32,
    pub(super) value_type: ValueType,
}

/// The values of a column that are there.
#[derive(Debug)]
pub(super) struct Column {
    /// Where each starts in the run, and where it ends.
    spans: [(u32, u32); TUPLES_MAX],
    count: usize,
    /// A bit for each value whose neighbour stands before it.
    follows: u32,
}

impl Column {
    pub(super) fn new() -> Self {
        Column { spans: [(0, 0); TUPLES_MAX], count: 0, follows: 0 }
    }

    /// Appends the value of tuple `number`.
    #[inline]
    pub(super) fn push(&mut self, start: usize, end: usize, sample: &Sample, number: usize, present: u32) {
        // A missing value between two parts them.
        let follows = sample.follows >> number & (present << 1) >> number & 1;
        self.follows |= follows << self.count;
        self.spans[self.count] = (start as u32, end as u32);
        self.count += 1;
    }

    fn spans(&self) -> &[(u32, u32)] {
        &self.spans[..self.count]
    }

    /// The price of values of a fixed length.
    pub(super) fn fixed(&self, content: &[u8], length: usize) -> Price {
        let mut room = [0; TUPLES_MAX];
        let mut read = |offset: usize, of: &dyn Fn(usize) -> u64| {
            room.iter_mut().zip(self.spans()).for_each(|(value, (start, _))| *value = of(*start as usize + offset));
            room
        };
        match length {
            1 => self.integer(&read(0, &|at| i64::from(content[at]).cast_unsigned()), 1),
            2 => self.integer(&read(0, &|at| i64::from(u16_at(content, at).cast_signed()).cast_unsigned()), 2),
            4 => {
                let values = read(0, &|at| i64::from(u32_at(content, at).cast_signed()).cast_unsigned());
                self.best_of(&values, 4)
            }
            8 => self.best_of(&read(0, &|at| u64_at(content, at)), 8),
            16 | 24 | 32 => self.shapes(content, &mut |offset| read(offset, &|at| u64_at(content, at)), length),
            64 => self.name(content),
            _ => self.opaque(content, length),
        }
    }

    fn integer(&self, values: &[u64; TUPLES_MAX], width: usize) -> Price {
        let bits = integers(&values[..self.count], self.follows, width);
        let count = self.count as f32;
        let changes = changes(&values[..self.count]);
        let unlikely = match width {
            // Nobody keeps noise in a byte or two: they are part of something longer.
            1 | 2 if bits > 6.5 * width as f32 * count => 2.0,
            // Two narrow columns in one: both halves change, and each byte tells more of itself than all of them together.
            8 if changes >> 40 != 0 && bits < 40.0 * count => 1.0,
            _ => 0.0,
        };
        Price { bits: bits + unlikely * count, value_type: ValueType::Integer }
    }

    fn best_of(&self, values: &[u64; TUPLES_MAX], width: usize) -> Price {
        let integer = self.integer(values, width);
        match floats(&values[..self.count], self.follows, width, integer.bits) {
            Some(bits) => Price { bits, value_type: ValueType::Float },
            None => integer,
        }
    }

    /// Points, boxes and circles; of 16 bytes a uuid, an interval or, mostly, a mistake.
    fn shapes(&self, content: &[u8], read: &mut dyn FnMut(usize) -> [u64; TUPLES_MAX], length: usize) -> Price {
        let count = self.count as f32;
        let mut bits = 0.0;
        for offset in (0..length).step_by(8) {
            match floats(&read(offset)[..self.count], self.follows, 8, NOISE_FLOAT_BITS * count) {
                Some(of_floats) => bits += of_floats,
                None if length == 16 => {
                    bits = places(&read(0)[..self.count], 8, f32::INFINITY) * count
                        + places(&read(8)[..self.count], 8, f32::INFINITY) * count;
                    if bits <= UUID_NOISE_BITS * count && !self.are_uuids(content) {
                        // As two numbers an interval is still smaller than as text.
                        bits = OPAQUE_FACTOR * bits + 4.0 * count;
                    }
                    return Price { bits, value_type: ValueType::Uuid };
                }
                None => return Price { bits: f32::INFINITY, value_type: ValueType::Opaque },
            }
        }
        Price { bits, value_type: ValueType::Floats }
    }

    /// Whether version and variant are those of uuids (RFC 9562).
    fn are_uuids(&self, content: &[u8]) -> bool {
        let is_uuid = |(start, _): &&(u32, u32)| {
            let value = &content[*start as usize..][..16];
            matches!(value[6] >> 4, 1..=8) && value[8] >> 6 == 2
        };
        self.spans().iter().filter(is_uuid).count() * 10 >= self.count * 9
    }

    /// PostgreSQL's name: text, filled up with zeros.
    fn name(&self, content: &[u8]) -> Price {
        let mut bits = 0.0;
        for (start, end) in self.spans() {
            let value = &content[*start as usize..*end as usize];
            let length = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
            let is_name = length > 0 && value[..length].iter().all(|byte| is_text(*byte));
            if !is_name || value[length..].iter().any(|byte| *byte != 0) {
                return Price { bits: f32::INFINITY, value_type: ValueType::Opaque };
            }
            bits += 4.0 + TEXT_BITS * length as f32;
        }
        Price { bits, value_type: ValueType::Opaque }
    }

    fn opaque(&self, content: &[u8], length: usize) -> Price {
        let plane = |offset: usize| plane(self.spans().iter().map(|(start, _)| content[*start as usize + offset]));
        let bits: f32 = (0..length).map(plane).sum();
        // They go as text, which does not know of places.
        Price { bits: (OPAQUE_FACTOR * bits + 4.0) * self.count as f32, value_type: ValueType::Opaque }
    }

    /// The price of values of variable length with their headers; `is_text` if nothing else looks like them.
    pub(super) fn variable(&self, content: &[u8]) -> (Price, bool) {
        let mut seen = [0u64; TUPLES_MAX];
        let mut numbers = [0u64; TUPLES_MAX];
        let (mut distinct, mut bits, mut number_count, mut external_count) = (0, 0.0, 0, 0);
        let (mut text_count, mut byte_count, mut lengths) = (0, 0, 0u64);
        for (start, end) in self.spans() {
            let stored = &content[*start as usize..*end as usize];
            let first = stored[0];
            if first == 1 {
                bits += EXTERNAL_BITS;
                external_count += 1;
                continue;
            }
            let payload = &stored[if first & 1 == 1 { 1 } else { 4 }..];
            lengths |= 1 << (payload.len() % 64);
            if let Some((number, _)) = numeric::split(payload) {
                numbers[number_count] = number;
                number_count += 1;
            }
            let look = &payload[..payload.len().min(LOOK_BYTES)];
            let key = look.iter().fold(payload.len() as u64, |key, byte| {
                (key.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            });
            let texts = look.iter().filter(|byte| is_text(**byte)).count();
            text_count += texts;
            byte_count += look.len();
            if seen[..distinct].contains(&key) {
                continue;
            }
            seen[distinct] = key;
            distinct += 1;
            let of_look = TEXT_BITS * texts as f32 + BINARY_BITS * (look.len() - texts) as f32;
            bits += 1.0 + of_look * payload.len() as f32 / look.len().max(1) as f32;
        }
        let inline = self.count - external_count;
        bits += LOG2[distinct.max(1)] * inline as f32;
        if number_count > 0 && number_count * 10 >= inline * 9 {
            let of_numbers = 0.5 * inline as f32 + integers(&numbers[..number_count], 0, 8);
            return (Price { bits: bits.min(of_numbers), value_type: ValueType::Numeric }, false);
        }
        let is_text = text_count * 20 >= byte_count * 19 && lengths.count_ones() > 2 && byte_count > 2 * inline;
        (Price { bits, value_type: ValueType::Varlena }, is_text)
    }
}

fn is_text(byte: u8) -> bool {
    byte >= 0x20 && byte != 0x7F || byte == b'\n' || byte == b'\t' || byte == b'\r'
}

fn width_of(value: u64) -> u32 {
    64 - value.leading_zeros()
}

/// The bits that are not the same in all of them.
fn changes(values: &[u64]) -> u64 {
    values.first().map_or(0, |first| values.iter().fold(0, |changes, value| changes | (value ^ first)))
}

/// Integers with their sign: the cheapest of range, differences and bytes by place.
fn integers(values: &[u64], follows: u32, width: usize) -> f32 {
    let count = values.len() as f32;
    let signed = || values.iter().map(|value| value.cast_signed());
    let (Some(least), Some(most)) = (signed().min(), signed().max()) else { return 0.0 };
    let span = most.wrapping_sub(least).cast_unsigned();
    let mut range = width_of(span) as f32;
    if range <= 1.0 {
        return range * count;
    }
    // Timestamps are whole seconds, numerics whole cents; divisions are slow, and narrow columns have no such thing.
    if width == 8 && range > 8.0 {
        let less = values.iter().map(|value| value.wrapping_sub(least.cast_unsigned()));
        range = width_of(span / common_divisor(less)) as f32;
    }
    let (mut steps, mut step_bits) = (0, 0);
    for (number, pair) in values.windows(2).enumerate() {
        if follows >> (number + 1) & 1 != 0 {
            let step = pair[1].wrapping_sub(pair[0]).cast_signed();
            step_bits += width_of((step << 1 ^ step >> 63).cast_unsigned());
            steps += 1;
        }
    }
    let by_steps = if steps * 2 >= values.len() { step_bits as f32 / steps as f32 + 1.0 } else { 64.0 };
    let least = range.min(by_steps);
    least.min(places(values, width, least)) * count
}

/// Bits of the first `width` bytes of each value, place by place; not looked at further when they are more than `most`.
fn places(values: &[u64], width: usize, most: f32) -> f32 {
    let changes = changes(values);
    let mut bits = 0.0;
    for place in 0..width {
        if changes >> (8 * place) & 0xFF != 0 && bits < most {
            bits += plane(values.iter().map(|value| (value >> (8 * place)) as u8));
        }
    }
    bits
}

/// The largest number that divides all of them; some are not zero.
fn common_divisor(values: impl Iterator<Item = u64>) -> u64 {
    let mut divisor = 0;
    for value in values {
        let mut other = value;
        while other != 0 {
            (divisor, other) = (other, divisor % other);
        }
        if divisor == 1 {
            break;
        }
    }
    divisor.max(1)
}

/// Bits for each of some bytes.
fn plane(bytes: impl Iterator<Item = u8>) -> f32 {
    let (mut seen, mut count) = (0u64, 0);
    for byte in bytes {
        // Four bytes share a bit: the few that fall together are made up for below.
        seen |= 1 << ((byte ^ byte >> 6) & 63);
        count += 1;
    }
    let distinct = seen.count_ones();
    if distinct <= 1 {
        return 0.0;
    }
    // A small sample of noise shows each byte once.
    (LOG2[distinct as usize] * (1.0 + distinct as f32 / count as f32 * 0.8)).min(8.0)
}

/// The price of floats of `width` bytes; None if they look like integers, which cost `integer_bits`.
fn floats(values: &[u64], follows: u32, width: usize, integer_bits: f32) -> Option<f32> {
    let value_of = |bits: u64| match width {
        4 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    };
    let zeros = values.iter().filter(|bits| value_of(**bits) == 0.0).count();
    // Beyond these sizes hardly anything is measured, and integers are not within.
    let is_likely = |bits: &&u64| (1e-9..1e14).contains(&value_of(**bits).abs());
    let likely = values.iter().filter(is_likely).count();
    if likely == 0 || (likely + zeros) * 10 < values.len() * 9 {
        return None;
    }
    let mut wholes = [0u64; TUPLES_MAX];
    for exponent in EXPONENTS {
        let power = 10f64.powi(exponent);
        let mut missed = 0;
        for (whole, bits) in wholes.iter_mut().zip(values) {
            let value = value_of(*bits);
            let rounded = (value * power).round();
            let back = rounded / power;
            let fits = if width == 4 { back as f32 == value as f32 } else { back == value };
            *whole = if fits && rounded.abs() < 9e15 { (rounded as i64).cast_unsigned() } else { 0 };
            missed += usize::from(!fits);
            if missed * 12 > values.len() {
                break;
            }
        }
        if missed * 12 <= values.len() {
            let bits = integers(&wholes[..values.len()], follows, 8) + 0.25 * values.len() as f32;
            return (bits < integer_bits).then_some(bits);
        }
    }
    // Noise: nothing else has exponents like these.
    (integer_bits > 20.0 * values.len() as f32).then_some(integer_bits)
}
