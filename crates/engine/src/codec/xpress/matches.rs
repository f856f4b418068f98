//! What of a block occurred before in it.

use super::BLOCK_SIZE_BYTES_MAX;

/// The shortest match the format has.
pub(super) const MATCH_LEN_MIN: usize = 3;

/// The shortest match that is looked for.
const FOUND_LEN_MIN: usize = 4;

const HASH_BITS: u32 = 14;

/// Places of the same hash that are remembered.
const WAYS: usize = 2;

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
    pub(super) fn find(&mut self, raw: &[u8]) -> &[Sequence] {
        self.places.fill([NOWHERE; WAYS]);
        let end = raw.len().saturating_sub(8);
        let (mut at, mut literals_start, mut count) = (0, 0, 0);
        while at < end {
            let (len, distance) = self.best_match(raw, at);
            if len < FOUND_LEN_MIN {
                at += 1;
                continue;
            }
            self.sequences[count] = Sequence {
                literal_count: (at - literals_start) as u16,
                match_len: len as u16,
                distance: distance as u16,
            };
            count += 1;
            let match_end = at + len;
            at += 1;
            while at < match_end.min(end) {
                self.remember(raw, at);
                at += 1;
            }
            at = match_end;
            literals_start = at;
        }
        &self.sequences[..count]
    }

    /// The longest match at `at`, 8 bytes before the end, and its distance; remembers the place.
    #[inline]
    fn best_match(&mut self, raw: &[u8], at: usize) -> (usize, usize) {
        let here = load4(raw, at);
        let bucket = &mut self.places[hash(here)];
        let places = *bucket;
        *bucket = [at as u16, places[0]];
        let (mut best_len, mut best_distance) = (0, 0);
        for place in places {
            let place = usize::from(place);
            if place < at && load4(raw, place) == here {
                let len = 4 + common_len(raw, place + 4, at + 4);
                if len > best_len {
                    (best_len, best_distance) = (len, at - place);
                }
            }
        }
        (best_len, best_distance)
    }

    #[inline]
    fn remember(&mut self, raw: &[u8], at: usize) {
        let bucket = &mut self.places[hash(load4(raw, at))];
        *bucket = [at as u16, bucket[0]];
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

/// How many bytes are the same at `left` and, further back, at `right`.
#[inline]
fn common_len(raw: &[u8], left: usize, right: usize) -> usize {
    let (left, right) = (&raw[left..], &raw[right..]);
    let mut len = 0;
    for (left, right) in left.chunks_exact(8).zip(right.chunks_exact(8)) {
        let mut words = [[0; 8]; 2];
        words[0].copy_from_slice(left);
        words[1].copy_from_slice(right);
        let different = u64::from_le_bytes(words[0]) ^ u64::from_le_bytes(words[1]);
        if different != 0 {
            return len + different.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    let rest = left[len..].iter().zip(&right[len..]);
    len + rest.take_while(|(left, right)| left == right).count()
}
