//! Streams of whole numbers: decoding.

use multiversion::multiversion;

use super::number::Number;
use super::numbers::{CONSTANT, DICTIONARY, DIVIDED, GENERAL, PROGRESSION, RUNS, SHAPE, SOURCE, SUMS, Source, ZIGZAG};
use super::reader::Reader;
use super::shapes_decode::ShapeDecoder;
use crate::error::{Damaged, Decoded};

/// Decodes what [`NumberCoder`](super::NumberCoder) wrote.
pub(crate) struct NumberDecoder {
    core: Core,
    /// Heads and lengths of runs, entries of dictionaries.
    narrow: Vec<u32>,
    wide: Vec<u64>,
}

struct Core {
    shapes: ShapeDecoder,
}

impl NumberDecoder {
    pub(crate) fn new() -> Self {
        NumberDecoder { core: Core { shapes: ShapeDecoder::new() }, narrow: Vec::new(), wide: Vec::new() }
    }

    /// Appends the next stream of `input`, of at most `count_max` numbers, to `values`. `reference` is what the encoder
    /// was given.
    pub(crate) fn decode_u32(
        &mut self,
        input: &mut Reader<'_>,
        count_max: usize,
        reference: Option<&[u32]>,
        values: &mut Vec<u32>,
    ) -> Decoded<()> {
        let count = input.count(count_max)?;
        self.core.decode(&mut self.narrow, input, count, reference, values)
    }

    /// As [`NumberDecoder::decode_u32`].
    pub(crate) fn decode_u64(
        &mut self,
        input: &mut Reader<'_>,
        count_max: usize,
        reference: Option<&[u64]>,
        values: &mut Vec<u64>,
    ) -> Decoded<()> {
        let count = input.count(count_max)?;
        self.core.decode(&mut self.wide, input, count, reference, values)
    }
}

fn number<N: Number>(input: &mut Reader<'_>) -> Decoded<N> {
    let wide = input.varint()?;
    let number = N::from_u64(wide);
    if number.to_u64() != wide {
        return Err(Damaged("a number is wider than its stream"));
    }
    Ok(number)
}

impl Core {
    fn decode<N: Number>(
        &mut self,
        parts: &mut Vec<N>,
        input: &mut Reader<'_>,
        count: usize,
        reference: Option<&[N]>,
        values: &mut Vec<N>,
    ) -> Decoded<()> {
        if count == 0 {
            return Ok(());
        }
        let start = values.len();
        let decoded = match input.u8()? {
            RUNS => self.runs(parts, input, count, values),
            DICTIONARY => self.dictionary(parts, input, count, values),
            mode => self.plain(mode, input, count, reference, values),
        };
        if decoded.is_err() {
            values.truncate(start);
        }
        decoded
    }

    /// The modes that streams within streams may have.
    fn plain<N: Number>(
        &mut self,
        mode: u8,
        input: &mut Reader<'_>,
        count: usize,
        reference: Option<&[N]>,
        values: &mut Vec<N>,
    ) -> Decoded<()> {
        match mode {
            CONSTANT => {
                let value = number(input)?;
                values.resize(values.len() + count, value);
            }
            PROGRESSION => {
                let first = number::<N>(input)?;
                let step = number::<N>(input)?.unzigzag();
                values.extend((0..count as u64).map(|at| first.add(step.mul(N::from_u64(at)))));
            }
            mode if mode & GENERAL != 0 => return self.general(mode, input, count, reference, values),
            _ => return Err(Damaged("a number stream of an unknown mode")),
        }
        Ok(())
    }

    fn nested<N: Number>(&mut self, input: &mut Reader<'_>, count: usize, values: &mut Vec<N>) -> Decoded<()> {
        let mode = input.u8()?;
        self.plain(mode, input, count, None, values)
    }

    fn runs<N: Number>(
        &mut self,
        parts: &mut Vec<N>,
        input: &mut Reader<'_>,
        count: usize,
        values: &mut Vec<N>,
    ) -> Decoded<()> {
        let runs = input.count(count)?;
        if runs == 0 {
            return Err(Damaged("a number stream of no runs"));
        }
        let start = values.len();
        parts.clear();
        self.nested(input, runs, parts)?;
        self.nested(input, runs, parts)?;
        let (heads, lengths) = parts.split_at(runs);
        for (head, length) in heads.iter().zip(lengths) {
            let left = (count - (values.len() - start)) as u64;
            if length.to_u64() >= left {
                return Err(Damaged("runs are longer than their stream"));
            }
            values.resize(values.len() + length.to_u64() as usize + 1, *head);
        }
        if values.len() - start != count {
            return Err(Damaged("runs are shorter than their stream"));
        }
        Ok(())
    }

    fn dictionary<N: Number>(
        &mut self,
        parts: &mut Vec<N>,
        input: &mut Reader<'_>,
        count: usize,
        values: &mut Vec<N>,
    ) -> Decoded<()> {
        let entries = usize::from(input.u8()?) + 1;
        parts.clear();
        self.nested(input, entries, parts)?;
        let mut table = [N::default(); 256];
        table[..entries].copy_from_slice(parts);
        let indices = self.shapes.bytes(input, count)?;
        if indices.iter().copied().max().is_some_and(|most| usize::from(most) >= entries) {
            return Err(Damaged("an index is beyond its dictionary"));
        }
        values.extend(indices.iter().map(|index| table[usize::from(*index)]));
        Ok(())
    }

    fn general<N: Number>(
        &mut self,
        mode: u8,
        input: &mut Reader<'_>,
        count: usize,
        reference: Option<&[N]>,
        values: &mut Vec<N>,
    ) -> Decoded<()> {
        const SOURCES: [Source; 4] = [Source::Value, Source::Delta, Source::Reference, Source::ReferenceDelta];
        let source = SOURCES[usize::from(mode & SOURCE)];
        let reference = match source {
            Source::Value | Source::Delta => &[][..],
            _ => reference.filter(|all| all.len() == count).ok_or(Damaged("a stream's reference is missing"))?,
        };
        let start = values.len();
        match source {
            Source::Delta => values.push(number(input)?),
            Source::ReferenceDelta => values.push(number::<N>(input)?.unzigzag()),
            _ => {}
        }
        let summed = values.len() - start;
        let least = if mode & ZIGZAG == 0 { number::<N>(input)?.unzigzag() } else { N::default() };
        let divisor = if mode & DIVIDED == 0 { N::from_u64(1) } else { number::<N>(input)? };
        self.shapes.decode(mode & SHAPE, input, count - summed, values)?;
        values_of(&mut values[start..], mode, least, divisor, reference);
        Ok(())
    }
}

/// What the unsigned numbers of a stream of this mode stand for, in their place. Where sums are stored, the first one stands already.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn values_of<N: Number>(values: &mut [N], mode: u8, least: N, divisor: N, reference: &[N]) {
    let has_sums = mode & SUMS != 0;
    let numbers = &mut values[usize::from(has_sums)..];
    match (mode & ZIGZAG != 0, mode & DIVIDED != 0) {
        (true, false) => numbers.iter_mut().for_each(|number| *number = number.unzigzag()),
        (true, true) => numbers.iter_mut().for_each(|number| *number = number.unzigzag().mul(divisor)),
        (false, true) => numbers.iter_mut().for_each(|number| *number = number.mul(divisor).add(least)),
        (false, false) if !has_sums => numbers.iter_mut().for_each(|number| *number = number.add(least)),
        (false, false) => {}
    }
    if has_sums {
        // Plain sums add the least on their way.
        sum(values, if mode & (ZIGZAG | DIVIDED) == 0 { least } else { N::default() });
    }
    for (value, other) in values.iter_mut().zip(reference) {
        *value = value.add(*other);
    }
}

#[inline(always)]
fn sum<N: Number>(values: &mut [N], step: N) {
    let Some((first, rest)) = values.split_first_mut() else { return };
    let mut last = *first;
    for value in rest {
        last = last.add(value.add(step));
        *value = last;
    }
}
