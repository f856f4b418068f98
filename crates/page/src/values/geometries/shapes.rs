//! One geometry as PostGIS stores it (`liblwgeom/gserialized1.c` and `gserialized2.c`): three bytes of the reference system and one of
//! flags, maybe a box of f32, and then shapes, one in another.

use crate::entropy::{FLOAT_BYTES, apart, together};

mod flag {
    pub(super) const HAS_Z: u8 = 1;
    pub(super) const HAS_M: u8 = 2;
    pub(super) const HAS_BOX: u8 = 4;
    /// On a sphere: its box has the three axes of space.
    pub(super) const IS_GEODETIC: u8 = 8;
    /// Further flags follow; such values are not taken apart.
    pub(super) const IS_EXTENDED: u8 = 16;
}

/// The kinds of shapes (`LWPOINTTYPE` and so on in `liblwgeom.h`).
mod kind {
    pub(super) const POINT: u32 = 1;
    pub(super) const LINE: u32 = 2;
    pub(super) const POLYGON: u32 = 3;
    pub(super) const ARCS: u32 = 8;
    pub(super) const TRIANGLE: u32 = 14;
}

pub(super) const HEADER_BYTES: usize = 4;
pub(super) const WORD_BYTES: usize = 4;
pub(super) const AXES_MAX: usize = 4;
/// Shapes around a shape.
const DEPTH_MAX: usize = 8;

/// What the first four bytes of a value say.
#[derive(Clone, Copy)]
pub(super) struct Header {
    pub(super) axis_count: usize,
    pub(super) box_floats: usize,
    pub(super) is_geodetic: bool,
}

impl Header {
    /// None for values that are not taken apart.
    pub(super) fn of(word: u32) -> Option<Self> {
        let flags = word.to_le_bytes()[3];
        let axis_count = 2 + usize::from(flags & flag::HAS_Z != 0) + usize::from(flags & flag::HAS_M != 0);
        let is_geodetic = flags & flag::IS_GEODETIC != 0;
        let box_axes = if is_geodetic { 3 } else { axis_count };
        let box_floats = if flags & flag::HAS_BOX != 0 { 2 * box_axes } else { 0 };
        (flags & flag::IS_EXTENDED == 0).then_some(Header { axis_count, box_floats, is_geodetic })
    }

    pub(super) fn box_bytes(self) -> usize {
        self.box_floats * WORD_BYTES
    }
}

/// The parts of a value in their order, for a walk that is the same when it is taken apart and when it is made. What gives
/// None ends it: the value is not what it should be.
pub(super) trait Parts {
    /// Bytes of the value that are left.
    fn left(&self) -> usize;
    fn axis_count(&self) -> usize;
    /// The kind of the next shape.
    fn kind(&mut self) -> Option<u32>;
    /// How many points, rings or shapes follow; `known` if that is the only number that fits.
    fn count(&mut self, known: Option<usize>) -> Option<usize>;
    /// So many points follow. Those of a ring end where they begin.
    fn points(&mut self, count: usize, is_ring: bool) -> Option<()>;
}

/// Walks through one shape and all that is in it. `is_last`: nothing follows it in its value.
pub(super) fn walk(parts: &mut impl Parts, rings: &mut Vec<u32>, depth: usize, is_last: bool) -> Option<()> {
    let point_bytes = FLOAT_BYTES * parts.axis_count();
    let kind = parts.kind()?;
    match kind {
        kind::POINT | kind::LINE | kind::ARCS | kind::TRIANGLE => {
            let known = parts.left().checked_sub(WORD_BYTES)? / point_bytes;
            let count = parts.count(is_last.then_some(known))?;
            parts.points(count, false)
        }
        kind::POLYGON => {
            let count = parts.count(None)?;
            // Each has its word, and they fill up to a float.
            let words = count.checked_next_multiple_of(2)?;
            let mut points_left = parts.left().checked_sub(words.checked_mul(WORD_BYTES)?)? / point_bytes;
            rings.clear();
            for ring in 1..=count {
                let points = parts.count((is_last && ring == count).then_some(points_left))?;
                points_left = points_left.checked_sub(points)?;
                rings.push(points as u32);
            }
            if words > count {
                parts.count(Some(0))?;
            }
            rings.iter().try_for_each(|points| parts.points(*points as usize, true))
        }
        // Collections of all kinds; 16 and more do not exist.
        4..=15 if depth < DEPTH_MAX => {
            let count = parts.count(None)?;
            (1..=count).try_for_each(|shape| walk(parts, rings, depth + 1, is_last && shape == count))
        }
        _ => None,
    }
}

/// How many points of a ring or line are stored.
fn stored_points(count: usize, is_ring: bool) -> usize {
    count - usize::from(is_ring && count > 1)
}

/// Takes a value apart.
pub(super) struct Taken<'a> {
    pub(super) rest: &'a [u8],
    pub(super) axis_count: usize,
    pub(super) kinds: &'a mut Vec<u8>,
    pub(super) counts: &'a mut Vec<u32>,
    pub(super) axes: &'a mut [Vec<u64>; AXES_MAX],
}

impl Taken<'_> {
    fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.rest.split_first_chunk::<WORD_BYTES>()?;
        self.rest = rest;
        Some(u32::from_le_bytes(*word))
    }
}

impl Parts for Taken<'_> {
    fn left(&self) -> usize {
        self.rest.len()
    }

    fn axis_count(&self) -> usize {
        self.axis_count
    }

    fn kind(&mut self) -> Option<u32> {
        let kind = self.word()?;
        self.kinds.push(u8::try_from(kind).ok()?);
        Some(kind)
    }

    fn count(&mut self, known: Option<usize>) -> Option<usize> {
        let count = self.word()?;
        match known {
            Some(known) => (count as usize == known).then_some(known),
            None => {
                self.counts.push(count);
                Some(count as usize)
            }
        }
    }

    fn points(&mut self, count: usize, is_ring: bool) -> Option<()> {
        let point_bytes = FLOAT_BYTES * self.axis_count;
        let (points, rest) = self.rest.split_at_checked(count.checked_mul(point_bytes)?)?;
        self.rest = rest;
        let stored = stored_points(count, is_ring) * point_bytes;
        if stored < points.len() && points[stored..] != points[..point_bytes] {
            return None;
        }
        match self.axis_count {
            2 => apart::<2>(&points[..stored], self.axes),
            3 => apart::<3>(&points[..stored], self.axes),
            _ => apart::<4>(&points[..stored], self.axes),
        }
        Some(())
    }
}

/// Makes a value again.
pub(super) struct Made<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) left: usize,
    pub(super) axis_count: usize,
    pub(super) kinds: std::slice::Iter<'a, u8>,
    pub(super) counts: std::slice::Iter<'a, u32>,
    pub(super) axes: [&'a [u64]; AXES_MAX],
}

impl Made<'_> {
    fn put(&mut self, word: u32) -> Option<()> {
        self.left = self.left.checked_sub(WORD_BYTES)?;
        self.out.extend_from_slice(&word.to_le_bytes());
        Some(())
    }
}

impl Parts for Made<'_> {
    fn left(&self) -> usize {
        self.left
    }

    fn axis_count(&self) -> usize {
        self.axis_count
    }

    fn kind(&mut self) -> Option<u32> {
        let kind = u32::from(*self.kinds.next()?);
        self.put(kind)?;
        Some(kind)
    }

    fn count(&mut self, known: Option<usize>) -> Option<usize> {
        let count = match known {
            Some(known) => u32::try_from(known).ok()?,
            None => *self.counts.next()?,
        };
        self.put(count)?;
        Some(count as usize)
    }

    fn points(&mut self, count: usize, is_ring: bool) -> Option<()> {
        let point_bytes = FLOAT_BYTES * self.axis_count;
        self.left = self.left.checked_sub(count.checked_mul(point_bytes)?)?;
        let (start, stored) = (self.out.len(), stored_points(count, is_ring));
        match self.axis_count {
            2 => together::<2>(stored, &mut self.axes, self.out)?,
            3 => together::<3>(stored, &mut self.axes, self.out)?,
            _ => together::<4>(stored, &mut self.axes, self.out)?,
        }
        if stored < count {
            self.out.extend_from_within(start..start + point_bytes);
        }
        Some(())
    }
}

/// The box around coordinates as PostGIS has it (`next_float_down` and `next_float_up` in liblwgeom): of each axis the f32 next to the least
/// and to the greatest that lies outside; of no points anything.
pub(super) fn box_of<'a>(axes: impl Iterator<Item = &'a [u64]>) -> impl Iterator<Item = u32> {
    axes.flat_map(|values| {
        let (mut least, mut greatest) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.iter().map(|bits| f64::from_bits(*bits)) {
            least = if value < least { value } else { least };
            greatest = if value > greatest { value } else { greatest };
        }
        let (mut below, mut above) = (least as f32, greatest as f32);
        if f64::from(below) > least {
            below = below.next_down();
        }
        if f64::from(above) < greatest {
            above = above.next_up();
        }
        [below.to_bits(), above.to_bits()]
    })
}

pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks::<WORD_BYTES>().0.iter().map(|word| u32::from_le_bytes(*word))
}
