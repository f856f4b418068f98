//! WAL segments: is this file the segment that its name says, whole up to where it is needed?
//!
//! The rule: src/include/access/xlog_internal.h and XLogReaderValidatePageHeader in
//! src/backend/access/transam/xlogreader.c. Records are not decoded: their own CRCs are the server's affair at replay.

use crate::error::{Error, ErrorKind, Result};
use crate::terms::{Lsn, TimelineId, WalSegmentName};

const SHORT_HEADER_SIZE_BYTES: usize = 20;
const LONG_HEADER_SIZE_BYTES: usize = 40;
/// The short header as it lies in a page: records begin at multiples of eight bytes.
const PADDED_SHORT_HEADER_SIZE_BYTES: usize = 24;
/// A record without data, which is what a switch of segments is.
const BARE_RECORD_SIZE_BYTES: usize = 24;
/// XLOG_SWITCH: the rest of its segment is unused, and zero, page headers and all.
const SWITCH_INFO: u8 = 0x40;
/// RM_XLOG_ID
const SWITCH_RESOURCE_MANAGER: u8 = 0;
/// The page has the long header, as the first one of every segment must.
const LONG_HEADER_FLAG: u16 = 0x0002;
/// All flags that exist in 13 to 18.
const ALL_FLAGS: u16 = 0x000F;

/// The magic number at the start of every WAL page of a major version; none for versions not supported.
pub fn page_magic(major: u32) -> Option<u16> {
    Some(match major {
        13 => 0xD106,
        14 => 0xD10D,
        15 => 0xD110,
        16 => 0xD113,
        17 => 0xD116,
        18 => 0xD118,
        _ => return None,
    })
}

/// What the cluster's WAL must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalExpectation {
    /// The server's major version.
    pub major: u32,
    /// The cluster's identifier.
    pub system_identifier: u64,
    /// Size of a segment.
    pub segment_size_bytes: u64,
    /// Size of a page of WAL.
    pub block_size_bytes: u32,
    /// The timeline in the segment's name.
    pub timeline: TimelineId,
}

/// Checks one segment while it is read or written: fed its bytes in order, in pieces of any size.
#[derive(Debug)]
pub struct WalSegmentCheck {
    expectation: WalExpectation,
    magic: u16,
    name: WalSegmentName,
    segment_start: Lsn,
    /// Pages that start here or later are not needed and may hold anything.
    needed_up_to: Lsn,
    fed_bytes: u64,
    /// The first bytes of the current page, until its header is complete.
    header: Vec<u8>,
    timeline_of_last_page: TimelineId,
    /// The end of what was fed: at most two pages and the current one.
    recent: Vec<u8>,
    /// Everything from here on must be zero.
    is_after_switch: bool,
}

impl WalSegmentCheck {
    /// For the segment that holds `segment_start` (any position in it), needed up to `needed_up_to` (the stop LSN, or
    /// `Lsn(u64::MAX)` for a segment that must be whole).
    ///
    /// # Errors
    /// `Source` for a major version that is not supported, `Bug` for sizes that cannot be.
    pub fn new(expectation: WalExpectation, segment_start: Lsn, needed_up_to: Lsn) -> Result<Self> {
        let magic = page_magic(expectation.major).ok_or_else(|| {
            Error::new(ErrorKind::Source, "check WAL", format!("version {} is not supported", expectation.major))
        })?;
        let (segment_size, block_size) = (expectation.segment_size_bytes, u64::from(expectation.block_size_bytes));
        let possible = segment_size.is_power_of_two()
            && block_size.is_power_of_two()
            && (LONG_HEADER_SIZE_BYTES as u64..=segment_size).contains(&block_size)
            && segment_size <= 1 << 32;
        if !possible {
            return Err(Error::new(ErrorKind::Bug, "check WAL", "segment and page size do not fit each other"));
        }
        Ok(WalSegmentCheck {
            expectation,
            magic,
            name: WalSegmentName::containing(expectation.timeline, segment_start, segment_size),
            segment_start: Lsn(segment_start.0 / segment_size * segment_size),
            needed_up_to,
            fed_bytes: 0,
            header: Vec::with_capacity(LONG_HEADER_SIZE_BYTES),
            timeline_of_last_page: TimelineId(0),
            recent: Vec::new(),
            is_after_switch: false,
        })
    }

    /// The name the segment must have.
    pub fn name(&self) -> &WalSegmentName {
        &self.name
    }

    /// Takes the next bytes of the segment and checks the page headers in them.
    ///
    /// # Errors
    /// `Damage` with the page's position and what is wrong with it.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        let block_size = u64::from(self.expectation.block_size_bytes);
        while !bytes.is_empty() {
            let in_page = self.fed_bytes % block_size;
            if in_page == 0 && self.recent.len() as u64 > 2 * block_size {
                self.recent.drain(..block_size as usize);
            }
            let header_size =
                if self.fed_bytes < block_size { LONG_HEADER_SIZE_BYTES } else { SHORT_HEADER_SIZE_BYTES };
            let wanted = header_size.saturating_sub(in_page as usize);
            let taken = match wanted {
                0 => bytes.len().min((block_size - in_page) as usize),
                _ => {
                    let taken = bytes.len().min(wanted);
                    self.header.extend_from_slice(&bytes[..taken]);
                    if taken == wanted {
                        self.check_header(self.fed_bytes - in_page)?;
                        self.header.clear();
                    }
                    taken
                }
            };
            self.recent.extend_from_slice(&bytes[..taken]);
            if self.is_after_switch && bytes[..taken].iter().any(|byte| *byte != 0) {
                return Err(self.damage("bytes follow the record that ends the segment"));
            }
            self.fed_bytes += taken as u64;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// To be called at the end of the file: were all bytes there?
    ///
    /// # Errors
    /// `Damage` if the segment is shorter or longer than a segment.
    pub fn finish(self) -> Result<()> {
        if self.fed_bytes == self.expectation.segment_size_bytes {
            return Ok(());
        }
        let cause = format!("it has {} bytes instead of {}", self.fed_bytes, self.expectation.segment_size_bytes);
        Err(self.damage(&cause))
    }

    fn check_header(&mut self, offset: u64) -> Result<()> {
        let page_start = Lsn(self.segment_start.0 + offset);
        if page_start >= self.needed_up_to || self.is_after_switch {
            return Ok(());
        }
        if offset > 0 && self.header.iter().all(|byte| *byte == 0) && self.ends_with_switch() {
            self.is_after_switch = true;
            return Ok(());
        }
        match self.header_fault(offset, page_start) {
            None => Ok(()),
            Some(fault) => Err(self.damage(&format!("page at offset {offset}: {fault}"))),
        }
    }

    /// Whether the last record of the pages before this one is a switch of segments.
    fn ends_with_switch(&self) -> bool {
        let block_size = self.expectation.block_size_bytes as usize;
        // The header of the current page is not in `recent` as a whole yet, and it is zero.
        let whole_pages = self.recent.len() / block_size * block_size;
        let first_page_offset = self.fed_bytes as usize / block_size * block_size - whole_pages;
        let mut records = Vec::with_capacity(whole_pages);
        for (number, page) in self.recent[..whole_pages].chunks_exact(block_size).enumerate() {
            let is_first = first_page_offset + number * block_size == 0;
            records.extend_from_slice(
                &page[if is_first { LONG_HEADER_SIZE_BYTES } else { PADDED_SHORT_HEADER_SIZE_BYTES }..],
            );
        }
        let Some(last) = records.iter().rposition(|byte| *byte != 0) else { return false };
        // The record's last four bytes are its CRC, so its end is within the eight bytes of the last one that is not zero.
        let end = (last + 1).next_multiple_of(8);
        let Some(record) = end.checked_sub(BARE_RECORD_SIZE_BYTES).and_then(|start| records.get(start..end)) else {
            return false;
        };
        record[..4] == (BARE_RECORD_SIZE_BYTES as u32).to_le_bytes()
            && record[16] & 0xF0 == SWITCH_INFO
            && record[17] == SWITCH_RESOURCE_MANAGER
    }

    /// What is wrong with the collected header of the page at `offset`, if anything.
    fn header_fault(&mut self, offset: u64, page_start: Lsn) -> Option<String> {
        let expected = self.expectation;
        let header = &self.header;
        let half = |at: usize| header.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes));
        let word = |at: usize| header.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let double = |at: usize| header.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let (magic, flags, timeline) = (half(0)?, half(2)?, TimelineId(word(4)?));
        if magic != self.magic {
            return Some(format!("magic number {magic:04X} instead of {:04X}", self.magic));
        }
        let is_first = offset == 0;
        if flags & !ALL_FLAGS != 0 || is_first && flags & LONG_HEADER_FLAG == 0 {
            return Some(format!("flags {flags:04X} cannot be"));
        }
        if is_first {
            let (system_identifier, segment_size, block_size) = (double(24)?, word(32)?, word(36)?);
            if system_identifier != expected.system_identifier {
                return Some(format!(
                    "it is of system {system_identifier}, this cluster is {}",
                    expected.system_identifier
                ));
            }
            if u64::from(segment_size) != expected.segment_size_bytes || block_size != expected.block_size_bytes {
                return Some(format!("segment size {segment_size} and page size {block_size} are not this cluster's"));
            }
        }
        let address = Lsn(double(8)?);
        if address != page_start {
            return Some(format!("it is the page of {address}, expected was {page_start}"));
        }
        // The first segment of a timeline begins with pages copied from its parent.
        if timeline.0 == 0 || timeline > expected.timeline || timeline < self.timeline_of_last_page {
            return Some(format!("timeline {timeline} in a segment of timeline {}", expected.timeline));
        }
        self.timeline_of_last_page = timeline;
        None
    }

    fn damage(&self, cause: &str) -> Error {
        Error::new(ErrorKind::Damage, format!("accept WAL segment {}", self.name), cause)
            .hint("a backup that needs this segment cannot be restored with it")
    }
}

/// The names of all segments of `timeline` that hold WAL from `start` to `stop`.
///
/// A stop position on a segment's boundary needs no byte of the next segment, as in the server's XLByteToPrevSeg.
pub fn segments_between(timeline: TimelineId, start: Lsn, stop: Lsn, segment_size_bytes: u64) -> Vec<WalSegmentName> {
    let (Some(first), Some(last)) =
        (start.0.checked_div(segment_size_bytes), stop.0.saturating_sub(1).checked_div(segment_size_bytes))
    else {
        return Vec::new();
    };
    (first..=last.max(first))
        .map(|number| WalSegmentName::containing(timeline, Lsn(number * segment_size_bytes), segment_size_bytes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1 << 20;

    fn expectation() -> WalExpectation {
        WalExpectation {
            major: 15,
            system_identifier: 77,
            segment_size_bytes: SEGMENT,
            block_size_bytes: 8192,
            timeline: TimelineId(2),
        }
    }

    fn segment(start: u64) -> Vec<u8> {
        let mut bytes = vec![0u8; SEGMENT as usize];
        for (number, page) in bytes.chunks_exact_mut(8192).enumerate() {
            page[0..2].copy_from_slice(&0xD110u16.to_le_bytes());
            page[4..8].copy_from_slice(&2u32.to_le_bytes());
            page[8..16].copy_from_slice(&(start + number as u64 * 8192).to_le_bytes());
        }
        bytes[2] = 2;
        bytes[24..32].copy_from_slice(&77u64.to_le_bytes());
        bytes[32..36].copy_from_slice(&(SEGMENT as u32).to_le_bytes());
        bytes[36..40].copy_from_slice(&8192u32.to_le_bytes());
        bytes
    }

    fn check(bytes: &[u8], needed_up_to: Lsn, piece_size: usize) -> Result<()> {
        let mut check = WalSegmentCheck::new(expectation(), Lsn(3 * SEGMENT + 5), needed_up_to)?;
        bytes.chunks(piece_size).try_for_each(|piece| check.feed(piece))?;
        check.finish()
    }

    #[test]
    fn sound_segments_pass_in_pieces_of_any_size() {
        for piece_size in [1, 7, 39, 40, 8192, 8193, 1 << 20] {
            check(&segment(3 * SEGMENT), Lsn(u64::MAX), piece_size).unwrap();
        }
    }

    #[test]
    fn every_kind_of_wrong_segment_is_named() {
        let whole = Lsn(u64::MAX);
        let fault = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = segment(3 * SEGMENT);
            change(&mut bytes);
            check(&bytes, whole, 4096).unwrap_err().message()
        };
        assert!(fault(&|bytes| *bytes = segment(4 * SEGMENT)).contains("expected was 0/300000"));
        assert!(fault(&|bytes| bytes[24] = 78).contains("system 78"));
        assert!(fault(&|bytes| bytes[8192] = 0).contains("offset 8192: magic number"));
        assert!(fault(&|bytes| bytes[4] = 3).contains("timeline 3"));
        assert!(fault(&|bytes| bytes[8192 + 4] = 1).contains("timeline 1"));
        assert!(fault(&|bytes| bytes[2] = 0).contains("flags"));
        assert!(fault(&|bytes| bytes[34] = 0x20).contains("segment size"));
        assert!(fault(&|bytes| bytes.truncate(9000)).contains("9000 bytes"));
        assert!(fault(&|bytes| bytes.push(0)).contains("1048577 bytes"));
    }

    #[test]
    fn pages_after_the_stop_position_may_hold_anything() {
        let mut bytes = segment(3 * SEGMENT);
        bytes[2 * 8192..].fill(0);
        check(&bytes, Lsn(3 * SEGMENT + 2 * 8192), 8192).unwrap();
        check(&bytes, Lsn(3 * SEGMENT + 2 * 8192 + 1), 8192).unwrap_err();
    }

    /// A segment whose last record begins at `record_start`: zero behind, page headers and all.
    fn switched_segment(record_start: usize, info: u8) -> Vec<u8> {
        let mut bytes = segment(3 * SEGMENT);
        let mut record = [0u8; 24];
        record[0] = 24;
        record[8] = 9;
        record[16] = info;
        record[20] = 1;
        let mut at = record_start;
        for byte in record {
            if at.is_multiple_of(8192) {
                at += 24;
            }
            bytes[at] = byte;
            at += 1;
        }
        let first_unused_page = at.next_multiple_of(8192);
        bytes[first_unused_page..].fill(0);
        bytes
    }

    #[test]
    fn nothing_follows_a_switch_of_segments() {
        let whole = Lsn(u64::MAX);
        // In the first page, at the end of a page, across two pages.
        for record_start in [48, 3 * 8192 + 24, 4 * 8192 - 24, 4 * 8192 - 16] {
            for piece_size in [7, 8192, 100_000] {
                check(&switched_segment(record_start, 0x40), whole, piece_size).unwrap();
                // Another record was the last: the rest is lost.
                check(&switched_segment(record_start, 0x30), whole, piece_size).unwrap_err();
                let mut written_later = switched_segment(record_start, 0x40);
                written_later[9 * 8192 + 100] = 1;
                check(&written_later, whole, piece_size).unwrap_err();
            }
        }
        let lost_pages = |bytes: &mut [u8]| bytes[8192..].fill(0);
        let mut bytes = segment(3 * SEGMENT);
        lost_pages(&mut bytes);
        check(&bytes, whole, 8192).unwrap_err();
    }

    #[test]
    fn segment_names_cover_start_to_stop() {
        let names = |start, stop| segments_between(TimelineId(1), Lsn(start), Lsn(stop), SEGMENT).len();
        assert_eq!(names(SEGMENT + 40, SEGMENT + 50), 1);
        assert_eq!(names(SEGMENT + 40, 2 * SEGMENT), 1);
        assert_eq!(names(SEGMENT + 40, 2 * SEGMENT + 1), 2);
        assert_eq!(names(0xFFF0_0000, 0x1_0010_0000), 2);
    }
}
