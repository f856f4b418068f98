//! WAL pages: their headers, and the body that they carry together.
//!
//! A header follows from the one before it and from where records end; one that does not is stored as it is.

use crate::postgres::wire::{u16_at, u32_at, u64_at};

/// XLogPageHeaderData, with its padding.
pub(super) const SHORT_HEADER_BYTES: usize = 24;
/// XLogLongPageHeaderData, on the first page of a segment.
pub(super) const LONG_HEADER_BYTES: usize = 40;

/// `xlp_info`: the page begins with the rest of a record.
const FIRST_IS_REST: u16 = 1;
/// The header is a long one.
const LONG_HEADER: u16 = 2;
/// Set while no backup runs, so mostly as on the page before.
const REMOVABLE: u16 = 4;

/// How a page is stored; its number in the stream of page states.
pub(super) mod state {
    /// The header is the one that was expected.
    pub(in crate::wal) const EXPECTED: u8 = 0;
    /// The header stands in its stream.
    pub(in crate::wal) const GIVEN: u8 = 1;
    /// All zero.
    pub(in crate::wal) const ZERO: u8 = 2;
    /// Not a page of WAL, as it is.
    pub(in crate::wal) const RAW: u8 = 3;
}

/// One page of a part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WalPage {
    /// Where its content starts in the body.
    pub(super) at: usize,
    /// 0 if nothing of it is in the body.
    pub(super) header_length: usize,
    /// The LSN of its first byte.
    pub(super) address: u64,
    /// Bytes that a record which began before should still have.
    pub(super) rest_expected: u32,
    /// What the header says of them, if it is stored as it is.
    pub(super) rest_given: u32,
    /// Its header is stored as it is.
    pub(super) is_given: bool,
}

/// Bytes of the header that begins with `short`.
pub(super) fn given_header_length(short: &[u8]) -> usize {
    if u16_at(short, 2) & LONG_HEADER != 0 { LONG_HEADER_BYTES } else { SHORT_HEADER_BYTES }
}

/// Bytes of the header that `page` begins with; None if it does not look like a page of WAL.
pub(super) fn header_length(page: &[u8]) -> Option<usize> {
    // Magics of versions 9 and later lie between.
    let is_wal = page.len() >= SHORT_HEADER_BYTES && u16_at(page, 0) >> 8 == 0xD1;
    is_wal.then(|| given_header_length(page)).filter(|length| page.len() >= *length)
}

/// Bytes that a header says are left of a record that began before.
pub(super) fn rest_of(header: &[u8]) -> u32 {
    if u16_at(header, 2) & FIRST_IS_REST != 0 { u32_at(header, 16) } else { 0 }
}

/// The LSN that a header says its page has.
pub(super) fn address_of(header: &[u8]) -> u64 {
    u64_at(header, 8)
}

/// The header behind that of `before`, the page that many bytes before.
pub(super) fn expected_header(before: &[u8], page_size: usize, rest: u32) -> [u8; SHORT_HEADER_BYTES] {
    let mut header = [0; SHORT_HEADER_BYTES];
    header[..8].copy_from_slice(&before[..8]);
    let info = u16_at(before, 2) & REMOVABLE | if rest > 0 { FIRST_IS_REST } else { 0 };
    header[2..4].copy_from_slice(&info.to_le_bytes());
    header[8..16].copy_from_slice(&address_of(before).wrapping_add(page_size as u64).to_le_bytes());
    header[16..20].copy_from_slice(&rest.to_le_bytes());
    header
}

/// The pages of a part, with how far taking or making them has come.
#[derive(Debug, Default)]
pub(super) struct Outline {
    pub(super) pages: Vec<WalPage>,
    /// The page that the last LSN asked for lies on.
    current: usize,
    /// How many pages are settled.
    settled: usize,
    /// Where the last item should end.
    reached: usize,
}

impl Outline {
    pub(super) fn clear(&mut self) {
        self.pages.clear();
        self.current = 0;
        self.settled = 0;
        self.reached = 0;
    }

    /// The page that byte `at` of the body lies on; `at` never goes back.
    fn page_at(&mut self, at: usize) -> Option<&WalPage> {
        while self.pages.get(self.current + 1).is_some_and(|next| next.at <= at) {
            self.current += 1;
        }
        self.pages.get(self.current)
    }

    /// The LSN of byte `at` of the body; `at` never goes back.
    pub(super) fn lsn_at(&mut self, at: usize) -> u64 {
        self.page_at(at).map_or(0, |page| page.address.wrapping_add((page.header_length + at - page.at) as u64))
    }

    /// Where a record should end of which raw bytes, at `start` of the body and beginning with `first`, are a part.
    pub(super) fn end_of_raw(&mut self, start: usize, first: &[u8]) -> usize {
        let begun_before = self.page_at(start).filter(|page| page.at == start && page.rest_given > 0);
        let length = match (begun_before, first.len()) {
            (Some(page), _) => page.rest_given,
            (None, 4..) => u32_at(first, 0),
            (None, _) => 0,
        };
        start + length as usize
    }

    /// The next page that starts at or before `at` of the body, where an item starts: no record can change any more what
    /// is expected of it.
    pub(super) fn next_settled(&mut self, at: usize) -> Option<usize> {
        let number = self.settled;
        let page = self.pages.get_mut(number).filter(|page| page.at <= at)?;
        page.rest_expected = u32::try_from(self.reached.saturating_sub(page.at)).unwrap_or(u32::MAX);
        self.settled += 1;
        Some(number)
    }

    /// Settles all of them, for whoever knows how they are.
    pub(super) fn settle(&mut self, at: usize) {
        while self.next_settled(at).is_some() {}
    }

    /// Notes that the item that settled pages last is a record, or a part of one, that should end at `end`.
    pub(super) fn reach(&mut self, end: usize) {
        self.reached = end;
    }
}
