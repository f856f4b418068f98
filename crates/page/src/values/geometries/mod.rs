//! PostGIS's geometries and geographies: what they are made of, their coordinates by axis, and boxes that are reckoned again.
//!
//! Nobody has to say which columns these are: an extension's types have another number in every database. What they are, their
//! bytes tell, whose lengths have to come out exactly.

mod shapes;

use std::ops::Range;

use super::doubles::is_short_decimal;
use super::{Decode, Text, ValueDecoders};
use crate::entropy::{ByteCoder, FloatCoder, NumberCoder, Reader};
use crate::error::{Damaged, Decoded};
use crate::postgres::form;

use shapes::{AXES_MAX, HEADER_BYTES, Header, Made, Parts as _, Taken, WORD_BYTES, box_of, walk, words};

/// How a value is stored.
mod mark {
    /// As it is.
    pub(super) const RAW: u8 = 0;
    /// Apart; its box, if it has one, is reckoned from its coordinates.
    pub(super) const APART: u8 = 1;
    /// Apart, and its box is stored.
    pub(super) const WITH_BOX: u8 = 2;
}

/// Columns whose values are shorter on the mean are not looked at: a shape without a point has 12 bytes.
const VALUE_BYTES_MIN: usize = 12;
/// How many values are looked at.
const SAMPLE_COUNT: usize = 64;

/// Coordinates are looked at in so many places, so many in each.
const WINDOWS: usize = 8;
const WINDOW: usize = 64;
/// If one of so many stood in its window before, zstd finds more than a number tells.
const REPEAT_SHARE: usize = 4;

/// The values of one column.
#[derive(Debug, Default)]
pub(super) struct Geometries {
    marks: Vec<u8>,
    headers: Vec<u32>,
    boxes: Vec<u32>,
    kinds: Vec<u8>,
    counts: Vec<u32>,
    axes: [Vec<u64>; AXES_MAX],
    rest: Vec<u8>,
    /// Points of a polygon's rings.
    rings: Vec<u32>,
    /// Whether this frame has any.
    are_used: bool,
}

impl Geometries {
    fn clear(&mut self) {
        self.marks.clear();
        self.headers.clear();
        self.boxes.clear();
        self.kinds.clear();
        self.counts.clear();
        self.axes.iter_mut().for_each(Vec::clear);
        self.rest.clear();
    }

    /// Starts a frame. Its memory is given back if the last one had no geometries.
    pub(super) fn give_back_unused(&mut self) {
        if !std::mem::take(&mut self.are_used) {
            *self = Geometries::default();
        }
    }

    /// Takes all values in; false if they do not look like geometries.
    pub(super) fn take(&mut self, heads: &[u32], text: &[u8]) -> bool {
        if text.len() < VALUE_BYTES_MIN * heads.len() || !self.looks_like_geometries(heads, text) {
            return false;
        }
        self.clear();
        for (head, value) in values(heads, text) {
            let mark = self.take_value(head, value).unwrap_or(mark::RAW);
            self.marks.push(mark);
            if mark == mark::RAW {
                self.rest.extend_from_slice(value);
            }
        }
        self.are_used = true;
        true
    }

    /// Whether three quarters of a sample of values, all that are not TOAST pointers, are geometries, whose coordinates differ.
    fn looks_like_geometries(&mut self, heads: &[u32], text: &[u8]) -> bool {
        let step = heads.len().div_ceil(SAMPLE_COUNT).max(1);
        self.clear();
        let (mut seen, mut found) = (0, 0);
        for (head, value) in values(heads, text).step_by(step).filter(|(_, value)| !value.is_empty()) {
            seen += 1;
            found += usize::from(self.take_value(head, value).is_some());
            // Most columns are something else, as their first values tell.
            if seen == 4 && found == 0 {
                return false;
            }
        }
        found > 0 && 4 * found >= 3 * seen && !return_often(&self.axes[0])
    }

    /// Takes a value apart and gives its mark; None, and nothing taken, if it is not a geometry.
    fn take_value(&mut self, head: u32, value: &[u8]) -> Option<u8> {
        if !matches!(head & 3, form::SHORT | form::LONG) {
            return None;
        }
        let (word, rest) = value.split_first_chunk::<HEADER_BYTES>()?;
        let word = u32::from_le_bytes(*word);
        let header = Header::of(word)?;
        let (stored_box, rest) = rest.split_at_checked(header.box_bytes())?;
        let before = [self.kinds.len(), self.counts.len()];
        let axes_before = self.axes.each_ref().map(Vec::len);
        let Geometries { kinds, counts, axes, rings, .. } = self;
        let mut parts = Taken { rest, axis_count: header.axis_count, kinds, counts, axes };
        if walk(&mut parts, rings, 0, true).is_none() || parts.left() > 0 {
            self.kinds.truncate(before[0]);
            self.counts.truncate(before[1]);
            self.axes.iter_mut().zip(axes_before).for_each(|(values, before)| values.truncate(before));
            return None;
        }
        self.headers.push(word);
        let own = self.axes.iter().zip(axes_before).map(|(values, before)| &values[before..]);
        if header.box_floats == 0 || !header.is_geodetic && box_of(own.take(header.axis_count)).eq(words(stored_box)) {
            return Some(mark::APART);
        }
        self.boxes.extend(words(stored_box));
        Some(mark::WITH_BOX)
    }

    /// Appends what was taken, whose heads are `heads`.
    pub(super) fn encode(
        &self,
        heads: &[u32],
        bytes: &mut ByteCoder,
        numbers: &mut NumberCoder,
        floats: &mut FloatCoder,
        text: &mut Text,
        out: &mut Vec<u8>,
    ) {
        numbers.encode_u32(heads, None, out);
        bytes.encode(&self.marks, out);
        numbers.encode_u32(&self.headers, None, out);
        numbers.encode_u32(&self.boxes, None, out);
        bytes.encode(&self.kinds, out);
        numbers.encode_u32(&self.counts, None, out);
        text.store(&self.rest, out);
        let axis_count = self.axes.iter().rposition(|values| !values.is_empty()).map_or(0, |last| last + 1);
        out.push(axis_count as u8);
        for values in &self.axes[..axis_count] {
            floats.encode_f64(values, None, out);
        }
    }

    /// Appends one value of `length` bytes to `out`. `at` is what of the streams has been used, and moves.
    fn make_value(&mut self, length: usize, is_stored_box: bool, at: &mut Used, out: &mut Vec<u8>) -> Option<()> {
        let word = *self.headers.get(at.headers)?;
        at.headers += 1;
        let header = Header::of(word)?;
        let left = length.checked_sub(HEADER_BYTES + header.box_bytes())?;
        out.extend_from_slice(&word.to_le_bytes());
        let box_at = out.len();
        out.resize(box_at + header.box_bytes(), 0);
        let axes: [&[u64]; AXES_MAX] = std::array::from_fn(|axis| &self.axes[axis][at.axes[axis]..]);
        let (kinds, counts) = (self.kinds[at.kinds..].iter(), self.counts[at.counts..].iter());
        let mut parts = Made { out, left, axis_count: header.axis_count, kinds, counts, axes };
        walk(&mut parts, &mut self.rings, 0, true)?;
        let (kinds_left, counts_left) = (parts.kinds.len(), parts.counts.len());
        let axes_left = parts.axes.map(<[u64]>::len);
        if parts.left > 0 {
            return None;
        }
        let start = at.axes;
        *at = Used {
            headers: at.headers,
            boxes: at.boxes,
            kinds: self.kinds.len() - kinds_left,
            counts: self.counts.len() - counts_left,
            axes: std::array::from_fn(|axis| self.axes[axis].len() - axes_left[axis]),
        };
        let floats = out[box_at..box_at + header.box_bytes()].as_chunks_mut::<WORD_BYTES>().0;
        if is_stored_box {
            let stored = self.boxes.get(at.boxes..at.boxes + floats.len())?;
            at.boxes += floats.len();
            floats.iter_mut().zip(stored).for_each(|(float, stored)| *float = stored.to_le_bytes());
        } else if header.box_floats > 0 {
            if header.is_geodetic {
                return None;
            }
            let own = (0..header.axis_count).map(|axis| &self.axes[axis][start[axis]..at.axes[axis]]);
            floats.iter_mut().zip(box_of(own)).for_each(|(float, near)| *float = near.to_le_bytes());
        }
        Some(())
    }
}

/// Whether coordinates that are no short decimals return often, other than at once: those of arcs around a centre do, each
/// four times, and cost as much each time.
fn return_often(coordinates: &[u64]) -> bool {
    let step = (coordinates.len() / WINDOWS).max(WINDOW);
    let (mut seen, mut again) = (0_usize, 0_usize);
    for window in coordinates.chunks(step).map(|part| &part[..WINDOW.min(part.len())]) {
        for (at, pair) in (1..).zip(window.windows(2)) {
            seen += 1;
            let returns = pair[0] != pair[1] && window[..at].contains(&pair[1]);
            again += usize::from(returns && !is_short_decimal(f64::from_bits(pair[1])));
        }
    }
    seen >= WINDOW && again * REPEAT_SHARE > seen
}

/// The values of a column with their heads.
fn values<'a>(heads: &'a [u32], text: &'a [u8]) -> impl Iterator<Item = (u32, &'a [u8])> {
    let mut start = 0;
    heads.iter().map(move |head| {
        let end = start + form::payload_length(*head);
        (*head, &text[std::mem::replace(&mut start, end)..end])
    })
}

/// How much of the streams values have used.
#[derive(Default)]
struct Used {
    headers: usize,
    boxes: usize,
    kinds: usize,
    counts: usize,
    axes: [usize; AXES_MAX],
}

impl Decode for Geometries {
    fn scratch(decoders: &mut ValueDecoders) -> &mut Self {
        &mut decoders.geometries
    }

    fn decode_into(
        &mut self,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
        heads: &mut Vec<u32>,
    ) -> Decoded<Range<usize>> {
        self.clear();
        self.are_used = true;
        decoders.decode_u32(input, None, heads)?;
        decoders.decode_bytes(input, &mut self.marks)?;
        decoders.decode_u32(input, None, &mut self.headers)?;
        decoders.decode_u32(input, None, &mut self.boxes)?;
        decoders.decode_bytes(input, &mut self.kinds)?;
        decoders.decode_u32(input, None, &mut self.counts)?;
        let mut rest = text.next(input)?;
        for values in self.axes.get_mut(..usize::from(input.u8()?)).ok_or(BAD)? {
            decoders.decode_f64(input, None, values)?;
        }
        if self.marks.len() != heads.len() {
            return Err(BAD);
        }
        let (start, mut at) = (text.bytes.len(), Used::default());
        for (number, head) in heads.iter().enumerate() {
            let length = form::payload_length(*head);
            decoders.budget.spend(length, 1)?;
            match self.marks[number] {
                mark::RAW => {
                    let end = rest.start + length;
                    if end > rest.end {
                        return Err(BAD);
                    }
                    text.bytes.extend_from_within(rest.start..end);
                    rest.start = end;
                }
                mark @ (mark::APART | mark::WITH_BOX) => {
                    self.make_value(length, mark == mark::WITH_BOX, &mut at, &mut text.bytes).ok_or(BAD)?;
                }
                _ => return Err(BAD),
            }
        }
        Ok(start..text.bytes.len())
    }
}

const BAD: Damaged = Damaged("a column of geometries is not what it says");

#[cfg(test)]
mod tests {
    use super::super::Budget;
    use super::*;
    use crate::entropy::Effort;

    /// Of PostGIS 3.3: a line of three points with its box, and one point, in Web Mercator; a line on a sphere.
    const LINE: &str = "000f1144b6a7c5c1a763c5c1bed96c410a2e6d410200000003000000959f54fb74ac38c068d0d03fc1a52d40ecc039234ab338c0\
                        25e99ac9379b2d4094de37bef6b438c0c9e53fa4df9e2d40";
    const POINT: &str = "0010e640010000000100000071033e3f8c10f93f15a930b610444540";

    fn bytes_of(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|digit| !digit.is_ascii_whitespace()).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    /// A value of words behind a header with `flags`; those of a coordinate are its halves.
    fn value(flags: u8, words: &[u32]) -> Vec<u8> {
        [0, 0, 0, flags].into_iter().chain(words.iter().flat_map(|word| word.to_le_bytes())).collect()
    }

    fn column(values: &[Vec<u8>]) -> (Vec<u32>, Vec<u8>) {
        (values.iter().map(|value| (value.len() as u32) << 2 | form::LONG).collect(), values.concat())
    }

    fn encoded(geometries: &Geometries, heads: &[u32]) -> (Vec<u8>, Text) {
        let (mut text, mut out) = (Text::default(), Vec::new());
        let (mut bytes, mut numbers) = (ByteCoder::new(Effort::Default), NumberCoder::new(Effort::Default));
        geometries.encode(heads, &mut bytes, &mut numbers, &mut FloatCoder::new(Effort::Default), &mut text, &mut out);
        text.seal();
        (out, text)
    }

    fn decoded(out: &[u8], text: &mut Text, size: usize) -> Decoded<(Vec<u32>, Vec<u8>)> {
        let mut decoders = ValueDecoders::new();
        decoders.budget = Budget::of(size);
        let (mut reader, mut heads) = (Reader::new(out), Vec::new());
        let range = Geometries::default().decode_into(&mut decoders, &mut reader, text, &mut heads)?;
        assert!(reader.is_empty());
        Ok((heads, text.bytes[range].to_vec()))
    }

    /// The marks of values that come back.
    fn marks(values: &[Vec<u8>]) -> Vec<u8> {
        let (heads, all) = column(values);
        let mut geometries = Geometries::default();
        assert!(geometries.take(&heads, &all));
        let (out, mut text) = encoded(&geometries, &heads);
        assert_eq!(decoded(&out, &mut text, all.len()), Ok((heads, all)));
        geometries.marks
    }

    /// With enough others for all to be taken for geometries.
    fn mark_of(value: Vec<u8>) -> u8 {
        let mut values = vec![bytes_of(POINT); 8];
        values.push(value);
        marks(&values)[8]
    }

    #[test]
    fn what_postgis_stores_is_taken_apart_and_its_box_is_reckoned() {
        assert_eq!(mark_of(bytes_of(LINE)), mark::APART);
        assert_eq!(mark_of(bytes_of(POINT)), mark::APART);
        let mut other_box = bytes_of(LINE);
        other_box[5] ^= 1;
        assert_eq!(mark_of(other_box.clone()), mark::WITH_BOX);
        // On a sphere a box has six sides, which are not reckoned.
        let sphere = [&other_box[..3], &[0x4C], &[7; 24][..], &other_box[20..]].concat();
        assert_eq!(mark_of(sphere), mark::WITH_BOX);
    }

    #[test]
    fn shapes_of_all_kinds_come_back_in_each_other() {
        let point = |at: u32| [0, 0x4000_0000 + at, 0, 0x3FF0_0000 + at];
        let ring = [point(1), point(2), point(3), point(1)].concat();
        for kind in [2, 8, 14] {
            assert_eq!(mark_of(value(0, &[&[kind, 2], &point(1)[..], &point(2)].concat())), mark::APART);
        }
        let polygons = [
            vec![3, 0],
            [&[3, 1, 4, 0][..], &ring].concat(),
            [&[3, 2, 4, 4][..], &ring, &ring].concat(),
            [&[3, 3, 0, 1, 4, 0][..], &point(9), &ring].concat(),
        ];
        for polygon in &polygons {
            assert_eq!(mark_of(value(0, polygon)), mark::APART, "{polygon:?}");
            let collection = [&[7, 3, 6, 2][..], polygon, &[3, 0, 1, 0], polygon].concat();
            assert_eq!(mark_of(value(0, &collection)), mark::APART, "{polygon:?}");
        }
        for (flags, kind_words) in [(1, [0; 6]), (2, [1, 2, 3, 4, 5, 6])] {
            assert_eq!(mark_of(value(flags, &[&[1, 1], &kind_words[..]].concat())), mark::APART);
        }
        assert_eq!(mark_of(value(3, &[1, 1, 1, 2, 3, 4, 5, 6, 7, 8])), mark::APART);
    }

    #[test]
    fn what_is_no_geometry_stays_as_it_is() {
        let point = [0, 0x4000_0000, 0, 0x3FF0_0000];
        let open_ring = [&[3, 1, 2, 0][..], &point, &[0; 4]].concat();
        let deep = [[7, 1].repeat(DEPTH_BEYOND), vec![1, 0]].concat();
        let longer = [&[1, 1][..], &point, &[0]].concat();
        for words in [
            open_ring,
            deep,
            longer,
            vec![16, 0],
            vec![1, 1],
            vec![256 + 1, 0],
            vec![2, u32::MAX],
            vec![4, u32::MAX],
            vec![],
        ] {
            assert_eq!(mark_of(value(0, &words)), mark::RAW, "{words:?}");
        }
        assert_eq!(mark_of(value(0x10, &[1, 0])), mark::RAW);
        assert_eq!(mark_of(vec![1, 2, 3]), mark::RAW);
        let texts: Vec<Vec<u8>> = (0..100).map(|number| format!("a text, {number}").into_bytes()).collect();
        let (heads, all) = column(&texts);
        assert!(!Geometries::default().take(&heads, &all));
    }

    const DEPTH_BEYOND: usize = 9;

    #[test]
    fn coordinates_of_arcs_are_left_to_zstd() {
        let arc = |centre: f64| -> Vec<u32> {
            let of = |float: f64| [float.to_bits() as u32, (float.to_bits() >> 32) as u32];
            let turns =
                (0..32).map(|step| f64::from(if step < 16 { step } else { 32 - step }) / 16.0 * std::f64::consts::PI);
            let points = turns.flat_map(|turn| [of(centre + turn.cos()), of(centre + turn.sin())].concat());
            [2, 32].into_iter().chain(points).collect()
        };
        let values: Vec<Vec<u8>> = (0..50).map(|number| value(0, &arc(f64::from(number).sqrt()))).collect();
        let (heads, all) = column(&values);
        assert!(!Geometries::default().take(&heads, &all));
    }

    #[test]
    fn lies_and_cuts_are_damage() {
        let values = [vec![bytes_of(LINE); 5], vec![vec![7; 5]; 1]].concat();
        let (heads, all) = column(&values);
        let mut taken = Geometries::default();
        assert!(taken.take(&heads, &all));
        type Lie = fn(&mut Geometries);
        let lies: [(&str, Lie); 9] = [
            ("a mark too few", |taken| taken.marks.truncate(5)),
            ("a mark that does not exist", |taken| taken.marks[0] = 3),
            ("a box that is not stored", |taken| taken.marks[0] = mark::WITH_BOX),
            ("text that is not there", |taken| taken.marks[0] = mark::RAW),
            ("a header too few", |taken| taken.headers.truncate(4)),
            ("a kind that does not exist", |taken| taken.kinds[1] = 16),
            ("a count that is not there", |taken| taken.kinds[4] = 4),
            ("coordinates that are not there", |taken| taken.axes[1].truncate(14)),
            ("a box of a sphere that is not stored", |taken| taken.headers[0] |= 8 << 24),
        ];
        for (name, lie) in lies {
            let mut lying = Geometries::default();
            assert!(lying.take(&heads, &all));
            lie(&mut lying);
            let (out, mut text) = encoded(&lying, &heads);
            assert_eq!(decoded(&out, &mut text, all.len()), Err(BAD), "{name}");
        }
        let (out, _) = encoded(&taken, &heads);
        for end in 0..out.len() {
            let (_, mut text) = encoded(&taken, &heads);
            assert!(decoded(&out[..end], &mut text, all.len()).is_err(), "{end}");
        }
    }
}
