//! Layouts, and values for them as PostgreSQL stores them.

use pagehaul_page::{Attribute, ValueType};

use crate::documents::any_document;
use crate::geometries::{any_geometry, chunk};
use crate::pglz::{packed, packed_chunk};
use crate::random::Random;

/// How the values of a column follow one another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Habit {
    Constant(u64),
    /// One more than the value before, mostly.
    Serial(u64),
    /// Few different ones.
    Few(u64),
    /// Hundreds of different ones.
    Hundreds(u64),
    Any,
    /// Floats with few decimal places: of a fixed length, or in arrays behind so many words of four bytes: one of a
    /// polygon, three of a path, five of a float8[]. Of other types as `Any`.
    Decimals(u8),
    /// Arrays of floats of four bytes that are mostly noise, as models give them; boxes around one point. Of other types as `Any`.
    Noise,
    /// PostGIS's geometries. Of types of fixed length as `Any`.
    Geometries,
    /// Chunks of geometries that are too large for a row. Of types of fixed length as `Any`.
    Chunks,
    /// Chunks of what pglz has packed. Of types of fixed length as `Any`.
    PackedChunks,
    /// Values that pglz has packed, and some that were too short. Of types of fixed length as `Any`.
    Packed,
}

/// A column: what the layout says, and what its values are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) attribute: Attribute,
    pub(crate) habit: Habit,
    pub(crate) null_percent: usize,
}

pub(crate) fn attribute(value_type: ValueType, length: i16, alignment: u8) -> Attribute {
    Attribute { value_type, length, alignment }
}

/// A column of any type, length and alignment.
pub(crate) fn any_column(random: &mut Random) -> Column {
    let attribute = match random.below(12) {
        0..=3 => {
            let length = random.pick(&[1, 2, 4, 4, 8, 8]);
            attribute(ValueType::Integer, length, length as u8)
        }
        4 => {
            let length = random.pick(&[4, 8]);
            attribute(ValueType::Float, length, length as u8)
        }
        5 => attribute(ValueType::Uuid, 16, 1),
        6 => attribute(ValueType::Opaque, random.within(1..=70) as i16, random.pick(&[1, 2, 4, 8])),
        7 => attribute(ValueType::Numeric, -1, 4),
        8 => attribute(ValueType::Floats, random.pick(&[16, 24, 32]), 8),
        9 => attribute(ValueType::Jsonb, -1, 4),
        _ => attribute(ValueType::Varlena, -1, random.pick(&[1, 2, 4, 4, 4, 8])),
    };
    let seed = random.next();
    let habit = match random.below(6) {
        0 => Habit::Constant(seed),
        1 => Habit::Serial(seed >> 34),
        2 => Habit::Few(seed),
        3 => Habit::Hundreds(seed),
        4 => Habit::Decimals(random.pick(&[0, 1, 3, 5])),
        _ if seed.is_multiple_of(32) => Habit::PackedChunks,
        _ if seed.is_multiple_of(16) => Habit::Packed,
        _ if seed.is_multiple_of(8) => Habit::Chunks,
        _ if seed.is_multiple_of(4) => Habit::Geometries,
        _ if seed.is_multiple_of(2) => Habit::Noise,
        _ => Habit::Any,
    };
    Column { attribute, habit, null_percent: random.pick(&[0, 0, 0, 10, 100]) }
}

pub(crate) fn attributes(columns: &[Column]) -> Vec<Attribute> {
    columns.iter().map(|column| column.attribute).collect()
}

impl Column {
    /// Appends a value with its padding to `data`, which starts aligned.
    pub(crate) fn put(&mut self, random: &mut Random, data: &mut Vec<u8>) {
        let bits = match &mut self.habit {
            Habit::Constant(bits) => *bits,
            Habit::Serial(last) => {
                *last = last.wrapping_add(if random.chance(95) { 1 } else { 77 });
                *last
            }
            Habit::Few(seed) => Random::new(*seed ^ random.below(7) as u64).next(),
            Habit::Hundreds(seed) => Random::new(*seed ^ random.below(700) as u64).next(),
            _ => random.next(),
        };
        let attribute = self.attribute;
        match (attribute.value_type, attribute.length) {
            (ValueType::Numeric, _) => {
                let stored = numeric(bits);
                put_variable(&stored, attribute.alignment, random, data);
            }
            (ValueType::Jsonb, _) => {
                let mut stored = any_document(&mut Random::new(bits));
                stored.truncate(2000);
                put_variable(&stored, attribute.alignment, random, data);
            }
            (_, -1) if matches!(self.habit, Habit::Packed) && bits % 8 > 0 => {
                let mut value = Random::new(bits);
                let length = value.within(80..=900);
                put_packed(&packed(&mut value, length), attribute.alignment, data);
            }
            (_, -1) => put_variable(&varlena(self.habit, bits), attribute.alignment, random, data),
            (ValueType::Floats, 32) if matches!(self.habit, Habit::Noise) => {
                let mut value = Random::new(bits);
                let corner = [(); 2].map(|()| value.next().to_le_bytes()).concat();
                put_aligned(&[&corner[..], &corner].concat(), attribute.alignment, data);
            }
            (ValueType::Float | ValueType::Floats, length @ (8 | 16 | 24 | 32))
                if matches!(self.habit, Habit::Decimals(_)) =>
            {
                let mut value = Random::new(bits);
                let floats: Vec<u8> = (0..length / 8).flat_map(|_| decimal(&mut value).to_le_bytes()).collect();
                put_aligned(&floats, attribute.alignment, data);
            }
            (ValueType::Float, 8) if bits & 1 == 0 => {
                let places = ((bits >> 8) % 100_000) as f64 / 100.0;
                put_aligned(&places.to_le_bytes(), attribute.alignment, data);
            }
            (ValueType::Uuid, _) => {
                let mut value = Random::new(bits).bytes(16);
                // Version 4 of RFC 9562, mostly.
                (value[6], value[8]) =
                    (value[6] & 0x0F | 0x40, value[8] & 0x3F | if bits % 64 == 0 { 0 } else { 0x80 });
                put_aligned(&value, attribute.alignment, data);
            }
            (ValueType::Opaque, 64) => {
                let mut name = Random::new(bits);
                let mut value: Vec<u8> = (0..4 + bits % 20).map(|_| b"etaoin_shrdlu"[name.below(13)]).collect();
                value.resize(64, 0);
                put_aligned(&value, attribute.alignment, data);
            }
            (_, length) => {
                let mut value = bits.to_le_bytes().repeat(length as usize / 8 + 1);
                value.truncate(length as usize);
                put_aligned(&value, attribute.alignment, data);
            }
        }
    }
}

/// The payload of a value of no type of its own.
fn varlena(habit: Habit, bits: u64) -> Vec<u8> {
    match habit {
        Habit::Decimals(words) => float_array(&mut Random::new(bits), words),
        Habit::Noise => vector(&mut Random::new(bits)),
        Habit::Geometries => any_geometry(&mut Random::new(bits)),
        Habit::Chunks => chunk(&mut Random::new(bits)),
        Habit::PackedChunks => packed_chunk(&mut Random::new(bits)),
        _ => text(bits),
    }
}

/// Mostly short.
fn text(bits: u64) -> Vec<u8> {
    let length = match bits % 40 {
        0 => 0,
        1 => 127 + (bits >> 8) as usize % 700,
        2 => 2000,
        _ => (bits >> 16) as usize % 40,
    };
    let mut value = Random::new(bits);
    (0..length).map(|_| b"etaoin shrdlu-0123"[value.below(18)]).collect()
}

fn put_aligned(value: &[u8], alignment: u8, data: &mut Vec<u8>) {
    data.resize(data.len().next_multiple_of(alignment.into()), 0);
    data.extend_from_slice(value);
}

/// A value of variable length in one of its four forms.
fn put_variable(value: &[u8], alignment: u8, random: &mut Random, data: &mut Vec<u8>) {
    match random.below(40) {
        0 => {
            data.extend_from_slice(&[1, 18]);
            data.extend_from_slice(&random.bytes(16));
        }
        1 => {
            put_packed(&random.bytes(value.len() / 2 + 4), alignment, data);
        }
        // A long header although a short one would do, as in tuples that were never formed anew.
        _ if value.len() > 126 || random.chance(2) => put_long(value, alignment, data),
        _ => put_value(value, alignment, data),
    }
}

/// A value that is compressed.
fn put_packed(value: &[u8], alignment: u8, data: &mut Vec<u8>) {
    put_aligned(&((value.len() as u32 + 4) << 2 | 2).to_le_bytes(), alignment, data);
    data.extend_from_slice(value);
}

fn put_long(value: &[u8], alignment: u8, data: &mut Vec<u8>) {
    put_aligned(&((value.len() as u32 + 4) << 2).to_le_bytes(), alignment, data);
    data.extend_from_slice(value);
}

/// A value of variable length as it goes into a new tuple.
pub(crate) fn put_value(value: &[u8], alignment: u8, data: &mut Vec<u8>) {
    if value.len() > 126 {
        put_long(value, alignment, data);
    } else {
        data.push(((value.len() + 1) << 1 | 1) as u8);
        data.extend_from_slice(value);
    }
}

/// A float with few decimal places; now and then one that is none, or odd.
fn decimal(random: &mut Random) -> f64 {
    match random.below(60) {
        0 => 0.0,
        1 => random.pick(&[-0.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE, 1e300]),
        2 => f64::from_bits(random.next()),
        _ => {
            let places = random.pick(&[1.0, 10.0, 100.0, 1e6]);
            ((random.below(360_000_000) as f64 / 1e6 - 180.0) * places).round() / places
        }
    }
}

/// A vector of a model: how many floats, which are between -0.5 and 0.5.
fn vector(random: &mut Random) -> Vec<u8> {
    let count = random.within(1..=450);
    let floats = (0..count).flat_map(|_| ((random.next() >> 40) as f32 / 16_777_216.0 - 0.5).to_le_bytes());
    (count as u32).to_le_bytes().into_iter().chain(floats).collect()
}

/// The payload of an array of floats behind `words` words, or of one that was cut.
fn float_array(random: &mut Random, words: u8) -> Vec<u8> {
    let count = random.pick(&[2, 5, 8, 14, 40]);
    let mut payload: Vec<u8> =
        (0..u32::from(words)).map(|word| count * (word & 1)).flat_map(u32::to_le_bytes).collect();
    (0..count).for_each(|_| payload.extend_from_slice(&decimal(random).to_le_bytes()));
    if random.chance(5) {
        payload.truncate(payload.len() - random.below(8).min(payload.len()));
    }
    payload
}

/// A numeric's header and digits: mostly as the server makes them, sometimes odd.
pub(crate) fn numeric(bits: u64) -> Vec<u8> {
    let halves = |header: u16, digits: &[u16]| -> Vec<u8> {
        std::iter::once(header).chain(digits.iter().copied()).flat_map(u16::to_le_bytes).collect()
    };
    let sign = if bits >> 60 & 3 == 0 { 0x2000 } else { 0 };
    let digit = |shift: u32| (bits >> shift) as u16 % 9999 + 1;
    match bits % 16 {
        0 => halves(0x8000, &[]),
        // NaN and infinities, then the long form.
        1 => halves(0xC000, &[]),
        2 => halves(0xD000 | sign, &[]),
        3 => halves(0x0102, &[0x0003, 1, digit(8)]),
        // Zeros at the end, digits that are none, more digits than fit.
        4 => halves(0x8100 | sign, &[digit(8), 0]),
        5 => halves(0x8100, &[12_000]),
        6 => halves(0x8107 | sign, &[digit(8), digit(16), digit(24), digit(30), digit(40), digit(44)]),
        7 => halves(bits as u16 | 0x8000, &[digit(8), digit(20)]),
        8..=11 => halves(0x8100 | sign, &[digit(8), digit(24) / 100 * 100 + 100]),
        _ => halves(0x8000 | sign | (bits >> 32 & 1) as u16, &[digit(8)]),
    }
}
