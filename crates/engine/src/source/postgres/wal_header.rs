//! The long header on the first page of a WAL segment: whose segment it is, and which.
//!
//! The rule: XLogLongPageHeaderData in src/include/access/xlog_internal.h.

use super::wal::page_magic;
use crate::error::{Error, ErrorKind, Result};
use crate::terms::{Lsn, TimelineId, WalSegmentName};

/// Bytes of a long page header.
pub const LONG_HEADER_SIZE_BYTES: usize = 40;
/// Pages of WAL are 1 to 64 KiB: XLOG_BLCKSZ of configure.
const BLOCK_SIZES_BYTES: std::ops::RangeInclusive<u32> = 1 << 10..=1 << 16;
/// WalSegMinSize and WalSegMaxSize.
const SEGMENT_SIZES_BYTES: std::ops::RangeInclusive<u32> = 1 << 20..=1 << 30;
const LONG_HEADER_FLAG: u16 = 0x0002;

/// What the first page of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Magic number of the pages.
    pub page_magic: u16,
    /// The server's major version, by the magic number.
    pub major: u32,
    /// Timeline of the first page, which may be an earlier one than the segment's.
    pub timeline: TimelineId,
    /// LSN of the segment's first byte.
    pub address: Lsn,
    /// The cluster's identifier.
    pub system_identifier: u64,
    /// Size of a segment.
    pub segment_size_bytes: u32,
    /// Size of a page.
    pub block_size_bytes: u32,
}

impl SegmentHeader {
    /// Reads the header at the start of `bytes`, which must be the segment `name`.
    ///
    /// # Errors
    /// `Damage` if it is no such header, or that of another segment; `Source` for a version that is not supported.
    pub fn parse(bytes: &[u8], name: &WalSegmentName) -> Result<Self> {
        let bad = |cause: String| {
            Error::new(ErrorKind::Damage, format!("accept WAL segment {name}"), cause)
                .hint("the file is not what its name says; nothing was stored of it")
        };
        let Some(header) = bytes.first_chunk::<LONG_HEADER_SIZE_BYTES>() else {
            return Err(bad(format!("it has only {} bytes", bytes.len())));
        };
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        let double = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let magic = half(0);
        let Some(major) = major_of(magic) else {
            return Err(bad(format!("it begins with {magic:04X}, which is no WAL page of PostgreSQL 13 to 18")));
        };
        let found = SegmentHeader {
            page_magic: magic,
            major,
            timeline: TimelineId(word(4)),
            address: Lsn(double(8)),
            system_identifier: double(24),
            segment_size_bytes: word(32),
            block_size_bytes: word(36),
        };
        let sizes_can_be = found.segment_size_bytes.is_power_of_two()
            && found.block_size_bytes.is_power_of_two()
            && SEGMENT_SIZES_BYTES.contains(&found.segment_size_bytes)
            && BLOCK_SIZES_BYTES.contains(&found.block_size_bytes);
        if half(2) & LONG_HEADER_FLAG == 0 || !sizes_can_be {
            return Err(bad("its first page has no segment header".to_owned()));
        }
        if name.start_lsn(u64::from(found.segment_size_bytes)) != Some(found.address) {
            return Err(bad(format!("its first page is the one of {}", found.address)));
        }
        // The first segment of a timeline begins with pages copied from its parent.
        if found.timeline.0 == 0 || found.timeline > name.timeline() {
            return Err(bad(format!("its first page is of timeline {}", found.timeline)));
        }
        Ok(found)
    }
}

/// The major version whose WAL pages have this magic number.
pub fn major_of(magic: u16) -> Option<u32> {
    (13..=18).find(|major| page_magic(*major) == Some(magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Vec<u8> {
        let mut bytes = vec![0u8; 8192];
        bytes[..2].copy_from_slice(&0xD116u16.to_le_bytes());
        bytes[2] = 2;
        bytes[4] = 3;
        bytes[8..16].copy_from_slice(&(5u64 << 24).to_le_bytes());
        bytes[24..32].copy_from_slice(&77u64.to_le_bytes());
        bytes[32..36].copy_from_slice(&(1u32 << 24).to_le_bytes());
        bytes[36..40].copy_from_slice(&8192u32.to_le_bytes());
        bytes
    }

    fn name() -> WalSegmentName {
        "000000040000000000000005".parse().unwrap()
    }

    #[test]
    fn a_header_says_whose_segment_it_is() {
        let found = SegmentHeader::parse(&header(), &name()).unwrap();
        assert_eq!((found.major, found.system_identifier, found.segment_size_bytes), (17, 77, 1 << 24));
    }

    #[test]
    fn anything_else_is_refused_with_its_cause() {
        let cause = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = header();
            change(&mut bytes);
            let error = SegmentHeader::parse(&bytes, &name()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damage);
            error.message()
        };
        assert!(cause(&|bytes| bytes.truncate(39)).contains("only 39 bytes"));
        assert!(cause(&|bytes| bytes[0] = 0).contains("begins with D100"));
        assert!(cause(&|bytes| bytes[2] = 0).contains("no segment header"));
        assert!(cause(&|bytes| bytes[35] = 9).contains("no segment header"));
        assert!(cause(&|bytes| bytes[36] = 1).contains("no segment header"));
        assert!(cause(&|bytes| bytes[11] = 6).contains("the one of 0/6000000"));
        assert!(cause(&|bytes| bytes[4] = 5).contains("timeline 5"));
    }
}
