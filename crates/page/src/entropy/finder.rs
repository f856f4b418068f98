//! Repeats in text of which next to nothing returns nearby, for zstd to code.
//!
//! The search of zstd's fast levels looks at the place that its table of hashes tells of, to see whether a repeat is there. Where
//! hardly anything repeats that is a wait for memory at every place, for nothing: two fifths of the search. Here an entry of the
//! table has more bits of the hash, and only where these are the same the place is looked at. TOAST values that PostgreSQL has
//! compressed take a quarter to a third less time for 0.7 % more bytes; text with more repeats takes no less
//! (bench/runs/2026-11-30-page-finder). All else is as in zstd's fast search.

use super::zstd::Sequence;

/// Bits of an entry that are of the hash; the others are the place.
const TAG_BITS: u32 = 8;
const TABLE_BITS: u32 = 16;
const TABLE_ENTRIES: usize = 1 << TABLE_BITS;
/// Longer texts have places that no entry holds.
const TEXT_BYTES_MAX: usize = 1 << (u32::BITS - TAG_BITS);

/// How much zstd codes at a time. Repeats end with it.
const BLOCK_BYTES: usize = 128 << 10;
/// What is hashed of a place. Shorter repeats are found only where the distance is that of one before.
const HASHED_BYTES: u32 = 6;
pub(super) const LENGTH_MIN: usize = 4;
/// After so many bytes without a repeat the steps get longer.
const STEP_BYTES: usize = 80;
/// Nothing is looked for so close to the end of a block, so that whatever is read is there.
const MARGIN_BYTES: usize = 16;
/// Text with more repeats than one in so many bytes is none for this search.
const REPEAT_BYTES_MIN: usize = 16;

/// Finds repeats; one per thread, its table and list are kept.
#[derive(Default)]
pub(super) struct Finder {
    table: Vec<u32>,
    sequences: Vec<Sequence>,
}

impl Finder {
    /// The repeats in `text`, each with the bytes before it, and at the end of each block the bytes behind the last. None if there
    /// are too many, if the text is too long, or if there is no memory.
    pub(super) fn find(&mut self, text: &[u8]) -> Option<&[Sequence]> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        // What a block may have beyond what its text may.
        const BEYOND: usize = BLOCK_BYTES / LENGTH_MIN + 1;
        self.sequences.clear();
        self.sequences.try_reserve(text.len() / REPEAT_BYTES_MIN + BEYOND).ok()?;
        self.table.clear();
        self.table.try_reserve(TABLE_ENTRIES).ok()?;
        self.table.resize(TABLE_ENTRIES, 0);
        let table = self.table.first_chunk_mut()?;
        let (text, table) = (Places(text), Table(table));
        let mut search = Search { text, table, offsets: [0; 2], sequences: &mut self.sequences };
        let mut start = 0;
        while start < text.0.len() {
            let end = text.0.len().min(start + BLOCK_BYTES);
            search.block(start, end);
            // Each block has one that is its end.
            if search.sequences.len() > end / REPEAT_BYTES_MIN + 1 {
                return None;
            }
            start = end;
        }
        Some(&self.sequences)
    }
}

struct Search<'a> {
    text: Places<'a>,
    table: Table<'a>,
    /// The distances of the last two repeats, or 0.
    offsets: [usize; 2],
    sequences: &'a mut Vec<Sequence>,
}

/// What stands where. With every place checked against the text's end the search takes a quarter more time.
#[derive(Clone, Copy)]
struct Places<'a>(&'a [u8]);

impl Places<'_> {
    #[inline(always)]
    fn eight(self, at: usize) -> u64 {
        let bytes = self.0.get(at..).and_then(<[u8]>::first_chunk::<8>);
        debug_assert!(bytes.is_some());
        // SAFETY: nobody asks for a place behind which there are fewer: [`MARGIN_BYTES`], or the end is looked at before.
        u64::from_le_bytes(*unsafe { bytes.unwrap_unchecked() })
    }

    #[inline(always)]
    fn four(self, at: usize) -> u32 {
        let bytes = self.0.get(at..).and_then(<[u8]>::first_chunk::<4>);
        debug_assert!(bytes.is_some());
        // SAFETY: as above.
        u32::from_le_bytes(*unsafe { bytes.unwrap_unchecked() })
    }

    /// Slot and, below it, tag of what stands at a place.
    #[inline(always)]
    fn hash(self, at: usize) -> u32 {
        let head = self.eight(at) << (u64::BITS - 8 * HASHED_BYTES);
        (head.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - TABLE_BITS - TAG_BITS)) as u32
    }

    /// The distance from `at` to the place of `entry`, if what stands there is the same.
    #[inline(always)]
    fn offset_of(self, entry: u32, hash: u32, at: usize) -> Option<usize> {
        if (entry ^ hash) << (u32::BITS - TAG_BITS) != 0 {
            return None;
        }
        let place = (entry >> TAG_BITS) as usize;
        // An entry nobody has put is that of the first place, which may well be right.
        (place < at && self.four(place) == self.four(at)).then(|| at - place)
    }

    /// Whether `at` begins with what stood at the distance of an earlier repeat.
    #[inline(always)]
    fn returns(self, at: usize, offset: usize) -> bool {
        self.four(at) == self.four(at - offset) && offset > 0
    }
}

/// By the hash of what stands at a place the last place, and more of its hash.
struct Table<'a>(&'a mut [u32; TABLE_ENTRIES]);

impl Table<'_> {
    #[inline(always)]
    fn entry(&self, hash: u32) -> u32 {
        self.0[(hash >> TAG_BITS) as usize % TABLE_ENTRIES]
    }

    #[inline(always)]
    fn put(&mut self, hash: u32, at: usize) {
        const TAG: u32 = (1 << TAG_BITS) - 1;
        self.0[(hash >> TAG_BITS) as usize % TABLE_ENTRIES] = (at as u32) << TAG_BITS | hash & TAG;
    }

    /// Where the next repeat is, and its distance. Two places in a row are looked at, and what the next one's entry says is
    /// loaded before the one before is judged.
    #[inline(always)]
    fn next(&mut self, text: Places<'_>, from: usize, limit: usize, last: usize) -> Option<(usize, usize)> {
        let (mut step, mut longer_at) = (2, from + STEP_BYTES);
        let [mut at, mut behind, mut third] = [from, from + 1, from + 2];
        if third + 1 >= limit {
            return None;
        }
        let (mut hash, mut hash_behind) = (text.hash(at), text.hash(behind));
        let mut entry = self.entry(hash);
        loop {
            self.put(hash, at);
            if text.returns(third, last) {
                self.put(hash_behind, behind);
                return Some((third, last));
            }
            if let Some(offset) = text.offset_of(entry, hash, at) {
                self.put(hash_behind, behind);
                return Some((at, offset));
            }
            entry = self.entry(hash_behind);
            (hash, hash_behind) = (hash_behind, text.hash(third));
            (at, behind) = (behind, third);
            self.put(hash, at);
            if let Some(offset) = text.offset_of(entry, hash, at) {
                // Behind a longer step the search may go on before this place.
                if step <= LENGTH_MIN {
                    self.put(hash_behind, behind);
                }
                return Some((at, offset));
            }
            entry = self.entry(hash_behind);
            (hash, hash_behind) = (hash_behind, text.hash(third + 1));
            (at, behind, third) = (behind, third + 1, third + step);
            if third >= longer_at {
                step += 1;
                longer_at += STEP_BYTES;
            }
            if third + 1 >= limit {
                return None;
            }
        }
    }
}

impl Search<'_> {
    /// How many of the bytes in front of two places are the same, down to `start` for the first one.
    #[inline(always)]
    fn length_before(&self, at: usize, offset: usize, start: usize) -> usize {
        let most = (at - start).min(at - offset);
        (0..most).take_while(|back| self.text.0[at - 1 - back] == self.text.0[at - 1 - back - offset]).count()
    }

    /// How many of the bytes from two places on are the same, up to `end` for the first one.
    #[inline(always)]
    fn length_behind(&self, at: usize, offset: usize, end: usize) -> usize {
        let mut same = 0;
        while at + same + 8 <= end {
            let differs = self.text.eight(at + same) ^ self.text.eight(at + same - offset);
            if differs != 0 {
                return same + differs.trailing_zeros() as usize / 8;
            }
            same += 8;
        }
        same + (at + same..end).take_while(|at| self.text.0[*at] == self.text.0[at - offset]).count()
    }

    fn push(&mut self, literals: usize, offset: usize, length: usize) {
        self.sequences.push(Sequence {
            offset: offset as u32,
            litLength: literals as u32,
            matchLength: length as u32,
            rep: 0,
        });
    }

    /// The repeats of one block.
    fn block(&mut self, start: usize, end: usize) {
        let limit = end.saturating_sub(MARGIN_BYTES);
        let (mut at, mut literals_at) = (start, start);
        while let Some((found, offset)) = self.table.next(self.text, at, limit, self.offsets[0]) {
            if offset != self.offsets[0] {
                self.offsets = [offset, self.offsets[0]];
            }
            let before = self.length_before(found, offset, literals_at);
            let first = found - before;
            let length = before + LENGTH_MIN + self.length_behind(found + LENGTH_MIN, offset, end);
            self.push(first - literals_at, offset, length);
            at = first + length;
            literals_at = at;
            if at > limit {
                break;
            }
            for place in [found + 2, at - 2] {
                self.table.put(self.text.hash(place), place);
            }
            while at <= limit && self.text.returns(at, self.offsets[1]) {
                self.offsets.swap(0, 1);
                let offset = self.offsets[0];
                let length = LENGTH_MIN + self.length_behind(at + LENGTH_MIN, offset, end);
                self.table.put(self.text.hash(at), at);
                self.push(0, offset, length);
                at += length;
                literals_at = at;
            }
        }
        self.push(end - literals_at, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::text::TextDecoder;
    use crate::entropy::zstd::{FORMAT, Parameter, ZstdContext};

    fn noise(length: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    /// Noise of which so many pieces of so many bytes return, anywhere behind.
    fn returning(length: usize, pieces: usize, piece: usize, seed: u64) -> Vec<u8> {
        let mut text = noise(length, seed);
        for number in 1..=pieces {
            let to = number * length / (pieces + 1);
            let from = (seed as usize * number * 7919) % (to - piece);
            text.copy_within(from..from + piece, to);
        }
        text
    }

    /// Compares what the sequences say with the text; how many bytes are repeats.
    fn repeated_bytes(text: &[u8], sequences: &[Sequence]) -> usize {
        let (mut at, mut repeated, mut block) = (0, 0, 0);
        for sequence in sequences {
            let [offset, literals, length] =
                [sequence.offset, sequence.litLength, sequence.matchLength].map(|number| number as usize);
            let start = at + literals;
            at = start + length;
            assert!(at - block <= BLOCK_BYTES);
            if offset == 0 {
                assert_eq!(length, 0);
                assert!(at == text.len() || at - block == BLOCK_BYTES);
                block = at;
                continue;
            }
            assert!(length >= LENGTH_MIN && offset <= start);
            assert!((start..at).all(|at| text[at] == text[at - offset]));
            repeated += length;
        }
        assert_eq!((at, block), (text.len(), text.len()));
        repeated
    }

    fn context(window_log: i32) -> ZstdContext {
        let mut context = ZstdContext::try_create().unwrap();
        let least = LENGTH_MIN as i32;
        let all = [(FORMAT, 1), (Parameter::ZSTD_c_minMatch, least), (Parameter::ZSTD_c_windowLog, window_log)];
        context.set_all(&all).unwrap();
        context
    }

    #[test]
    fn what_returns_is_found_however_far_away_and_nothing_else() {
        let mut finder = Finder::default();
        let mut far = noise(700_000, 1);
        far.copy_within(..20_000, 680_000);
        let found = repeated_bytes(&far, finder.find(&far).unwrap());
        assert!((19_900..20_100).contains(&found), "{found}");
        let alone = noise(400_000, 2);
        assert!(repeated_bytes(&alone, finder.find(&alone).unwrap()) < 100);
        // What was looked for before is forgotten.
        let again = finder.find(&far).unwrap().len();
        assert_eq!(again, Finder::default().find(&far).unwrap().len());
    }

    #[test]
    fn texts_of_all_lengths_come_back_from_their_sequences() {
        let (mut finder, mut context, mut out) = (Finder::default(), context(20), Vec::new());
        let around = |length: usize| length - 20..length + 20;
        let one_kind = std::iter::once((BLOCK_BYTES * 2 + 5, vec![7; BLOCK_BYTES * 2 + 5]));
        let lengths = (1..100).chain(around(BLOCK_BYTES)).chain(around(5 * BLOCK_BYTES));
        let many = lengths.map(|length| (length, returning(length + 64, length / 400, 40, length as u64)));
        for (length, mut text) in many.chain(one_kind) {
            text.truncate(length);
            let sequences = finder.find(&text).unwrap();
            repeated_bytes(&text, sequences);
            context.compress_sequences(sequences, &text, &mut out).unwrap();
            let mut back = Vec::new();
            TextDecoder::new().unpack(&out, length, &mut back).unwrap();
            assert!(back == text, "{length}");
        }
        assert_eq!(finder.find(&[]).map(<[_]>::len), Some(0));
    }

    #[test]
    fn texts_that_repeat_much_or_are_too_long_are_left() {
        let mut finder = Finder::default();
        let words = ["some ", "words ", "of ", "a ", "few ", "letters "];
        let picks = noise(100_000, 3);
        let dense: String = picks.iter().map(|pick| words[*pick as usize % words.len()]).collect();
        assert!(finder.find(dense.as_bytes()).is_none());
        let long = vec![0; TEXT_BYTES_MAX + 1];
        assert!(finder.find(&long).is_none());
        assert!(finder.find(&long[1..]).is_some());
    }

    #[test]
    fn wrong_sequences_are_refused_and_the_next_text_is_packed() {
        let text = returning(300_000, 500, 100, 4);
        let (mut finder, mut context, mut out) = (Finder::default(), context(19), Vec::new());
        let right = finder.find(&text).unwrap().to_vec();
        let place = right.iter().position(|sequence| sequence.offset > 0).unwrap();
        let spoil: [fn(&mut Sequence); 4] = [
            |sequence| sequence.offset = 1 << 30,
            |sequence| sequence.matchLength = 1,
            |sequence| sequence.litLength += 1,
            |sequence| sequence.matchLength = u32::MAX / 2,
        ];
        for spoil in spoil {
            let mut wrong = right.clone();
            spoil(&mut wrong[place]);
            assert!(context.compress_sequences(&wrong, &text, &mut out).is_none());
            assert!(context.compress_sequences(&right[1..], &text, &mut out).is_none());
            context.compress_sequences(&right, &text, &mut out).unwrap();
            let of_sequences = out.len();
            context.compress(&text, &mut out).unwrap();
            assert!(of_sequences < text.len() * 9 / 10 && out.len() < text.len() * 9 / 10);
        }
    }
}
