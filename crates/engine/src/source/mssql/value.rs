//! Columns and values of result sets.

use super::wire::{Cursor, Read, Unread, text_of};

/// A value that says how long it is in pieces has at most so many bytes.
const PLP_SIZE_BYTES_MAX: usize = 1 << 20;
/// A length of 16 bits that means NULL, or in a column's type "in pieces".
const SHORT_NULL: u16 = 0xffff;
const PLP_NULL: u64 = u64::MAX;

/// One value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// NULL.
    Null,
    /// Any integer, and bit.
    Int(i64),
    /// real and float.
    Float(f64),
    /// Text, and what is shown as text: decimals, money, times, GUIDs.
    Text(String),
    /// binary and varbinary.
    Bytes(Vec<u8>),
}

impl Value {
    /// As text; None for NULL.
    pub fn text(&self) -> Option<String> {
        match self {
            Value::Null => None,
            Value::Int(number) => Some(number.to_string()),
            Value::Float(number) => Some(number.to_string()),
            Value::Text(text) => Some(text.clone()),
            Value::Bytes(bytes) => Some(bytes.iter().fold("0x".to_owned(), |hex, byte| format!("{hex}{byte:02X}"))),
        }
    }

    /// As a number; None for NULL and for what is none.
    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            Value::Text(text) => text.parse().ok(),
            _ => None,
        }
    }
}

/// A column of a result set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, perhaps empty.
    pub name: String,
    pub(super) kind: ColumnKind,
}

/// How a column's values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    /// Always there, so many bytes.
    Fixed(Shape, usize),
    /// Behind a length of 8 bits; 0 is NULL.
    Sized(Shape),
    /// Behind a length of 16 bits.
    Short(Shape),
    /// In pieces.
    Plp(Shape),
}

/// What the bytes mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Null,
    Int,
    Float,
    Money,
    Datetime,
    Decimal { scale: u8 },
    Guid,
    Date,
    Time { scale: u8 },
    Datetime2 { scale: u8 },
    DatetimeOffset { scale: u8 },
    Binary,
    Narrow,
    Wide,
}

/// Reads a column's type.
pub(super) fn read_kind(cursor: &mut Cursor<'_>) -> Read<ColumnKind> {
    let number = cursor.u8()?;
    let fixed = |shape, size| Ok(ColumnKind::Fixed(shape, size));
    match number {
        0x1f => fixed(Shape::Null, 0),
        0x30 | 0x32 => fixed(Shape::Int, 1),
        0x34 => fixed(Shape::Int, 2),
        0x38 => fixed(Shape::Int, 4),
        0x7f => fixed(Shape::Int, 8),
        0x3b => fixed(Shape::Float, 4),
        0x3e => fixed(Shape::Float, 8),
        0x7a => fixed(Shape::Money, 4),
        0x3c => fixed(Shape::Money, 8),
        0x3a => fixed(Shape::Datetime, 4),
        0x3d => fixed(Shape::Datetime, 8),
        0x24 => sized(cursor, Shape::Guid),
        0x26 | 0x68 => sized(cursor, Shape::Int),
        0x6d => sized(cursor, Shape::Float),
        0x6e => sized(cursor, Shape::Money),
        0x6f => sized(cursor, Shape::Datetime),
        0x28 => Ok(ColumnKind::Sized(Shape::Date)),
        0x29 => Ok(ColumnKind::Sized(Shape::Time { scale: scale(cursor)? })),
        0x2a => Ok(ColumnKind::Sized(Shape::Datetime2 { scale: scale(cursor)? })),
        0x2b => Ok(ColumnKind::Sized(Shape::DatetimeOffset { scale: scale(cursor)? })),
        0x6a | 0x6c => {
            cursor.take(2)?;
            Ok(ColumnKind::Sized(Shape::Decimal { scale: cursor.u8()? }))
        }
        0xa5 | 0xad => long(cursor, Shape::Binary),
        0xa7 | 0xaf => long(cursor, Shape::Narrow),
        0xe7 | 0xef => long(cursor, Shape::Wide),
        other => Err(Unread::Bad(format!("a column of type 0x{other:02x}, which is not supported"))),
    }
}

fn sized(cursor: &mut Cursor<'_>, shape: Shape) -> Read<ColumnKind> {
    cursor.u8()?;
    Ok(ColumnKind::Sized(shape))
}

fn scale(cursor: &mut Cursor<'_>) -> Read<u8> {
    match cursor.u8()? {
        scale @ 0..=7 => Ok(scale),
        other => Err(Unread::Bad(format!("a time with {other} digits behind the point"))),
    }
}

fn long(cursor: &mut Cursor<'_>, shape: Shape) -> Read<ColumnKind> {
    let size = cursor.u16()?;
    if shape != Shape::Binary {
        // The collation.
        cursor.take(5)?;
    }
    Ok(if size == SHORT_NULL { ColumnKind::Plp(shape) } else { ColumnKind::Short(shape) })
}

/// Reads a value of a column of `kind`.
pub(super) fn read_value(cursor: &mut Cursor<'_>, kind: ColumnKind) -> Read<Value> {
    match kind {
        ColumnKind::Fixed(shape, size) => decode(cursor.take(size)?, shape),
        ColumnKind::Sized(shape) => match usize::from(cursor.u8()?) {
            0 => Ok(Value::Null),
            size => decode(cursor.take(size)?, shape),
        },
        ColumnKind::Short(shape) => match cursor.u16()? {
            SHORT_NULL => Ok(Value::Null),
            size => decode(cursor.take(usize::from(size))?, shape),
        },
        ColumnKind::Plp(shape) => match cursor.u64()? {
            PLP_NULL => Ok(Value::Null),
            _ => decode(&read_pieces(cursor)?, shape),
        },
    }
}

fn read_pieces(cursor: &mut Cursor<'_>) -> Read<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let size = cursor.u32()? as usize;
        if size == 0 {
            return Ok(bytes);
        }
        if size > PLP_SIZE_BYTES_MAX - bytes.len() {
            return Err(Unread::Bad(format!("a value of more than {PLP_SIZE_BYTES_MAX} bytes")));
        }
        bytes.extend_from_slice(cursor.take(size)?);
    }
}

fn decode(bytes: &[u8], shape: Shape) -> Read<Value> {
    let bad = || Unread::Bad(format!("a value of {} bytes where {shape:?} was due", bytes.len()));
    Ok(match shape {
        Shape::Null => Value::Null,
        Shape::Int => Value::Int(match *bytes {
            // tinyint has no sign.
            [byte] => i64::from(byte),
            [a, b] => i64::from(i16::from_le_bytes([a, b])),
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            _ => i64::from_le_bytes(bytes.try_into().map_err(|_| bad())?),
        }),
        Shape::Float => Value::Float(match *bytes {
            [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
            _ => f64::from_le_bytes(bytes.try_into().map_err(|_| bad())?),
        }),
        Shape::Money => Value::Text(point(money(bytes).ok_or_else(bad)?.into(), 4)),
        Shape::Decimal { scale } => Value::Text(decimal(bytes, scale).ok_or_else(bad)?),
        Shape::Guid => Value::Text(guid(bytes).ok_or_else(bad)?),
        Shape::Datetime => Value::Text(datetime(bytes).ok_or_else(bad)?),
        Shape::Date => Value::Text(date(bytes).ok_or_else(bad)?),
        Shape::Time { scale } => Value::Text(time(bytes, scale).ok_or_else(bad)?),
        Shape::Datetime2 { scale } => Value::Text(datetime2(bytes, scale).ok_or_else(bad)?),
        Shape::DatetimeOffset { scale } => {
            let (moment, offset) = bytes.split_last_chunk::<2>().ok_or_else(bad)?;
            let minutes = i16::from_le_bytes(*offset);
            // The moment is UTC; the offset is how the server's clock showed it.
            Value::Text(format!("{}Z ({minutes:+} min)", datetime2(moment, scale).ok_or_else(bad)?))
        }
        Shape::Binary => Value::Bytes(bytes.to_vec()),
        // The code page is the collation's; what is UTF-8 or ASCII is read as it is meant.
        Shape::Narrow => Value::Text(
            std::str::from_utf8(bytes)
                .map_or_else(|_| bytes.iter().map(|byte| char::from(*byte)).collect(), str::to_owned),
        ),
        Shape::Wide => Value::Text(text_of(bytes)),
    })
}

fn money(bytes: &[u8]) -> Option<i64> {
    match *bytes {
        [a, b, c, d] => Some(i64::from(i32::from_le_bytes([a, b, c, d]))),
        // The upper half comes first.
        [a, b, c, d, e, f, g, h] => {
            let (high, low) = (i32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
            Some(i64::from(high) << 32 | i64::from(low))
        }
        _ => None,
    }
}

/// `number` with the last `scale` digits behind a point.
fn point(number: i128, scale: u8) -> String {
    let sign = if number < 0 { "-" } else { "" };
    with_point(sign, number.unsigned_abs(), scale)
}

fn with_point(sign: &str, number: u128, scale: u8) -> String {
    if scale == 0 {
        return format!("{sign}{number}");
    }
    let digits = format!("{number:0width$}", width = usize::from(scale) + 1);
    let (whole, behind) = digits.split_at(digits.len() - usize::from(scale));
    format!("{sign}{whole}.{behind}")
}

fn decimal(bytes: &[u8], scale: u8) -> Option<String> {
    let (sign, digits) = bytes.split_first()?;
    if !matches!(digits.len(), 4 | 8 | 12 | 16) || scale > 38 {
        return None;
    }
    Some(with_point(if *sign == 0 { "-" } else { "" }, little_endian(digits), scale))
}

fn little_endian(bytes: &[u8]) -> u128 {
    bytes.iter().rev().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn guid(bytes: &[u8]) -> Option<String> {
    let bytes: &[u8; 16] = bytes.try_into().ok()?;
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let mut text = String::with_capacity(36);
    for (position, index) in order.into_iter().enumerate() {
        if matches!(position, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{:02X}", bytes[index]));
    }
    Some(text)
}

/// Days since 0001-01-01 as a date of the Gregorian calendar.
fn day_text(days: i64) -> String {
    // Howard Hinnant's civil_from_days, with years that begin in March.
    let shifted = days + 306;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Days from 0001-01-01 to 1900-01-01.
const DAYS_TO_1900: i64 = 693_595;

fn datetime(bytes: &[u8]) -> Option<String> {
    let (days, milliseconds) = match *bytes {
        [a, b, c, d] => {
            (i64::from(u16::from_le_bytes([a, b])), u64::from(u16::from_le_bytes([c, d])).checked_mul(60_000)?)
        }
        [a, b, c, d, e, f, g, h] => {
            // Three-hundredths of a second.
            let ticks = u64::from(u32::from_le_bytes([e, f, g, h]));
            (i64::from(i32::from_le_bytes([a, b, c, d])), (ticks * 10 + 1) / 3)
        }
        _ => return None,
    };
    Some(format!("{}T{}", day_text(days + DAYS_TO_1900), clock(milliseconds, 3)))
}

/// Time of day of `ticks`, which are 10^-scale seconds.
fn clock(ticks: u64, scale: u8) -> String {
    let unit = 10u64.pow(scale.into());
    let (seconds, behind) = (ticks / unit, ticks % unit);
    let clock = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if scale == 0 { clock } else { format!("{clock}.{behind:0width$}", width = usize::from(scale)) }
}

fn date(bytes: &[u8]) -> Option<String> {
    (bytes.len() == 3).then(|| day_text(little_endian(bytes) as i64))
}

fn time(bytes: &[u8], scale: u8) -> Option<String> {
    (3..=5).contains(&bytes.len()).then(|| clock(little_endian(bytes) as u64, scale))
}

fn datetime2(bytes: &[u8], scale: u8) -> Option<String> {
    let (of_day, day) = bytes.split_last_chunk::<3>()?;
    Some(format!("{}T{}", date(day)?, time(of_day, scale)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: ColumnKind, bytes: &[u8], expected: &Value) {
        let mut cursor = Cursor::new(bytes);
        assert_eq!(read_value(&mut cursor, kind).as_ref(), Ok(expected));
        assert_eq!(cursor.position(), bytes.len());
    }

    #[test]
    fn values_of_every_shape() {
        let text = |text: &str| Value::Text(text.to_owned());
        check(ColumnKind::Fixed(Shape::Int, 1), &[200], &Value::Int(200));
        check(ColumnKind::Sized(Shape::Int), &[2, 0xfe, 0xff], &Value::Int(-2));
        check(ColumnKind::Sized(Shape::Int), &[0], &Value::Null);
        check(ColumnKind::Sized(Shape::Decimal { scale: 2 }), &[5, 0, 5, 0, 0, 0], &text("-0.05"));
        check(ColumnKind::Sized(Shape::Decimal { scale: 0 }), &[9, 1, 0, 0, 0, 0, 1, 0, 0, 0], &text("4294967296"));
        check(ColumnKind::Fixed(Shape::Money, 8), &[0, 0, 0, 0, 0x10, 0x27, 0, 0], &text("1.0000"));
        // Day 46346 since 1900, and three-hundredths of a second.
        check(
            ColumnKind::Fixed(Shape::Datetime, 8),
            &[0x0a, 0xb5, 0x00, 0x00, 0xd8, 0xd8, 0x4d, 0x01],
            &text("2026-11-22T20:15:30.000"),
        );
        check(ColumnKind::Sized(Shape::Date), &[3, 0x65, 0x4a, 0x0b], &text("2026-11-22"));
        check(
            ColumnKind::Sized(Shape::Guid),
            &[16, 0x33, 0x22, 0x11, 0, 0x55, 0x44, 0x77, 0x66, 8, 9, 10, 11, 12, 13, 14, 15],
            &text("00112233-4455-6677-0809-0A0B0C0D0E0F"),
        );
        check(ColumnKind::Short(Shape::Wide), &[4, 0, b'o', 0, b'k', 0], &text("ok"));
        check(ColumnKind::Short(Shape::Narrow), &[1, 0, 0xe4], &text("ä"));
        check(ColumnKind::Short(Shape::Binary), &[0xff, 0xff], &Value::Null);
        let mut plp = 3u64.to_le_bytes().to_vec();
        plp.extend([2, 0, 0, 0, 1, 2, 1, 0, 0, 0, 3, 0, 0, 0, 0]);
        check(ColumnKind::Plp(Shape::Binary), &plp, &Value::Bytes(vec![1, 2, 3]));
        assert_eq!(Value::Bytes(vec![1, 0xab]).text().unwrap(), "0x01AB");
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(day_text(0), "0001-01-01");
        assert_eq!(day_text(DAYS_TO_1900), "1900-01-01");
        assert_eq!(day_text(DAYS_TO_1900 + 36_584), "2000-03-01");
        assert_eq!(day_text(3_652_058), "9999-12-31");
    }

    #[test]
    fn hostile_lengths_allocate_nothing() {
        let mut plp = u64::MAX.wrapping_sub(1).to_le_bytes().to_vec();
        plp.extend(u32::MAX.to_le_bytes());
        let read = read_value(&mut Cursor::new(&plp), ColumnKind::Plp(Shape::Wide));
        assert!(matches!(read, Err(Unread::Bad(_))), "{read:?}");
        let read = read_value(&mut Cursor::new(&[0xfe, 0xff]), ColumnKind::Short(Shape::Wide));
        assert_eq!(read, Err(Unread::More));
        assert!(read_kind(&mut Cursor::new(&[0x62, 0, 0, 0, 0])).is_err());
    }

    proptest::proptest! {
        #[test]
        fn rubbish_never_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..80)) {
            let mut cursor = Cursor::new(&bytes);
            if let Ok(kind) = read_kind(&mut cursor) {
                drop(read_value(&mut cursor, kind));
            }
        }
    }
}
