//! What of a block occurred before in it.

use super::BLOCK_SIZE_BYTES_MAX;

/// The shortest match the format has.
pub(super) const MATCH_LEN_MIN: usize = 3;

/// The shortest match that is looked for.
const FOUND_LEN_MIN: usize = 4;

const HASH_BITS: u32 = 13;

/// Places of the same hash that are remembered.
const WAYS: usize = 2;

/// The bytes behind a place that is looked at.
const LOOKAHEAD_SIZE_BYTES: usize = 8;

/// A match of this length is taken without looking whether the next place has a better one.
const GOOD_LEN: usize = 32;

/// What the match at the next place must gain more, in bits, to be waited for: its literal has to be paid too.
const GAIN_OF_WAITING_MIN: usize = 4;

/// How matches are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Each match where it is found.
    Greedy,
    /// Unless the next place has a better one.
    Lazy,
}

/// No place: behind all that a match can begin at.
const NOWHERE: u16 = u16::MAX;

/// Bytes as they are, then a match.
#[derive(Clone, Copy, Default)]
pub(super) struct Sequence {
    pub(super) literal_count: u16,
    pub(super) match_len: u16,
    pub(super) distance: u16,
}

impl Sequence {
    /// Bits of the distance below its highest.
    #[inline]
    pub(super) fn distance_bits(&self) -> u32 {
        15 - (self.distance | 1).leading_zeros()
    }

    /// The match's symbol.
    #[inline]
    pub(super) fn symbol(&self) -> usize {
        let length_class = (usize::from(self.match_len) - MATCH_LEN_MIN).min(15);
        256 + 16 * self.distance_bits() as usize + length_class
    }
}

/// A match that could be taken.
#[derive(Clone, Copy)]
struct Found {
    len: usize,
    distance: usize,
}

impl Found {
    const NOTHING: Found = Found { len: 0, distance: 1 };

    /// What it saves over literals and over other matches, in bits, roughly: a literal takes 6, a distance its digits.
    #[inline]
    fn gain(self) -> usize {
        6 * self.len + 16 - self.distance.ilog2() as usize
    }
}

/// Memory for finding the matches of a block.
pub(super) struct MatchFinder {
    /// By hash: the last places, newest first.
    places: Box<[[u16; WAYS]]>,
    sequences: Box<[Sequence]>,
}

impl MatchFinder {
    const SEQUENCE_COUNT_MAX: usize = BLOCK_SIZE_BYTES_MAX / FOUND_LEN_MIN;

    pub(super) const SIZE_BYTES: usize =
        (size_of::<[u16; WAYS]>() << HASH_BITS) + Self::SEQUENCE_COUNT_MAX * size_of::<Sequence>();

    pub(super) fn new() -> Self {
        MatchFinder {
            places: vec![[NOWHERE; WAYS]; 1 << HASH_BITS].into_boxed_slice(),
            sequences: vec![Sequence::default(); Self::SEQUENCE_COUNT_MAX].into_boxed_slice(),
        }
    }

    /// The matches of `raw`, at most 64 KiB; what follows the last one is literals.
    pub(super) fn find(&mut self, raw: &[u8], effort: Effort) -> &[Sequence] {
        self.places.fill([NOWHERE; WAYS]);
        let count = match effort {
            Effort::Greedy => self.parse::<false>(raw),
            Effort::Lazy => self.parse::<true>(raw),
        };
        &self.sequences[..count]
    }

    /// Finds the sequences and counts them.
    fn parse<const LAZY: bool>(&mut self, raw: &[u8]) -> usize {
        let end = raw.len().saturating_sub(LOOKAHEAD_SIZE_BYTES);
        let (mut at, mut literals_start, mut count) = (0, 0, 0);
        while at < end {
            let mut found = self.best_match(raw, at);
            if found.len < FOUND_LEN_MIN {
                at += 1;
                continue;
            }
            let mut remembered = at + 1;
            while LAZY && found.len < GOOD_LEN && remembered < end {
                let next = self.best_match(raw, remembered);
                remembered += 1;
                if next.len < FOUND_LEN_MIN || next.gain() <= found.gain() + GAIN_OF_WAITING_MIN {
                    break;
                }
                (at, found) = (remembered - 1, next);
            }
            self.sequences[count] = Sequence {
                literal_count: (at - literals_start) as u16,
                match_len: found.len as u16,
                distance: found.distance as u16,
            };
            count += 1;
            at += found.len;
            for place in remembered..at.min(end) {
                self.remember(raw, place);
            }
            literals_start = at;
        }
        count
    }

    /// The longest match at `at`, the nearest of these; remembers the place.
    #[inline]
    fn best_match(&mut self, raw: &[u8], at: usize) -> Found {
        let here = load4(raw, at);
        let mut best = Found::NOTHING;
        for place in self.remember(raw, at) {
            let place = usize::from(place);
            if place < at && load4(raw, place) == here {
                let len = 4 + common_len(raw, place + 4, at + 4);
                if len > best.len {
                    best = Found { len, distance: at - place };
                }
            }
        }
        best
    }

    /// Adds a place to those of its hash; returns those that were there.
    #[inline]
    fn remember(&mut self, raw: &[u8], at: usize) -> [u16; WAYS] {
        let bucket = &mut self.places[hash(load4(raw, at))];
        let before = *bucket;
        bucket[0] = at as u16;
        bucket[1..].copy_from_slice(&before[..WAYS - 1]);
        before
    }
}

#[inline]
fn hash(bytes: u32) -> usize {
    (bytes.wrapping_mul(0x9E37_79B1) >> (32 - HASH_BITS)) as usize
}

#[inline]
fn load4(raw: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&raw[at..at + 4]);
    u32::from_le_bytes(bytes)
}

#[inline]
fn load8(raw: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&raw[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// How many bytes are the same at `left` and, further on, at `right`.
#[inline]
fn common_len(raw: &[u8], left: usize, right: usize) -> usize {
    let mut len = 0;
    while right + len + 8 <= raw.len() {
        let different = load8(raw, left + len) ^ load8(raw, right + len);
        if different != 0 {
            return len + different.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    while right + len < raw.len() && raw[left + len] == raw[right + len] {
        len += 1;
    }
    len
}
