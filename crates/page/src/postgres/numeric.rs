//! PostgreSQL's numeric as a whole number and its count of decimal places. Layout: src/backend/utils/adt/numeric.c.
//!
//! A stored numeric has a header of two bytes (short form: sign, decimal places, weight) and digits to base 10000, the
//! first with the value 10000^weight. Only what [`put`] gives back byte for byte is split.

/// Of the header: the short form.
const SHORT: u16 = 0x8000;
const NEGATIVE: u16 = 0x2000;
const SCALE_SHIFT: u16 = 7;
/// Decimal places of the short form: 6 bits.
const SCALE_MAX: u8 = 0x3F;
const WEIGHT_SIGN: u16 = 0x0040;
const WEIGHT_MASK: u16 = 0x003F;
const BASE: u64 = 10_000;
/// Digits whose number always fits: 10000^4 x 10000 < 2^63 holds no more than these.
const DIGITS_MAX: usize = 4;
/// Four digits hold less than this.
const FILLED_MAX: u64 = BASE.pow(4);
/// Digits of the largest number with the most places.
const DIGIT_ROOM: usize = 12;
/// Bytes of what is split, at most.
pub(crate) const STORED_MAX: usize = 2 + 2 * DIGIT_ROOM;
/// Places beyond these would not fit either.
const SCALE_SPLIT_MAX: u8 = 12;
/// The largest number that is split; a little below 2^62, so that its sign and shifts fit.
const NUMBER_MAX: u64 = 1 << 61;

const POWERS: [u64; 17] = {
    let mut powers = [1u64; 17];
    let mut exponent = 1;
    while exponent < powers.len() {
        powers[exponent] = powers[exponent - 1] * 10;
        exponent += 1;
    }
    powers
};

/// The number, with its sign in the lowest bit, and its decimal places; None if it is stored in any other way than
/// [`put`] would store it.
pub(crate) fn split(stored: &[u8]) -> Option<(u64, u8)> {
    let (header, digits) = stored.split_first_chunk::<2>()?;
    let header = u16::from_le_bytes(*header);
    let digits = digits.as_chunks::<2>();
    if header & 0xC000 != SHORT || !digits.1.is_empty() || digits.0.len() > DIGITS_MAX {
        return None;
    }
    let scale = (header >> SCALE_SHIFT & u16::from(SCALE_MAX)) as u8;
    if scale > SCALE_SPLIT_MAX {
        return None;
    }
    let is_negative = header & NEGATIVE != 0;
    let Some(last) = digits.0.last() else {
        // Zero has no digits, no sign, and weight 0.
        return (header & (NEGATIVE | WEIGHT_SIGN | WEIGHT_MASK) == 0).then_some((0, scale));
    };
    let is_zero = |digit: &[u8; 2]| u16::from_le_bytes(*digit) == 0;
    if is_zero(last) || is_zero(&digits.0[0]) {
        return None;
    }
    let weight = i32::from(header & WEIGHT_MASK) - if header & WEIGHT_SIGN != 0 { 64 } else { 0 };
    let mut number = 0u64;
    for digit in digits.0 {
        let digit = u64::from(u16::from_le_bytes(*digit));
        if digit >= BASE {
            return None;
        }
        number = number * BASE + digit;
    }
    // The last digit counts 10000^(weight - count + 1).
    let shift = 4 * (weight - digits.0.len() as i32 + 1) + i32::from(scale);
    let number = match shift {
        // Most of those that have a fraction; what is known is divided by without a division.
        -1 => exact_quotient::<10>(number)?,
        -2 => exact_quotient::<100>(number)?,
        -3 => exact_quotient::<1000>(number)?,
        _ => {
            let power = *POWERS.get(shift.unsigned_abs() as usize)?;
            if shift >= 0 {
                number.checked_mul(power)?
            } else if number.is_multiple_of(power) {
                number / power
            } else {
                return None;
            }
        }
    };
    (number < NUMBER_MAX).then_some((number << 1 | u64::from(is_negative), scale))
}

/// The number divided by `BY`, if nothing is left.
#[inline]
fn exact_quotient<const BY: u64>(number: u64) -> Option<u64> {
    number.is_multiple_of(BY).then_some(number / BY)
}

/// Puts the stored form of a number that [`split`] gave, or of any other, into the first bytes of `room`; its length, or None if
/// there is none. What is behind it is undefined.
#[inline]
pub(crate) fn put(number: u64, scale: u8, room: &mut [u8; STORED_MAX]) -> Option<usize> {
    let (is_negative, number) = (number & 1 != 0, number >> 1);
    if number >= NUMBER_MAX || scale > SCALE_SPLIT_MAX {
        return None;
    }
    let scale_bits = u16::from(scale) << SCALE_SHIFT | SHORT;
    if number == 0 {
        room[..2].copy_from_slice(&scale_bits.to_le_bytes());
        return (!is_negative).then_some(2);
    }
    let header = scale_bits | if is_negative { NEGATIVE } else { 0 };
    // Whole digits behind the point, the last one filled up with zeros.
    let places = u32::from(scale).div_ceil(4);
    let filler = POWERS[(4 * places - u32::from(scale)) as usize];
    if places <= 1 && number < FILLED_MAX / BASE {
        return Some(put_short(header, number * filler, places, room));
    }
    Some(put_long(header, number, scale, room))
}

/// As [`put`], of any number but zero.
#[inline(never)]
fn put_long(header: u16, number: u64, scale: u8, room: &mut [u8; STORED_MAX]) -> usize {
    let places = u32::from(scale).div_ceil(4);
    let filler = POWERS[(4 * places - u32::from(scale)) as usize];
    // Mostly all of it fits, and is divided by constants only.
    let mut digits = [0u16; DIGIT_ROOM];
    let mut start = digits.len();
    let mut put_digit = |digit: u64| {
        start -= 1;
        digits[start] = digit as u16;
    };
    if let Some(mut filled) = number.checked_mul(filler) {
        let mut left = places;
        while filled > 0 || left > 0 {
            put_digit(filled % BASE);
            filled /= BASE;
            left = left.saturating_sub(1);
        }
    } else {
        let (mut whole, mut fraction) =
            (number / POWERS[usize::from(scale)], number % POWERS[usize::from(scale)] * filler);
        for _ in 0..places {
            put_digit(fraction % BASE);
            fraction /= BASE;
        }
        while whole > 0 {
            put_digit(whole % BASE);
            whole /= BASE;
        }
    }
    let mut weight = digits.len() as i32 - start as i32 - places as i32 - 1;
    let mut end = digits.len();
    while digits[start] == 0 {
        start += 1;
        weight -= 1;
    }
    while digits[end - 1] == 0 {
        end -= 1;
    }
    let header = header | weight as u16 & (WEIGHT_SIGN | WEIGHT_MASK);
    let (pairs, _) = room.as_chunks_mut::<2>();
    pairs[0] = header.to_le_bytes();
    for (pair, digit) in pairs[1..].iter_mut().zip(&digits[start..end]) {
        *pair = digit.to_le_bytes();
    }
    2 + 2 * (end - start)
}

/// Money and the like, at most four digits with no more than one behind the point: all four are computed, whatever there are.
#[inline]
fn put_short(header: u16, filled: u64, places: u32, room: &mut [u8; STORED_MAX]) -> usize {
    const BASE: u32 = self::BASE as u32;
    // By halves, which are numbers of 32 bits: these take a third of the time to divide.
    let (high, low) = ((filled / u64::from(BASE * BASE)) as u32, (filled % u64::from(BASE * BASE)) as u32);
    let two_digits = |number: u32| u64::from(number / BASE) | u64::from(number % BASE) << 16;
    let digits = two_digits(high) | two_digits(low) << 32;
    // The first digit is in the lowest bits, and zeros before it and behind the last one are not stored. One at least is no zero.
    let (before, behind) = (digits.trailing_zeros() / 16, digits.leading_zeros() / 16);
    let weight = 3 - before as i32 - places as i32;
    let header = header | weight as u16 & (WEIGHT_SIGN | WEIGHT_MASK);
    room[..2].copy_from_slice(&header.to_le_bytes());
    room[2..10].copy_from_slice(&(digits >> (16 * before)).to_le_bytes());
    2 + 2 * (4 - before - behind) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(header: u16, digits: &[u16]) -> Vec<u8> {
        std::iter::once(&header).chain(digits).flat_map(|half| half.to_le_bytes()).collect()
    }

    fn stored_of(number: u64, scale: u8) -> Option<Vec<u8>> {
        let mut room = [0xA5; STORED_MAX];
        put(number, scale, &mut room).map(|length| room[..length].to_vec())
    }

    #[test]
    fn numbers_of_a_real_server_come_back() {
        // SELECT send(n) of 14 to 18 with the headers of the short form: 0, 1, -1, 12345.67, 0.01, 10000, 0.00.
        for (bytes, number, scale) in [
            (stored(0x8000, &[]), 0, 0),
            (stored(0x8000, &[1]), 2, 0),
            (stored(0xA000, &[1]), 3, 0),
            (stored(0x8101, &[1, 2345, 6700]), 1_234_567 << 1, 2),
            (stored(0x817F, &[100]), 2, 2),
            (stored(0x8001, &[1]), 20_000, 0),
            (stored(0x8100, &[]), 0, 2),
        ] {
            assert_eq!(split(&bytes), Some((number, scale)), "{bytes:x?}");
            assert_eq!(stored_of(number, scale), Some(bytes));
        }
    }

    #[test]
    fn whatever_is_split_comes_back() {
        let mut state = 1u64;
        let mut split_count = 0;
        for _ in 0..300_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let digits: Vec<u16> = (0..state >> 60 & 7)
                .map(|n| (state >> (n * 8) & 0x3FFF) as u16 % if n & 1 == 0 { 10_000 } else { 3 })
                .collect();
            let bytes = stored((state >> 32) as u16 & 0x2647 | SHORT, &digits);
            if let Some((number, scale)) = split(&bytes) {
                let back = stored_of(number, scale);
                assert!(back.as_ref() == Some(&bytes), "{bytes:x?} {number} {scale} {back:x?}");
                split_count += 1;
            }
        }
        assert!(split_count > 1_000, "{split_count}");
    }

    #[test]
    fn numbers_around_every_power_come_back() {
        for scale in 0..=SCALE_SPLIT_MAX {
            for power in POWERS.into_iter().chain([NUMBER_MAX >> 1]) {
                for number in [power - 1, power, power + 1, power / 2 * 3] {
                    for number in [number << 1, number << 1 | 1].into_iter().filter(|number| *number != 1) {
                        let stored = stored_of(number, scale).unwrap();
                        let back = split(&stored);
                        assert!(back == Some((number, scale)) || stored.len() > 2 + 2 * DIGITS_MAX, "{number} {scale}");
                    }
                }
            }
        }
    }

    #[test]
    fn any_number_can_be_put_or_is_refused() {
        for scale in 0..=255 {
            for number in [0, 1, 2, 19_999, u64::MAX, (NUMBER_MAX - 1) << 1, NUMBER_MAX << 1] {
                let back = stored_of(number, scale).map(|stored| split(&stored));
                let is_number = number != 1 && number < NUMBER_MAX << 1 && scale <= SCALE_SPLIT_MAX;
                assert_eq!(back.is_some(), is_number, "{number} {scale}");
                // What has more digits than are split is put all the same.
                assert!(back.flatten().is_none_or(|back| back == (number, scale)));
            }
        }
    }
}
