//! Streams of floating point numbers, given and given back as their bit patterns.
//!
//! Most measured numbers are decimals of a few digits: times a power of ten they are whole, and a division brings back the
//! same bits. (The idea is ALP's, Afroozeh and others, 2023; a division in place of their product is right for every
//! decimal of up to 15 digits.) Where that does not hold, the bit patterns go to the number coder.

use multiversion::multiversion;

use super::number::Number;
use super::reader::Reader;
use super::{Effort, NumberCoder, NumberDecoder};
use crate::error::{Damaged, Decoded};

/// The exponents of ten that are tried; 10^22 is the last one that an f64 holds exactly.
const EXPONENT_MAX: usize = 18;
const TENS: [f64; EXPONENT_MAX + 1] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18];
/// The mode of bit patterns; the modes up to the next are an exponent and one.
const PATTERNS: u8 = 0;
/// The mode of bit patterns, most of which are those of a reference.
const LIKE_REFERENCE: u8 = 20;
/// How many values are looked at for the exponent.
const SAMPLE_MAX: usize = 128;
/// So many values are looked at together for whether they are decimals.
const BLOCK: usize = 64;
/// One in this many may be no decimal: each takes its whole pattern and its place.
const EXCEPTION_SHARE: usize = 12;

/// What floating point numbers need beside being [`Number`]s.
trait Float: Number {
    /// Of its bit pattern; an f32 becomes the same f64.
    fn value(self) -> f64;
    /// The bit pattern of the number nearest to `value`.
    fn pattern(value: f64) -> Self;
    fn whole(self) -> f64;
    /// Whole numbers beyond this are not tried: their neighbours are not whole any more, or they do not fit.
    const WHOLE_MAX: f64;
}

impl Float for u64 {
    const WHOLE_MAX: f64 = 2_251_799_813_685_248.0;
    #[inline(always)]
    fn value(self) -> f64 {
        f64::from_bits(self)
    }
    #[inline(always)]
    fn pattern(value: f64) -> Self {
        value.to_bits()
    }
    #[inline(always)]
    fn whole(self) -> f64 {
        self.cast_signed() as f64
    }
}

impl Float for u32 {
    // 2^24. Larger ones are made of any value whatever, since it has no more bits, and take more than its pattern.
    const WHOLE_MAX: f64 = 16_777_216.0;
    #[inline(always)]
    fn value(self) -> f64 {
        f64::from(f32::from_bits(self))
    }
    #[inline(always)]
    fn pattern(value: f64) -> Self {
        (value as f32).to_bits()
    }
    #[inline(always)]
    fn whole(self) -> f64 {
        f64::from(self.cast_signed())
    }
}

#[derive(Default)]
struct Scratch<N> {
    wholes: Vec<N>,
    places: Vec<u32>,
    patterns: Vec<N>,
}

/// Encodes streams of floating point numbers, each alone.
pub(crate) struct FloatCoder {
    numbers: NumberCoder,
    wide: Scratch<u64>,
    narrow: Scratch<u32>,
}

impl FloatCoder {
    pub(crate) fn set_effort(&mut self, effort: Effort) {
        self.numbers.set_effort(effort);
    }

    pub(crate) fn new(effort: Effort) -> Self {
        FloatCoder { numbers: NumberCoder::new(effort), wide: Scratch::default(), narrow: Scratch::default() }
    }

    /// Appends the stream of the bit patterns `values` to `out`. `reference`: an array of the same length that the decoder will
    /// have.
    pub(crate) fn encode_f64(&mut self, values: &[u64], reference: Option<&[u64]>, out: &mut Vec<u8>) {
        if reference.is_some_and(|reference| are_alike(values, reference)) {
            out.push(LIKE_REFERENCE);
            return self.numbers.encode_u64(values, reference, out);
        }
        match exponent(values).filter(|exponent| decimals(values, *exponent, &mut self.wide)) {
            None => {
                out.push(PATTERNS);
                self.numbers.encode_u64(values, None, out);
            }
            Some(exponent) => {
                out.push(1 + exponent as u8);
                self.numbers.encode_u64(&self.wide.wholes, None, out);
                self.numbers.encode_u32(&self.wide.places, None, out);
                self.numbers.encode_u64(&self.wide.patterns, None, out);
            }
        }
    }

    /// As [`FloatCoder::encode_f64`].
    pub(crate) fn encode_f32(&mut self, values: &[u32], out: &mut Vec<u8>) {
        match exponent(values).filter(|exponent| decimals(values, *exponent, &mut self.narrow)) {
            None => {
                out.push(PATTERNS);
                self.numbers.encode_u32(values, None, out);
            }
            Some(exponent) => {
                out.push(1 + exponent as u8);
                self.numbers.encode_u32(&self.narrow.wholes, None, out);
                self.numbers.encode_u32(&self.narrow.places, None, out);
                self.numbers.encode_u32(&self.narrow.patterns, None, out);
            }
        }
    }
}

/// Whether half of a sample or more are the same.
fn are_alike(values: &[u64], reference: &[u64]) -> bool {
    let stride = values.len().div_ceil(SAMPLE_MAX).max(1);
    let pairs = || values.iter().zip(reference).step_by(stride);
    values.len() == reference.len() && pairs().filter(|(value, near)| value == near).count() * 2 >= pairs().count()
}

/// The whole number that `value` is times a power of ten, if dividing it brings back the same bits; anything otherwise.
#[inline(always)]
fn whole<F: Float>(value: F, tens: f64) -> (F, bool) {
    // Adding and taking away 1.5 * 2^52 rounds to the nearest whole number, which stands in the low bits in between: no
    // conversion, so that many are done at a time.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let shifted = value.value() * tens + ROUND;
    let rounded = shifted - ROUND;
    let whole = F::from_u64(shifted.to_bits().wrapping_sub(ROUND.to_bits()));
    (whole, (rounded.abs() < F::WHOLE_MAX) & (F::pattern(rounded / tens) == value))
}

/// The smallest exponent of ten that makes nearly all of a sample whole.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn exponent<F: Float>(values: &[F]) -> Option<usize> {
    let stride = values.len().div_ceil(SAMPLE_MAX).max(1);
    let sampled = values.len().div_ceil(stride);
    let allowed = sampled / EXCEPTION_SHARE;
    (0..=EXPONENT_MAX).find(|exponent| {
        let mut exceptions = 0;
        values.iter().step_by(stride).all(|value| {
            exceptions += usize::from(!whole(*value, TENS[*exponent]).1);
            exceptions <= allowed
        })
    })
}

/// Whole numbers, and the exceptions with their places; false if those are too many.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn decimals<F: Float>(values: &[F], exponent: usize, scratch: &mut Scratch<F>) -> bool {
    let Scratch { wholes, places, patterns } = scratch;
    wholes.clear();
    places.clear();
    patterns.clear();
    let mut last = F::default();
    wholes.resize(values.len(), F::default());
    let blocks = values.chunks(BLOCK).zip(wholes.chunks_mut(BLOCK));
    for (start, (values, wholes)) in (0_u32..).step_by(BLOCK).zip(blocks) {
        let mut are_good = true;
        for (place, value) in wholes.iter_mut().zip(values) {
            let (whole, is_good) = whole(*value, TENS[exponent]);
            *place = whole;
            are_good &= is_good;
        }
        if !are_good {
            for (at, (place, value)) in (start..).zip(wholes.iter_mut().zip(values)) {
                if !whole(*value, TENS[exponent]).1 {
                    // In place of an exception stands what makes the smallest difference.
                    places.push(at);
                    patterns.push(*value);
                    *place = last;
                }
                last = *place;
            }
        }
        last = wholes[wholes.len() - 1];
    }
    places.len() <= values.len() / EXCEPTION_SHARE * 2
}

/// Decodes what [`FloatCoder`] wrote.
pub(crate) struct FloatDecoder {
    numbers: NumberDecoder,
    places: Vec<u32>,
    wide: Vec<u64>,
    narrow: Vec<u32>,
}

impl FloatDecoder {
    pub(crate) fn new() -> Self {
        FloatDecoder { numbers: NumberDecoder::new(), places: Vec::new(), wide: Vec::new(), narrow: Vec::new() }
    }

    /// Appends the next stream of `input`, of at most `count_max` numbers, to `values`.
    pub(crate) fn decode_f64(
        &mut self,
        input: &mut Reader<'_>,
        count_max: usize,
        reference: Option<&[u64]>,
        values: &mut Vec<u64>,
    ) -> Decoded<()> {
        let start = values.len();
        let mode = input.u8()?;
        if mode == LIKE_REFERENCE && reference.is_some() {
            return self.numbers.decode_u64(input, count_max, reference, values);
        }
        let tens = tens(mode)?;
        self.numbers.decode_u64(input, count_max, None, values)?;
        let Some(tens) = tens else { return Ok(()) };
        self.wide.clear();
        let decoded = self.places(input, values.len() - start);
        let decoded = decoded.and_then(|()| self.numbers.decode_u64(input, self.places.len(), None, &mut self.wide));
        finish(decoded, tens, &self.places, &self.wide, start, values)
    }

    /// As [`FloatDecoder::decode_f64`].
    pub(crate) fn decode_f32(
        &mut self,
        input: &mut Reader<'_>,
        count_max: usize,
        values: &mut Vec<u32>,
    ) -> Decoded<()> {
        let start = values.len();
        let tens = tens(input.u8()?)?;
        self.numbers.decode_u32(input, count_max, None, values)?;
        let Some(tens) = tens else { return Ok(()) };
        self.narrow.clear();
        let decoded = self.places(input, values.len() - start);
        let decoded = decoded.and_then(|()| self.numbers.decode_u32(input, self.places.len(), None, &mut self.narrow));
        finish(decoded, tens, &self.places, &self.narrow, start, values)
    }

    fn places(&mut self, input: &mut Reader<'_>, count: usize) -> Decoded<()> {
        self.places.clear();
        self.numbers.decode_u32(input, count, None, &mut self.places)
    }
}

/// The power of ten of a mode; none if the numbers are bit patterns.
fn tens(mode: u8) -> Decoded<Option<f64>> {
    if mode == PATTERNS {
        return Ok(None);
    }
    TENS.get(usize::from(mode) - 1).copied().map(Some).ok_or(Damaged("a float stream of an unknown mode"))
}

/// In place of whole numbers the decimals that they are.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn divide<F: Float>(wholes: &mut [F], tens: f64) {
    wholes.iter_mut().for_each(|value| *value = F::pattern(value.whole() / tens));
}

fn finish<F: Float>(
    decoded: Decoded<()>,
    tens: f64,
    places: &[u32],
    patterns: &[F],
    start: usize,
    values: &mut Vec<F>,
) -> Decoded<()> {
    let put = |values: &mut [F]| {
        if places.len() != patterns.len() {
            return Err(Damaged("exceptions without their numbers"));
        }
        divide(values, tens);
        for (place, pattern) in places.iter().zip(patterns) {
            *values.get_mut(*place as usize).ok_or(Damaged("an exception lies beyond its stream"))? = *pattern;
        }
        Ok(())
    };
    let decoded = decoded.and_then(|()| put(&mut values[start..]));
    if decoded.is_err() {
        values.truncate(start);
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn come_back(values: &[f64], mode: u8) -> usize {
        let wide: Vec<u64> = values.iter().map(|value| value.to_bits()).collect();
        let narrow: Vec<u32> = values.iter().map(|value| (*value as f32).to_bits()).collect();
        let mut out = Vec::new();
        FloatCoder::new(Effort::Default).encode_f64(&wide, None, &mut out);
        let length = out.len();
        assert_eq!(out[0], mode);
        FloatCoder::new(Effort::Default).encode_f32(&narrow, &mut out);
        let (mut wide_back, mut narrow_back) = (Vec::new(), Vec::new());
        let mut reader = Reader::new(&out);
        FloatDecoder::new()
            .decode_f64(&mut reader, wide.len(), None, &mut wide_back)
            .expect("what was encoded decodes");
        FloatDecoder::new().decode_f32(&mut reader, narrow.len(), &mut narrow_back).expect("so does this");
        assert!(reader.is_empty());
        assert!(wide_back == wide && narrow_back == narrow);
        length
    }

    #[test]
    fn decimals_take_few_bits_and_all_others_come_back() {
        let cents: Vec<f64> =
            (0..5000_u32).map(|at| (f64::from(at.wrapping_mul(2_654_435_761) >> 18) - 3000.0) / 100.0).collect();
        assert!(come_back(&cents, 3) < 5000 * 2);
        let mut odd = cents.clone();
        odd[7] = f64::NAN;
        odd[8] = -0.0;
        odd[9] = f64::INFINITY;
        odd[4999] = 1e300;
        odd[4998] = 0.1 + 0.2;
        assert!(come_back(&odd, 3) < 5000 * 2 + 100);
        let noise: Vec<f64> = cents.iter().map(|value| (value / 7.0).sin()).collect();
        assert!(come_back(&noise, 0) < 5000 * 8);
        for few in [&[][..], &[1.5], &[f64::NAN], &[f64::MAX, f64::MIN_POSITIVE, 5e-324, -0.0]] {
            come_back(few, if few.is_empty() || few == [1.5] { 1 + few.len() as u8 } else { 0 });
        }
    }

    /// Times 10^8 they all are whole numbers of 30 bits, which tells nothing: they have 24.
    #[test]
    fn short_floats_of_all_digits_are_no_decimals() {
        let values: Vec<u32> = (1..5000_u32).map(|at| ((f64::from(at) * 0.7).sin() as f32).to_bits()).collect();
        let mut out = Vec::new();
        FloatCoder::new(Effort::Default).encode_f32(&values, &mut out);
        assert!(out[0] == PATTERNS && out.len() * 8 < values.len() * 28, "mode {}, {} bytes", out[0], out.len());
        let mut back = Vec::new();
        FloatDecoder::new().decode_f32(&mut Reader::new(&out), values.len(), &mut back).unwrap();
        assert_eq!(back, values);
    }

    #[test]
    fn floats_like_those_of_a_reference_take_next_to_nothing() {
        let mut values: Vec<u64> = (0..5000_u32).map(|at| (f64::from(at) / 7.0).sin().to_bits()).collect();
        let reference = values.clone();
        values[99] = f64::NAN.to_bits();
        values[4000] = 1;
        let (mut alone, mut out) = (Vec::new(), Vec::new());
        FloatCoder::new(Effort::Default).encode_f64(&values, Some(&reference[1..]), &mut alone);
        assert!(alone[0] == PATTERNS && alone.len() > 30_000);
        FloatCoder::new(Effort::Default).encode_f64(&values, Some(&reference), &mut out);
        assert!(out[0] == LIKE_REFERENCE && out.len() < 100, "{}", out.len());
        let decode = |reference| {
            let mut back = Vec::new();
            FloatDecoder::new().decode_f64(&mut Reader::new(&out), values.len(), reference, &mut back).map(|()| back)
        };
        assert_eq!(decode(Some(&reference)).as_ref(), Ok(&values));
        assert!(decode(None).is_err());
        assert!(decode(Some(&reference[1..])).is_err());
    }
}
