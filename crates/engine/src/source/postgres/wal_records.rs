//! Walks the records of WAL: steps from one to the next and looks only into those that end transactions, mark restore
//! points or end a segment early.
//!
//! The rule: src/include/access/xlogrecord.h, xlog_internal.h, and XLogReadRecord in
//! src/backend/access/transam/xlogreader.c. Only records that begin in what is fed count: one that began before is
//! stepped over, one that goes on behind the end is left out. Nothing that is fed can make it panic.

use super::wal_xact;
use crate::terms::{Lsn, WalFacts};

/// The short page header as it lies in a page: what follows begins at a multiple of eight bytes.
const SHORT_HEADER_SIZE_BYTES: usize = 24;
/// What a long page header has beyond the short one.
const LONG_HEADER_REST_BYTES: usize = 16;
/// Bytes of a record before its data: XLogRecord.
pub(super) const RECORD_HEADER_SIZE_BYTES: usize = 24;
/// Longest record that is looked into: a commit that drops some ten thousand tables.
const GATHERED_BYTES_MAX: usize = 1 << 20;

const FLAG_FIRST_IS_CONTINUED: u16 = 0x0001;
const FLAG_LONG_HEADER: u16 = 0x0002;
const FLAG_REPLACES_CONTINUED: u16 = 0x0008;
/// All flags that exist in 13 to 18.
const FLAGS_KNOWN: u16 = 0x000F;

/// Which WAL is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalPlace {
    /// LSN of the first byte that is fed: the start of a page.
    pub start: Lsn,
    /// Magic number of its pages.
    pub page_magic: u16,
    /// Size of a page.
    pub block_size_bytes: u32,
    /// Size of a segment.
    pub segment_size_bytes: u32,
}

/// Collects the facts of WAL that is fed in order, in pieces of any size, and never beyond one segment.
#[derive(Debug)]
pub struct WalWalker {
    place: WalPlace,
    fed_bytes: u64,
    state: State,
    /// The current page's header, until it is complete.
    page_header: Vec<u8>,
    /// Bytes to pass over before the next record: the rest of a long header, or padding.
    padding_bytes: usize,
    /// Bytes of the current record that are still to come.
    left_bytes: u64,
    /// The first bytes of the current record, if it began here.
    record: Vec<u8>,
    /// How many of them are wanted; 0 for a record that began before.
    wanted_bytes: usize,
    /// Where it began, counted as `fed_bytes`.
    record_start: u64,
    facts: WalFacts,
    /// The records one by one, if somebody wants them.
    records: Option<Vec<WalkedRecord>>,
    mapped_databases: Vec<MappedDatabase>,
}

/// A database whose map of relations a record writes anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedDatabase {
    /// The record's first byte.
    pub at: Lsn,
    /// OID of the tablespace that has the map.
    pub tablespace: u32,
    /// OID of the database.
    pub database: u32,
}

/// One record that begins in what is fed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkedRecord {
    /// Its first byte.
    pub start: Lsn,
    /// Behind its last byte, as [`WalFacts::end_lsn`] has it.
    pub end: Lsn,
    /// What it says: at most one end of a transaction or one restore point.
    pub facts: WalFacts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Records follow.
    Walking,
    /// The rest of the segment is unused.
    Switched,
    /// What follows cannot be read as WAL.
    Stopped,
}

impl WalWalker {
    /// For WAL at `place`.
    pub fn new(place: WalPlace) -> Self {
        let sizes_can_be = place.block_size_bytes >= 1024 && place.block_size_bytes.is_power_of_two();
        WalWalker {
            place,
            fed_bytes: 0,
            state: if sizes_can_be { State::Walking } else { State::Stopped },
            page_header: Vec::with_capacity(SHORT_HEADER_SIZE_BYTES),
            padding_bytes: 0,
            left_bytes: 0,
            record: Vec::new(),
            wanted_bytes: 0,
            record_start: 0,
            facts: WalFacts::default(),
            records: None,
            mapped_databases: Vec::new(),
        }
    }

    /// As `new`, and keeps each record until [`WalWalker::take_records`]. It may be fed beyond the end of its segment, to
    /// see the end of the last record.
    pub fn with_records(place: WalPlace) -> Self {
        WalWalker { records: Some(Vec::new()), ..Self::new(place) }
    }

    /// The records that ended in what was fed since the last call.
    pub fn take_records(&mut self) -> Vec<WalkedRecord> {
        self.records.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The databases whose map is written anew in what was fed so far, in the order of WAL.
    pub fn mapped_databases(&self) -> &[MappedDatabase] {
        &self.mapped_databases
    }

    /// Where the record began that goes on behind what was fed; none if there is none, or it began before.
    pub fn open_record(&self) -> Option<Lsn> {
        let is_open = self.state == State::Walking && (self.wanted_bytes > 0 || !self.record.is_empty());
        is_open.then_some(Lsn(self.place.start.0.saturating_add(self.record_start)))
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.state == State::Walking {
            let taken = self.step(bytes);
            self.fed_bytes += taken as u64;
            bytes = &bytes[taken..];
        }
    }

    /// Takes `count` zero bytes.
    pub fn feed_zeros(&mut self, count: u64) {
        let zeros = [0u8; 1024];
        let mut left = count;
        while left > 0 && self.state == State::Walking {
            let taken = left.min(zeros.len() as u64);
            self.feed(&zeros[..taken as usize]);
            left -= taken;
        }
    }

    /// What was found.
    pub fn finish(mut self) -> WalFacts {
        self.take_facts()
    }

    /// What the records say that ended in what was fed since the last call.
    pub fn take_facts(&mut self) -> WalFacts {
        let mut facts = std::mem::take(&mut self.facts);
        facts.whole = self.state != State::Stopped;
        facts.ends_with_switch = self.state == State::Switched;
        facts
    }

    /// Takes some of `bytes`, at least one, none beyond the page's end.
    fn step(&mut self, bytes: &[u8]) -> usize {
        let block_size = u64::from(self.place.block_size_bytes);
        let in_page = (self.fed_bytes % block_size) as usize;
        if in_page < SHORT_HEADER_SIZE_BYTES {
            let taken = bytes.len().min(SHORT_HEADER_SIZE_BYTES - in_page);
            self.page_header.extend_from_slice(&bytes[..taken]);
            if self.page_header.len() == SHORT_HEADER_SIZE_BYTES {
                self.open_page();
                self.page_header.clear();
            }
            return taken;
        }
        let bytes = &bytes[..bytes.len().min(block_size as usize - in_page)];
        if self.padding_bytes > 0 {
            let taken = bytes.len().min(self.padding_bytes);
            self.padding_bytes -= taken;
            return taken;
        }
        if self.left_bytes == 0 {
            let passed = if self.record.is_empty() { self.pass_plain_records(bytes) } else { 0 };
            return if passed > 0 { passed } else { self.begin_record(bytes) };
        }
        self.go_on(bytes)
    }

    /// Checks the header of a page and what it says of the record that goes on in it.
    fn open_page(&mut self) {
        let header = &self.page_header;
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        let (magic, flags, rest_bytes) = (half(0), half(2), u64::from(word(16)));
        let address = u64::from(word(8)) | u64::from(word(12)) << 32;
        // The header's last byte is not counted as fed yet.
        let page_start =
            self.fed_bytes / u64::from(self.place.block_size_bytes) * u64::from(self.place.block_size_bytes);
        let is_continued = flags & FLAG_FIRST_IS_CONTINUED != 0;
        if magic != self.place.page_magic
            || flags & !FLAGS_KNOWN != 0
            || Some(address) != self.place.start.0.checked_add(page_start)
            || is_continued != (rest_bytes != 0)
        {
            return self.stop();
        }
        if flags & FLAG_LONG_HEADER != 0 {
            self.padding_bytes = LONG_HEADER_REST_BYTES;
        }
        if flags & FLAG_REPLACES_CONTINUED != 0 && !is_continued {
            // The server crashed before it wrote the rest of that record, and began anew here.
            self.drop_record();
        } else if page_start == 0 {
            self.left_bytes = rest_bytes;
        } else if rest_bytes != self.left_bytes {
            self.stop();
        }
    }

    /// How many of `bytes`, which begin with a record, are whole records of no interest: nearly all are, and these cost a
    /// look at their headers. The rest is left to the careful way.
    fn pass_plain_records(&mut self, bytes: &[u8]) -> usize {
        if self.records.is_some() {
            return 0;
        }
        let mut passed = 0;
        while let Some(header) = bytes.get(passed..passed + RECORD_HEADER_SIZE_BYTES) {
            let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
            let next = passed.saturating_add(length).next_multiple_of(8);
            if length < RECORD_HEADER_SIZE_BYTES
                || next > bytes.len()
                || wal_xact::is_of_interest(header)
                || wal_xact::is_switch(header)
            {
                break;
            }
            passed = next;
        }
        if passed > 0 {
            self.facts.end_lsn = Lsn(self.place.start.0.saturating_add(self.fed_bytes + passed as u64));
        }
        passed
    }

    /// Takes the length of the next record.
    fn begin_record(&mut self, bytes: &[u8]) -> usize {
        // A record begins at a multiple of eight bytes, so its length is in one page.
        if self.record.is_empty() {
            self.record_start = self.fed_bytes;
        }
        let taken = bytes.len().min(4 - self.record.len());
        self.record.extend_from_slice(&bytes[..taken]);
        if let Some(length) = self.record.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes)) {
            if (length as usize) < RECORD_HEADER_SIZE_BYTES {
                self.stop();
            }
            self.left_bytes = u64::from(length).saturating_sub(4);
            self.wanted_bytes = RECORD_HEADER_SIZE_BYTES;
        }
        taken
    }

    /// Takes more of the current record.
    fn go_on(&mut self, bytes: &[u8]) -> usize {
        let mut taken = bytes.len().min(usize::try_from(self.left_bytes).unwrap_or(usize::MAX));
        let missing = self.wanted_bytes.saturating_sub(self.record.len());
        if missing > 0 {
            taken = taken.min(missing);
            self.record.extend_from_slice(&bytes[..taken]);
            if self.record.len() == RECORD_HEADER_SIZE_BYTES && wal_xact::is_of_interest(&self.record) {
                let whole = RECORD_HEADER_SIZE_BYTES as u64 + self.left_bytes - taken as u64;
                self.wanted_bytes = GATHERED_BYTES_MAX.min(whole as usize);
            }
        }
        self.left_bytes -= taken as u64;
        if self.left_bytes == 0 {
            self.end_record(self.fed_bytes + taken as u64);
        }
        taken
    }

    fn end_record(&mut self, end: u64) {
        let end_aligned = end.next_multiple_of(8);
        self.padding_bytes = (end_aligned - end) as usize;
        let end_lsn = Lsn(self.place.start.0.saturating_add(end_aligned));
        let was_gathered = self.wanted_bytes > RECORD_HEADER_SIZE_BYTES || wal_xact::is_switch(&self.record);
        if was_gathered && self.record.len() == self.wanted_bytes && self.wanted_bytes < GATHERED_BYTES_MAX {
            if !wal_xact::crc_holds(&self.record) {
                return self.stop();
            }
            wal_xact::note(&self.record, self.place.page_magic, end_lsn, &mut self.facts);
            if let Some((tablespace, database)) = wal_xact::mapped_database(&self.record) {
                let at = Lsn(self.place.start.0.saturating_add(self.record_start));
                self.mapped_databases.push(MappedDatabase { at, tablespace, database });
            }
        }
        self.keep_record(end_lsn);
        self.facts.end_lsn = end_lsn;
        if wal_xact::is_switch(&self.record) {
            // As the server's reader has it: the record extends to the end of its segment.
            let segment_size = u64::from(self.place.segment_size_bytes).max(1);
            self.facts.end_lsn = Lsn(end_lsn.0.div_ceil(segment_size).saturating_mul(segment_size));
            self.state = State::Switched;
        }
        self.drop_record();
    }

    fn keep_record(&mut self, end: Lsn) {
        let Some(records) = &mut self.records else { return };
        if self.wanted_bytes == 0 {
            return;
        }
        let mut facts = WalFacts::default();
        if self.wanted_bytes > RECORD_HEADER_SIZE_BYTES && self.record.len() == self.wanted_bytes {
            wal_xact::note(&self.record, self.place.page_magic, end, &mut facts);
        }
        let start = Lsn(self.place.start.0.saturating_add(self.record_start));
        records.push(WalkedRecord { start, end, facts });
    }

    fn drop_record(&mut self) {
        self.left_bytes = 0;
        self.wanted_bytes = 0;
        self.record.clear();
    }

    fn stop(&mut self) {
        self.state = State::Stopped;
    }
}
