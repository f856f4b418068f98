//! The streams that groups are taken apart into, and made of again.

use multiversion::multiversion;
use multiversion::target::match_target;

#[cfg(target_arch = "x86_64")]
use super::at_once;
use super::group::{ITEMS, Items, items_in, put_items};

/// A stream with room behind it, so that eight bytes can be moved wherever fewer are meant.
#[derive(Debug, Default)]
pub(super) struct Bytes {
    /// Longer than the stream.
    bytes: Vec<u8>,
    length: usize,
}

impl Bytes {
    pub(super) fn values(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(super) fn extend(&mut self, values: &[u8]) {
        self.reserve(values.len());
        self.bytes[self.length..self.length + values.len()].copy_from_slice(values);
        self.length += values.len();
    }

    fn reserve(&mut self, more: usize) {
        let length = self.length + more + ITEMS;
        if self.bytes.len() < length {
            self.bytes.resize(length, 0);
        }
    }
}

/// Puts the lowest `count` bytes of `word` at `at`, which is moved behind them.
#[inline(always)]
fn put(bytes: &mut [u8], at: &mut usize, word: u64, count: usize) {
    bytes[*at..*at + ITEMS].copy_from_slice(&word.to_le_bytes());
    *at += count;
}

/// The streams of a frame's groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) controls: Bytes,
    pub(super) literals: Bytes,
    pub(super) firsts: Bytes,
    pub(super) seconds: Bytes,
    pub(super) thirds: Bytes,
}

impl Groups {
    pub(super) fn clear(&mut self) {
        for stream in [&mut self.controls, &mut self.literals, &mut self.firsts, &mut self.seconds, &mut self.thirds] {
            stream.length = 0;
        }
    }

    /// Takes `piece` apart, whatever it is: its last group may end anywhere.
    pub(super) fn take(&mut self, piece: &[u8]) {
        // The most there can be of each.
        self.controls.reserve(piece.len() / (1 + ITEMS) + 1);
        self.literals.reserve(piece.len());
        self.firsts.reserve(piece.len() / 2 + 1);
        self.seconds.reserve(piece.len() / 2);
        self.thirds.reserve(piece.len() / 3);
        take_groups(self, piece);
    }
}

#[allow(unused_unsafe, reason = "it is needed where the whole build is for such a CPU")]
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt+popcnt"))]
fn take_groups(groups: &mut Groups, piece: &[u8]) {
    let Groups { controls, literals, firsts, seconds, thirds } = groups;
    let [mut to_controls, mut to_literals, mut to_firsts, mut to_seconds, mut to_thirds] =
        [&*controls, literals, firsts, seconds, thirds].map(|stream| stream.length);
    let mut left = piece;
    while let Some((&control, bytes)) = left.split_first() {
        let at_once = match_target! {
            // SAFETY: what is compiled has what the target of this arm has.
            "x86_64+avx2+bmi1+bmi2+lzcnt+popcnt" => unsafe { at_once::items_in(control, bytes) },
            _ => None,
        };
        let (items, counts) = at_once.unwrap_or_else(|| items_in(control, bytes));
        put(&mut controls.bytes, &mut to_controls, control.into(), 1);
        put(&mut literals.bytes, &mut to_literals, items.literals, counts.literals);
        put(&mut firsts.bytes, &mut to_firsts, items.firsts, counts.firsts);
        put(&mut seconds.bytes, &mut to_seconds, items.seconds, counts.seconds);
        put(&mut thirds.bytes, &mut to_thirds, items.thirds, counts.thirds);
        left = &bytes[counts.total()..];
    }
    controls.length = to_controls;
    literals.length = to_literals;
    firsts.length = to_firsts;
    seconds.length = to_seconds;
    thirds.length = to_thirds;
}

/// A stream that is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left<'a> {
    /// The stream's and eight more, or whatever follows.
    bytes: &'a [u8],
    length: usize,
    at: usize,
}

impl<'a> Left<'a> {
    /// `bytes` are the stream's first `length` bytes, and eight more at least.
    pub(super) fn new(bytes: &'a [u8], length: usize) -> Option<Self> {
        // With these alone whoever reads eight bytes at a place knows that the place is not behind the stream.
        Some(Left { bytes: bytes.get(..length + ITEMS)?, length, at: 0 })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at == self.length
    }

    /// Fills `place`.
    pub(super) fn fill(&mut self, place: &mut [u8]) -> Option<()> {
        let end = self.at + place.len();
        place.copy_from_slice(self.bytes[..self.length].get(self.at..end)?);
        self.at = end;
        Some(())
    }

    /// The next eight, of which as many are the stream's as it has. None behind its end.
    #[inline(always)]
    fn word(self) -> Option<u64> {
        self.bytes.get(self.at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
    }
}

/// The streams of a frame's groups that are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupsLeft<'a> {
    pub(super) controls: Left<'a>,
    pub(super) literals: Left<'a>,
    pub(super) firsts: Left<'a>,
    pub(super) seconds: Left<'a>,
    pub(super) thirds: Left<'a>,
}

impl GroupsLeft<'_> {
    /// Fills `piece`, all of it; None if a stream has too little, which may show only when what is left of it is looked at.
    pub(super) fn make(&mut self, piece: &mut [u8]) -> Option<()> {
        make_groups(self, piece)
    }

    /// Whether all of them have been read, and no more than that.
    pub(super) fn are_spent(&self) -> bool {
        [self.controls, self.literals, self.firsts, self.seconds, self.thirds].iter().all(Left::is_empty)
    }
}

#[allow(unused_unsafe, reason = "it is needed where the whole build is for such a CPU")]
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt+popcnt"))]
fn make_groups(groups: &mut GroupsLeft<'_>, piece: &mut [u8]) -> Option<()> {
    let GroupsLeft { mut controls, mut literals, mut firsts, mut seconds, mut thirds } = *groups;
    let mut left = piece;
    while let Some((place, bytes)) = left.split_first_mut() {
        let control = controls.word()? as u8;
        *place = control;
        controls.at += 1;
        let items = Items {
            literals: literals.word()?,
            firsts: firsts.word()?,
            seconds: seconds.word()?,
            thirds: thirds.word()?,
        };
        let at_once = match_target! {
            // SAFETY: what is compiled has what the target of this arm has.
            "x86_64+avx2+bmi1+bmi2+lzcnt+popcnt" => unsafe { at_once::put_items(control, items, bytes) },
            _ => None,
        };
        let counts = at_once.unwrap_or_else(|| put_items(control, items, bytes));
        literals.at += counts.literals;
        firsts.at += counts.firsts;
        seconds.at += counts.seconds;
        thirds.at += counts.thirds;
        left = &mut bytes[counts.total()..];
    }
    *groups = GroupsLeft { controls, literals, firsts, seconds, thirds };
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64) -> impl FnMut() -> u8 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        }
    }

    /// Bytes of which so many of sixteen have all of their low bits set, as long matches have.
    fn piece(length: usize, longs: u8, seed: u64) -> Vec<u8> {
        let mut next = noise(seed);
        std::iter::repeat_with(|| if next() % 16 < longs { next() | 0xf } else { next() }).take(length).collect()
    }

    fn streams(groups: &Groups) -> [&[u8]; 5] {
        let Groups { controls, literals, firsts, seconds, thirds } = groups;
        [controls, literals, firsts, seconds, thirds].map(Bytes::values)
    }

    fn taken(pieces: &[&[u8]]) -> Groups {
        let mut groups = Groups::default();
        pieces.iter().for_each(|piece| groups.take(piece));
        groups
    }

    /// What `lengths` pieces of the streams are, of which the last has `less` bytes less than there are.
    fn made(streams: [&[u8]; 5], lengths: &[usize], less: [usize; 5]) -> Option<Vec<u8>> {
        let padded = streams.map(|stream| [stream, &[0xff; ITEMS]].concat());
        let [controls, literals, firsts, seconds, thirds] =
            std::array::from_fn(|number| Left::new(&padded[number], streams[number].len() - less[number]).unwrap());
        let mut left = GroupsLeft { controls, literals, firsts, seconds, thirds };
        let mut out = Vec::new();
        for length in lengths {
            let mut piece = vec![0; *length];
            left.make(&mut piece)?;
            out.extend(piece);
        }
        left.are_spent().then_some(out)
    }

    /// As [`made`], of one piece, item by item.
    fn made_one_by_one(streams: [&[u8]; 5], length: usize) -> Vec<u8> {
        let word = |stream: &[u8]| u64::from_le_bytes(std::array::from_fn(|at| stream.get(at).copied().unwrap_or(0)));
        let [mut controls, mut literals, mut firsts, mut seconds, mut thirds] = streams;
        let (mut piece, mut at) = (vec![0; length], 0);
        while at < length {
            piece[at] = controls[0];
            let [literal, first, second, third] = [literals, firsts, seconds, thirds].map(word);
            let items = Items { literals: literal, firsts: first, seconds: second, thirds: third };
            let counts = put_items(controls[0], items, &mut piece[at + 1..]);
            controls = &controls[1..];
            literals = &literals[counts.literals..];
            firsts = &firsts[counts.firsts..];
            seconds = &seconds[counts.seconds..];
            thirds = &thirds[counts.thirds..];
            at += 1 + counts.total();
        }
        piece
    }

    #[test]
    fn pieces_of_all_lengths_are_taken_apart_as_item_by_item_and_come_back() {
        for (longs, seed) in [0, 1, 4, 16].into_iter().zip(1..) {
            for length in (0..200).chain([5000]) {
                let pieces =
                    [piece(length, longs, seed), piece(37, longs, seed + length as u64), piece(length, longs, seed)];
                let at_once = taken(&pieces.each_ref().map(|piece| &piece[..]));
                let one_by_one = pieces.iter().fold([const { Vec::new() }; 5], |mut streams: [Vec<u8>; 5], piece| {
                    let mut left = &piece[..];
                    while let Some((control, bytes)) = left.split_first() {
                        let (items, counts) = items_in(*control, bytes);
                        let words = [(*control).into(), items.literals, items.firsts, items.seconds, items.thirds];
                        let counts_of = [1, counts.literals, counts.firsts, counts.seconds, counts.thirds];
                        for ((stream, word), count) in streams.iter_mut().zip(words).zip(counts_of) {
                            stream.extend_from_slice(&u64::to_le_bytes(word)[..count]);
                        }
                        left = &bytes[counts.total()..];
                    }
                    streams
                });
                assert_eq!(streams(&at_once), one_by_one.each_ref().map(|stream| &stream[..]), "{longs} {length}");
                assert!(made_one_by_one(streams(&taken(&[&pieces[0]])), length) == pieces[0], "{longs} {length}");
                let lengths = pieces.each_ref().map(Vec::len);
                assert!(made(streams(&at_once), &lengths, [0; 5]) == Some(pieces.concat()), "{longs} {length}");
            }
        }
    }

    #[test]
    fn streams_with_too_little_or_too_much_are_refused() {
        let piece = piece(3000, 2, 9);
        let groups = taken(&[&piece]);
        for number in 0..5 {
            let mut less = [0; 5];
            less[number] = 1;
            assert_eq!(made(streams(&groups), &[piece.len()], less), None, "{number}");
        }
        assert_eq!(made(streams(&groups), &[piece.len() - 40], [0; 5]), None);
        assert_eq!(made(streams(&groups), &[piece.len() + 40], [0; 5]), None);
        assert!(Left::new(&[0; 10], 3).is_none());
    }
}
